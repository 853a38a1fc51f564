#!/bin/bash
# SPDX-License-Identifier: MIT
# Programs of other projects: they build, link and run as README.md says. Installs once, moves the tree, and goes through the
# table of clients below: C and C++, gcc and clang, pkg-config, find_package(attn) and subprojects, shared, static, -static.
#
#   check_clients.sh CMAKE BUILD_FOLDER C_COMPILER
#
# With ATTN_STATIC_BACKENDS, or with LLVM's OpenMP, nothing is linked by -static: Debian has no static oneDNN or libomp.
# Without ATTN_TEST_LONG=1 it leaves out clients that differ from others by compiler or language alone.
set -eu
cmake=$1 build=$2 compiler=$3
root=$(cd "$(dirname "$0")/../.." && pwd)
source=$root/tests/clients/downstream
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# how | language | compiler | options
clients="readme
pkg-config|c|$compiler
pkg-config|c++|g++
find_package|C|$compiler
find_package|CXX|g++|-DBUILD_SHARED_LIBS=OFF
subproject|CXX|clang++|-DATTN_OPENMP=OFF -DCMAKE_BUILD_TYPE=Debug -DCMAKE_C_COMPILER=clang"
[ -z "${ATTN_TEST_LONG:-}" ] || clients="$clients
pkg-config|c|clang
find_package|CXX|clang++
subproject|C|$compiler|-DBUILD_SHARED_LIBS=OFF"

backends=
if grep -q '^ATTN_STATIC_BACKENDS:BOOL=ON$' "$build/CMakeCache.txt"; then backends=1; fi

fail() {
  echo "WRONG: $*"
  exit 1
}
quietly() { "$@" >"$work/log" 2>&1 || { cat "$work/log" && fail "$*"; }; }
there() { command -v "$1" >/dev/null 2>&1 || command -v "$1-14" >/dev/null 2>&1 || command -v "$1-19" >/dev/null 2>&1; }
name_of() { command -v "$1" || command -v "$1-14" || command -v "$1-19"; }

# ---- The installed tree --------------------------------------------------------------------------------------------------

quietly "$cmake" --install "$build" --prefix "$work/first"
mv "$work/first" "$work/moved"
prefix=$work/moved
wholly=1 # programs can be linked by -static
if [ "$backends" ] || grep -q 'libomp\.so' "$(find "$prefix" -name attn.pc)"; then wholly=; fi
if grep -rIl -e "$work/first" -e "$build" "$prefix"; then fail "installed text files above hold absolute paths"; fi
# attnbench in the moved tree takes libattn and its plug-ins from there.
if [ -x "$prefix/bin/attnbench" ]; then
  quietly "$prefix/bin/attnbench" env
  for plugin in openblas onednn; do
    [ -n "$(find "$prefix" -name "libattn_$plugin.so")" ] || continue
    grep -q "^OK *plugins .*$prefix/[^ ]*/libattn_$plugin.so" "$work/log" ||
      { cat "$work/log" && fail "attnbench does not load libattn_$plugin.so from the moved tree"; }
  done
fi
# Figures and page, by Python scripts that attnbench finds beside itself, moved or in the build folder; where matplotlib is
# missing, it names the file of what to install.
if [ -x "$prefix/bin/attnbench" ]; then
  [ ! -x "$root/.venv/bin/python3" ] || PATH=$root/.venv/bin:$PATH
  mkdir "$work/no" && echo 'raise ImportError("no matplotlib")' >"$work/no/matplotlib.py"
  quietly "$prefix/bin/attnbench" run -a seq=8,16 -k naive_c --rounds 6 -q -o "$work/run"
  [ ! -x "$build/harness/gbench/attnbench-gbench" ] || quietly "$prefix/bin/attnbench-gbench" -a seq=8 -k naive_c
  for program in "$prefix/bin/attnbench" "$build/harness/attnbench"; do
    status=0 && PYTHONPATH=$work/no "$program" plot "$work/run" 2>"$work/log" || status=$?
    [ $status = 3 ] && [ -f "$(sed -n 's/.*pip install -r //p' "$work/log")" ] ||
      fail "without matplotlib: $(cat "$work/log")"
    python3 -c 'import matplotlib' 2>/dev/null || continue
    quietly "$program" plot "$work/run" -o "$work/figures" --only errors
    quietly "$program" report "$work/run" -o "$work/report.html" --title "Two cases"
    [ -s "$work/figures/errors.png" ] && grep -q "Two cases" "$work/report.html" || fail "$program draws nothing"
    rm -r "$work/figures" "$work/report.html"
  done
fi
needs=$(readelf -d "$prefix/lib/libattn.so" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p')
unexpected=$(grep -vE "^(libc|libm|libgomp|libomp|ld-linux-.*${backends:+|libopenblas|libdnnl})\.so" <<<"$needs") &&
  fail "libattn.so needs $unexpected"

# ---- Clients -------------------------------------------------------------------------------------------------------------

# The commands of README.md as they are printed, in a home of their own. What built $build need not be built again.
client_readme() {
  mkdir "$work/home"
  (
    export HOME=$work/home
    cd "$work/home"
    cmake() {
      case "$*" in
        "--preset release") grep -q '"name": "release"' "$root/CMakePresets.json" ;;
        "--build build") ;;
        "--install build --prefix $HOME/attn") command "$cmake" --install "$build" --prefix "$HOME/attn" >install.log ;;
        *) fail "README.md has a command that this test does not know: cmake $*" ;;
      esac
    }
    cc() { command "$compiler" "$@"; }
    block c 'example: ten lines' >example.c
    block sh 'cc example.c' >commands.sh
    # shellcheck source=/dev/null
    . ./commands.sh
  ) >"$work/log" 2>&1 || { cat "$work/log" && fail "the commands of README.md"; }
  grep -q '^o\[511\]\[0\] = 4\.[0-9]*$' "$work/log" || { cat "$work/log" && fail "the example prints another number"; }
}

# block LANGUAGE TEXT: the block of README.md in that language that holds the text.
block() {
  awk -v begin="\`\`\`$1" -v text="$2" '
    $0 == "```" { if (inside && index(block, text)) printf "%s", block; inside = 0 }
    inside { block = block $0 "\n" }
    $0 == begin { inside = 1; block = "" }' "$root/README.md"
}

client_pkg-config() {
  local flags static
  there pkg-config || { missing=pkg-config && return; }
  there "$2" || { missing=$2 && return; }
  PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name attn.pc)")
  export PKG_CONFIG_PATH
  read -ra flags <<<"$(pkg-config --cflags --libs attn) -Wl,-rpath,$(pkg-config --variable=libdir attn)"
  read -ra static <<<"$(pkg-config --cflags --static --libs attn)"
  quietly "$(name_of "$2")" -x "$1" "$source/use.c" -x none "${flags[@]}" -o "$work/shared"
  quietly "$work/shared"
  [ "$wholly" ] || return 0
  quietly "$(name_of "$2")" -static -x "$1" "$source/use.c" -x none "${static[@]}" -o "$work/static"
  quietly "$work/static"
}

# build_client LANGUAGE COMPILER CMAKE_OPTION...: a CMake project with this one language.
build_client() {
  local language=$1 name=$2 kind
  shift 2
  there "$name" || { missing=$name && return; }
  rm -rf "$work/client"
  quietly "$cmake" -S "$source" -B "$work/client" -DCLIENT="$language" -DWHOLLY_STATIC="${wholly:-OFF}" \
    -DCMAKE_"$language"_COMPILER="$(name_of "$name")" "${@//=clang/=$(name_of clang || true)}"
  quietly "$cmake" --build "$work/client" -j 2
  for kind in shared static attn nn_shared nn_static nn; do quietly "$work/client/use_$kind"; done
  [ -z "$wholly" ] || quietly "$work/client/use_wholly_static"
  expect_kind "$*"
}

# attn::attn is what BUILD_SHARED_LIBS says.
expect_kind() {
  local shared=1
  readelf -d "$work/client/use_attn" | grep -q 'NEEDED.*libattn' || shared=0
  [[ $1 == *BUILD_SHARED_LIBS=OFF* ]] && [ $shared = 1 ] && fail "attn::attn is shared with BUILD_SHARED_LIBS=OFF"
  [[ $1 == *BUILD_SHARED_LIBS=OFF* ]] || [ $shared = 1 ] || fail "attn::attn is not shared by default"
}

client_find_package() {
  build_client "$@" -DCMAKE_PREFIX_PATH="$prefix"
  [ -z "$missing" ] || return 0
  "$cmake" "$work/client" -DMORE_COMPONENTS=gpu >"$work/log" 2>&1 && fail "there is no component gpu, and it is found"
  grep -q "no component 'gpu'; its components are: nn, shared, static" "$work/log" || { cat "$work/log" && exit 1; }
}

client_subproject() {
  build_client "$@" -DSUBPROJECT="$root" -DATTN_MAX_ISA=c
  [ -z "$missing" ] || return 0
  quietly "$cmake" --install "$work/client" --prefix "$work/parent"
  [ "$(cd "$work/parent" && find . -type f)" = ./bin/use_attn ] || fail "as a subproject, libattn installs files"
  local type=
  [[ $* != *BUILD_TYPE=Debug* ]] || type=Debug
  grep -q "^CMAKE_BUILD_TYPE:[A-Z]*=$type$" "$work/client/CMakeCache.txt" ||
    fail "as a subproject, libattn sets the build type"
  [ ! -e "$work/client/attn/harness" ] || fail "as a subproject, libattn builds its harness"
  rm -rf "$work/parent"
}

skipped=
while IFS='|' read -r how language name options; do
  missing=
  read -ra options <<<"$options"
  "client_$how" ${language:+"$language" "$name"} ${options[@]+"${options[@]}"} </dev/null
  [ -z "$missing" ] || skipped="$skipped $how:$missing"
  echo "${missing:+skipped: no $missing: }$how ${language:-} ${name:-} ${options[*]-}"
done <<<"$clients"

# ---- Uninstall: by a list that no other test can overwrite --------------------------------------------------------------

quietly "$cmake" --install "$build" --prefix "$work/gone" --component development
mkdir "$work/lists" && mv "$build/install_manifest_development.txt" "$work/lists"
quietly "$cmake" -DBUILD="$work/lists" -P "$root/cmake/AttnUninstall.cmake"
[ -z "$(find "$work/gone" -type f -o -type l -o -name attn)" ] || fail "uninstalling leaves $(find "$work/gone")"
[ -z "$skipped" ] || { echo "skipped: absent:$skipped; the others passed" && exit 77; }
