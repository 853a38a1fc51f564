#!/bin/sh
# SPDX-License-Identifier: MIT
# quick_compile.sh COMPILER ARGUMENT...: compiles at -O1 instead of -O3, for builds of which no time is asked.
for argument; do
  shift
  [ "$argument" = -O3 ] && argument=-O1
  set -- "$@" "$argument"
done
exec "$@"
