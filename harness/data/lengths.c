/* SPDX-License-Identifier: MIT */
#include "data/lengths.h"

#include "data/generate.h"

static bool is(const bench_case *bench, bench_axis axis, const char *word) {
  return bench_spec_is(&bench->spec, axis, word);
}

/* The first sequence has at least one token, the others may be empty. */
static int32_t random_length(uint64_t seed, bench_stream stream, int64_t b, int64_t longest) {
  if (longest == 0) return 0;
  if (b == 0) return (int32_t)(1 + bench_value_below(seed, stream, 0, longest));
  return (int32_t)bench_value_below(seed, stream, (uint64_t)b, longest + 1);
}

/* Lengths of requests: about as many between a half and all of the longest as in each of the three octaves below. */
static int32_t request_length(uint64_t seed, int64_t b, int64_t longest) {
  if (longest == 0) return 0;
  int64_t high = longest >> bench_value_below(seed, BENCH_STREAM_KV_LEN, 2 * (uint64_t)b, 4);
  if (high == 0) high = 1;
  return (int32_t)(high - bench_value_below(seed, BENCH_STREAM_KV_LEN, 2 * (uint64_t)b + 1, (high + 1) / 2));
}

static bool lengths_are_random(const bench_case *bench, const char *one) {
  return is(bench, AXIS_LENGTHS, one) || is(bench, AXIS_LENGTHS, "both") || is(bench, AXIS_LENGTHS, "varlen");
}

static int32_t drawn_keys(const bench_case *bench, int64_t b) {
  const int64_t longest = bench->problem.seq_k;
  if (is(bench, AXIS_LENGTHS, "mixed")) return request_length(bench->seed, b, longest);
  if (lengths_are_random(bench, "kv_len")) return random_length(bench->seed, BENCH_STREAM_KV_LEN, b, longest);
  return (int32_t)longest;
}

/* Every query sees all of a prefix that sequences share. */
int32_t bench_key_count(const bench_case *bench, int64_t b) {
  const attn_problem *p = &bench->problem;
  const int64_t drawn = drawn_keys(bench, b), least = p->shared_prefix > 0 ? p->shared_prefix + p->seq_q : 0;
  return (int32_t)(drawn < least ? least : drawn);
}

int32_t bench_query_count(const bench_case *bench, int64_t b) {
  const bool mixed = is(bench, AXIS_LENGTHS, "mixed");
  const int64_t longest = mixed && b % 8 && bench->problem.seq_q > 1 ? 1 : bench->problem.seq_q;
  if (mixed || !is(bench, AXIS_CHUNK, "none")) {
    const int32_t keys = bench_key_count(bench, b);
    return keys < longest ? keys : (int32_t)longest;
  }
  if (lengths_are_random(bench, "q_len")) return random_length(bench->seed, BENCH_STREAM_Q_LEN, b, longest);
  return (int32_t)longest;
}
