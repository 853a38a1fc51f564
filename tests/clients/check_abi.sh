#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares functions and structs of the shared libraries with the baseline, abi.txt, so that programs compiled for that run
# with this library (abi.py).
#
#   check_abi.sh C_COMPILER GENERATED_FOLDER [--update | --break]
set -eu
compiler=$1 generated=$2 mode=${3:-}
cd "$(dirname "$0")/../.."
command -v abidw >/dev/null 2>&1 || { echo "skipped: no abidw (Debian: apt-get install abigail-tools)" && exit 77; }
[ "$(uname -m)" = x86_64 ] || { echo "skipped: abi.txt holds the structs of x86_64" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# The library's own sources with debug information; kernels have no part in the ABI.
for library in libattn libattn_nn; do
  sources='src/[!nt]*/*.c' map=src/libattn.map # all rooms but nn and train
  [ $library = libattn ] || { sources='src/nn/*.c src/train/*.c' && map=src/nn/libattn_nn.map; }
  # shellcheck disable=SC2086  # a list
  "$compiler" -std=c11 -O0 -g -shared -fPIC -fvisibility=hidden -D_POSIX_C_SOURCE=200809L -DATTN_SHARED -Iinclude -I. \
    -I"$generated" $sources -Wl,--version-script=$map -Wl,-z,undefs -o "$work/$library.so"
  abidw --headers-dir include/attn --drop-private-types --no-corpus-path --no-comp-dir-path --no-show-locs \
    --out-file "$work/$library.abi" "$work/$library.so"
done
python3 tests/clients/abi.py ${mode:+"$mode"} "$work/libattn.abi" "$work/libattn_nn.abi"
