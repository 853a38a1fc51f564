#!/bin/sh
# SPDX-License-Identifier: MIT
# Each header of kernels/common compiles by itself, in any order and twice: alone, or behind the vectors of a tier if it has
# parameters. The tier is avx512bf16, whose vectors have all names that headers take.
#
#   check_kernel_headers.sh C_COMPILER SOURCE_FOLDER
set -eu
compiler=$1
cd "$2"
vectors=kernels/avx512bf16/pairs_avx512bf16.h
flags='-std=c11 -D_POSIX_C_SOURCE=200809L -O1 -I. -Iinclude'
flags="$flags -Wall -Wextra -Wshadow -Wconversion -Wno-unused-function -Werror"
tier=$(sed -n 's/^ATTN_TIER(avx512bf16, [^"]*"\([^"]*\)".*/\1/p' kernels/tiers.def)

case $("$compiler" -dumpmachine) in
  x86_64*) ;;
  *) echo "skipped: vectors are those of avx512bf16, which needs a compiler for x86-64" && exit 77 ;;
esac

# The vectors are compiled once, as most of the time would go into the compiler's own header of intrinsics.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
chains=-DCHAINS=24 # peak_loops.h takes it, too
echo "#include \"$vectors\"" >"$work/vectors.h"
# shellcheck disable=SC2086  # lists of words
"$compiler" -x c-header $flags $tier $chains "$work/vectors.h" -o "$work/vectors.h.gch"

count=0 failed=0
for header in $(find kernels/common -name '*.h' | sort); do
  parameters=''
  ! grep -q 'Parameters' "$header" || parameters="$chains -include $work/vectors.h"
  # shellcheck disable=SC2086  # lists of words
  printf '#include "%s"\n#include "%s"\n' "$header" "$header" |
    "$compiler" -x c -fsyntax-only $flags $tier $parameters - ||
    { echo "WRONG: $header does not compile by itself" && failed=$((failed + 1)); }
  count=$((count + 1))
done
echo "$count headers, $failed wrong"
[ "$count" -gt 0 ] && [ "$failed" = 0 ]
