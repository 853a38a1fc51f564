#!/bin/sh
# SPDX-License-Identifier: MIT
# The short form of scripts/dev/platforms.sh: the library with its plain C kernels for musl (static) and for Windows, whose
# programs run under wine. A program runs each kernel, a dense layer, and a kernel from a shared object.
#
#   check_platforms.sh CMAKE PLATFORM     PLATFORM is musl or windows
set -eu
cmake=$1 platform=$2
root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
needs() { command -v "$1" >/dev/null 2>&1 || { echo "skipped: no $1 (Debian: apt-get install $2)" && exit 77; }; }
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" && exit 1; }; }

run='' exe='' target=attn_static
case $platform in
  musl)
    needs musl-gcc musl-tools
    compiler=musl-gcc
    set -- -DCMAKE_C_COMPILER=musl-gcc -DATTN_OPENMP=OFF
    ;;
  windows)
    needs x86_64-w64-mingw32-gcc-posix gcc-mingw-w64-x86-64-posix
    needs wine wine64
    compiler=x86_64-w64-mingw32-gcc-posix run=wine exe=.exe target=attn_shared
    WINEPATH="Z:$(dirname "$("$compiler" -print-file-name=libwinpthread-1.dll)")"
    WINEPATH="$WINEPATH;Z:$(dirname "$("$compiler" -print-libgcc-file-name)")"
    export WINEPREFIX="$work/wine" WINEDEBUG=-all WINEPATH
    trap 'wineserver -k || true; rm -rf "$work"' EXIT
    wine wineboot --init >"$work/log" 2>&1 ||
      { echo "skipped: wine cannot start here: $(tail -n 1 "$work/log")" && exit 77; }
    set -- --toolchain "$root/cmake/toolchains/x86_64-w64-mingw32.cmake" -DATTN_OPENMP=OFF
    ;;
esac

quietly "$cmake" -S "$root" -B "$work/build" "$@" -DATTN_MAX_ISA=c -DATTN_WERROR=ON -DCMAKE_C_FLAGS_RELEASE=-O1 \
  -DATTN_BUILD_HARNESS=OFF -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF -DATTN_OPENBLAS=OFF -DATTN_ONEDNN=OFF
quietly "$cmake" --build "$work/build" --target $target

cd "$work/build"
if [ "$platform" = musl ]; then
  quietly "$compiler" -static -I"$root/include" "$root/tests/src/plugins/client.c" libattn.a -lm -o client
else
  quietly "$compiler" -DATTN_SHARED -I"$root/include" "$root/tests/src/plugins/client.c" -L. -lattn -o client$exe
  quietly "$compiler" -shared -I"$root/include" "$root/examples/own_kernel/own_kernel.c" -o own_kernel.dll
fi

# expect LINES WORDS...: the client prints these lines.
expect() {
  lines=$1
  shift
  $run ./client$exe "$@" 2>"$work/log" | tr -d '\r' >"$work/printed" || true
  [ "$(tr '\n' ' ' <"$work/printed")" = "$lines " ] && return
  echo "WRONG: client $* prints:" && cat "$work/printed" "$work/log" && exit 1
}
expect "naive_c blocked_c flash_c decode_c product_c" run naive_c run blocked_c run flash_c run decode_c product product_c
if [ "$platform" = windows ]; then
  expect "ATTN_OK own_kernel" load ./own_kernel.dll run own_kernel
  expect "ATTN_OK own_kernel" load '.\own_kernel.dll' run own_kernel
  ATTN_LOAD="Z:$work/build/own_kernel.dll;" expect "own_kernel" run own_kernel
  expect "ATTN_UNSUPPORTED: cannot load ./none.dll: Windows answers error 126, Module not found. " load ./none.dll
else
  expect "ATTN_UNSUPPORTED: cannot load ./none.so: this program is linked statically and has no loader" load ./none.so
fi
