#!/bin/sh
# SPDX-License-Identifier: MIT
# Each public header compiles alone, as C11 and as C++11, without a warning, and C++ can link against it.
#
#   check_header.sh C_COMPILER INCLUDE_FOLDER
set -eu
compiler=$1 include=$2
warnings='-Wall -Wextra -Wpedantic -Wconversion -Wshadow -Werror'

compile() { # LANGUAGE STANDARD COMPILER
  echo "$3 -std=$2"
  for header in attn extend kernel nn product mha; do
    # shellcheck disable=SC2086  # a list of words
    printf '#include <attn/%s.h>\n#include <attn/%s.h>\nint main(void) { return attn_kernel_count() < 0; }\n' \
      $header $header |
      "$3" -x "$1" -std="$2" $warnings -I"$include" -fsyntax-only -
  done
}

compile c c11 "$compiler"
compile c c17 "$compiler"
case $compiler in
  *clang*) cxx=$(echo "$compiler" | sed 's/clang\([^/]*\)$/clang++\1/') ;;
  *) cxx=$(echo "$compiler" | sed 's/gcc\([^/]*\)$/g++\1/; s/\/cc$/\/c++/') ;;
esac
if ! command -v "$cxx" >/dev/null 2>&1; then
  echo "skipped: no C++ compiler $cxx beside $compiler; compiled as C only"
  exit 77
fi
compile c++ c++11 "$cxx"
compile c++ c++17 "$cxx"
