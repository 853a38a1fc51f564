#!/bin/sh
# SPDX-License-Identifier: MIT
# Compares functions and structs of the shared libraries with the baseline, abi/*.abi, so that programs compiled for that run
# with this library. Structs that begin with struct_size may grow at their end, and functions and enumerators may be
# added (abi/ungrow.py); the baseline has to learn of them at once, so that they are kept from then on. All else fails.
#
#   check_abi.sh C_COMPILER GENERATED_FOLDER [--update | --break]
#
# --update adds to the baseline what has been added to the library; the first version stays a part of it.
# --break writes the baseline anew: when a version that breaks programs is wanted, with a new major number.
set -eu
compiler=$1 generated=$2 mode=${3:-}
cd "$(dirname "$0")/../.."
command -v abidiff >/dev/null 2>&1 || { echo "skipped: no abidiff (Debian: apt-get install abigail-tools)" && exit 77; }
[ "$(uname -m)" = x86_64 ] || { echo "skipped: tests/clients/abi holds the structs of x86_64" && exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failures=0

# The library's own sources with debug information; kernels have no part in the ABI.
for library in libattn libattn_nn; do
  sources='src/[!n]*/*.c' map=src/libattn.map # all rooms but nn
  [ $library = libattn ] || { sources='src/nn/*.c' && map=src/nn/libattn_nn.map; }
  # shellcheck disable=SC2086  # a list
  "$compiler" -std=c11 -O0 -g -shared -fPIC -fvisibility=hidden -D_POSIX_C_SOURCE=200809L -DATTN_SHARED -Iinclude -I. \
    -I"$generated" $sources -Wl,--version-script=$map -Wl,-z,undefs -o "$work/$library.so"
  abidw --headers-dir include/attn --drop-private-types --no-corpus-path --no-comp-dir-path --no-show-locs \
    --out-file "$work/$library.abi" "$work/$library.so"
  if [ "$mode" = --break ]; then
    cp "$work/$library.abi" "tests/clients/abi/$library.abi"
    continue
  fi
  python3 tests/clients/abi/ungrow.py "tests/clients/abi/$library.abi" "$work/$library.abi" >"$work/old.abi"
  if ! abidiff --no-added-syms "tests/clients/abi/$library.abi" "$work/old.abi"; then
    echo "WRONG: programs that were compiled for an earlier $library would not run with this one"
    failures=$((failures + 1))
  elif abidiff "tests/clients/abi/$library.abi" "$work/$library.abi"; then
    :
  elif [ "$mode" = --update ]; then
    cp "$work/$library.abi" "tests/clients/abi/$library.abi"
  else
    echo "WRONG: the baseline lacks what was added to $library; $0 $compiler $generated --update adds it"
    failures=$((failures + 1))
  fi
done
[ $failures = 0 ]
