#!/bin/bash
# SPDX-License-Identifier: MIT
# Compares two git revisions: builds libattn of both, and runs `attnbench compare --paired` on them.
#
#   scripts/ab.sh REV_A REV_B [options of attnbench compare --paired]
#   scripts/ab.sh HEAD~1 HEAD -k 'flash_*' -a seq=512,2048 --fail-on slower
#   scripts/ab.sh --runs 5 REV_A REV_B [options of attnbench run]
#
# A revision may be "." for the files as they are now. Builds are kept in build-ab/ and named by their commits. attnbench is
# that of the present files. --runs N is for builds that one process cannot load together: each revision's own attnbench
# runs N times, in turns, and the results are compared. Exit codes as of attnbench compare.
set -euo pipefail
cd "$(dirname "$0")/.."
top=$PWD ab=$PWD/build-ab

fail() { echo "ab.sh: $*" >&2; exit 2; }

runs=0
if [ "${1:-}" = --runs ]; then
  runs=${2:-}
  [[ $runs =~ ^[1-9][0-9]*$ ]] || fail "--runs '$runs': should be a whole number above 0"
  shift 2
fi
[ $# -ge 2 ] || fail "give two revisions: scripts/ab.sh HEAD~1 HEAD"
rev_a=$1 rev_b=$2
shift 2

# build REVISION TARGET...: prints the build folder.
build() {
  local revision=$1 source=$top folder=$ab/here
  shift
  if [ "$revision" != . ]; then
    local commit
    commit=$(git rev-parse --verify --quiet "$revision^{commit}") || fail "'$revision' is no revision"
    source=$ab/source-$commit folder=$ab/$commit
    [ -d "$source" ] || git worktree add --quiet --detach --force "$source" "$commit" >&2
  fi
  mkdir -p "$ab"
  if ! { [ -f "$folder/CMakeCache.txt" ] || cmake -S "$source" -B "$folder" -DCMAKE_BUILD_TYPE=Release; } >"$ab/log" 2>&1 ||
     ! cmake --build "$folder" --parallel --target "$@" >>"$ab/log" 2>&1; then
    tail -20 "$ab/log" >&2
    fail "$revision does not build"
  fi
  echo "$folder"
}

if [ "$runs" = 0 ]; then
  a=$(build "$rev_a" attn_shared)
  b=$(build "$rev_b" attn_shared)
  here=$(build . attnbench)
  exec "$here/harness/attnbench" compare --paired "$a" "$b" "$@"
fi
a=$(build "$rev_a" attnbench)
b=$(build "$rev_b" attnbench)
here=$(build . attnbench)
results=$ab/results-$$
for ((i = 1; i <= runs; i++)); do
  "$a/harness/attnbench" run "$@" -q -o "$results/a$i" >/dev/null
  "$b/harness/attnbench" run "$@" -q -o "$results/b$i" >/dev/null
done
list() { printf '%s,' "$results/$1"*; }
status=0
"$here/harness/attnbench" compare "$(list a | sed 's/,$//')" "$(list b | sed 's/,$//')" || status=$?
exit $status
