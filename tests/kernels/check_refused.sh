#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2086,SC2116  # lists of words and of names without blanks
# usage: check_refused.sh KERNEL REASON EMULATOR... ATTNBENCH: on a CPU that lacks the instructions of the kernel (the
# emulator's -cpu), its rows are skipped with the reason, and naming it is an error with the reason.
kernel=$1 reason=$2
shift 2
attnbench=("$@")
failed=0
expect() { # CODE, then attnbench's arguments
  local code=$1 output
  shift
  output=$("${attnbench[@]}" "$@" 2>&1)
  local got=$?
  output=$(echo $output) # sentences are wrapped in tables
  [ $got = "$code" ] && [[ $output == *"$reason"* ]] && return
  echo "FAILED: attnbench $* ended with $got, not $code, or did not say '$reason': $output"
  failed=1
}
expect 77 check --kernel "$kernel" -a dtype=bf16 -a seq=16 -a heads=1
ATTN_KERNEL=$kernel expect 1 check --kernel auto -a dtype=bf16 -a seq=16 -a heads=1
expect 0 list kernels
exit $failed
