#!/bin/sh
# SPDX-License-Identifier: MIT
# attn.hpp, kv.hpp and nn.hpp with every C++ compiler that is here, as C++17 and C++20 without a warning. The test program
# and the example run as the first of them compiles them as C++17; without ATTN_TEST_LONG=1 only the test program is tried
# otherwise.
#
#   check_hpp.sh LIBATTN_NN LIBATTN
set -eu
layers=$1 library=$2 root=$(cd "$(dirname "$0")/../.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
tried=

compile() { # COMPILER STANDARD SOURCE...
  compiler=$1 standard=$2
  shift 2
  "$compiler" -std="$standard" -Wall -Wextra -Wconversion -Wshadow -Wpedantic -Werror -I"$root/include" "$@"
}

for compiler in g++ g++-12 g++-13 g++-14 clang++ clang++-14 clang++-19; do
  command -v $compiler >/dev/null 2>&1 || continue
  name=$(readlink -f "$(command -v $compiler)")
  case " $tried " in *" $name "*) continue ;; esac # another name of a compiler that was tried
  for standard in c++17 c++20; do
    echo "$compiler -std=$standard"
    for source in "$root/tests/clients/test_hpp.cpp" "$root/examples/sdpa.cpp"; do
      if [ "$tried$standard" != c++17 ] && [ -z "${ATTN_TEST_LONG:-}" ]; then
        [ "$source" = "$root/examples/sdpa.cpp" ] || compile "$compiler" "$standard" -fsyntax-only "$source"
      elif [ "$tried" ]; then
        compile "$compiler" "$standard" -fsyntax-only "$source"
      else
        compile "$compiler" "$standard" "$source" "$layers" "$library" -Wl,-rpath,"$(dirname "$library")" \
          -pthread -o "$work/program"
        "$work/program"
      fi
    done
  done
  tried="$tried $name"
done
[ "$tried" ] || { echo "skipped: no C++ compiler" && exit 77; }
