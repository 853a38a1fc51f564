#!/bin/sh
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2044,SC2046,SC2086  # lists of words and of names without blanks
#
# Object files must not have instructions of a tier outside the folder of that tier, code that runs at load time, or exported
# names that the public headers do not declare.
#
#   check_objects.sh BUILD_FOLDER LIBATTN LIBATTN_NN
set -eu
plugin_objects=$(find "$1/CMakeFiles" -name 'attn_*_objects.dir' -not -name attn_nn_objects.dir)
objects=$1/CMakeFiles/attn_objects.dir nn_objects=$1/CMakeFiles/attn_nn_objects.dir library=$2 nn_library=$3
peak_objects=$1/CMakeFiles/attn_peak_loops.dir root=$(cd "$(dirname "$0")/../.." && pwd)
kernels=$root/kernels include=$root/include/attn
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

# ---- Instructions: kernels/<folder>/instructions.ere lists those of a tier; tiers.def goes from low to high ----

tab=$(printf '\t')
pattern_of() { sed "s/\\\\t/$tab/g" "$kernels/$1/instructions.ere" | paste -s -d '|'; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
# Every object is disassembled once, for all tiers. In the locale C grep is ten times as fast.
uses() {
  text=$work/$(echo "$1" | tr / _)
  [ -e "$text" ] || objdump -d --no-show-raw-insn "$1" >"$text"
  LC_ALL=C grep -E -m 1 -- "$2" "$text"
}

# must_not_use PATTERN OBJECT...
must_not_use() {
  pattern=$1
  shift
  for object in "$@"; do
    if line=$(uses "$object" "$pattern"); then complain "${object#"$objects"/} uses a higher tier: $line"; fi
  done
}

# From the highest tier to the lowest: the objects of the tier's folder must have its instructions (or the search is broken);
# the objects of lower tiers and of no tier must not.
check_tiers() {
  allowed=
  for folder in $(sed -n 's/^ATTN_TIER([a-z0-9]*, \([a-z0-9]*\), x86_64,.*/\1/p' "$kernels/tiers.def" | tac); do
    allowed="$allowed -not -path */kernels/$folder/*"
    [ -f "$kernels/$folder/instructions.ere" ] || continue
    pattern=$(pattern_of "$folder") found_own=
    for object in $(find "$objects" "$peak_objects" -path "*/kernels/$folder/*.o"); do
      if uses "$object" "$pattern" >/dev/null; then found_own=yes; fi
    done
    [ -n "$found_own" ] || complain "no object of $folder has an instruction of its tier: the search is broken"
    set -f # no expansion of the patterns in $allowed
    set -- $(find "$objects" "$nn_objects" "$peak_objects" $plugin_objects -name '*.o' $allowed | sort)
    set +f
    must_not_use "$pattern" "$@"
  done
}
if objdump -f "$library" | grep -q x86-64; then check_tiers; fi

# ---- The peak loops are not in the library ----

if nm "$library" | grep -E ' attn_peak_'; then complain "${library##*/} holds peak loops"; fi

# ---- Nothing runs at load time ----

for object in $(find "$objects" "$nn_objects" $plugin_objects -name '*.o'); do
  if objdump -h "$object" | grep -qE ' \.(init_array|ctors|preinit_array)'; then
    complain "$object runs code at load time"
  fi
done

# ---- The shared libraries export exactly the public names ----

# check_exports LIBRARY HEADER...: the library exports exactly the names that the headers declare.
check_exports() {
  exporter=$1
  shift
  names=$(nm -D --defined-only "$exporter" | awk '{print $3}' | sed 's/@.*//' |
    grep -vxE '_init|_fini|__bss_start|_edata|_end|ATTN_[A-Z0-9_.]*')
  if unversioned=$(nm -D --defined-only "$exporter" | awk '$2 != "A" && $3 !~ /@@ATTN_/ {print $3}' | grep ^attn_); then
    complain "${exporter##*/} exports names without a version:" $unversioned
  fi
  public=$(sed -n 's/^ATTN_API .*[ *]\(attn_[a-z0-9_]*\)(.*/\1/p' "$@")
  for name in $public; do
    echo "$names" | grep -qx "$name" || complain "$name is declared in $* but not exported: the .map must list it, too"
  done
  for name in $names; do
    echo "$public" | grep -qx "$name" || complain "${exporter##*/} exports $name, which is not declared in $*"
  done
  echo "${exporter##*/}: $(echo "$public" | wc -l) public names"
}
check_exports "$library" "$include/attn.h" "$include/extend.h" "$include/product.h" "$include/rows.h" "$include/mha.h" \
              "$include/kv.h"
check_exports "$nn_library" "$include/nn.h" "$include/train.h"

# A plug-in exports one name, and takes what it needs of libattn from the libattn that loads it.
for plugin in $(find "${library%/*}" -maxdepth 1 -name 'libattn_*.so' -not -name libattn_nn.so); do
  names=$(nm -D --defined-only "$plugin" | awk '{print $3}' | grep -vxE '_init|_fini|__bss_start|_edata|_end')
  [ "$names" = attn_plugin_entry ] || complain "${plugin##*/} exports:" $names
  if objdump -p "$plugin" | grep 'NEEDED *libattn'; then complain "${plugin##*/} links libattn"; fi
  echo "${plugin##*/}: one name"
done

echo "$found object files, $failures wrong"
[ $failures = 0 ]
