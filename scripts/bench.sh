#!/usr/bin/env bash
# Sets up, builds, validates every kernel, times it and draws the figures: the one command of the benchmark.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

usage() {
  cat <<'END'
usage: scripts/bench.sh [options of attnbench run]

Sets up the machine (scripts/setup.sh), builds into build/, runs the benchmark and leaves a table (stdout), CSV, JSON and
figures in results/local/<time>-<preset>/. Without options it runs the preset `quick`, about 3 minutes on 2 cores.

  -h, --help        this text
  -o DIR            put the results there
  --preset NAME     another preset; `build/harness/attnbench list presets` names them
  anything else     goes to attnbench run, e.g. --kernel 'flash_*' -a seq=512,2048 --threads 1 --budget 5m

environment: CC (compiler of the first build), ATTN_NO_INSTALL=1 (install nothing), ATTN_MAX_ISA, ATTN_KERNEL
exit code: that of attnbench run (0 ok, 1 a check failed, 2 usage, 130 interrupted, ...)
END
}

preset=quick
folder=
arguments=()
own_grid= # the caller chose cases: the default preset would only add to them
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    -o) [ $# -ge 2 ] || { warn "bench.sh: -o needs a folder" && exit 2; }; folder=$2 && shift ;;
    --preset) [ $# -ge 2 ] || { warn "bench.sh: --preset needs a name" && exit 2; }; preset=$2 && shift ;;
    --preset=*) preset=${1#*=} ;;
    -a) own_grid=1 && arguments+=("$1") ;;
    *) arguments+=("$1") ;;
  esac
  shift
done
folder=${folder:-results/local/$(date -u +%Y%m%dT%H%M%SZ)-$preset}

scripts/setup.sh || exit 5
say "build: build/ (Release)"
quietly build/log/configure.log cmake --preset release || exit 5
quietly build/log/build.log cmake --build build -j "$jobs" --target attnbench || exit 5
attnbench=build/harness/attnbench

mkdir -p "$folder" || exit 5
"$attnbench" run --preset "$preset" -o "$folder" "${arguments[@]+"${arguments[@]}"}"
status=$?

if [ -s "$folder/results.csv" ]; then
  if python3 -c 'import numpy, matplotlib' 2>/dev/null; then
    python3 scripts/plot.py "$folder" || warn "bench.sh: no figures: scripts/plot.py failed"
  else
    warn "bench.sh: no figures: NumPy and Matplotlib are missing (see setup above)"
  fi
fi

say
say "results in $folder:"
(cd "$folder" && find . -type f | sed 's|^\./|  |' | sort)
exit $status
