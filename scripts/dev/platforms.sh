#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Builds libraries and attnbench for every platform that this machine has a compiler for, and checks the kernels there.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/../common.sh"

usage() {
  cat <<'END'
usage: scripts/dev/platforms.sh [--write] [--chroot FOLDER] [PLATFORM]...

Configures and builds libraries and attnbench without optional packages for each platform named, or for all, and runs 50
cases of each suite with every kernel there. Where programs can load kernels, examples/own_kernel is built, loaded and
checked.
Prints a row per platform; one whose compiler or emulator is absent is skipped, one whose suite takes 15 minutes has failed.

  --write          put the rows into docs/platforms.md; a platform that was skipped or not named keeps the row that it has
  --chroot FOLDER  a Debian 13, for the compilers that this machine lacks. Made there if need be, by debootstrap, as root:
                   debootstrap --variant=minbase --include=gcc-13,gcc-14,clang-17,clang-18,cmake,make trixie FOLDER
  -h, --help       this text

Exit code 0 if no platform failed. Logs and builds lie in build-platforms/.
END
}

# platform | commands that it needs | options for CMake | what runs its programs | what it is
toolchain='--toolchain cmake' alone='-DATTN_OPENMP=OFF' qemu='qemu-aarch64 -L /usr/aarch64-linux-gnu'
platforms="gcc-12|gcc-12|-DCMAKE_C_COMPILER=gcc-12||Linux, x86-64
gcc-13|gcc-13|-DCMAKE_C_COMPILER=gcc-13||Linux, x86-64
gcc-14|gcc-14|-DCMAKE_C_COMPILER=gcc-14||Linux, x86-64
clang-14|clang-14|-DCMAKE_C_COMPILER=clang-14||Linux, x86-64
clang-15|clang-15|-DCMAKE_C_COMPILER=clang-15||Linux, x86-64
clang-16|clang-16|-DCMAKE_C_COMPILER=clang-16||Linux, x86-64
clang-17|clang-17|-DCMAKE_C_COMPILER=clang-17||Linux, x86-64
clang-18|clang-18|-DCMAKE_C_COMPILER=clang-18||Linux, x86-64
clang-19|clang-19|-DCMAKE_C_COMPILER=clang-19||Linux, x86-64
musl|musl-gcc|-DCMAKE_C_COMPILER=musl-gcc -DCMAKE_EXE_LINKER_FLAGS=-static $alone||Linux, x86-64, static, no OpenMP
windows|x86_64-w64-mingw32-gcc-posix wine|$toolchain/x86_64-w64-mingw32.cmake|wine|Windows, x86-64, mingw-w64, under wine
aarch64|aarch64-linux-gnu-gcc qemu-aarch64|$toolchain/aarch64-linux-gnu.cmake|$qemu|Linux, aarch64, under qemu-user"
packages='gcc-13,gcc-14,clang-17,clang-18,cmake,make' # of Debian 13
work=$root/build-platforms
table=$root/docs/platforms.md

write='' chroot='' chosen=()
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --write) write=1 ;;
    --chroot) [ $# -ge 2 ] || { warn "platforms.sh: --chroot needs a folder" && exit 2; }; chroot=$2 && shift ;;
    *)
      grep -q "^$1|" <<<"$platforms" || { warn "platforms.sh: no platform '$1' (see --help)" && exit 2; }
      chosen+=("$1")
      ;;
  esac
  shift
done

# ---- Where a platform's compiler is ----------------------------------------------------------------------------------

# Makes the chroot unless it is there, and copies the sources that git knows into it.
prepare_chroot() {
  [ -n "$chroot" ] || return 0
  if [ ! -x "$chroot/usr/bin/cmake" ]; then
    have debootstrap && [ "$(id -u)" = 0 ] || { warn "platforms.sh: --chroot needs debootstrap and root" && exit 2; }
    quietly "$work/debootstrap.log" debootstrap --variant=minbase --include="$packages" trixie "$chroot" || exit 1
  fi
  rm -rf "$chroot/attn" && mkdir -p "$chroot/attn" "$work"
  git ls-files -z | tar --null -T - -c | tar -x -C "$chroot/attn"
}

has_all() { # [command of the chroot...] COMMAND...: are all there?
  local name
  for name in $needs; do "$@" sh -c "command -v $name" >/dev/null 2>&1 || { missing=$name && return 1; }; done
}

# Sets `inside`, the command that enters the chroot or nothing, and `source`; fails if neither place has what is needed.
find_place() {
  inside=() source=$root
  has_all env && return
  [ -n "$chroot" ] || return 1
  inside=(chroot "$chroot") source=/attn
  has_all "${inside[@]}"
}

# ---- A platform ------------------------------------------------------------------------------------------------------

# Builds examples/own_kernel with the platform's compiler; attnbench loads and checks it.
check_plugin() {
  local plugin=./$folder/libown_kernel.so compiler
  compiler=$(sed -n 's/^set(CMAKE_C_COMPILER "\(.*\)")/\1/p' \
    "${inside[1]:-}$source/$folder"/CMakeFiles/*/CMakeCCompiler.cmake)
  run_quietly plugin "$compiler" -O3 -fPIC -shared examples/own_kernel/own_kernel.c -Iinclude -lm -o "$plugin" || return 1
  # shellcheck disable=SC2086  # a list of words
  run_quietly load "${quiet[@]}" $emulator "$program" check -q --load "$plugin" -k own_kernel -a seq=5,67 -a heads=4
}

# In the folder of the sources. Prints what the check counted, its last line.
build_and_check() {
  local folder=build-platforms/$name program suite counts=()
  local quiet=(timeout 900 env OMP_WAIT_POLICY=passive ATTN_EMULATED=1 WINEDEBUG=-all)
  # shellcheck disable=SC2086  # lists of options
  run_quietly configure cmake -S . -B "$folder" $options -DATTN_HWLOC=OFF -DATTN_OPENBLAS=OFF -DATTN_ONEDNN=OFF \
    -DATTN_GBENCH=OFF -DATTN_MPI=OFF -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF -DATTN_WERROR=ON || return 1
  run_quietly build cmake --build "$folder" -j "$jobs" || return 1
  program=$folder/harness/attnbench
  [ "$name" != windows ] || program=$program.exe
  for suite in conformance edge; do
    # shellcheck disable=SC2086  # a list of words
    run_quietly "$suite" "${quiet[@]}" $emulator "$program" check --suite "$suite" --cases 50 -q || return 1
    counts+=("$(tr -d '\r' <"$work/$name-$suite.log" | tail -n 1)")
  done
  [[ $options == *-static* ]] || check_plugin || return 1
  checked=$(printf '%s\n' "${counts[@]}" | awk '{ pass += $3; degenerate += $9 } END { print pass " + " degenerate }')
  kernels=$(sed -n 's/^-- *kernels *\([0-9]*\) built/\1/p' "$work/$name-configure.log")
  compiler=$(sed -n 's/^-- attn .* for [^,]*, \(.*\), Release/\1/p' "$work/$name-configure.log")
}

run_quietly() { # STEP COMMAND...: here or in the chroot
  local step=$1 log=$work/$name-$1.log
  shift
  if [ ${#inside[@]} -gt 0 ]; then
    # A compiler cache that the environment names is not there.
    set -- "${inside[@]}" env -u CMAKE_C_COMPILER_LAUNCHER -u CMAKE_CXX_COMPILER_LAUNCHER \
      sh -c 'cd /attn && exec "$@"' sh "$@"
  fi
  quietly "$log" "$@" || { failed=$step && return 1; }
}

# Sets `row`: "| platform | what | compiler | kernels | rows | result |".
try_platform() {
  local compiler='' kernels='' checked='' failed='' missing=''
  if ! find_place; then
    skipped=1 row="| $name | $what | – | – | – | skipped: no $missing |"
  elif build_and_check; then
    [ ${#inside[@]} = 0 ] || compiler="$compiler (Debian 13)"
    row="| $name | $what | $compiler | $kernels | $checked | passed |"
  else
    failures=$((failures + 1)) row="| $name | $what | $compiler | $kernels | – | FAILED: $failed |"
  fi
}

# Replaces the platform's row in the document, unless it was skipped and has one.
write_row() {
  [ -n "$write" ] || return 0
  if grep -q "^| $name |" "$table"; then
    [ -n "$skipped" ] || NAME=$name ROW=$row awk '
      index($0, "| " ENVIRON["NAME"] " |") == 1 { $0 = ENVIRON["ROW"] } { print }' "$table" >"$work/table.md"
  else
    { cat "$table" && say "$row"; } >"$work/table.md"
  fi
  [ ! -e "$work/table.md" ] || mv "$work/table.md" "$table"
}

mkdir -p "$work"
prepare_chroot
failures=0
while IFS='|' read -r name needs options emulator what; do
  [ ${#chosen[@]} = 0 ] || [[ " ${chosen[*]} " == *" $name "* ]] || continue
  row='' skipped=''
  try_platform </dev/null
  say "$row"
  write_row
done <<<"$platforms"
[ $failures = 0 ]
