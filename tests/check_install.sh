#!/bin/sh
# SPDX-License-Identifier: MIT
# Installs into a folder, moves the folder, and builds and runs a program that uses the shared and the static library by
# find_package(attn) and by pkg-config.
#
#   check_install.sh CMAKE BUILD_FOLDER C_COMPILER
set -eu
cmake=$1 build=$2 compiler=$3
source=$(cd "$(dirname "$0")/downstream" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/first" >"$work/install.log"
mv "$work/first" "$work/moved"
prefix=$work/moved
if grep -rIl -e "$work/first" -e "$build" "$prefix"; then
  echo "WRONG: installed text files above hold absolute paths" && exit 1
fi
[ -x "$prefix/bin/attnbench" ] && "$prefix/bin/attnbench" list kernels >"$work/kernels.txt"

echo "find_package(attn)"
"$cmake" -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$prefix" -DCMAKE_C_COMPILER="$compiler" >"$work/cmake.log" || {
  cat "$work/cmake.log" && exit 1
}
"$cmake" --build "$work/build" >"$work/build.log" || { cat "$work/build.log" && exit 1; }
for kind in shared static attn; do "$work/build/use_$kind"; done

if ! command -v pkg-config >/dev/null 2>&1; then
  echo "skipped: pkg-config is missing (Debian: apt-get install pkg-config); find_package passed"
  exit 77
fi
echo "pkg-config"
PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name attn.pc)")
export PKG_CONFIG_PATH
libraries=$(pkg-config --variable=libdir attn)
# shellcheck disable=SC2046  # lists of flags
{
  "$compiler" -std=c11 "$source/use.c" $(pkg-config --cflags --libs attn) -o "$work/shared"
  LD_LIBRARY_PATH=$libraries "$work/shared"
  "$compiler" -std=c11 "$source/use.c" $(pkg-config --cflags attn) \
    $(pkg-config --static --libs attn | sed 's/-lattn/-Wl,-Bstatic -lattn -Wl,-Bdynamic/') -o "$work/static"
  "$work/static"
}
