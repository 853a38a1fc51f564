#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
# Simulates attention over clusters with SimGrid (mpi/simulate/attn_mpi_simulate.c).
#
#   run.sh one SMPIRUN MODULE PLATFORM RANKS ARGUMENT...      a row of CSV; PLATFORM: a file of platforms/ without .xml
#   run.sh sweep SMPIRUN MODULE >simulated.csv                the rows of docs/scale.md: three minutes on 2 cores
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
    --cfg=smpi/allreduce:rdb --cfg=smpi/bcast:binomial_tree \
    --cfg=smpi/test:0 --cfg=smpi/wtime:0 --log=root.thres:warning \
    "$module" "$@" platform="$platform" gmacs="$gmacs" memory_gb="$memory_gb"
}

# Arguments of one() for each row, long runs first. SimGrid takes long for the messages of groups of 32, which the model
# would choose for 512 ranks and more.
cases() {
  local platform ranks
  echo ethernet100 512 mode=exchange group_ranks=8
  echo ethernet100 1024 mode=split queries=1 shards=ring
  echo ethernet100 256 mode=pass_kv gmacs=2270
  for ranks in 256 128; do
    echo ethernet100 $ranks mode=pass_kv
    echo ethernet100 $ranks mode=exchange
  done
  for ranks in 512 256; do echo ethernet100 $ranks mode=split queries=1 shards=ring; done
  for platform in ethernet10 ethernet100 fattree400 torus100; do
    for ranks in 64 8; do
      echo $platform $ranks mode=pass_kv
      echo $platform $ranks mode=pass_kv shards=ring
      echo $platform $ranks mode=pass_q queries=16384 shards=ring
      echo $platform $ranks mode=split queries=1 shards=ring
    done
    for ranks in 64 32 8; do echo $platform $ranks mode=exchange; done
    echo $platform 32 mode=pass_kv
  done
}

# Runs go on all CPUs at once. Rows come in the order of platforms, modes, shards and ranks.
sweep() {
  local rows arguments number=0
  rows=$(mktemp -d)
  while read -r arguments; do
    while [ "$(jobs -rp | wc -l)" -ge "$(nproc)" ]; do wait -n; done
    number=$((number + 1))
    # shellcheck disable=SC2086
    one $arguments </dev/null >"$rows/$number" &
  done < <(cases)
  wait
  one ethernet100 1 header=1 mode=pass_kv tokens=4096 | head -1
  cat "$rows"/* | sort -t, -k1,1 -k3,3 -k4,4r -k6,6nr -k2,2n -k7,7nr
  [ "$(cat "$rows"/* | wc -l)" = "$number" ] || exit 1
  rm -r "$rows"
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
    fast=$(one ethernet100 "$ranks" mode=exchange group_ranks=4 tokens=131072)
    holds "$ranks ranks, groups of $(column group_ranks "$fast")" \
      "$(column group_ranks "$fast") == 4 && $(column efficiency "$fast") > 0.8 && $(column efficiency "$fast") <= 1"
    slow=$(one ethernet100 "$ranks" mode=pass_kv tokens=131072 shards=ring)
    slow=$(column seconds "$slow")
    holds "$ranks ranks, side by side" "$slow > 1.3 * $seconds && $slow < 2 * $seconds"
    fast=$(one ethernet100 "$ranks" mode=split queries=1)
    holds "$ranks ranks, decode" "$(column efficiency "$fast") > 0.77 && $(column efficiency "$fast") <= 1"
  done
}

$what "$@"
