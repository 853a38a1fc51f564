# SPDX-License-Identifier: MIT
"""results.csv and samples.csv as attnbench writes them (harness/report/columns.def)."""

import csv
import os
import tempfile

COLUMNS = (
    "run_id,case_id,kernel,algorithm,isa,library,dtype_q,dtype_kv,dtype_o,batch,heads_q,heads_kv,seq_q,seq_k,dim_qk,dim_v,"
    "score,causal,align,window,mask,bias,alibi,softcap,sinks,lengths,layout,cache,threads,status,reason,rows_checked,"
    "max_err_ratio,max_abs_err,err_index,samples,time_ns_min,time_ns_median,time_ns_mad,time_ns_ci_lo,time_ns_ci_hi,plan_ns,"
    "workspace_bytes,flops,bytes,gflops,gbs,peak_gflops,peak_pct,peak_gbs,bw_pct,level,baseline,ratio,ratio_ci_lo,"
    "ratio_ci_hi,noise,stop_reason,threads_counted,undisturbed_pct,warnings").split(",")
SAMPLE_COLUMNS = "run_id,case_id,kernel,round,position,time_ns,iterations,peak_gflops".split(",")


def write_csv(path, columns, rows):
    """Writes a temporary file and renames it; raises OSError."""
    folder = os.path.dirname(os.path.abspath(path))
    with tempfile.NamedTemporaryFile("w", dir=folder, newline="", encoding="utf-8", delete=False) as file:
        writer = csv.DictWriter(file, columns, lineterminator="\n")
        writer.writeheader()
        writer.writerows({column: as_text(value) for column, value in row.items()} for row in rows)
    os.chmod(file.name, 0o666 & ~current_umask())
    os.replace(file.name, path)


def as_text(value):
    """Nine digits, as attnbench prints them; an infinity becomes "inf"."""
    if isinstance(value, float):
        return f"{value:.9g}" if abs(value) < float("inf") else "inf"
    return value


def current_umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


