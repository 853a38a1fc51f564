#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# usage: check_no_time.sh [EMULATOR...] ATTNBENCH: an emulated build, and any build under an emulator, checks kernels but
# refuses all commands that measure times (exit code 4).
attnbench=("$@")
failed=0
refuses() {
  output=$("${attnbench[@]}" "$@" 2>&1)
  code=$?
  case $code,$output in
    4,*"no times are taken here"*) ;;
    *) echo "FAILED: attnbench $* ended with $code and said: $output" && failed=1 ;;
  esac
}
refuses run -a seq=16 -a heads=1
refuses run --preset limits
refuses peak
"${attnbench[@]}" check -a seq=16 -a heads=1 >/dev/null || { echo "FAILED: attnbench check" && failed=1; }
exit $failed
