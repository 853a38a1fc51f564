# SPDX-License-Identifier: MIT
"""Reads results.csv (as attnbench run --csv writes it) and the env.json beside it. Errors name file, row, column, value."""

import csv
import json
import re
from dataclasses import dataclass
from pathlib import Path

STATUSES = ("PASS", "FAIL", "SKIP", "DEGENERATE", "ERROR")
UNKNOWN = "unknown"
AUTO = "auto"  # the library's own choice, run as if it were a kernel

# "." decimals whatever the locale; float() alone would also take nan, inf, 1_000 and blanks.
NUMBER = re.compile(r"[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?")

# The columns that the figures read. Others may be there and are ignored.
TEXT = ("run_id", "isa", "score", "align", "window", "mask", "bias", "alibi", "softcap", "sinks", "lengths", "layout",
        "cache", "reason", "baseline", "warnings")
NAMES = ("case_id", "kernel", "algorithm", "dtype_q", "dtype_kv", "dtype_o", "causal", "status")  # never empty
COUNTS = ("batch", "heads_q", "heads_kv", "seq_q", "seq_k", "dim_qk", "dim_v", "threads")
HEADS = ("heads_q", "heads_kv", "dim_qk", "dim_v")  # empty for layers that have none; 0 in a Row
TIMES = ("time_ns_median", "time_ns_ci_lo", "time_ns_ci_hi")
RATIOS = ("ratio", "ratio_ci_lo", "ratio_ci_hi")
RATES = ("gflops", "gbs", "peak_gflops", "peak_pct", "peak_gbs", "bw_pct")
EXTRA = ("layer", "other_axes", "level")  # text; "" in a Row if the file does not have the column
SHARES = ("projections_pct", "attention_pct", "rest_pct")  # layers' shares; None in a Row if the file lacks the column
MEASURES = ("flops", "bytes", "noise", "max_err_ratio")  # None in a Row without a value; max_err_ratio may be infinite
INTERVAL_ROUNDS = 6  # fewer samples have no 95 % interval of their median
COLUMNS = TEXT + NAMES + COUNTS + TIMES + RATIOS + RATES


class ResultsError(Exception):
    """Input that cannot be plotted. The message names file, place, value and the allowed values."""


@dataclass(frozen=True)
class Row:
    """One case x kernel. Counts are int, measurements float or None, everything else text."""
    file: Path
    number: int  # counted like in a spreadsheet: the header is row 1
    cpu: str
    values: dict

    def __getitem__(self, column):
        return self.values[column]

    @property
    def timed(self):
        return self["time_ns_median"] is not None


@dataclass(frozen=True)
class Ceiling:
    """A line of `attnbench peak --csv`: kind "compute" (rate in Gflop/s) or "read" (GB/s)."""
    kind: str
    name: str     # the tier, or the level: "L1", "memory"
    dtype: str    # "" for reads
    threads: int  # threads of all_cores
    one_core: float
    all_cores: float


@dataclass(frozen=True)
class Results:
    rows: list
    environments: list  # one dict per file: cpu, hypervisor, commit, source_tree, date
    facts: list         # one dict per file: all of its env.json, name -> {"value": ..., "grade": ..., "advice": ...}
    ceilings: dict      # cpu -> [Ceiling], of those with a peak.csv beside results.csv


def read_results(paths):
    """All rows of several result folders or CSV files. Two rows of the same case, kernel and CPU are an error."""
    results = Results([], [], [], {})
    for path in paths:
        path = Path(path)
        file = path / "results.csv" if path.is_dir() else path
        facts = read_facts(file.parent / "env.json")
        environment = environment_of(facts)
        results.facts.append(facts)
        results.environments.append(environment)
        results.rows.extend(read_csv(file, environment["cpu"]))
        if (file.parent / "peak.csv").exists():
            results.ceilings[environment["cpu"]] = read_ceilings(file.parent / "peak.csv")
    _refuse_repeats(results.rows)
    return results


def read_csv(file, cpu=UNKNOWN):
    """The rows of one CSV file."""
    try:
        text = Path(file).read_text(encoding="utf-8-sig")
    except OSError as error:
        raise ResultsError(f"{file}: cannot be read ({error.strerror}); give a results.csv or the folder of one") from None
    except UnicodeDecodeError as error:
        raise ResultsError(f"{file}: byte {error.start} is not UTF-8; results.csv is UTF-8 text") from None
    try:
        records = list(csv.reader(text.splitlines(keepends=True), strict=True))
    except csv.Error as error:
        raise ResultsError(f"{file}: not a CSV file as in RFC 4180 ({error})") from None
    if not records:
        raise ResultsError(f"{file}: empty; the first row must be the header run_id,case_id,kernel,...")
    header = records[0]
    _check_header(file, header)
    rows = [_read_row(file, number, header, cells, cpu) for number, cells in enumerate(records[1:], start=2) if cells]
    if not rows:
        raise ResultsError(f"{file}: only a header; nothing was measured or checked in that run")
    return rows


def is_simulated(file):
    """Whether a file holds simulations, not times: JSON of attnbench explain, or the CSV of attn_mpi_simulate."""
    path = Path(file)
    return path.suffix == ".json" or (path.is_file() and path.read_text("utf-8", "replace").startswith("platform,ranks,"))


def read_simulated(files):
    """The lines of such files: [{"case", "on" (a network), "of" (threads or ranks), "number", "efficiency"}]."""
    lines = []
    for file in files:
        try:
            lines += (_read_played if Path(file).suffix == ".json" else _read_clusters)(Path(file).read_text("utf-8"))
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ResultsError(f"{file}: not a file of attnbench explain --simulate --json, or of attn_mpi_simulate "
                               f"({error!r})") from None
    if not lines:
        raise ResultsError(f"{files[0]}: no lines; nothing was simulated")
    return lines


def _read_played(text):
    return [{"case": re.sub(r"/threads:\d+", "", str(line["case_id"])) + f", {line['kernel']}", "on": "", "of": "threads",
             "number": int(line["threads"]), "efficiency": float(line["efficiency"])} for line in json.loads(text)]


def _read_clusters(text):
    return [{"case": f"{row['mode']}, {row['queries']} queries, {row['shards']}, {row['gmacs']} GMAC/s a node",
             "on": row["platform"], "of": "ranks", "number": int(row["ranks"]), "efficiency": float(row["efficiency"])}
            for row in csv.DictReader(text.splitlines())]


def read_facts(file):
    """All of env.json, each fact as {"value": text, "grade": text, "advice": text}; {} if the file is missing."""
    if not file.exists():
        return {}
    try:
        facts = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ResultsError(f"{file}: not readable as JSON ({error})") from None
    if not isinstance(facts, dict):
        raise ResultsError(f"{file}: holds a JSON {type(facts).__name__}; an object of facts was expected")
    return {name: {key: " ".join(str(fact.get(key, "")).split()) for key in ("value", "grade", "advice")}
            for name, fact in ((name, fact if isinstance(fact, dict) else {"value": fact}) for name, fact in facts.items())}


def environment_of(facts):
    """The facts that figures print; "unknown" if one is missing. cpu includes family and model."""
    known = {name: facts.get(name, {}).get("value", "") or UNKNOWN
             for name in ("cpu", "hypervisor", "commit", "source_tree", "date", "cpu_family", "cpu_model")}
    family, model = known.pop("cpu_family"), known.pop("cpu_model")
    if UNKNOWN not in (family, model):
        known["cpu"] += f", family {family} model {model}"
    return known


def read_ceilings(file):
    """The lines of a file of `attnbench peak --csv`."""
    try:
        with open(file, newline="", encoding="utf-8") as lines:
            return [Ceiling(line["kind"], line["name"], line["dtype"], int(line["threads"]), float(line["one_core"]),
                            float(line["all_cores"])) for line in csv.DictReader(lines)]
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise ResultsError(f"{file}: not a file of attnbench peak --csv ({error!r})") from None


def _check_header(file, header):
    missing = [column for column in COLUMNS if column not in header]
    if missing:
        raise ResultsError(f"{file}, row 1: column {missing[0]!r} is missing ({len(missing)} of {len(COLUMNS)} are); the "
                           f"header must be that of attnbench run --csv; it starts with {','.join(header[:3])!r}")
    for column in COLUMNS:
        if header.count(column) > 1:
            raise ResultsError(f"{file}, row 1: column {column!r} stands there {header.count(column)} times; once is right")


def _read_row(file, number, header, cells, cpu):
    if len(cells) != len(header):
        raise ResultsError(f"{file}, row {number}: {len(cells)} cells; the header has {len(header)}")
    raw = dict(zip(header, cells))
    place = f"{file}, row {number}, column"
    values = {column: raw[column] for column in TEXT}
    for column in NAMES:
        if not raw[column]:
            raise ResultsError(f"{place} {column!r}: empty; every row has one")
        values[column] = raw[column]
    if values["status"] not in STATUSES:
        raise ResultsError(f"{place} 'status': {values['status']!r}; must be one of {' '.join(STATUSES)}")
    values |= {column: raw.get(column, "") for column in EXTRA}
    for column in COUNTS:
        if column in HEADS and values["layer"] and not raw[column]:
            values[column] = 0
            continue
        if not re.fullmatch(r"[0-9]+", raw[column]):
            raise ResultsError(f"{place} {column!r}: {raw[column]!r}; must be a whole number >= 0")
        values[column] = int(raw[column])
    for column in TIMES + RATIOS:
        values[column] = _number(place, column, raw[column], positive=True)
    for column in RATES:
        values[column] = _number(place, column, raw[column], positive=False)
    for column in SHARES:
        values[column] = _number(place, column, raw.get(column, ""), positive=False)
    for column in MEASURES:
        cell = raw.get(column, "")
        infinite = column == "max_err_ratio" and cell == "inf"
        values[column] = float("inf") if infinite else _number(place, column, cell, positive=False)
    if values["kernel"] == AUTO:
        values["algorithm"] = AUTO  # its choice may differ between cases
    values["has_interval"] = not raw.get("samples") or int(raw["samples"]) >= INTERVAL_ROUNDS
    _check_times(place, raw, values)
    return Row(Path(file), number, cpu, values)


def _number(place, column, cell, positive):
    """A finite number, or None for an empty cell."""
    if cell == "":
        return None
    if not NUMBER.fullmatch(cell) or float(cell) == float("inf"):
        raise ResultsError(f"{place} {column!r}: {cell!r}; must be a finite number with '.' for decimals, or empty")
    value = float(cell)
    if value < 0 or (positive and value == 0):
        raise ResultsError(f"{place} {column!r}: {cell!r}; must be {'> 0' if positive else '>= 0'}")
    return value


def _check_times(place, raw, values):
    """Only PASS rows have times; a median has a rate and, given enough samples, lies inside its interval."""
    if values["status"] != "PASS":
        for column in TIMES + RATIOS + ("gflops", "gbs"):
            if values[column] is not None:
                raise ResultsError(f"{place} {column!r}: {raw[column]!r} on a {values['status']} row; only PASS rows have "
                                   "times")
        return
    few = not values["has_interval"]
    for (middle, low, high) in (TIMES, RATIOS):
        if values[middle] is None:
            continue
        if (few or middle == "ratio") and values[low] is None and values[high] is None:  # a ratio may be of fewer rounds
            values[low] = values[high] = values[middle]  # drawn as a point
        for column in (low, high):
            if values[column] is None:
                raise ResultsError(f"{place} {column!r}: empty beside {middle} {raw[middle]}; a median comes with its "
                                   "interval")
        if not values[low] <= values[middle] <= values[high]:
            raise ResultsError(f"{place} {middle!r}: {raw[middle]} is outside its interval {raw[low]} to {raw[high]}")
    if values["time_ns_median"] is not None and values["gflops"] is None and not values["layer"]:
        raise ResultsError(f"{place} 'gflops': empty beside a time; a timed row has its rate")


def _refuse_repeats(rows):
    first = {}
    for row in rows:
        other = first.setdefault((row.cpu, row["case_id"], row["kernel"]), row)
        if other is not row:
            raise ResultsError(f"{row.file}, row {row.number}, column 'case_id': {row['case_id']} with kernel "
                               f"{row['kernel']} is also in {other.file}, row {other.number}; plot such runs apart, or use "
                               "attnbench compare")
