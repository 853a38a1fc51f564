#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention against libattn: same buffers, same threads, one process, rounds in changing order.

    python3 -m pip install torch==2.13.0 numpy
    cmake --build build --target attn_shared
    scripts/peers/torch_sdpa.py --cases limits --csv results/local/torch.csv

Every contender's output is compared with a float64 reference before it is timed, and again afterwards. What a contender
cannot do, or is not installed, is a row with the reason. See scripts/peers/README.md.

Exit code: 0 measured, 1 a check failed, 2 usage, 5 cannot write, 77 nothing could run, 130 interrupted (what was finished is
written).
"""

import argparse
import contextlib
import difflib
import os
import sys
import time
import warnings
from pathlib import Path

from pairing import mkl
from pairing.machine import openmp_runtimes, prepare_environment, settings_of_environment

prepare_environment()  # before NumPy starts its threads

try:
    import numpy as np
except ImportError:
    print("skipped: no NumPy (python3 -m pip install numpy)")
    sys.exit(77)
try:
    import torch  # before libattn, so that libattn finds PyTorch's OpenMP runtime in place and both use that one
    import torch.nn.attention
except ImportError as error:
    torch, WITHOUT_TORCH = None, f"PyTorch cannot be imported ({error}): python3 -m pip install torch==2.13.0"

from pairing import libattn, rounds  # noqa: E402
from pairing.cases import DEFAULTS as AXES  # noqa: E402
from pairing.cases import PRESETS, CaseError, build_cases  # noqa: E402
from pairing.libattn import Library, LibraryError, aligned_empty  # noqa: E402
from pairing.reference import Rounding  # noqa: E402
from pairing.results import (COLUMNS, CONTROL, OURS, SAMPLE_COLUMNS, Comparisons, control_ratio, print_case,  # noqa: E402
                             print_verdicts, row_of, sample_rows, write_csv)
from pairing.rounds import Entrant, Refused, Settings, run_case  # noqa: E402
from pairing.stats import MARGIN  # noqa: E402

OK, FAILED, USAGE, CANNOT_WRITE, NOTHING_RAN, INTERRUPTED = 0, 1, 2, 5, 77, 130
CAUSAL = {"none": None, "top-left": libattn.TOP_LEFT, "bottom-right": libattn.BOTTOM_RIGHT}
BACKENDS = {"torch_flash": "FLASH_ATTENTION", "torch_math": "MATH"}
TIERS = {"AVX512": "avx512", "AVX2": "avx2", "DEFAULT": "c"}  # torch.backends.cpu.get_cpu_capability() in our words

# ATen states 20 ulp for the exp of its flash kernel and of its softmax (Vectorized::exp_u20).
TORCH_ROUNDING = Rounding(exp_error=20 * 2.0**-23)


# ---- Contenders --------------------------------------------------------------------------------------------------------

class LibraryKernel:
    """A kernel of libattn, or its automatic choice: planned once, run with a workspace and an output of its own."""

    def __init__(self, library, name, kernel):
        self.library, self.name, self.kernel = library, name, kernel

    @contextlib.contextmanager
    def start(self, case, rotations):
        problem = self.library.problem(case.batch, case.heads, case.heads_kv, case.seq_q, case.seq_k, case.head_dim,
                                       case.head_dim, CAUSAL[case.causal])
        begun = time.perf_counter_ns()
        try:
            plan = self.library.plan(problem, self.kernel, case.threads)
        except LibraryError as error:
            raise Refused(str(error)) from None
        plan_ns = time.perf_counter_ns() - begun
        with plan:
            yield self.entrant(case, plan, plan_ns, rotations)

    def entrant(self, case, plan, plan_ns, rotations):
        o = aligned_empty((case.batch, case.heads, case.seq_q, case.head_dim))

        def output(status):
            plan.check(status)
            return o

        info = self.library.kernel(plan.kernel)
        numerics = info.numerics
        return Entrant(calls=[plan.bind(q, k, v, o) for q, k, v in rotations], output=output,
                       rounding=Rounding(numerics.exp_error, numerics.p_rounding, numerics.input_flush),
                       facts={"algorithm": info.algorithm.decode(), "isa": info.isa.decode(),
                              "library": info.library.decode(), "plan_ns": plan_ns,
                              "workspace_bytes": plan.workspace.nbytes},
                       note="" if self.kernel else f"runs {plan.kernel}", poison=lambda: o.fill(np.nan))


class TorchBackend:
    """scaled_dot_product_attention kept to one backend, in inference mode. Its output is a fresh tensor every time."""

    def __init__(self, name):
        self.name = name

    @contextlib.contextmanager
    def start(self, case, rotations):
        if torch is None:
            raise Refused(WITHOUT_TORCH)
        if case.causal == "bottom-right" and case.seq_q != case.seq_k:
            raise Refused("is_causal aligns top-left; bottom-right with seq_q != seq_k would take a mask tensor")
        backend = getattr(torch.nn.attention.SDPBackend, BACKENDS[self.name])
        options = {"is_causal": case.causal != "none"}
        if case.heads != case.heads_kv:
            options["enable_gqa"] = True

        @contextlib.contextmanager
        def scope():
            with torch.inference_mode(), torch.nn.attention.sdpa_kernel(backend):
                yield

        calls = [bind_torch([torch.from_numpy(x) for x in tensors], options) for tensors in rotations]
        with scope(), warnings.catch_warnings(record=True) as reasons:
            warnings.simplefilter("always")
            try:
                calls[0]()
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                said = [str(reason.message).splitlines()[0] for reason in reasons]
                raise Refused(" ".join([f"PyTorch's {BACKENDS[self.name]} backend does not take this", *said])) from None
        yield Entrant(calls=calls, output=lambda tensor: tensor.numpy(), rounding=TORCH_ROUNDING, scope=scope,
                      facts={"algorithm": self.name, "isa": TIERS.get(torch.backends.cpu.get_cpu_capability(), ""),
                             "library": torch_name()})


def bind_torch(tensors, options):
    """A function without arguments, as thin as ours: positional arguments are bound beforehand."""
    sdpa, (q, k, v) = torch.nn.functional.scaled_dot_product_attention, tensors
    return lambda: sdpa(q, k, v, **options)


def torch_name():
    return f"PyTorch {torch.__version__.split('+')[0]}" + (", MKL as on Intel" if mkl.is_preloaded() else "")


def mkl_path():
    """Which kernels PyTorch's matrix products run."""
    fast = mkl.recognises_cpu(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so")
    if fast is None:
        return "unknown"
    if not fast:
        return "generic, as this CPU is not Intel's; --mkl intel gives it the fast ones"
    return "those for Intel's CPUs (--mkl intel)" if mkl.is_preloaded() else "those for Intel's CPUs"


# ---- The run -----------------------------------------------------------------------------------------------------------

def main(argv=None):
    options = read_options(argv)
    try:
        cases = build_cases(options.cases, options.axes, options.threads)
        library = Library(options.libattn)
        check_kernels(library, options.kernels)
    except (CaseError, LibraryError) as error:
        return complain(error, USAGE)
    if torch is not None and options.mkl == "intel":
        try:
            mkl.restart_preloaded()
        except mkl.MklError as error:
            return complain(error, USAGE)
    for path in filter(None, (options.csv, options.samples)):
        if not os.access(path.parent, os.W_OK) or path.is_dir():
            return complain(f"{path}: cannot be written; name a file in a folder that exists", CANNOT_WRITE)
    if torch is not None:
        torch.set_num_threads(options.threads)
    settings = Settings(rounds=options.rounds, sample_ns=options.sample_ms * 1e6, seed=options.seed, pause_s=pause(options))
    print_conditions(library, options, settings)

    contenders = [LibraryKernel(library, OURS, None), LibraryKernel(library, CONTROL, None),
                  *(LibraryKernel(library, name, name) for name in dict.fromkeys(options.kernels)),
                  *(TorchBackend(name) for name in BACKENDS)]
    run = Run(options)
    try:
        for number, case in enumerate(cases, 1):
            print(f"[{number}/{len(cases)}] {case}", file=sys.stderr)
            run.add(case, run_case(case, contenders, settings))
    except KeyboardInterrupt:
        print("interrupted: what was finished is kept", file=sys.stderr)
        run.interrupted = True
    print_verdicts(run.comparisons.verdicts())
    return run.finish()


class Run:
    """Rows of all cases so far."""

    def __init__(self, options):
        self.options, self.id = options, f"{time.strftime('%Y%m%dT%H%M%S')}-{os.getpid()}"
        self.rows, self.samples, self.comparisons = [], [], Comparisons(set(BACKENDS))
        self.interrupted = False

    def add(self, case, results):
        """Prints the case. The control is no row of its own: it says how much to trust the others."""
        control = control_ratio(results)
        timed = {result.name: result for result in results if result.timed}
        baseline = next((timed[name] for name in BACKENDS if name in timed), None)
        rows = [row_of(self.id, case, result, baseline, self.options.peak) for result in results]
        print_case(case, rows, results)
        sys.stdout.flush()
        for row, result in zip(rows, results):
            row["warnings"] = "; ".join([*result.warnings, *self.warnings(result, control)])
        self.comparisons.add(case, results)
        self.rows += [row for row in rows if row["kernel"] != CONTROL]
        self.samples += [row for result in results if result.name != CONTROL for row in sample_rows(self.id, case, result)]

    def warnings(self, result, control):
        """For the file; the tables say it elsewhere."""
        if result.timed and self.options.peak:
            yield "peak: as given by --peak, not measured in this process"
        if control and result.name == OURS and abs(control.median - 1) > MARGIN:
            yield f"A/A control: differs from itself by {100 * (control.median - 1):+.1f} %"

    def finish(self):
        """Writes the files; the exit code."""
        try:
            if self.options.csv:
                write_csv(self.options.csv, COLUMNS, self.rows)
            if self.options.samples:
                write_csv(self.options.samples, SAMPLE_COLUMNS, self.samples)
        except OSError as error:
            return complain(f"{error.filename}: cannot be written ({error.strerror})", CANNOT_WRITE)
        statuses = {row["status"] for row in self.rows}
        if self.interrupted:
            return INTERRUPTED
        if statuses & {"FAIL", "ERROR"}:
            return FAILED
        return OK if "PASS" in statuses else NOTHING_RAN


def pause(options):
    """Seconds before a sample: none while both sides share one OpenMP runtime or nobody has threads."""
    return rounds.SPIN_PAUSE_S if options.threads > 1 and len(openmp_runtimes()) > 1 else 0.0


def print_conditions(library, options, settings):
    runtimes = openmp_runtimes()
    if torch is not None:
        print(f"{torch_name()}  capability {torch.backends.cpu.get_cpu_capability()}")
        print(f"MKL kernels: {mkl_path()}")
    else:
        print(WITHOUT_TORCH)
    print(f"libattn {library.version}  {options.libattn}  tiers {library.tiers}")
    print(f"threads {options.threads} of {len(os.sched_getaffinity(0))} CPUs  rounds {settings.rounds}  samples of "
          f"{options.sample_ms:g} ms or more  seed {settings.seed}")
    print(f"OpenMP: {', '.join(runtimes) or 'none'}"
          + (f"; two runtimes, so {settings.pause_s * 1e3:g} ms of rest before each sample" if settings.pause_s else ""))
    for name, value in settings_of_environment().items():
        print(f"environment: {name}={value}")
    if not options.peak:
        print("% of peak: none without --peak (attnbench peak measures it; this process cannot)")
    else:
        print(f"% of peak: of {options.peak:g} GFLOP/s, as given; not measured in this process")


def check_kernels(library, names):
    known = library.kernels()
    for name in names:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0)[0]
            raise LibraryError(f"no kernel {name!r}; did you mean {near!r}? There are: {', '.join(known)}")


# ---- Command line ------------------------------------------------------------------------------------------------------

def read_options(argv):
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0], formatter_class=Help,
                                     epilog=f"Axes, as attnbench's: {', '.join(AXES)}.")
    add = parser.add_argument
    add("--cases", action="append", choices=PRESETS, default=[], metavar="NAME",
        help=f"repeatable: a list of cases, {' or '.join(PRESETS)} (default quick, unless there are axes)")
    add("-a", dest="axes", action="append", default=[], metavar="AXIS=VALUES",
        help="repeatable: seq=128:8192:*2, heads=8,12, causal=none,bottom-right; replaces that axis of --cases")
    add("-k", "--kernel", dest="kernels", action="append", default=[], metavar="NAME",
        help="repeatable: this kernel of libattn as well (default: its automatic choice only)")
    add("-t", "--threads", type=at_least(1), default=1, metavar="N", help="threads of both sides (default 1)")
    add("--rounds", type=at_least(rounds.LEAST_ROUNDS), default=rounds.LEAST_ROUNDS, metavar="N",
        help=f"everyone once per round (default and least {rounds.LEAST_ROUNDS})")
    add("--sample-ms", type=positive, default=20.0, metavar="MS", help="a sample repeats the call for so long (default 20)")
    add("--seed", type=at_least(0), default=1, metavar="N", help="of inputs and order (default 1)")
    add("--peak", type=positive, metavar="GFLOPS", help="of all these threads together, from attnbench peak (default none)")
    add("--mkl", choices=("as-is", "intel"), default="as-is",
        help="intel: let PyTorch's MKL use its fast kernels on another maker's CPU too (default as-is)")
    add("--libattn", type=Path, default=Path("build/libattn.so"), metavar="PATH",
        help="the shared library (default build/libattn.so: cmake --build build --target attn_shared)")
    add("--csv", type=Path, metavar="FILE", help="write the rows as attnbench run --csv does")
    add("--samples", type=Path, metavar="FILE", help="write every sample as attnbench run --samples does")
    options = parser.parse_args(argv)
    if not options.cases and not options.axes:
        options.cases = ["quick"]
    return options


class Help(argparse.HelpFormatter):
    """Fits into 100 columns."""

    def __init__(self, prog):
        super().__init__(prog, max_help_position=26, width=100)


def at_least(least):
    def read(text):
        if not text.isascii() or not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"{text!r}; a whole number from {least} up is right")
        return int(text)
    return read


def positive(text):
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}; a number above 0 is right")
    return value


def complain(message, code):
    print(f"{Path(sys.argv[0]).name}: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
