#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Downloads SciPy's OpenBLAS (scipy-openblas32 from PyPI) into a folder. It is newer than the OpenBLAS of most distributions.
# Installs nothing system-wide.
#
#   scripts/get_openblas.sh [FOLDER]   default: .venv/openblas
#   cmake --preset release -DATTN_OPENBLAS_ROOT=$PWD/.venv/openblas
#
# CMake detects the prefix of its functions (scipy_cblas_sgemm). Exit code 77 if the package cannot be downloaded.
set -u
case ${1:-} in -*) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 2 ;; esac
asked=${1:+$(realpath -m "$1")}
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
folder=${asked:-$root/.venv/openblas}

if [ -e "$folder/scipy_openblas32/include/cblas.h" ]; then
  say "$folder is ready"
  exit 0
fi
have python3 || { warn "get_openblas.sh: no python3; to install it: apt-get install python3 python3-pip" && exit 77; }
mkdir -p "$folder"
timeout 300 python3 -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 --no-deps \
  --only-binary :all: --upgrade --target "$folder" scipy-openblas32 ||
  { warn "get_openblas.sh: pip could not install scipy-openblas32" && exit 77; }
say "$folder"
