#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks the sources: format, suspicious code, line length, spelling, plain English, licence lines, commit subjects.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

usage() {
  cat <<'END'
usage: scripts/dev/lint.sh [--long] [--fix] [CHECK]...

Runs the given checks, or all:

  format     clang-format 14 would change no C file (.clang-format)
  tidy       clang-tidy 14 prints no warning (.clang-tidy); with --long also its static analyzer, which takes minutes
  analyzer   only with --long: gcc's static analyzer has no new report (scripts/dev/analyze.py)
  python     ruff prints no warning (ruff.toml)
  shell      shellcheck prints no warning
  spelling   codespell finds no misspelling (.codespellrc)
  words      comments, docs and commit subjects are plain English (scripts/dev/words.txt), sentences have 40 words at most
  length     no line of C, Python, shell or CMake is longer than 125 characters
  licence    every source file names its licence in its first lines
  size       no tracked file is larger than 200 KB, unless scripts/dev/large_files.txt names it
  subjects   no commit subject since version 0.1 is longer than 72 characters, or one word

  --fix      clang-format and ruff change the files where they can
  -h, --help this text

Prints one line per check. Skips checks whose tool is missing; scripts/setup.sh installs the tools. The exit code is 0 only
if no check failed. tidy needs the build folder of `cmake --preset release`.
END
}

long='' fix=''
chosen=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --long) long=1 ;;
    --fix) fix=1 ;;
    -*) warn "lint.sh: unknown option '$1' (see --help)" && exit 2 ;;
    *) chosen+=("$1") ;;
  esac
  shift
done
first_commit=3e7509d # earlier subjects are published and cannot change
first_plain=36a3d84  # and so are earlier words

# Prints the sources that match a pattern: from git, or without git all files outside build folders and virtual environments.
sources() {
  { git ls-files --cached --others --exclude-standard 2>/dev/null ||
    find . -type f -not -path './build*' -not -path './.*' -printf '%P\n'; } |
    grep -E "$1" | grep -vE '^(results/|tests/data/)' | while read -r name; do [ -f "$name" ] && say "$name"; done
}
mapfile -t c_files < <(sources '\.[ch]$')
mapfile -t python_files < <(sources '\.py$')
mapfile -t shell_files < <(sources '\.sh$|^\.ci/run$')
mapfile -t cmake_files < <(sources '\.cmake$|(^|/)CMakeLists\.txt$')

# ---- Checks: each prints warnings and fails, or sets `skipped` -----------------------------------------------------------

check_format() {
  local tool
  tool=$(clang_tool clang-format) ||
    { skipped="no clang-format 14; to install it: apt-get install clang-format-14" && return; }
  if [ -n "$fix" ]; then "$tool" -i "${c_files[@]}"; else "$tool" --dry-run --Werror "${c_files[@]}"; fi
}

# The files of the compile commands except generated ones.
compiled_files() { sed -n 's|^  "file": "\(.*\.c\)",*$|\1|p' build/compile_commands.json | grep -v '/build/' | sort -u; }

check_tidy() {
  # clang's OpenMP may be absent, and it does not know what test.sh tells gcc about garbage.
  local tool extra=(--extra-arg=-fno-openmp --extra-arg=-Wno-unused-command-line-argument)
  tool=$(clang_tool clang-tidy) ||
    { skipped="no clang-tidy 14; to install it: apt-get install clang-tidy-14" && return; }
  [ -e build/compile_commands.json ] ||
    { skipped="no build/compile_commands.json: cmake --preset release makes it" && return; }
  [ -z "$long" ] || extra+=('--checks=clang-analyzer-*,-clang-analyzer-valist.*,-clang-analyzer-security.insecureAPI.*')
  compiled_files | xargs -P "$jobs" -n 8 "$tool" -p build --quiet --extra-arg=-Wno-unknown-warning-option "${extra[@]}" \
    2>"$logs/tidy-errors.txt" | grep -E '(warning|error): .*\[' -A 2 | sort -u
  [ "${PIPESTATUS[1]}" = 0 ]
}

check_analyzer() {
  local status=0
  [ -e build/compile_commands.json ] ||
    { skipped="no build/compile_commands.json: cmake --preset release makes it" && return; }
  python3 scripts/dev/analyze.py || status=$?
  [ "$status" != 77 ] || { skipped="build/ is not gcc's" && return; }
  return "$status"
}

check_python() {
  have ruff || { skipped="no ruff; to install it: scripts/setup.sh, or pip install ruff" && return; }
  ruff check --quiet --no-cache --output-format concise ${fix:+--fix} "${python_files[@]}"
}

check_shell() {
  have shellcheck || { skipped="no shellcheck; to install it: apt-get install shellcheck" && return; }
  shellcheck "${shell_files[@]}"
}

check_spelling() {
  have codespell || { skipped="no codespell; to install it: apt-get install codespell" && return; }
  sources '\.([chs]|md|py|sh|def|cmake|cpp|in|txt|cff)$|^LICENSE$' | xargs codespell
}

check_words() {
  local result=0
  sources '\.([ch]|cpp|hpp|def|py|sh|cmake|md)$|(^|/)CMakeLists\.txt$' |
    grep -vE '^(docs/kernels\.md|notebook/.*|scripts/dev/words\.py)$' |
    xargs python3 scripts/dev/words.py || result=1
  if git cat-file -e "$first_plain^{commit}" 2>/dev/null; then
    python3 scripts/dev/words.py --subjects "$first_plain.." || result=1
  fi
  return "$result"
}

# Rows of tables cannot be wrapped; docs/kernels.md is generated.
check_length() {
  ! {
    awk 'length($0) > 125 { printf "%s:%d: %d characters\n", FILENAME, FNR, length($0) }' \
      "${c_files[@]}" "${python_files[@]}" "${shell_files[@]}" "${cmake_files[@]}"
    sources '\.md$' | grep -vx docs/kernels.md | LC_ALL=C.UTF-8 xargs grep -nHE '^.{126}' | grep -vE '^[^:]+:[0-9]+: *[|]' |
      sed -E 's/^([^:]+:[0-9]+):.*/\1: more than 125 characters/'
  } | grep .
}

check_licence() {
  local file result=0
  for file in "${c_files[@]}" "${python_files[@]}" "${shell_files[@]}" "${cmake_files[@]}"; do
    head -n 3 "$file" | grep -q 'SPDX-License-Identifier: MIT' || { say "$file: no SPDX line" && result=1; }
  done
  return "$result"
}

# A line of the list whose file is gone or small is a failure as well.
check_size() {
  git rev-parse --git-dir >/dev/null 2>&1 || { skipped="no git clone" && return; }
  ! diff <(git ls-files -z | xargs -0 stat -c '%s %n' 2>/dev/null | awk '$1 > 200000 { print $2 }' | LC_ALL=C sort) \
    <(grep -vE '^(#|$)' scripts/dev/large_files.txt | LC_ALL=C sort) |
    sed -nE 's/^< (.*)/\1: larger than 200 KB; make it smaller, or name it in scripts\/dev\/large_files.txt/p
             s/^> (.*)/scripts\/dev\/large_files.txt: \1 is not tracked, or not larger than 200 KB/p' | grep .
}

check_subjects() {
  git cat-file -e "$first_commit^{commit}" 2>/dev/null ||
    { skipped="this clone has no history since $first_commit" && return; }
  ! git log --no-merges --format=%s "$first_commit.." | awk 'length($0) > 72 || NF < 2' | grep .
}

# ---- All of them -----------------------------------------------------------------------------------------------------

logs=$root/build/log
mkdir -p "$logs"
[ ${#chosen[@]} -gt 0 ] || chosen=(format tidy ${long:+analyzer} python shell spelling words length licence size subjects)
status=0
for check in "${chosen[@]}"; do
  [ "$(type -t "check_$check")" = function ] || { warn "lint.sh: no check '$check' (see --help)" && exit 2; }
  begun=$SECONDS skipped='' result=passed
  "check_$check" >"$logs/lint-$check.txt" 2>&1 || result=FAILED status=1
  [ $result = passed ] || cat "$logs/lint-$check.txt"
  [ -z "$skipped" ] || result="skipped: $skipped"
  say "$check: $result ($((SECONDS - begun)) s)"
done
exit $status
