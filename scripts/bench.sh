#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Sets up, builds, validates every kernel, times it and draws the figures: the one command of the benchmark.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
usage: scripts/bench.sh [options of attnbench run]

Sets up the machine (scripts/setup.sh), builds into build/ and runs the benchmark. Prints a table and writes CSV, JSON,
figures and report.html to results/local/TIME-PRESET/. Without options it runs the preset `quick`, about 3 minutes on 2
cores.

  -h, --help        this text
  -o DIR            folder for the results; --resume or --overwrite if it has some already
  anything else     is passed to `attnbench run`: --preset NAME, -a seq=512,2048, --kernel 'flash_*', --budget 5m
                    (build/harness/attnbench run --help lists them all)

environment: CC (compiler of the first build), ATTN_NO_INSTALL=1 (install nothing), ATTN_MAX_ISA, ATTN_KERNEL
exit code: that of attnbench run (0 ok, 1 a check failed, 2 usage, 130 interrupted, ...)
END
}

preset=quick # unless the caller names presets or cases
folder=
arguments=()
need_value() { [ "$1" -ge 2 ] || { warn "bench.sh: $2 needs a value" && exit 2; }; }
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    -o | --output) need_value $# "$1" && folder=$2 && shift ;;
    --output=*) folder=${1#*=} ;;
    -o?*) folder=${1#-o} ;;
    -p | --preset | --case) need_value $# "$1" && preset= && arguments+=("$1" "$2") && shift ;;
    -p?* | --preset=* | --case=*) preset= && arguments+=("$1") ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
folder=${folder:-results/local/$(date -u +%Y%m%dT%H%M%SZ)-${preset:-own}}
[ -z "$preset" ] || arguments=(--preset "$preset" "${arguments[@]+"${arguments[@]}"}")

scripts/setup.sh || exit 5
say "build: build/ (Release)"
quietly build/log/configure.log cmake --preset release || exit 5
quietly build/log/build.log cmake --build build -j "$jobs" --target attnbench || exit 5
attnbench=build/harness/attnbench

"$attnbench" run -o "$folder" "${arguments[@]}"
status=$?

if [ -s "$folder/results.csv" ]; then
  if python3 -c 'import numpy, matplotlib' 2>/dev/null; then
    python3 scripts/plot.py "$folder" || warn "bench.sh: no figures: scripts/plot.py failed"
  else
    warn "bench.sh: no figures: NumPy and Matplotlib are missing (see setup above)"
  fi
  [ $status = 130 ] || quietly build/log/peak.log "$attnbench" peak --csv "$folder/peak.csv"
  python3 scripts/report.py "$folder" -o "$folder/report.html" || warn "bench.sh: no report"
fi

if [ -d "$folder" ]; then
  say
  say "results in $folder:"
  (cd "$folder" && find . -type f | sed 's|^\./|  |' | sort)
fi
exit $status
