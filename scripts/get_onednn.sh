#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Installs oneDNN 3.x from PyPI into a folder for -DATTN_ONEDNN_ROOT, and prints the commands that build and run with it.
set -u

usage() {
  cat <<'END'
usage: scripts/get_onednn.sh [--sycl] DIR

  DIR      a virtual environment, created if it does not exist; gets include/ and lib/ of oneDNN
  --sycl   onednn-devel 2026.1.0 (oneDNN 3.13.2) with Intel's SYCL and TBB runtimes, 2 GB;
           default: onednn-devel-cpu-gomp 2023.2.0 (oneDNN 3.2.0) with GNU OpenMP, 60 MB

oneDNN 3.13 has the fused attention for graph_onednn. A C program cannot limit its threads, so its kernels run only in a
process bound to one CPU. Exit code 77 if the packages cannot be downloaded.
END
}

package=onednn-devel-cpu-gomp==2023.2.0
folder=
for argument in "$@"; do
  case $argument in
    -h | --help) usage && exit 0 ;;
    --sycl) package=onednn-devel==2026.1.0 ;;
    -*) echo "get_onednn.sh: unknown option '$argument' (see --help)" >&2 && exit 2 ;;
    *) folder=$argument ;;
  esac
done
[ -n "$folder" ] || { usage >&2 && exit 2; }

if [ "$(cat "$folder/.attn-onednn" 2>/dev/null)" != "$package" ]; then
  rm -f "$folder/.attn-onednn"
  python3 -m venv "$folder" || { echo "skipped: no Python with venv (Debian: apt-get install python3-venv)" && exit 77; }
  timeout 900 "$folder/bin/python" -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 "$package" ||
    { echo "skipped: pip cannot install $package" && exit 77; }
  echo "$package" >"$folder/.attn-onednn"
fi

folder=$(cd "$folder" && pwd)
echo "$package is in $folder. To build with it and run:"
echo
echo "    cmake --preset release -B build-onednn3 -DATTN_ONEDNN_ROOT=$folder && cmake --build build-onednn3"
if [ -e "$folder/lib/libintelocl.so" ]; then
  echo "    OCL_ICD_FILENAMES=$folder/lib/libintelocl.so taskset -c 1" \
    "build-onednn3/harness/attnbench check --kernel '*_onednn'"
else
  echo "    build-onednn3/harness/attnbench check --kernel '*_onednn'"
fi
