#!/bin/sh
# SPDX-License-Identifier: MIT
# Builds the programs of examples/ as users do, against an installed library, with find_package(attn) and with pkg-config,
# and runs them.
#
#   check_examples.sh CMAKE BUILD_FOLDER C_COMPILER
set -eu
cmake=$1 build=$2 compiler=$3
source=$(cd "$(dirname "$0")/../../examples" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$cmake" --install "$build" --prefix "$work/prefix" >"$work/install.log"

echo "find_package(attn COMPONENTS nn)"
{
  "$cmake" -S "$source" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$compiler" &&
    "$cmake" --build "$work/build"
} >"$work/build.log" 2>&1 || { cat "$work/build.log" && exit 1; }
"$(dirname "$cmake")/ctest" --test-dir "$work/build" --output-on-failure

if ! command -v pkg-config >/dev/null 2>&1; then
  echo "skipped: pkg-config is missing (Debian: apt-get install pkg-config); find_package passed"
  exit 77
fi
PKG_CONFIG_PATH=$(dirname "$(find "$work/prefix" -name attn_nn.pc)")
export PKG_CONFIG_PATH
LD_LIBRARY_PATH=$(pkg-config --variable=libdir attn_nn)
export LD_LIBRARY_PATH

# try NAME LIBRARY SOURCES [argument...]: compiles with the flags of LIBRARY, shared and static, and runs both.
try() {
  name=$1 library=$2 sources=$3
  shift 3
  echo "pkg-config $library: $name"
  files=$(for file in $sources; do echo "$source/$file"; done)
  # shellcheck disable=SC2046,SC2086  # lists of words
  {
    "$compiler" -std=c11 -O2 -I"$source" $files $(pkg-config --cflags --libs "$library") -lm -o "$work/shared"
    "$compiler" -std=c11 -O2 -I"$source" $files $(pkg-config --cflags "$library") -Wl,-Bstatic \
      $(pkg-config --libs "$library") -Wl,-Bdynamic $(pkg-config --static --libs "$library" | tr ' ' '\n' | grep -v attn) \
      -lm -o "$work/static"
  }
  for kind in shared static; do
    (cd "$work" && "./$kind" "$@" >"$work/$name.txt") || { cat "$work/$name.txt" && echo "FAILED: $name" && exit 1; }
  done
}

try sdpa attn sdpa.c
try pick_kernel attn pick_kernel.c
try decode_loop attn_nn decode_loop.c 100 50
try kernel_regression attn_nn kernel_regression/kernel_regression.c "$work"
try seq2seq_attention attn_nn "seq2seq_attention/seq2seq_attention.c safetensors.c" \
  "$source/seq2seq_attention/weights.safetensors" "$work"

# minilm needs its model to run: here it must compile, and refuse a file that is no model.
echo "pkg-config attn_nn: minilm"
# shellcheck disable=SC2046  # lists of flags
"$compiler" -std=c11 -O2 -I"$source" "$source/minilm/minilm.c" "$source/minilm/encoder.c" "$source/safetensors.c" \
  $(pkg-config --cflags --libs attn_nn) -lm -o "$work/minilm"
echo "not a model" >"$work/model"
if "$work/minilm" "$work/model" "$work/model" "$work/out" 2>"$work/minilm.txt"; then
  echo "FAILED: minilm took a file that is no model" && exit 1
fi
grep -q "the header's length exceeds the file" "$work/minilm.txt"
