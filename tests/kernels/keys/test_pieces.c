/* SPDX-License-Identifier: MIT */
/* Problems that run in pieces: first keys that stay beside a window, and a prefix that sequences share. attnbench checks
 * them against the oracle; here are bits: of a row, whatever its batch, chunk, threads and pages are. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/pieces.h"
#include "tests/support/support.h"

/* Runs the problem for the kernel and returns its outputs. */
static test_data run(const char *kernel, const attn_problem *p, const attn_args *args, int threads) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = threads);
  test_data result = test_data_share_inputs(p, &(test_data){.args = *args});
  test_ok(test_run(p, &result.args, &options));
  return result;
}

static bool takes(const char *kernel, const attn_problem *p) { return !attn_kernel_rejects(attn_kernel_find(kernel), p); }

static void *moved(const void *data, int64_t elements, attn_dtype dtype) {
  return (char *)(uintptr_t)data + attn_elements_bytes(dtype, elements);
}

/* The rows of dense outputs [heads][queries][dim] from query `first` on, in those of more queries. */
static void same_rows(const char *kernel, const attn_problem *part, const attn_args *got, const attn_problem *whole,
                      const attn_args *expected, int64_t first) {
  const size_t bytes = (size_t)attn_elements_bytes(part->dtype_o, 1);
  for (int64_t h = 0; h < part->heads_q; h++)
    for (int64_t i = 0; i < part->seq_q; i++) {
      const int64_t row = h * part->seq_q + i, other = h * whole->seq_q + first + i;
      if (memcmp((const char *)got->o + (size_t)(row * part->dim_v) * bytes,
                 (const char *)expected->o + (size_t)(other * part->dim_v) * bytes, (size_t)part->dim_v * bytes) ||
          memcmp(got->lse + row, expected->lse + other, sizeof(float)))
        fail_msg("%s: query %d of %d has other bits among %d", kernel, (int)(first + i), (int)whole->seq_q,
                 (int)part->seq_q);
    }
}

/* ---- First keys beside a window -------------------------------------------------------------------------------------- */

/* Queries from `first` on as a call of their own. */
static void chunk_has_same_bits(const char *kernel, const attn_problem *whole, const test_data *data, int64_t first,
                                int64_t queries) {
  attn_problem p = *whole;
  const int32_t offsets[] = {(int32_t)(data->args.offsets[0] + first)};
  attn_args args = data->args;
  p.seq_q = queries;
  p.o_stride = (attn_strides){0, queries * p.dim_v, p.dim_v, 1};
  p.lse_stride = (attn_strides){0, queries, 1, 1};
  args.q = moved(args.q, first * p.q_stride.s, p.dtype_q);
  args.offsets = offsets;
  if (!takes(kernel, &p)) return;
  test_data chunk = run(kernel, &p, &args, 2);
  same_rows(kernel, &p, &chunk.args, whole, &data->args, first);
  test_data_destroy_outputs(&chunk);
}

static void chunks_keep_bits_beside_first_keys(const char *kernel) {
  for (int type = ATTN_F32; type <= ATTN_BF16; type++) {
    attn_problem p;
    attn_problem_init(&p, 1, 4, 2, 90, 400, 64, 48);
    p.dtype_q = p.dtype_kv = p.dtype_o = (attn_dtype)type;
    attn_problem_set_causal(&p, ATTN_ALIGN_OFFSET);
    p.window_left = 40;
    p.window_first = 5;
    p.uses = ATTN_USE_LSE | ATTN_USE_SINKS;
    if (!test_rows_stand_alone(kernel) || !takes(kernel, &p)) continue;
    static const int32_t offsets[] = {300};
    static const float sinks[] = {0, -1, 2, 0.5f};
    test_data data = test_data_create(&p, 3);
    data.args.offsets = offsets;
    data.args.sinks = sinks;
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
    test_ok(test_run(&p, &data.args, &options));
    for (int64_t first = 0, queries = 1; first + queries <= p.seq_q; first += queries, queries = 1 + queries * 3 % 40)
      chunk_has_same_bits(kernel, &p, &data, first, queries);
    test_data_destroy(&data);
  }
}
KERNEL_TEST(chunks_keep_bits_beside_first_keys)

/* The last queries of 300 keys, of which each sees the first 4 and a window of 20 more. */
static attn_problem beside_first_keys(const char *kernel, int64_t heads_q, int64_t queries, uint32_t uses) {
  attn_problem p;
  attn_problem_init(&p, 1, heads_q, 1, queries, 300, 32, 32);
  test_fit_types(kernel, &p);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  p.window_left = 20;
  p.window_first = 4;
  p.uses = uses;
  return p;
}

/* Keys between the first ones and all windows are not read: they may be NaN. */
static void keys_between_are_not_read(const char *kernel) {
  const attn_problem p = beside_first_keys(kernel, 2, 7, ATTN_USE_LSE);
  if (!takes(kernel, &p)) return;
  test_data data = test_data_create(&p, 8);
  test_data clean = run(kernel, &p, &data.args, 1);
  const size_t bytes = (size_t)attn_elements_bytes(p.dtype_kv, 1);
  memset(moved(data.args.k, 4 * 32, p.dtype_kv), 0xff, (size_t)(300 - 7 - 20 - 4) * 32 * bytes);
  memset(moved(data.args.v, 4 * 32, p.dtype_kv), 0xff, (size_t)(300 - 7 - 20 - 4) * 32 * bytes);
  test_data other = run(kernel, &p, &data.args, 1);
  assert_memory_equal(clean.args.o, other.args.o, clean.o_bytes);
  assert_memory_equal(clean.args.lse, other.args.lse, clean.lse_bytes);
  test_data_destroy_outputs(&other);
  test_data_destroy_outputs(&clean);
  test_data_destroy(&data);
}
KERNEL_TEST(keys_between_are_not_read)

/* A sink does not change the LSE, even if it is so far above the scores that weights of keys are denormal doubles. */
static void sinks_far_above_change_no_lse(const char *kernel) {
  static const float sinks[] = {0, 300, 740, 745, 900};
  const attn_problem p = beside_first_keys(kernel, 1, 3, ATTN_USE_LSE | ATTN_USE_SINKS);
  if (!takes(kernel, &p)) return;
  test_data data = test_data_create(&p, 8);
  float lse[3];
  for (size_t n = 0; n < COUNT(sinks); n++) {
    data.args.sinks = &sinks[n];
    test_data result = run(kernel, &p, &data.args, 1);
    for (int i = 0; n > 0 && i < 3; i++)
      if (fabs((double)result.args.lse[i] - (double)lse[i]) > 1e-6 * (1 + fabs((double)lse[i])))
        fail_msg("%s: lse of query %d is %.9g with a sink of %g, not %.9g", kernel, i, (double)result.args.lse[i],
                 (double)sinks[n], (double)lse[i]);
    if (n == 0) memcpy(lse, result.args.lse, sizeof lse);
    test_data_destroy_outputs(&result);
  }
  test_data_destroy(&data);
}
KERNEL_TEST(sinks_far_above_change_no_lse)

/* ---- A shared prefix ------------------------------------------------------------------------------------------------- */

/* K and V of `batch` sequences, whose first keys are those of sequence 0. */
static void share_first_keys(const attn_problem *p, const attn_args *args) {
  const size_t bytes = (size_t)attn_elements_bytes(p->dtype_kv, 1);
  for (int64_t b = 1; b < p->batch; b++)
    for (int64_t h = 0; h < p->heads_kv; h++) {
      memcpy(moved(args->k, b * p->k_stride.b + h * p->k_stride.h, p->dtype_kv),
             moved(args->k, h * p->k_stride.h, p->dtype_kv), (size_t)(p->shared_prefix * p->dim_qk) * bytes);
      memcpy(moved(args->v, b * p->v_stride.b + h * p->v_stride.h, p->dtype_kv),
             moved(args->v, h * p->v_stride.h, p->dtype_kv), (size_t)(p->shared_prefix * p->dim_v) * bytes);
    }
}

/* Each sequence by itself has the bits that it has among the others. */
static void sequences_stand_alone(const char *kernel, const attn_problem *all, const test_data *data) {
  for (int64_t b = 0; b < all->batch; b += 3) {
    attn_problem p = *all;
    attn_args args = data->args;
    p.batch = 1;
    args.q = moved(args.q, b * p.q_stride.b, p.dtype_q);
    args.k = moved(args.k, b * p.k_stride.b, p.dtype_kv);
    args.v = moved(args.v, b * p.v_stride.b, p.dtype_kv);
    args.kv_len += b;
    args.q_len += b;
    test_data one = run(kernel, &p, &args, 1);
    const attn_args expected = {.o = moved(data->args.o, b * p.o_stride.b, p.dtype_o),
                                .lse = data->args.lse + b * p.lse_stride.b};
    same_rows(kernel, &p, &one.args, &p, &expected, 0);
    test_data_destroy_outputs(&one);
  }
}

/* Rows without queries have -inf twice, whose difference does not count. */
static double largest_difference(const attn_problem *p, const test_data *a, const test_data *b) {
  double largest = 0;
  for (int64_t i = 0; i < p->batch * p->heads_q * p->seq_q * p->dim_v; i++)
    largest = fmax(largest, fabs((double)((float *)a->args.o)[i] - (double)((float *)b->args.o)[i]));
  for (int64_t i = 0; i < p->batch * p->heads_q * p->seq_q; i++)
    largest = fmax(largest, fabs((double)a->args.lse[i] - (double)b->args.lse[i]));
  return largest;
}

static void shared_prefix_of(const char *kernel, attn_problem *p) {
  enum { MOST = 13 };
  static const float sinks[] = {0, -1, 2, 0.5f, -3, 1, 0, 0};
  int32_t kv_len[MOST], q_len[MOST];
  for (int b = 0; b < MOST; b++) {
    kv_len[b] = (int32_t)(p->shared_prefix + p->seq_q + (b * 37) % (p->seq_k - p->shared_prefix - p->seq_q + 1));
    q_len[b] = (int32_t)(b % 4 == 0 ? 0 : b % 4 == 2 ? (p->seq_q + 1) / 2 : p->seq_q);
  }
  test_data data = test_data_create(p, 4);
  data.args.kv_len = kv_len;
  data.args.q_len = q_len;
  data.args.sinks = sinks;
  share_first_keys(p, &data.args);
  memset(moved(data.args.k, 0, p->dtype_kv), 0xff, (size_t)attn_elements_bytes(p->dtype_kv, p->k_stride.b)); /* unread: */
  memset(moved(data.args.v, 0, p->dtype_kv), 0xff, (size_t)attn_elements_bytes(p->dtype_kv, p->v_stride.b)); /* no query */
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  attn_plan *plan;
  test_ok(attn_plan_create(p, &options, &plan));
  test_contains(attn_plan_describe(plan), "keys that sequences share");
  assert_null(strstr(attn_plan_describe(plan), "for 1 of them")); /* keys are read once for several */
  attn_plan_destroy(plan);
  test_ok(test_run(p, &data.args, &options));
  test_data threads = run(kernel, p, &data.args, 3);
  assert_memory_equal(threads.args.o, data.args.o, data.o_bytes);
  assert_memory_equal(threads.args.lse, data.args.lse, data.lse_bytes);
  sequences_stand_alone(kernel, p, &data);
  attn_problem plain = *p;
  plain.shared_prefix = 0;
  test_data each = run(kernel, &plain, &data.args, 1);
  if (p->dtype_o == ATTN_F32) assert_true(largest_difference(p, &each, &data) < 1e-5);
  test_data_destroy_outputs(&each);
  test_data_destroy_outputs(&threads);
  test_data_destroy(&data);
}

/* More sequences than a decode kernel takes at once, some without queries; queries of all sequences at one stride or not. */
static void prefixes_are_shared(const char *kernel) {
  static const struct {
    int64_t batch, heads_q, seq_q, prefix, seq_k;
  } shapes[] = {{13, 8, 1, 1024, 1100}, {5, 4, 3, 300, 400}, {4, 2, 40, 64, 200}};
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_BF16, ATTN_F16};
  for (size_t i = 0; i < COUNT(shapes); i++)
    for (size_t type = 0; type < COUNT(dtypes); type++) {
      attn_problem p;
      if (test_few() && (i + type) % 3 != 1) continue;
      attn_problem_init(&p, shapes[i].batch, shapes[i].heads_q, 2, shapes[i].seq_q, shapes[i].seq_k, 64, 64);
      p.dtype_q = p.dtype_kv = p.dtype_o = dtypes[type];
      attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
      p.shared_prefix = shapes[i].prefix;
      if (i == 1) p.q_stride = (attn_strides){p.q_stride.b, p.q_stride.h, 1, p.seq_q}; /* elements not side by side */
      p.uses = ATTN_USE_LSE | ATTN_USE_SINKS | ATTN_USE_KV_LEN | ATTN_USE_Q_LEN;
      if (test_rows_stand_alone(kernel) && takes(kernel, &p)) shared_prefix_of(kernel, &p);
    }
}
KERNEL_TEST(prefixes_are_shared)

TEST(shared_prefixes_that_cannot_be_are_refused) {
  attn_problem p;
  attn_problem_init(&p, 2, 2, 1, 2, 64, 8, 8);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  p.shared_prefix = 65;
  test_invalid(attn_problem_validate(&p), "shared_prefix is 65", "0..seq_k, 64");
  p.shared_prefix = 40;
  test_data data = test_data_create(&p, 4); /* for the keys of 8 pages */
  attn_problem_set_pages(&p, 16, 8);
  test_invalid(attn_problem_validate(&p), "shared_prefix is 40", "multiple of page_tokens, 16");
  p.shared_prefix = 32;
  int32_t kv_len[] = {64, 33}, table[] = {3, 1, 0, 2, 3, 1, 5, 6};
  data.args.kv_len = kv_len;
  data.args.page_table = table;
  test_ok(test_run(&p, &data.args, NULL));
  kv_len[1] = 32;
  test_invalid(test_run(&p, &data.args, NULL), "shared_prefix is 32", "query 0 of sequence 1 sees 31 keys");
  kv_len[1] = 33;
  table[5] = 4;
  test_invalid(test_run(&p, &data.args, NULL), "page_table[1][1] is 4", "must be 1 as for sequence 0");
  static const int32_t q_len[] = {0, 2};
  p.uses |= ATTN_USE_Q_LEN; /* a sequence without queries shares nothing, and its pages may be anything */
  table[0] = table[1] = INT32_MAX;
  data.args.q_len = q_len;
  test_ok(test_run(&p, &data.args, NULL));
  test_data_destroy(&data);
}
