#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Tests of libattn_mpi under mpirun.
#
#   run.sh bits MPIRUN PROGRAM                  bits of 1 to 8 ranks, and faults that must be seen
#   run.sh few MPIRUN PROGRAM                   fewer cases and no faults, for programs with sanitizers
#   run.sh python MPIRUN PYTHON                 libattn.mpi with 1, 3 and 4 ranks, and examples/long_context with 1 and 3
#   run.sh death (MPIRUN PROGRAM)...            a rank is killed at 10 moments with each: the run ends within seconds
set -u
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # containers of tests have no other user
export OMPI_MCA_btl_vader_single_copy_mechanism=none             # not allowed there, and mpirun says so each time
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export ASAN_OPTIONS="${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0" # MPI's own memory is never freed
export OMP_NUM_THREADS=1
what=$1
shift
status=0

ranks() { # N MPIRUN PROGRAM ARGUMENT...
  local n=$1 mpirun=$2
  shift 2
  timeout -k 5 "${limit:-100}" "$mpirun" -n "$n" "$@" </dev/null 2>&1
}

few() { # MPIRUN PROGRAM
  local n
  for n in 1 2 3 4 5 6 7 8; do expect "$n" "$@" seed "$n" cases 1; done
  expect 3 "$@" unlike 1 cases 3
  expect 2 "$@" mode failure
}

bits() { # MPIRUN PROGRAM
  local n
  for n in 1 2 3 4 5 6 7 8; do expect "$n" "$@" seed "$n" cases $((n < 5 ? 4 : 3)); done
  expect 3 "$@" unlike 1 cases 6 # ranks that alone would choose otherwise, and one that cannot run the choice
  expect 4 "$@" mode failure # a rank that fails, and one that does not come
  expect 4 "$@" fault border cases 4 # faults must be seen in each mode
  expect 4 "$@" fault missing cases 8
}

expect() { # N MPIRUN PROGRAM ARGUMENT...
  local output
  output=$(ranks "$@") || { echo "failed: ${*:4}: $output" && status=1; }
  grep -h 'comparisons' <<<"$output" || status=1
}

# A rank is killed at 10 moments that a fixed sequence chooses, within half a second.
death() { # MPIRUN PROGRAM
  local moment begin end code
  for moment in 0 1 2 3 4 5 6 7 8 9; do
    begin=$(date +%s)
    limit=90 ranks 4 "$@" cases 4000 mode pass_kv die $(((moment * 7919 + 1) * 6007 % 500000)) >/dev/null
    code=$?
    end=$(date +%s)
    if [ "$code" = 0 ] || [ $((end - begin)) -gt 60 ]; then
      echo "a rank was killed, and the run ended with $code after $((end - begin)) s"
      return 1
    fi
  done
  echo "$(basename "$1"): 10 ranks were killed"
}

python() { # MPIRUN PYTHON
  local tree folder code
  tree=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
  folder=$(mktemp -d)
  export PYTHONPATH=$tree/python
  for n in 1 3 4; do
    ranks "$n" "$1" "$2" "$tree/mpi/tests/test_mpi.py" >"$folder/log"
    code=$?
    grep -h '^skipped' "$folder/log" && exit 77
    [ "$code" = 0 ] && grep -q 'bits agree' "$folder/log" || { cat "$folder/log" && status=1; }
    [ "$n" = 4 ] && continue # groups of two ranks alone need so many
    ranks "$n" "$1" "$2" "$tree/examples/long_context/long_context.py" --tokens 1100 --width 64 --heads 2 --threads 1 \
      -o "$folder/$n" >"$folder/log" || { cat "$folder/log" && status=1; }
  done
  cmp "$folder/1/y.npy" "$folder/3/y.npy" && echo "1 and 3 ranks write the same layer" || status=1
  rm -rf "$folder"
}

if [ "$what" = death ]; then # both MPIs run at once, because each run mostly waits
  lanes=()
  while [ $# -gt 0 ]; do
    death "$1" "$2" &
    lanes+=($!)
    shift 2
  done
  for lane in "${lanes[@]}"; do wait "$lane" || status=1; done
else
  $what "$@"
fi
exit $status
