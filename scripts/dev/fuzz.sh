#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds the fuzz targets of tests/fuzz with clang's libFuzzer and runs them.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

usage() {
  cat <<'END'
usage: scripts/dev/fuzz.sh [--seconds N] [--merge] TARGET...|all

Runs each target for N seconds (default 60) on its corpus in tests/fuzz/corpus/TARGET and on the inputs of earlier runs in
build-fuzz/corpus/TARGET. Prints executions, coverage and findings. Inputs with a finding are kept in build-fuzz/findings;
the exit code is then 1. To repeat one: build-fuzz/tests/fuzz/fuzz_TARGET FILE.

  --seconds N   time of each target; 0 runs only the corpora
  --merge       then add the smallest inputs with new coverage to the corpora, which hold at most 20 a target: name them
  --list        print the targets
  -h, --help    this text
END
}

cd "$root" || exit 5
seconds=60 merge=
targets=()
all=$(for file in tests/fuzz/fuzz_*.c; do basename "$file" .c | sed 's/^fuzz_//'; done)
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --seconds) [ $# -ge 2 ] || { warn "fuzz.sh: --seconds needs a number" && exit 2; }; seconds=$2 && shift ;;
    --merge) merge=1 ;;
    --list) say "$all" && exit 0 ;;
    all) mapfile -t targets <<<"$all" ;;
    *) grep -qx -- "$1" <<<"$all" || { warn "fuzz.sh: no target '$1' (see --list)" && exit 2; }; targets+=("$1") ;;
  esac
  shift
done
[ ${#targets[@]} -gt 0 ] || { usage >&2 && exit 2; }
[[ $seconds =~ ^[0-9]+$ ]] || { warn "fuzz.sh: --seconds '$seconds': must be a number" && exit 2; }

clang=$(clang_with_fuzzer) || { say "skipped: no clang with libFuzzer; to install it: apt-get install clang" && exit 77; }
quietly build/log/fuzz-configure.log cmake --preset fuzz -DCMAKE_C_COMPILER="$clang" &&
  quietly build/log/fuzz-build.log cmake --build build-fuzz -j "$jobs" --target "${targets[@]/#/fuzz_}" || exit 5
mkdir -p build-fuzz/findings

# run TARGET ARGUMENT...: runs a target with the options of libFuzzer that all runs share.
run() {
  local target=$1 options=(-close_fd_mask=3 -timeout=60 -rss_limit_mb=4096 -print_final_stats=1 -len_control=0)
  shift
  options+=(-max_len=4096 -artifact_prefix="$root/build-fuzz/findings/$target-" -detect_leaks=1)
  [ -e "tests/fuzz/dictionaries/$target.dict" ] && options+=("-dict=tests/fuzz/dictionaries/$target.dict")
  "build-fuzz/tests/fuzz/fuzz_$target" "${options[@]}" "$@"
}

status=0
say "target          executions  coverage  inputs  result"
for target in "${targets[@]}"; do
  found=build-fuzz/corpus/$target corpus=tests/fuzz/corpus/$target log=build/log/fuzz-$target.log
  mkdir -p "$found" "$corpus"
  length=("-max_total_time=$seconds")
  [ "$seconds" = 0 ] && length=(-runs=0)
  result='no finding'
  run "$target" "${length[@]}" "$found" "$corpus" >"$log" 2>&1 || result=FINDING status=1
  executions=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  coverage=$(sed -nE 's/.* cov: ([0-9]+) .* corp: ([0-9]+).*/\1 \2/p' "$log" | tail -n 1)
  printf '%-14s %11s  %8s  %6s  %s\n' "$target" "${executions:-?}" "${coverage% *}" "${coverage#* }" "$result"
  [ "$result" = FINDING ] && grep -E 'FINDING:|runtime error|SUMMARY:|Test unit written' "$log"
  [ -n "$merge" ] && [ "$result" != FINDING ] || continue
  run "$target" -set_cover_merge=1 -use_counters=0 "$corpus" "$found" >>"$log" 2>&1 || status=1
done
exit $status
