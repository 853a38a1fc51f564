#!/bin/sh
# SPDX-License-Identifier: MIT
# What may not be in the object files: instructions of a tier outside that tier's folder, code that runs at load time, and
# exported names that do not begin with attn_.
#
#   check_objects.sh BUILD_FOLDER LIBATTN LIBATTN_NN
set -eu
objects=$1/CMakeFiles/attn_objects.dir nn_objects=$1/CMakeFiles/attn_nn_objects.dir library=$2 nn_library=$3
include=$(dirname "$0")/../include/attn
for tool in objdump nm; do
  command -v $tool >/dev/null 2>&1 || { echo "skipped: no $tool (Debian: apt-get install binutils)" && exit 77; }
done
found=$(find "$objects" -name '*.o' | wc -l)
[ "$found" -gt 10 ] || { echo "WRONG: only $found object files in $objects" && exit 1; }
failures=0
complain() {
  echo "WRONG: $*"
  failures=$((failures + 1))
}

# ---- Instructions: lines of disassembly that use what a tier brings. VEX and EVEX mnemonics begin with v. ----

tab=$(printf '\t')
avx="${tab}v[a-z0-9]+ |%[yz]mm[0-9]"
avx512='%zmm[0-9]|%[xy]mm(1[6-9]|2[0-9]|3[01])|%k[0-7]'
bf16="${tab}v(dpbf16ps|cvtne2?ps2bf16)"
amx="%tmm[0-7]|${tab}(ld|st)tilecfg|${tab}tilerelease"

uses() { objdump -d --no-show-raw-insn "$1" | grep -E -m 1 -- "$2"; }

# must_not_use OBJECT PATTERN WHAT
must_not_use() {
  if line=$(uses "$1" "$2"); then complain "${1#"$objects"/} holds $3: $line"; fi
}

check_tiers() {
  for object in $(find "$objects" "$nn_objects" -name '*.o' | sort); do
    case $object in
      */kernels/amx/*) ;;
      */kernels/avx512bf16/*) must_not_use "$object" "$amx" AMX ;;
      */kernels/avx512/*) must_not_use "$object" "$amx|$bf16" 'AMX or AVX512-BF16' ;;
      */kernels/avx2/*) must_not_use "$object" "$amx|$avx512" AVX-512 ;;
      *) must_not_use "$object" "$amx|$avx" AVX ;;
    esac
  done
  # The patterns must find what is there, or they would pass everything.
  kernels=$objects/kernels
  uses "$kernels/avx2/flash_avx2.c.o" "$avx" >/dev/null || complain "no AVX found: the search is broken"
  uses "$kernels/avx512/flash_avx512.c.o" "$avx512" >/dev/null || complain "no AVX512 found: the search is broken"
  uses "$kernels/avx512bf16/peak_avx512bf16.c.o" "$bf16" >/dev/null || complain "no bf16 found: the search is broken"
  uses "$kernels/amx/peak_amx.c.o" "$amx" >/dev/null || complain "no AMX found: the search is broken"
}
if objdump -f "$library" | grep -q x86-64; then check_tiers; fi

# ---- Nothing runs at load time ----

for object in $(find "$objects" "$nn_objects" -name '*.o'); do
  if objdump -h "$object" | grep -qE ' \.(init_array|ctors|preinit_array)'; then complain "$object runs code at load time"; fi
done

# ---- Exactly the public names leave the shared libraries ----

# check_exports LIBRARY HEADER...: what the library exports is what the headers declare.
check_exports() {
  exporter=$1
  shift
  names=$(nm -D --defined-only "$exporter" | awk '{print $3}' | sed 's/@.*//' | grep -vxE '_init|_fini|__bss_start|_edata|_end')
  public=$(sed -n 's/^ATTN_API .*[ *]\(attn_[a-z0-9_]*\)(.*/\1/p' "$@")
  for name in $public; do
    echo "$names" | grep -qx "$name" || complain "$name is declared in $* but not exported"
  done
  for name in $names; do
    echo "$public" | grep -qx "$name" || complain "${exporter##*/} exports $name, which is not declared in $*"
  done
  echo "${exporter##*/}: $(echo "$public" | wc -l) public names"
}
check_exports "$library" "$include/attn.h" "$include/extend.h" "$include/product.h" "$include/mha.h"
check_exports "$nn_library" "$include/nn.h"

echo "$found object files, $failures wrong"
[ $failures = 0 ]
