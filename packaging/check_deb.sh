#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Makes the Debian packages and checks them: lintian finds no error, apt can satisfy what they need, they install into a root
# of their own, a program builds and runs against them there, attnbench runs, and removing them leaves nothing.
#
#   packaging/check_deb.sh [FOLDER]     builds in FOLDER, by default build-deb; the packages stay there
set -eu
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(mkdir -p "${1:-$root/build-deb}" && cd "${1:-$root/build-deb}" && pwd)
for tool in dpkg dpkg-shlibdeps fakeroot cpack; do
  command -v $tool >/dev/null || { echo "skipped: no $tool (Debian: apt-get install dpkg-dev fakeroot cmake)" && exit 77; }
done
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

# The loader finds the libraries in the system's folder: no rpath.
cmake -S "$root" -B "$build" -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DCMAKE_SKIP_INSTALL_RPATH=ON \
  -DATTN_BUILD_TESTS=OFF -DATTN_BUILD_EXAMPLES=OFF -DATTN_GBENCH=OFF >"$build/configure.log"
cmake --build "$build" -j "$(nproc)" >"$build/build.log"
rm -f "$build"/*.deb
(cd "$build" && cpack -G DEB >cpack.log 2>&1) || { tail -n 20 "$build/cpack.log" && exit 1; }
debs=("$build"/*.deb)
printf '%s\n' "${debs[@]##*/}"

if command -v lintian >/dev/null; then
  lintian --fail-on error --allow-root "${debs[@]}" || { echo "WRONG: lintian finds errors" && exit 1; }
fi
apt-get install --simulate "${debs[@]}" >"$scratch/apt.log" 2>&1 || { tail -n 20 "$scratch/apt.log" && exit 1; }

# The packages depend on others that only the real root has, so their absence here is no error.
mkdir -p "$scratch/root/var/lib/dpkg/"{info,updates,triggers}
touch "$scratch/root/var/lib/dpkg/status"
# CPack's scripts call ldconfig; the real one is not asked.
printf '#!/bin/sh\n' >"$scratch/ldconfig" && chmod +x "$scratch/ldconfig"
packages() { PATH=$scratch:$PATH fakeroot dpkg --root="$scratch/root" --force-depends --force-script-chrootless \
  --log=/dev/null "$@" >"$scratch/dpkg.log" 2>&1 ||
  { cat "$scratch/dpkg.log" && exit 1; }; }
packages --install "${debs[@]}"

libraries=$(dirname "$(find "$scratch/root/usr/lib" -name libattn.so)")
export LD_LIBRARY_PATH=$libraries
cc -I"$scratch/root/usr/include" "$root/examples/sdpa.c" -L"$libraries" -lattn -o "$scratch/example"
"$scratch/example"
"$scratch/root/usr/bin/attnbench" check --suite conformance --cases 3 -q | tail -n 1
for plugin in "$libraries"/attn-*/libattn_*.so; do
  [ -e "$plugin" ] || continue
  ATTN_LOAD=$plugin "$scratch/example" >/dev/null || { echo "WRONG: $plugin cannot be loaded" && exit 1; }
done

mapfile -t names < <(for deb in "${debs[@]}"; do dpkg-deb --field "$deb" Package; done)
packages --purge "${names[@]}"
left=$(find "$scratch/root" -path "$scratch/root/var" -prune -o \( -type f -o -type l \) -print)
[ -z "$left" ] || { echo "WRONG: removing the packages leaves $left" && exit 1; }
echo "${#debs[@]} packages install, run and are removed"
