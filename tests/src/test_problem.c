/* SPDX-License-Identifier: MIT */
/* attn_problem: defaults, and every check of attn_problem_validate(). The refusal of a wrong field must name the field, its
 * value and what would be right. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "tests/support/support.h"

#define BIG ((int64_t)1 << 41)

static attn_problem valid_problem(void) {
  attn_problem problem;
  attn_problem_init(&problem, 2, 4, 2, 5, 7, 8, 6);
  return problem;
}

/* ---- Defaults ---- */

static void assert_strides(attn_strides stride, int64_t b, int64_t h, int64_t s, int64_t d) {
  assert_int_equal(stride.b, b);
  assert_int_equal(stride.h, h);
  assert_int_equal(stride.s, s);
  assert_int_equal(stride.d, d);
}

TEST(init_fills_in_dense_defaults) {
  const attn_problem p = valid_problem();
  assert_int_equal(p.struct_size, sizeof p);
  assert_strides(p.q_stride, 4 * 5 * 8, 5 * 8, 8, 1);
  assert_strides(p.k_stride, 2 * 7 * 8, 7 * 8, 8, 1);
  assert_strides(p.v_stride, 2 * 7 * 6, 7 * 6, 6, 1);
  assert_strides(p.o_stride, 4 * 5 * 6, 5 * 6, 6, 1);
  assert_int_equal(p.lse_stride.b, 4 * 5);
  assert_int_equal(p.lse_stride.h, 5);
  assert_int_equal(p.lse_stride.s, 1);
  assert_int_equal(p.bias_stride.b, 4 * 5 * 7);
  assert_int_equal(p.mask_stride.h, 5 * 7);
  assert_int_equal(p.scores_stride.q, 7);
  assert_int_equal(p.scores_stride.k, 1);
  assert_true(p.scale == 1.0f / sqrtf(8.0f));
  assert_int_equal(p.window_left, -1);
  assert_int_equal(p.window_right, -1);
  assert_int_equal(p.uses, 0);
  assert_int_equal(p.dtype_q | p.dtype_kv | p.dtype_o, ATTN_F32);
  test_ok(attn_problem_validate(&p));
  attn_problem given; /* scores without a head dimension */
  attn_problem_init(&given, 1, 1, 1, 5, 7, 0, 6);
  assert_true(given.scale == 1);
}

TEST(setters_set_what_they_say) {
  attn_problem p = valid_problem();
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  assert_int_equal(p.align, ATTN_ALIGN_BOTTOM_RIGHT);
  assert_int_equal(p.window_right, 0);
  assert_int_equal(p.window_left, -1);
  attn_problem_set_bshd(&p);
  assert_strides(p.q_stride, 5 * 4 * 8, 8, 4 * 8, 1);
  assert_strides(p.k_stride, 7 * 2 * 8, 8, 2 * 8, 1);
  assert_strides(p.v_stride, 7 * 2 * 6, 6, 2 * 6, 1);
  assert_strides(p.o_stride, 5 * 4 * 6, 6, 4 * 6, 1);
  assert_int_equal(p.lse_stride.h, 5);
  test_ok(attn_problem_validate(&p));
  attn_problem_set_varlen(&p, 9, 11);
  assert_int_equal(p.uses, ATTN_USE_VARLEN);
  assert_int_equal(p.total_q, 9);
  assert_int_equal(p.total_k, 11);
  assert_int_equal(p.q_stride.s, 4 * 8);
  assert_int_equal(p.lse_stride.h, 9);
  test_ok(attn_problem_validate(&p));
  attn_problem_set_pages(&p, 32, 3);
  assert_int_equal(p.uses, ATTN_USE_VARLEN | ATTN_USE_PAGES | ATTN_USE_KV_LEN);
  assert_int_equal(p.page_tokens, 32);
  assert_int_equal(p.pages, 3);
  assert_int_equal(p.page_table_stride, 1);
  assert_strides(p.k_stride, 2 * 32 * 8, 32 * 8, 8, 1);
  assert_strides(p.v_stride, 2 * 32 * 6, 32 * 6, 6, 1);
  test_ok(attn_problem_validate(&p));
  p.dtype_kv = ATTN_Q8_0; /* rows of whole blocks */
  attn_problem_set_pages(&p, 32, 3);
  assert_strides(p.k_stride, 2 * 32 * 32, 32 * 32, 32, 1);
  attn_problem_set_varlen(&p, 9, 11);
  assert_strides(p.v_stride, 7 * 2 * 32, 32, 2 * 32, 1);
  assert_strides(p.o_stride, 5 * 4 * 6, 6, 4 * 6, 1);
}

/* Fails unless each element of a tensor has a place of its own, without gaps; strides are four numbers, as sizes are. */
static void expect_dense(const char *field, const void *strides, const int64_t sizes[4]) {
  static bool taken[1 << 20];
  const int64_t all = sizes[0] * sizes[1] * sizes[2] * sizes[3];
  int64_t stride[4];
  memcpy(stride, strides, sizeof stride);
  assert_true(all > 0 && all <= (int64_t)COUNT(taken));
  memset(taken, 0, sizeof taken);
  for (int64_t n = 0; n < all; n++) {
    int64_t at = 0, rest = n;
    for (int i = 3; i >= 0; rest /= sizes[i], i--) at += rest % sizes[i] * stride[i];
    if (at < 0 || at >= all || taken[at]) fail_msg("%s: element %" PRId64 " is at %" PRId64, field, n, at);
    taken[at] = true;
  }
}

/* All sizes differ, so that no stride passes for another one. */
TEST(setters_describe_dense_tensors) {
#define DENSE(field, ...) expect_dense(#field, &p.field, (const int64_t[]){__VA_ARGS__})
  enum { B = 2, HQ = 9, HKV = 3, Q = 70, K = 400, D = 4, V = 8, TQ = 101, TK = 500, PAGES = 11, PAGE = 16, NEW = 5 };
  attn_problem p;
  attn_problem_init(&p, B, HQ, HKV, Q, K, D, V);
  for (int bshd = 0; bshd < 2; bshd++) {
    DENSE(q_stride, B, HQ, Q, D), DENSE(k_stride, B, HKV, K, D), DENSE(v_stride, B, HKV, K, V);
    DENSE(o_stride, B, HQ, Q, V), DENSE(lse_stride, B, HQ, Q, 1), DENSE(state_stride, B, HQ, Q, attn_state_floats(V));
    attn_problem_set_bshd(&p);
  }
  DENSE(bias_stride, B, HQ, Q, K), DENSE(mask_stride, B, HQ, Q, K), DENSE(scores_stride, B, HQ, Q, K);
  attn_problem_set_key_blocks(&p, 16, 64); /* 5 blocks of queries, 7 of keys */
  DENSE(kv_num_blocks_stride, B, HKV, 5, 1), DENSE(kv_indices_stride, B, HKV, 5, 7);
  attn_problem_set_newest_mask(&p, NEW);
  DENSE(mask_stride, B, HQ, Q, NEW);
  attn_problem_set_backward(&p);
  DENSE(d_q_stride, B, HQ, Q, D), DENSE(d_k_stride, B, HKV, K, D), DENSE(d_v_stride, B, HKV, K, V);
  DENSE(d_o_stride, B, HQ, Q, V), DENSE(d_lse_stride, B, HQ, Q, 1);
  DENSE(d_bias_stride, B, HQ, Q, K), DENSE(d_scores_stride, B, HQ, Q, K);
  attn_problem_set_varlen(&p, TQ, TK);
  DENSE(q_stride, 1, HQ, TQ, D), DENSE(k_stride, 1, HKV, TK, D), DENSE(v_stride, 1, HKV, TK, V);
  DENSE(o_stride, 1, HQ, TQ, V), DENSE(lse_stride, 1, HQ, TQ, 1), DENSE(state_stride, 1, HQ, TQ, attn_state_floats(V));
  attn_problem_set_pages(&p, PAGE, PAGES);
  DENSE(k_stride, PAGES, HKV, PAGE, D), DENSE(v_stride, PAGES, HKV, PAGE, V);
#undef DENSE
}

/* ---- Valid problems ---- */

#define LEGAL(name, change) \
  static void legal_##name(attn_problem *p) { change; }
#define LEGAL_CHANGES(X)                                                                                        \
  X(scale_zero, p->scale = 0)                                                                                   \
  X(scale_negative, p->scale = -2)                                                                              \
  X(broadcast_k, p->k_stride.s = 0)                                                                             \
  X(broadcast_all_of_v, p->v_stride = (attn_strides){0})                                                        \
  X(reversed_queries, p->q_stride.s = -8)                                                                       \
  X(reversed_output, p->o_stride.s = -6)                                                                        \
  X(dimension_outermost, (p->o_stride = (attn_strides){20, 5, 1, 40}))                                          \
  X(gaps_in_output, (p->o_stride = (attn_strides){1000, 200, 30, 3}))                                           \
  X(window, (p->window_left = 3, p->window_right = 2))                                                          \
  X(row_len_top_left, p->uses = ATTN_USE_ROW_LEN)                                                               \
  X(half_kv, p->dtype_kv = ATTN_F16)                                                                            \
  X(bytes_kv, p->dtype_kv = ATTN_F8_E4M3)                                                                       \
  X(bytes_kv_of_bf16, (p->dtype_kv = ATTN_F8_E5M2, p->dtype_q = ATTN_BF16))                                     \
  X(integers_kv, p->dtype_kv = ATTN_I8)                                                                         \
  X(bytes_kv_of_f16, (p->dtype_kv = ATTN_F8_E4M3, p->dtype_q = p->dtype_o = ATTN_F16))                          \
  X(blocks_kv, (p->dtype_kv = ATTN_Q8_0, attn_problem_set_bshd(p)))                                             \
  X(blocks_kv_reversed, (p->dtype_kv = ATTN_Q4_0, p->k_stride = p->v_stride = (attn_strides){-960, 0, -32, 1})) \
  X(half_all, (p->dtype_kv = ATTN_BF16, p->dtype_q = ATTN_BF16, p->dtype_o = ATTN_BF16))                        \
  X(overlapping_lse_unused, (p->lse_stride = (attn_strides){0}))                                                \
  X(q_of_precomputed_unread, (p->score = ATTN_SCORE_PRECOMPUTED, p->q_stride.b = INT64_MAX))                    \
  X(additive, (p->score = ATTN_SCORE_ADDITIVE, p->uses = ATTN_USE_SCORE_WEIGHT))                                \
  X(gaussian_unweighted, p->score = ATTN_SCORE_GAUSSIAN)                                                        \
  X(pages, attn_problem_set_pages(p, 1024, 0))                                                                  \
  X(shared_page_table, (attn_problem_set_pages(p, 16, 2), p->page_table_stride = 0))                            \
  X(one_element_stride_ignored, (attn_problem_init(p, 1, 1, 1, 1, 1, 1, 1), p->o_stride = (attn_strides){0}))   \
  X(no_batch, attn_problem_init(p, 0, 4, 2, 5, 7, 8, 6))                                                        \
  X(no_queries, attn_problem_init(p, 2, 4, 2, 0, 7, 8, 6))                                                      \
  X(no_keys, attn_problem_init(p, 2, 4, 2, 5, 0, 8, 6))
LEGAL_CHANGES(LEGAL)

TEST(legal_problems_are_accepted) {
#define ROW(name, change) {#name, legal_##name},
  static const struct {
    const char *name;
    void (*change)(attn_problem *);
  } rows[] = {LEGAL_CHANGES(ROW)};
#undef ROW
  for (size_t i = 0; i < COUNT(rows); i++) {
    attn_problem problem = valid_problem();
    rows[i].change(&problem);
    if (attn_problem_validate(&problem) != ATTN_OK) fail_msg("%s: %s", rows[i].name, attn_last_error());
  }
}

/* ---- Invalid problems ---- */

/* Name, change to a valid problem, parts of the refusal: field, value, what would be right. */
#define ILLEGAL_CHANGES(X)                                                                                                  \
  X(struct_size, p->struct_size = 8, "struct_size", "8", "attn_problem_init")                                               \
  X(batch, p->batch = -1, "batch", "-1", "at least 0")                                                                      \
  X(batch_big, p->batch = BIG, "batch", "2199023255552", "at most 2^31")                                                    \
  X(heads_q_zero, p->heads_q = 0, "heads_q", "0", "at least 1")                                                             \
  X(heads_kv_zero, p->heads_kv = 0, "heads_kv", "0", "at least 1")                                                          \
  X(heads, p->heads_q = 5, "heads_q", "5", "multiple of heads_kv")                                                          \
  X(heads_fewer, p->heads_q = 1, "heads_q", "1", "multiple of heads_kv")                                                    \
  X(seq_q, p->seq_q = -3, "seq_q", "-3", "at least 0")                                                                      \
  X(seq_k, p->seq_k = INT64_MIN, "seq_k", "-9223372036854775808", "at least 0")                                             \
  X(seq_k_big, p->seq_k = INT64_MAX, "seq_k", "9223372036854775807", "at most 2^31")                                        \
  X(dim_qk, p->dim_qk = 0, "dim_qk", "0", "at least 1")                                                                     \
  X(dtype_kv, p->dtype_kv = (attn_dtype)9, "dtype_kv", "9", "ATTN_F32")                                                     \
  X(dtype_q, p->dtype_q = ATTN_F16, "dtype_q", "1", "equal to dtype_kv")                                                    \
  X(dtype_q_bytes, p->dtype_q = p->dtype_kv = ATTN_F8_E4M3, "dtype_q", "3", "ATTN_F32, ATTN_F16 or ATTN_BF16")              \
  X(dtype_o_bytes, p->dtype_o = p->dtype_kv = ATTN_F8_E5M2, "dtype_o", "4", "ATTN_F32")                                     \
  X(dtype_q_blocks, p->dtype_q = p->dtype_kv = ATTN_Q8_0, "dtype_q", "6", "ATTN_F32, ATTN_F16 or ATTN_BF16")                \
  X(blocks_row, p->dtype_kv = ATTN_Q8_0, "k_stride.b", "112", "multiple of 32")                                             \
  X(blocks_rows, (p->dtype_kv = ATTN_Q4_0, attn_problem_set_bshd(p), p->v_stride.s = 48), "v_stride.s", "48",               \
    "multiple of 32")                                                                                                       \
  X(blocks_columns, (p->dtype_kv = ATTN_Q8_0, attn_problem_set_bshd(p), p->k_stride.d = 2), "k_stride.d", "2", "must be 1") \
  X(dtype_o, p->dtype_o = ATTN_BF16, "dtype_o", "2", "equal to dtype_q")                                                    \
  X(dtype_o_unlike_q, (p->dtype_kv = p->dtype_o = ATTN_BF16), "dtype_o", "2", "ATTN_F32")                                   \
  X(operation, p->operation = (attn_operation)2, "operation", "is 2", "in 0..1", "ATTN_FORWARD")                            \
  X(operation_negative, p->operation = (attn_operation)-1, "operation", "-1", "ATTN_FORWARD")                               \
  X(backward_alone, p->operation = ATTN_BACKWARD, "lacks ATTN_USE_LSE", "attn_problem_set_backward")                        \
  X(backward_pages, (attn_problem_set_pages(p, 16, 2), attn_problem_set_backward(p)), "0x400", "'backward' does not take")  \
  X(backward_dtype, (p->dtype_kv = ATTN_F8_E4M3, attn_problem_set_backward(p)), "dtype_kv is 3 with ATTN_BACKWARD",         \
    "ATTN_BF16")                                                                                                            \
  X(backward_bias, (attn_problem_set_backward(p), p->uses |= ATTN_USE_D_BIAS), "ATTN_USE_D_BIAS without ATTN_USE_BIAS")     \
  X(backward_first, (p->window_first = 2, attn_problem_set_backward(p)), "window_first is 2 with another operation")        \
  X(backward_prefix, (p->shared_prefix = 2, attn_problem_set_backward(p)), "shared_prefix is 2 with another operation")     \
  X(backward_overlap, (p->k_stride.h = 0, attn_problem_set_backward(p)), "d_k_stride.h is 0", "overlap")                    \
  X(gradients_of_forward, p->uses = ATTN_USE_ACCUMULATE, "0x100000", "'forward' does not take")                             \
  X(score, p->score = (attn_score)4, "score", "4", "ATTN_SCORE_DOT")                                                        \
  X(score_negative, p->score = (attn_score)-1, "score", "-1", "ATTN_SCORE_DOT")                                             \
  X(align, p->align = (attn_align)3, "align", "3", "ATTN_ALIGN_TOP_LEFT")                                                   \
  X(scale_nan, p->scale = NAN, "scale", "nan", "finite")                                                                    \
  X(scale_infinite, p->scale = -INFINITY, "scale", "-inf", "finite")                                                        \
  X(softcap_nan, p->softcap = NAN, "softcap", "nan", "finite")                                                              \
  X(softcap_negative, p->softcap = -1, "softcap", "-1", "at least 0")                                                       \
  X(window_left, p->window_left = -2, "window_left", "-2", "at least 0")                                                    \
  X(uses, p->uses = 1u << 30, "uses", "is 0x40000000", "ATTN_USE_")                                                         \
  X(varlen_kv_len, (attn_problem_set_varlen(p, 9, 9), p->uses |= ATTN_USE_KV_LEN), "uses", "ATTN_USE_VARLEN", "cu_seqlens") \
  X(varlen_q_len, (attn_problem_set_varlen(p, 9, 9), p->uses |= ATTN_USE_Q_LEN), "uses", "ATTN_USE_VARLEN", "cu_seqlens")   \
  X(varlen_row_len, (attn_problem_set_varlen(p, 9, 9), p->uses |= ATTN_USE_ROW_LEN), "uses", "ATTN_USE_VARLEN",             \
    "cu_seqlens")                                                                                                           \
  X(row_len, (p->uses = ATTN_USE_ROW_LEN, p->align = ATTN_ALIGN_BOTTOM_RIGHT), "uses", "ROW_LEN", "ATTN_ALIGN_TOP_LEFT")    \
  X(mask_keys, p->mask_keys = 3, "mask_keys is 3", "without ATTN_USE_MASK")                                                 \
  X(state_first, (p->uses = ATTN_USE_STATE, p->window_first = 2), "window_first is 2 with ATTN_USE_STATE", "0")             \
  X(state_prefix, (p->uses = ATTN_USE_STATE, p->shared_prefix = 3), "shared_prefix is 3 with ATTN_USE_STATE", "0")          \
  X(scales_score, (p->uses = ATTN_USE_KV_SCALES, p->score = ATTN_SCORE_GAUSSIAN), "KV_SCALES with score 2", "_DOT")         \
  X(channels_of_keys, (p->uses = ATTN_USE_KV_SCALES, p->k_scale_stride = (attn_strides){.s = 3, .d = 1}),                   \
    "k_scale_stride.s is 3 with .d 1", "must be 0", "for all tokens of a head")                                             \
  X(channels_of_pages,                                                                                                      \
    (attn_problem_set_pages(p, 16, 2), p->uses |= ATTN_USE_KV_SCALES, p->v_scale_stride = (attn_strides){.b = 9, .d = -1}), \
    "v_scale_stride.b is 9 with .d -1", "must be 0", "for all pages of a head")                                             \
  X(channels_of_states, (p->uses = ATTN_USE_KV_SCALES | ATTN_USE_STATE, p->v_scale_stride.d = 1),                           \
    "v_scale_stride.d is 1 with ATTN_USE_STATE", "must be 0")                                                               \
  X(additive, p->score = ATTN_SCORE_ADDITIVE, "uses", "ATTN_USE_SCORE_WEIGHT", "ADDITIVE")                                  \
  X(pages_without_lengths, (attn_problem_set_pages(p, 16, 2), p->uses = ATTN_USE_PAGES), "uses", "ATTN_USE_PAGES",          \
    "ATTN_USE_KV_LEN")                                                                                                      \
  X(page_tokens_none, attn_problem_set_pages(p, 0, 2), "page_tokens", "0", "multiple of 16 in 16..1024")                    \
  X(page_tokens_odd, attn_problem_set_pages(p, 24, 2), "page_tokens", "24", "multiple of 16 in 16..1024")                   \
  X(page_tokens_negative, attn_problem_set_pages(p, -16, 2), "page_tokens", "-16", "multiple of 16 in 16..1024")            \
  X(page_tokens_many, attn_problem_set_pages(p, 1040, 2), "page_tokens", "1040", "multiple of 16 in 16..1024")              \
  X(pages_reach, (attn_problem_set_pages(p, 16, 3), p->k_stride.b = INT64_MAX), "k_stride", "9223372036854775807",          \
    "addressable")                                                                                                          \
  X(page_table_reach, (attn_problem_set_pages(p, 16, 2), p->page_table_stride = INT64_MAX), "page_table_stride",            \
    "9223372036854775807", "addressable")                                                                                   \
  X(block_queries_none, attn_problem_set_key_blocks(p, 0, 64), "block_queries", "0", "multiple of 16")                      \
  X(block_queries_odd, attn_problem_set_key_blocks(p, 24, 64), "block_queries", "24", "multiple of 16")                     \
  X(block_queries_negative, attn_problem_set_key_blocks(p, -16, 64), "block_queries", "-16", "multiple of 16")              \
  X(block_keys_odd, attn_problem_set_key_blocks(p, 16, 32), "block_keys", "32", "multiple of 64")                           \
  X(block_keys_many, attn_problem_set_key_blocks(p, 16, INT64_MAX - 63), "block_keys", "9223372036854775744", "2^31")       \
  X(kv_num_blocks_reach, (attn_problem_set_key_blocks(p, 16, 64), p->kv_num_blocks_stride.b = INT64_MAX),                   \
    "kv_num_blocks_stride", "9223372036854775807", "addressable")                                                           \
  X(kv_indices_reach, (attn_problem_set_key_blocks(p, 16, 64), p->kv_indices_stride.h = INT64_MAX), "kv_indices_stride",    \
    "9223372036854775807", "addressable")                                                                                   \
  X(q_reach, p->q_stride.b = INT64_MAX, "q_stride", "9223372036854775807", "addressable")                                   \
  X(k_reach, p->k_stride.s = INT64_MIN, "k_stride", "-9223372036854775808", "addressable")                                  \
  X(v_reach, p->v_stride.h = (int64_t)1 << 61, "v_stride", "2305843009213693952", "addressable")                            \
  X(o_reach, p->o_stride.d = (int64_t)1 << 60, "o_stride", "1152921504606846976", "addressable")                            \
  X(lse_reach, (p->uses = ATTN_USE_LSE, p->lse_stride.h = INT64_MAX), "lse_stride", "9223372036854775807", "addressable")   \
  X(bias_reach, (p->uses = ATTN_USE_BIAS, p->bias_stride.k = INT64_MAX), "bias_stride", "9223372036854775807",              \
    "addressable")                                                                                                          \
  X(mask_reach, (p->uses = ATTN_USE_MASK, p->mask_stride.q = INT64_MAX), "mask_stride", "9223372036854775807",              \
    "addressable")                                                                                                          \
  X(scores_reach, (p->score = ATTN_SCORE_PRECOMPUTED, p->scores_stride.h = INT64_MAX), "scores_stride",                     \
    "9223372036854775807", "addressable")                                                                                   \
  X(score_weight_reach, (p->uses = ATTN_USE_SCORE_WEIGHT, p->score_weight_stride_h = INT64_MAX), "score_weight_stride_h",   \
    "9223372036854775807", "addressable")                                                                                   \
  X(o_broadcast, p->o_stride.h = 0, "o_stride.h", "0", "overlap")                                                           \
  X(o_overlap, p->o_stride.s = 5, "o_stride.s", "5", "overlap")                                                             \
  X(o_overlap_negative, p->o_stride.s = -5, "o_stride.s", "-5", "overlap")                                                  \
  X(o_interleaved, (p->o_stride = (attn_strides){.b = 1000, .h = 100, .s = 3, .d = 2}), "o_stride.s", "3", "overlap")       \
  X(lse_broadcast, (p->uses = ATTN_USE_LSE, p->lse_stride.s = 0), "lse_stride.s", "0", "overlap")

#define ILLEGAL(name, change, ...) \
  static void illegal_##name(attn_problem *p) { change; }
ILLEGAL_CHANGES(ILLEGAL)

TEST(illegal_problems_are_refused_in_words) {
#define ROW(name, change, ...) {#name, illegal_##name, {__VA_ARGS__}},
  static const struct {
    const char *name;
    void (*change)(attn_problem *);
    const char *parts[4];
  } rows[] = {ILLEGAL_CHANGES(ROW)};
#undef ROW
  for (size_t i = 0; i < COUNT(rows); i++) {
    attn_problem problem = valid_problem();
    rows[i].change(&problem);
    print_message("  %s\n", rows[i].name);
    test_refused_by_parts(attn_problem_validate(&problem), ATTN_INVALID_ARGUMENT, rows[i].parts);
    print_message("    %s\n", attn_last_error());
    attn_plan *plan = (attn_plan *)&problem; /* must come back as NULL */
    test_refused_by_parts(attn_plan_create(&problem, NULL, &plan), ATTN_INVALID_ARGUMENT, rows[i].parts);
    assert_null(plan);
    attn_args args = {.struct_size = sizeof(attn_args)};
    test_refused_by_parts(attn_sdpa(&problem, &args), ATTN_INVALID_ARGUMENT, rows[i].parts);
  }
}

/* The last legal value of a field is taken, and the next one is refused by the field's name. */
TEST(bounds_belong_to_the_legal_values) {
#define BOUND(field, least, most)                          \
  {                                                        \
#field, offsetof(attn_problem, field), { least, most } \
  }
  static const struct {
    const char *field;
    size_t at;
    int64_t bound[2];
  } rows[] = {BOUND(batch, 0, BIG >> 10),        BOUND(heads_q, 2, BIG >> 10),       BOUND(heads_kv, 1, BIG >> 10),
              BOUND(seq_q, 0, BIG >> 10),        BOUND(seq_k, 0, BIG >> 10),         BOUND(dim_qk, 1, BIG >> 10),
              BOUND(dim_v, 1, BIG >> 10),        BOUND(total_q, 0, BIG >> 10),       BOUND(total_k, 0, BIG >> 10),
              BOUND(pages, 0, BIG >> 10),        BOUND(page_tokens, 16, 1024),       BOUND(window_left, -1, INT64_MAX),
              BOUND(window_first, 0, INT64_MAX), BOUND(window_right, -1, INT64_MAX), BOUND(key_begin, 0, INT64_MAX),
              BOUND(key_end, 2, INT64_MAX),      BOUND(shared_prefix, 0, 16)};
#undef BOUND
  for (size_t i = 0; i < COUNT(rows); i++)
    for (int most = 0; most < 2; most++)
      for (int beyond = 0; beyond < (most && rows[i].bound[1] == INT64_MAX ? 1 : 2); beyond++) {
        attn_problem p = valid_problem();
        char said[100];
        p.seq_k = 16, p.key_begin = 2, p.key_end = 3;
        attn_problem_set_pages(&p, 16, 2);
        const int64_t value = rows[i].bound[most] + (most ? beyond : -beyond);
        memcpy((char *)&p + rows[i].at, &value, sizeof value);
        const int length = snprintf(said, sizeof said, "attn_problem.%s is %" PRId64, rows[i].field, value);
        const char *at = attn_problem_validate(&p) == ATTN_OK ? NULL : strstr(attn_last_error(), said);
        const bool refused = at && (at[length] < '0' || at[length] > '9');
        if (refused != beyond) fail_msg("%s: %s", said, refused ? attn_last_error() : "taken");
      }
}

TEST(null_problem_is_refused) {
  attn_plan *plan;
  test_invalid(attn_problem_validate(NULL), "problem", "NULL");
  test_invalid(attn_plan_create(NULL, NULL, &plan), "problem", "NULL");
  assert_null(plan);
  const attn_problem problem = valid_problem();
  test_invalid(attn_plan_create(&problem, NULL, NULL), "plan", "NULL");
}

/* The limit is for a whole batch, counted without overflow. */
TEST(rows_and_keys_are_at_most_2_to_the_60) {
  for (int keys = 0; keys < 2; keys++)
    for (int bits = 59; bits <= 64; bits++) {
      attn_problem p;
      attn_problem_init(&p, 1 << 22, 1 << 21, 1 << 21, 1, 1, 1, 1);
      *(keys ? &p.seq_k : &p.seq_q) = 1 << (bits - 43);
      const bool refused = attn_problem_validate(&p) != ATTN_OK && strstr(attn_last_error(), "at most 2^60 rows");
      assert_int_equal(refused, bits > 60);
    }
}

/* A product of sizes that overflows must not become a small workspace. */
TEST(overflowing_workspace_is_refused) {
  attn_problem p;
  const int64_t long_seq = (int64_t)1 << 31;
  attn_problem_init(&p, 1, 1, 1, 1, long_seq, 1, 1);
  p.seq_q = long_seq;
  p.k_stride = p.v_stride = p.q_stride = (attn_strides){0};
  p.o_stride = (attn_strides){.b = 0, .h = 0, .s = 1, .d = 1};
  attn_plan *plan;
  attn_options options = ATTN_STRUCT(attn_options, .kernel = "naive_c", .threads = 1);
  attn_status status = attn_plan_create(&p, &options, &plan);
  if (status == ATTN_OK) { /* allowed for a kernel that keeps only a few rows at a time */
    assert_true(attn_plan_workspace(plan) >= (size_t)long_seq * sizeof(float));
    attn_plan_destroy(plan);
  } else {
    test_refused(status, ATTN_UNSUPPORTED, "workspace of naive_c");
  }
}
