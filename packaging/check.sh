#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Checks the packages and recipes as far as a machine without a released archive can: a line for each, with the reason where
# a check is skipped. Needs no network but for Conan's installation.
#
#   packaging/check.sh [deb] [conan] [vcpkg] [homebrew]     all, if none is named
#
#   deb       packaging/check_deb.sh: lintian, install, run, remove
#   conan     conan create, its package used by tests/clients/downstream, by the conan in PATH, or by one that CONAN names
#   vcpkg     the manifest is JSON and has the version of CMakeLists.txt; CMake can read the portfile
#   homebrew  ruby can read the formula, and it has that version
set -u
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
version=$(sed -n 's/^project(attn VERSION \([0-9.]*\).*/\1/p' "$root/CMakeLists.txt")
skip() { reason=$* && return 77; }
have() { command -v "$1" >/dev/null 2>&1; }

check_deb() {
  local status=0
  "$root/packaging/check_deb.sh" "$scratch/deb" || status=$?
  [ $status != 77 ] || skip "no dpkg-dev, fakeroot or cpack"
}

# A build and a package of its own, in a home of its own; a client finds it by the CMake files that Conan generates.
check_conan() {
  local conan=${CONAN:-conan}
  have "$conan" || { skip "no conan; to install it: pip install conan"; return; }
  export CONAN_HOME=$scratch/conan
  "$conan" profile detect &&
    "$conan" create "$root/packaging/conan" -o 'attn/*:max_isa=c' || return 1
  grep -q "version = \"$version\"" "$root/packaging/conan/conanfile.py" || return 1
  cd "$scratch" && "$conan" install --requires "attn/$version" -o 'attn/*:max_isa=c' -g CMakeToolchain \
    -g CMakeDeps -of "$scratch/use" &&
    cmake -S "$root/tests/clients/downstream" -B "$scratch/client" -DCLIENT=C -DCMAKE_BUILD_TYPE=Release \
      -DCMAKE_TOOLCHAIN_FILE="$scratch/use/conan_toolchain.cmake" -DCMAKE_POLICY_DEFAULT_CMP0091=NEW &&
    cmake --build "$scratch/client" && "$scratch/client/use_attn"
}

check_vcpkg() {
  have python3 || { skip "no python3"; return; }
  python3 - "$root/packaging/vcpkg/vcpkg.json" "$version" <<'END' || return 1
import json, sys
manifest = json.load(open(sys.argv[1], encoding="utf-8"))
wrong = [key for key in ("name", "version", "license", "dependencies") if key not in manifest]
assert not wrong and manifest["version"] == sys.argv[2], (wrong, manifest["version"])
END
  # vcpkg's functions do nothing here.
  { echo "cmake_minimum_required(VERSION 3.25)"
    sed -n 's/^ *\(vcpkg_[a-z_]*\)(.*/function(\1)\nendfunction()/p' "$root/packaging/vcpkg/portfile.cmake"
    cat "$root/packaging/vcpkg/portfile.cmake"; } >"$scratch/port.cmake"
  cmake -DFEATURES=tools -DVERSION="$version" -DCURRENT_PACKAGES_DIR="$scratch/packages" -P "$scratch/port.cmake"
}

check_homebrew() {
  have ruby || { skip "no ruby; to install it: apt-get install ruby"; return; }
  ruby -c "$root/packaging/homebrew/attn.rb" && grep -q "tags/v$version.tar.gz" "$root/packaging/homebrew/attn.rb"
}

failures=0
[ $# -gt 0 ] || set -- deb conan vcpkg homebrew
for name in "$@"; do
  reason=''
  [ "$(type -t "check_$name")" = function ] || { echo "check.sh: no check '$name'" && exit 2; }
  "check_$name" >"$scratch/$name.log" 2>&1
  case $? in
    0) echo "$name: passed" ;;
    77) echo "$name: skipped: $reason" ;;
    *) echo "$name: FAILED" && tail -n 30 "$scratch/$name.log" && failures=$((failures + 1)) ;;
  esac
done
[ $failures = 0 ]
