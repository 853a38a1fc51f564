#!/bin/sh
# SPDX-License-Identifier: MIT
# The OpenBLAS of PyPI (scripts/get_openblas.sh) in place of the system's: CMake finds its prefixed names, its kernels
# pass, and the installed library links and runs. Skipped where the package is absent.
#
#   check_openblas_pypi.sh CMAKE SOURCE_FOLDER C_COMPILER
set -eu
cmake=$1 source=$2 compiler=$3
root=${ATTN_TEST_OPENBLAS_ROOT:-$source/.venv/openblas}
[ -e "$root/scipy_openblas32/include/cblas.h" ] || {
  echo "skipped: no scipy-openblas32 in $root (scripts/get_openblas.sh gets it; ATTN_TEST_OPENBLAS_ROOT names another place)"
  exit 77
}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
launcher=$(command -v ccache || true)

"$cmake" -S "$source" -B "$work" -DCMAKE_BUILD_TYPE=Release -DCMAKE_C_COMPILER="$compiler" \
  -DCMAKE_C_COMPILER_LAUNCHER="$launcher" -DATTN_OPENBLAS=ON -DATTN_OPENBLAS_ROOT="$root" -DATTN_BUILD_EXAMPLES=OFF \
  -DATTN_GBENCH=OFF >"$work/cmake.log" || { cat "$work/cmake.log" && exit 1; }
grep OpenBLAS "$work/cmake.log"
"$cmake" --build "$work" -j 2 --target attn_static attn_shared attn_nn_static attn_nn_shared attnbench \
  >"$work/build.log" 2>&1 || {
  tail -n 40 "$work/build.log" && exit 1
}
if grep -q '^CMOCKA_LIBRARY:.*NOTFOUND' "$work/CMakeCache.txt"; then
  echo "without its unit test: no cmocka"
else
  "$cmake" --build "$work" -j 2 --target test_openblas >"$work/build.log" 2>&1 || { tail -n 40 "$work/build.log" && exit 1; }
  "$work/tests/test_openblas"
fi
"$work/harness/attnbench" check --suite conformance --kernel gemm_openblas,naive_openblas --cases 100 --seed 3
"$cmake" --install "$work" --prefix "$work/prefix" >"$work/install.log"
"$work/prefix/bin/attnbench" check --suite conformance --kernel gemm_openblas --cases 5 -q
