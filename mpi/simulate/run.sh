#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Simulates attention over clusters with SimGrid (mpi/simulate/attn_mpi_simulate.c).
#
#   run.sh one SMPIRUN MODULE PLATFORM RANKS ARGUMENT...      a row of CSV; PLATFORM: a file of platforms/ without .xml
#   run.sh sweep SMPIRUN MODULE >simulated.csv                the rows of docs/scale.md, in minutes
#   run.sh check SMPIRUN MODULE                               8 and 16 ranks: efficiency, and a slower network must show
#
# GMACS and MEMORY_GB are rates of a node. By default those of docs/scale.md.
set -u
what=$1 smpirun=$2 module=$3
shift 3
folder=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
hosts=$(mktemp)
trap 'rm -f "$hosts"' EXIT
seq -f 'n%g' 0 1023 >"$hosts"
export ATTN_MACHINE=generic # a kernel is chosen, but does not run: always the same one
gmacs="${GMACS:-48700}" memory_gb="${MEMORY_GB:-280}"

one() { # PLATFORM RANKS ARGUMENT...
  local platform=$1 ranks=$2
  shift 2
  "$smpirun" -no-privatize -np "$ranks" -platform "$folder/platforms/$platform.xml" -hostfile "$hosts" \
    --cfg=smpi/simulate-computation:no --cfg=smpi/shared-malloc-blocksize:67108864 --cfg=smpi/coll-selector:ompi \
    --cfg=smpi/test:0 --cfg=smpi/wtime:0 --log=root.thres:warning \
    "$module" platform="$platform" gmacs="$gmacs" memory_gb="$memory_gb" "$@"
}

sweep() {
  local platform ranks
  one ethernet100 1 header=1 mode=pass_kv
  for platform in ethernet10 ethernet100 fattree400 torus100; do
    for ranks in 8 64; do
      one $platform $ranks mode=pass_kv
      one $platform $ranks mode=pass_kv shards=ring
      one $platform $ranks mode=pass_q queries=16384 shards=ring
      one $platform $ranks mode=split queries=1 shards=ring
    done
    for ranks in 8 32; do one $platform $ranks mode=exchange; done
  done
  for ranks in 32 128 256; do one ethernet100 $ranks mode=pass_kv; done
  one ethernet100 256 mode=split queries=1 shards=ring
  gmacs=2270
  one ethernet100 256 mode=pass_kv
}

# column NAME ROW: of a row of CSV
column() {
  local at
  at=$(tr ',' '\n' <<<"$columns" | grep -nx "$1" | cut -d: -f1)
  cut -d, -f"$at" <<<"$2"
}

holds() { # WORDS EXPRESSION
  awk "BEGIN { exit !($2) }" && echo "$1: $2" && return
  echo "$1: $2 does not hold"
  exit 1
}

check() {
  local ranks fast slow seconds columns
  columns=$(one ethernet100 1 header=1 mode=pass_kv tokens=4096 | head -1)
  for ranks in 8 16; do
    fast=$(one ethernet100 "$ranks" mode=pass_kv tokens=131072)
    slow=$(one ethernet10 "$ranks" mode=pass_kv tokens=131072)
    seconds=$(column seconds "$fast")
    holds "$ranks ranks, zigzag" "$(column efficiency "$fast") > 0.7 && $(column efficiency "$fast") <= 1"
    holds "$ranks ranks, 10 Gbit/s" "$(column seconds "$slow") > 1.5 * $seconds"
    slow=$(one ethernet100 "$ranks" mode=pass_kv tokens=131072 shards=ring)
    slow=$(column seconds "$slow")
    holds "$ranks ranks, side by side" "$slow > 1.3 * $seconds && $slow < 2 * $seconds"
    fast=$(one ethernet100 "$ranks" mode=split queries=1)
    holds "$ranks ranks, decode" "$(column efficiency "$fast") > 0.77 && $(column efficiency "$fast") <= 1"
  done
}

$what "$@"
