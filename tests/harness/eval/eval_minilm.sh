#!/bin/sh
# SPDX-License-Identifier: MIT
# shellcheck disable=SC2046,SC2059,SC2086  # lists of words and of names without blanks
# `attnbench eval` on attention inputs of a trained model (tests/data/minilm): every kernel must agree with the oracle and
# with NumPy's float64 answer, and must fail if the problem is slightly different. Needs no Python.
#
#   tests/harness/eval/eval_minilm.sh path/to/attnbench [LAYER...]    exit 0: passed. Layers 0 and 2, unless some are named
#
# ATTN_TEST_LONG=1 in the environment: wrong answers are shown to all kernels, not to two. ATTN_TEST_FEW=1, under sanitizers:
# two kernels, and one wrong answer per layer.
set -u
ATTN_TEST_LONG=${ATTN_TEST_LONG:-}
attnbench=${1:?usage: eval_minilm.sh path/to/attnbench [LAYER...]}
shift
layers=${*:-0 2}
data=$(dirname "$0")/../../data/minilm
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

complain() {
  echo "FAILED: $1"
  sed 's/^/    /' "$scratch/out"
  failures=$((failures + 1))
}

# expect CODE WORDS arguments...: eval must exit with CODE, and its output must match WORDS (a pattern of grep).
expect() {
  code=$1 words=$2
  shift 2
  "$attnbench" eval "$@" > "$scratch/out" 2>&1
  got=$?
  [ $got -eq "$code" ] || complain "eval $*: exit code $got, should be $code"
  grep -q -e "$words" "$scratch/out" || complain "eval $*: does not say '$words'"
}

# expect_all STATUS CODE arguments...: every row that is not skipped must have the status. Where it is FAIL, only two kernels
# run without ATTN_TEST_LONG.
expect_all() {
  wanted=$1 code=$2
  shift 2
  if [ -n "${ATTN_TEST_FEW:-}" ] || [ "$wanted$ATTN_TEST_LONG" = FAIL ]; then set -- "$@" --kernel naive_c,flash_c; fi
  expect "$code" "^naive_c  *$wanted" "$@"
  [ "$wanted" = PASS ] && other=FAIL || other=PASS
  grep -E -q "^[a-z0-9_-]+ +($other|ERROR|DEGENERATE)" "$scratch/out" && complain "eval $*: not every row is $wanted"
}

layer() { echo "--q $data/layer$1_q.npy --k $data/layer$1_k.npy --v $data/layer$1_v.npy"; }
expected() { echo "--expect $data/layer$1_o.npy --expect-lse $data/layer$1_lse.npy"; }
lengths="--kv-len $data/kv_len.npy"
with_lengths() { head -c 128 "$data/kv_len.npy" > "$scratch/len.npy" && printf "$1" >> "$scratch/len.npy"; }

for n in $layers; do
  expect_all PASS 0 $(layer $n) $lengths $(expected $n)
  expect_all PASS 0 $(layer $n) $lengths $(expected $n) --scale 0.17677669529663687 --threads 2
  expect_all FAIL 1 $(layer $n) $lengths --expect "$data/layer${n}_o.npy" --scale 0.17854446224960325 # 1 % more
  [ -z "${ATTN_TEST_FEW:-}" ] || continue
  expect_all FAIL 1 $(layer $n) --expect "$data/layer${n}_o.npy"
  expect_all FAIL 1 $(layer $n) $lengths --expect "$data/layer${n}_o.npy" --causal top-left
  with_lengths '\200\0\0\0\064\0\0\0' # 128 and 52
  expect_all FAIL 1 $(layer $n) --kv-len "$scratch/len.npy" --expect "$data/layer${n}_o.npy"
  with_lengths '\177\0\0\0\065\0\0\0' # 127 and 53
  expect_all FAIL 1 $(layer $n) --kv-len "$scratch/len.npy" --expect "$data/layer${n}_o.npy"
done
[ -n "${ATTN_TEST_FEW:-}" ] || expect_all FAIL 1 $(layer 0) $lengths --expect "$data/layer2_o.npy"
expect_all FAIL 1 $(layer 0) $lengths --expect-lse "$data/layer2_lse.npy"

# Other kernels agree with the output that one kernel saves.
expect 0 '^naive_c  *PASS' $(layer 2) $lengths --kernel naive_c --save-o "$scratch/o.npy" --save-lse "$scratch/lse.npy"
expect_all PASS 0 $(layer 2) $lengths --expect "$scratch/o.npy" --expect-lse "$scratch/lse.npy"
expect 0 '^auto: [a-z0-9_]*  *PASS' $(layer 2) $lengths --kernel auto

# A sequence without keys gives zeros.
with_lengths '\200\0\0\0\0\0\0\0'
expect_all PASS 0 $(layer 0) --kv-len "$scratch/len.npy"

# Wrong input is refused with the reason.
with_lengths '\201\0\0\0\065\0\0\0'
expect 2 'element 0 is 129; it must be in 0..128' $(layer 0) --kv-len "$scratch/len.npy"
with_lengths '\200\0\0\0'
expect 5 'holds 4 bytes of data, but its shape and type need 8' $(layer 0) --kv-len "$scratch/len.npy"
expect 5 'none.npy: cannot be read' $(layer 0) --kv-len "$scratch/none.npy"
expect 2 'heads_q' $(layer 0) --sinks "$data/layer0_lse.npy"
expect 2 'must broadcast to \[batch, heads_q, seq_q, seq_k\] = \[2, 3, 128, 128\]' $(layer 0) --bias "$data/layer0_q.npy"
expect 2 'it must be \[batch\] or \[batch, seq_q\]' $(layer 0) --kv-len "$data/layer0_q.npy"
expect 2 "output has shape \[2, 3, 128\]" $(layer 0) --expect-lse "$data/layer0_o.npy"
expect 2 '--k is missing' --q "$data/layer0_q.npy" --v "$data/layer0_v.npy"
expect 2 'did you mean bshd' $(layer 0) --layout bshhd
expect 2 'did you mean top-left' $(layer 0) --causal topleft
expect 2 'did you mean naive_c' $(layer 0) --kernel naiv_c

[ $failures -eq 0 ] && echo "eval_minilm: passed"
exit $((failures > 0))
