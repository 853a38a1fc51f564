#!/bin/sh
# SPDX-License-Identifier: MIT
# The package's shared object with AddressSanitizer and UndefinedBehaviorSanitizer, tier c alone, under the package's tests.
#
#   check_python_sanitized.sh CMAKE PYTHON
set -eu
cmake=$1 python=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -c 'import pytest, numpy' 2>/dev/null || { echo "skipped: no pytest, or no NumPy" && exit 77; }
asan=$(gcc -print-file-name=libasan.so) ubsan=$(gcc -print-file-name=libubsan.so)
[ -e "$asan" ] || { echo "skipped: no libasan of gcc" && exit 77; }

"$cmake" -S "$root/python" -B "$work" -DCMAKE_C_COMPILER=gcc -DATTN_SANITIZE=address,undefined -DATTN_MAX_ISA=c \
  -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_FLAGS_RELEASE=-O1 >"$work/log" 2>&1 &&
  "$cmake" --build "$work" --target attn_python attnbench_shared >>"$work/log" 2>&1 || { tail -n 40 "$work/log" && exit 1; }
mkdir "$work/libraries" # libattnbench.so is looked for beside the package's
cp "$work/libattn_python.so" "$work/attn/libattnbench.so" "$work/libraries"
nm -D "$work/libattn_python.so" | grep -q ' U __asan_' || { echo "WRONG: the shared object is not sanitized" && exit 1; }

# Python itself does not free all that it allocates.
cd "$root/python/tests"
LD_PRELOAD="$asan $ubsan" ASAN_OPTIONS=detect_leaks=0 UBSAN_OPTIONS=print_stacktrace=1 PYTHONMALLOC=malloc \
  LIBATTN_PYTHON="$work/libraries/libattn_python.so" "$python" -m pytest -q -p no:cacheprovider test_native.py test_sdpa.py \
  test_layers.py test_properties.py
