# SPDX-License-Identifier: MIT
# shellcheck shell=bash disable=SC2034  # a variable is used by the scripts that source this one
# Sourced by the other scripts: sets root and jobs, puts the tools of .venv first into PATH, and defines small functions.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root" || exit 5
PATH=$root/.venv/bin:$PATH # Python packages of setup.sh, and its CMake if the system's is too old
export PATH
jobs=$(nproc 2>/dev/null || echo 2)

say() { printf '%s\n' "$*"; }
warn() { printf '%s\n' "$*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }

# Prints the name of a tool of clang 14. Other versions format and warn differently.
clang_tool() {
  local name
  for name in "$1-14" "$1"; do
    if have "$name" && "$name" --version | grep -q 'version 14\.'; then say "$name" && return; fi
  done
  return 1
}

# clang_that_builds OPTION...: prints the name of the oldest clang that makes a program of standard input with these options.
clang_that_builds() {
  local name source
  source=$(cat)
  for name in clang-{14..25} clang; do
    have "$name" && "$name" "$@" -x c - -o /dev/null <<<"$source" 2>/dev/null && say "$name" && return
  done
  return 1
}
clang_with_fuzzer() {
  local source='int LLVMFuzzerTestOneInput(const unsigned char *d, unsigned long n) { return n > 9 && d[9]; }'
  clang_that_builds -fsanitize=fuzzer,address <<<"$source"
}
clang_with_openmp() { clang_that_builds -fopenmp <<<'int main(void) { return 0; }'; }

# quietly LOG COMMAND...: runs a command, writes its output to a file and prints the end of it only if the command fails.
quietly() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1; then
    warn "FAILED: $*"
    tail -n 60 "$log" >&2
    warn "(all of it: $log)"
    return 1
  fi
}
