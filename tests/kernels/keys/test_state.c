/* SPDX-License-Identifier: MIT */
/* Keys in pieces (ATTN_USE_STATE): a kernel gives the bits of one call over all keys, whatever the pieces are, and refuses
 * states that no call has left. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/indexing.h"
#include "tests/support/support.h"

enum { BATCH = 2, PAGE_TOKENS = 16 };

/* A problem with all its keys, and what its rows are to be. */
typedef struct whole {
  attn_problem p;
  test_data data;
  float *bias;   /* or scores */
  uint8_t *mask; /* each [BATCH][heads_q][seq_q][seq_k] */
  int32_t offsets[BATCH], kv_len[BATCH], *table;
} whole;

typedef struct shape {
  int64_t heads_q, seq_q, seq_k, dim_qk, dim_v, left, right;
  uint32_t uses;
  attn_score score;
  float softcap;
} shape;

static const float slopes[8] = {0.5f, 0.25f, 0.125f, 0.0625f, 1, 2, 0.03125f, 0.015625f};
static const float sinks[8] = {0.5f, -1, 2, 0, 1, -3, 0.25f, 4};

/* Keys are rows of one tensor, so that pages of any order can be views of it. */
static void set_pages(whole *w) {
  attn_problem *p = &w->p;
  const int64_t of_each = p->seq_k / PAGE_TOKENS;
  assert_int_equal(p->seq_k % PAGE_TOKENS, 0);
  p->uses |= ATTN_USE_PAGES | ATTN_USE_KV_LEN;
  p->page_tokens = PAGE_TOKENS;
  p->pages = BATCH * p->heads_kv * of_each;
  p->page_table_stride = of_each;
  w->table = test_allocate((size_t)(BATCH * of_each) * sizeof *w->table);
  for (int64_t b = 0; b < BATCH; b++)
    for (int64_t i = 0; i < of_each; i++) w->table[b * of_each + i] = (int32_t)(b * p->heads_kv * of_each + i);
  p->pages = (BATCH - 1) * p->heads_kv * of_each + of_each; /* pages of head 0; those of other heads lie behind them */
  p->k_stride.b = PAGE_TOKENS * p->dim_qk;
  p->v_stride.b = PAGE_TOKENS * p->dim_v;
  w->data.args.page_table = w->table;
}

/* dtype: of K and V; of all tensors where it is no integer. */
static whole make_whole(const shape *s, attn_dtype dtype) {
  whole w = {.table = NULL};
  attn_problem *p = &w.p;
  attn_problem_init(p, BATCH, 2 * s->heads_q, 2, s->seq_q, s->seq_k, s->dim_qk, s->dim_v);
  p->dtype_kv = dtype;
  p->dtype_q = p->dtype_o = dtype == ATTN_I8 ? ATTN_F32 : dtype;
  p->align = ATTN_ALIGN_OFFSET;
  p->window_left = s->left;
  p->window_right = s->right;
  p->score = s->score;
  p->softcap = s->softcap;
  p->scale *= 8; /* so that references move */
  p->uses = (s->uses & ~(uint32_t)ATTN_USE_PAGES) | ATTN_USE_LSE;
  w.data = test_data_create(p, 17);
  const size_t pairs = (size_t)(BATCH * p->heads_q * p->seq_q * p->seq_k);
  w.bias = test_allocate(pairs * sizeof *w.bias);
  w.mask = test_allocate(pairs);
  test_fill(w.bias, pairs, 5);
  for (size_t i = 0; i < pairs; i++) {
    w.mask[i] = i * 2654435761u >> 16 & 1;
    w.bias[i] = i % 13 == 0 && (s->uses & ATTN_USE_BIAS) ? -INFINITY : 6 * w.bias[i];
  }
  for (int b = 0; b < BATCH; b++) {
    w.offsets[b] = (int32_t)(s->seq_k - s->seq_q - 40 * b);
    w.kv_len[b] = (int32_t)(s->seq_k - 77 * b);
  }
  return w;
}

static void point_args(whole *w, const shape *s) {
  attn_problem *p = &w->p;
  attn_args *a = &w->data.args;
  a->offsets = w->offsets;
  if (p->uses & ATTN_USE_BIAS) a->bias = w->bias;
  if (p->uses & ATTN_USE_MASK) a->mask = w->mask;
  if (p->uses & ATTN_USE_ALIBI) a->alibi_slopes = slopes;
  if (p->uses & ATTN_USE_SINKS) a->sinks = sinks;
  if (p->score == ATTN_SCORE_PRECOMPUTED) a->scores = w->bias;
  if (s->uses & ATTN_USE_PAGES) set_pages(w);
  if (p->uses & ATTN_USE_KV_LEN) a->kv_len = w->kv_len;
}

static void free_whole(whole *w) {
  test_data_destroy(&w->data);
  free(w->bias);
  free(w->mask);
  free(w->table);
}

static float *new_state(const attn_problem *p) {
  const size_t floats = (size_t)(p->batch * p->heads_q * p->seq_q * attn_state_floats(p->dim_v));
  float *state = test_allocate(floats * sizeof *state);
  memset(state, 0xff, floats * sizeof *state); /* NaN */
  test_ok(attn_state_start(p, state));
  return state;
}

/* The problem and arguments of `keys` keys from `first` on. */
static attn_problem piece_problem(const whole *w, int64_t keys) {
  attn_problem p = w->p;
  p.seq_k = keys;
  p.uses |= ATTN_USE_STATE;
  return p;
}

static attn_args piece_args(const whole *w, int64_t first, int64_t keys, int32_t offsets[BATCH], int32_t kv_len[BATCH]) {
  const attn_problem *p = &w->p;
  attn_args a = w->data.args;
  if (p->uses & ATTN_USE_PAGES) {
    a.page_table += first / PAGE_TOKENS;
  } else {
    a.k = attn_element_at(a.k, p->dtype_kv, first * p->k_stride.s);
    a.v = attn_element_at(a.v, p->dtype_kv, first * p->v_stride.s);
  }
  if (a.bias) a.bias += first * p->bias_stride.k;
  if (a.mask) a.mask += first * p->mask_stride.k;
  if (a.scores) a.scores += first * p->scores_stride.k;
  for (int b = 0; b < BATCH; b++) {
    offsets[b] = (int32_t)(w->offsets[b] - first);
    kv_len[b] = (int32_t)(w->kv_len[b] < first ? 0 : w->kv_len[b] - first < keys ? w->kv_len[b] - first : keys);
  }
  a.offsets = offsets;
  if (a.kv_len) a.kv_len = kv_len;
  a.o = NULL;
  a.lse = NULL;
  return a;
}

static int64_t piece_keys(const char *kernel, const attn_problem *p) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel);
  attn_plan *plan;
  test_ok(attn_plan_create(p, &options, &plan));
  const int64_t keys = attn_plan_piece_keys(plan);
  attn_plan_destroy(plan);
  assert_true(keys > 0);
  return keys;
}

/* Pieces of 1, 2, .. `most` times the plan's keys, again and again; only the last one asks for O and LSE. */
static void run_pieces(const char *kernel, const whole *w, int64_t most, test_data *result) {
  const attn_problem all = piece_problem(w, w->p.seq_k);
  const int64_t unit = piece_keys(kernel, &all);
  float *state = new_state(&all);
  int64_t count = 1;
  for (int64_t first = 0, keys; first < w->p.seq_k; first += keys, count = count % most + 1) {
    keys = w->p.seq_k - first < count * unit ? w->p.seq_k - first : count * unit;
    const attn_problem p = piece_problem(w, keys);
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1 + (int)(first / unit % 2));
    int32_t offsets[BATCH], kv_len[BATCH];
    attn_args a = piece_args(w, first, keys, offsets, kv_len);
    a.state = state;
    if (first + keys == w->p.seq_k) {
      a.o = result->args.o;
      a.lse = result->args.lse;
    }
    test_ok(test_run(&p, &a, &options));
  }
  free(state);
}

static void same_bits_in_pieces_of(const char *kernel, const whole *w) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  test_ok(test_run(&w->p, &w->data.args, &options));
  for (int64_t most = 1; most <= 4; most += test_few() ? 3 : 1) {
    test_data result = test_data_share_inputs(&w->p, &w->data);
    run_pieces(kernel, w, most, &result);
    if (memcmp(result.args.o, w->data.args.o, w->data.o_bytes) ||
        memcmp(result.args.lse, w->data.args.lse, w->data.lse_bytes))
      fail_msg("%s: bits differ in pieces of up to %d: %d queries, %d keys, dims %d and %d, uses 0x%x, dtype %d", kernel,
               (int)most, (int)w->p.seq_q, (int)w->p.seq_k, (int)w->p.dim_qk, (int)w->p.dim_v, w->p.uses,
               (int)w->p.dtype_kv);
    test_data_destroy_outputs(&result);
  }
}

static const uint32_t terms = ATTN_USE_BIAS | ATTN_USE_MASK, lengths = ATTN_USE_KV_LEN | ATTN_USE_SINKS;
#define DOT ATTN_SCORE_DOT
static const shape shapes[] = {
    {2, 70, 700, 37, 29, -1, 0, 0, DOT, 0},
    {1, 131, 1104, 64, 64, -1, -1, 0, DOT, 0},
    {2, 40, 1104, 64, 32, 300, 0, ATTN_USE_PAGES, DOT, 0},
    {1, 33, 620, 64, 64, -1, 0, terms, DOT, 0},
    {1, 33, 620, 24, 40, 100, 3, lengths | ATTN_USE_ALIBI, DOT, 0},
    {1, 20, 620, 32, 32, -1, 0, 0, DOT, 3},
    {1, 19, 330, 16, 16, -1, -1, lengths, ATTN_SCORE_PRECOMPUTED, 0},
    {1, 9, 330, 16, 16, -1, 0, ATTN_USE_SINKS, ATTN_SCORE_GAUSSIAN, 0},
    {1, 1, 3300, 64, 64, -1, -1, 0, DOT, 0},
    {4, 1, 3312, 128, 128, -1, -1, ATTN_USE_PAGES | ATTN_USE_SINKS, DOT, 0},
    {2, 3, 2293, 40, 100, 700, -1, lengths, DOT, 0},
    {4, 2, 2293, 32, 96, 1100, 0, terms | ATTN_USE_ALIBI, DOT, 0},
};
#undef DOT

/* Whether the kernel takes keys in pieces wherever it takes them at once; else it says why it never does. */
static bool takes_pieces(const char *kernel, const attn_problem *p) {
  const attn_kernel_info *info = attn_kernel_find(kernel);
  attn_problem pieces = *p;
  pieces.uses |= ATTN_USE_STATE;
  if (attn_kernel_rejects(info, p)) return false;
  const char *reason = attn_kernel_rejects(info, &pieces);
  const bool streams = strcmp(info->algorithm, "flash") == 0 || strcmp(info->algorithm, "decode") == 0;
  if (reason && streams) fail_msg("%s refuses pieces: %s", kernel, reason);
  if (!reason && !streams) fail_msg("%s takes pieces, but keeps no state", kernel);
  return !reason;
}

static void pieces_give_the_bits_of_one_call(const char *kernel) {
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8};
  int taken = 0;
  for (size_t i = 0; i < COUNT(shapes); i++)
    for (size_t type = 0; type < COUNT(dtypes); type++) {
      if (test_few() && (i + type) % 3 != 0) continue;
      whole w = make_whole(&shapes[i], dtypes[type]);
      point_args(&w, &shapes[i]);
      if (takes_pieces(kernel, &w.p)) {
        same_bits_in_pieces_of(kernel, &w);
        taken++;
      }
      free_whole(&w);
    }
  const char *algorithm = attn_kernel_find(kernel)->algorithm;
  if (!taken && (!strcmp(algorithm, "flash") || !strcmp(algorithm, "decode"))) fail_msg("%s takes no pieces", kernel);
}
KERNEL_TEST(pieces_give_the_bits_of_one_call)

/* NaN and infinity in values of keys that some rows do not see: pieces are computed again as whole calls are. A row that
 * sees one of them comes out as it must, in any later piece too. */
static void pieces_beside_nan(const char *kernel) {
  const shape s = {2, 40, 700, 64, 64, -1, 0, 0, ATTN_SCORE_DOT, 0}, few = {2, 3, 2200, 64, 64, -1, 0, 0, ATTN_SCORE_DOT, 0};
  for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++)
    for (int one = 0; one < 2; one++) {
      whole w = make_whole(one ? &few : &s, (attn_dtype)dtype);
      point_args(&w, one ? &few : &s);
      for (int b = 0; b < BATCH; b++) w.offsets[b] = (int32_t)(w.p.seq_k - w.p.seq_q);
      if (takes_pieces(kernel, &w.p)) {
        const int64_t dim = w.p.dim_v, last = w.p.seq_k - 1;
        attn_store_f32((void *)(uintptr_t)w.data.args.v, w.p.dtype_kv, last * dim + 3, NAN); /* the last row's alone */
        attn_store_f32((void *)(uintptr_t)w.data.args.v, w.p.dtype_kv, (last - 1) * dim + 5, INFINITY);
        const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
        test_ok(test_run(&w.p, &w.data.args, &options));
        test_data result = test_data_share_inputs(&w.p, &w.data);
        run_pieces(kernel, &w, 2, &result);
        for (int64_t i = 0; i < BATCH * w.p.heads_q * w.p.seq_q * dim; i++) {
          const float want = attn_load_f32((attn_storage){w.data.args.o, w.p.dtype_o}, i);
          const float have = attn_load_f32((attn_storage){result.args.o, w.p.dtype_o}, i);

          if (isfinite(want) ? fabs((double)want - (double)have) > 0.01 : isfinite(have))
            fail_msg("%s: element %d is %g, not %g, beside NaN", kernel, (int)i, (double)have, (double)want);
        }
        test_data_destroy_outputs(&result);
      }
      free_whole(&w);
    }
}
KERNEL_TEST(pieces_beside_nan)

/* Every kernel goes on from every kernel's state, and attn_partial_merge() takes states, too: within rounding. */
static double largest_difference(const float *a, const float *b, int64_t count) {
  double largest = 0;
  for (int64_t i = 0; i < count; i++) largest = fmax(largest, fabs((double)a[i] - (double)b[i]));
  return largest;
}

static void half(const char *kernel, const whole *w, int second, float *state, float *o) {
  const int64_t keys = second ? w->p.seq_k - 1024 : 1024;
  const attn_problem p = piece_problem(w, keys);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
  int32_t offsets[BATCH], kv_len[BATCH];
  attn_args a = piece_args(w, second ? 1024 : 0, keys, offsets, kv_len);
  a.state = state;
  a.o = o;
  test_ok(test_run(&p, &a, &options));
}

static void states_pass_between_kernels(const char *kernel) {
  const shape s = {2, 3, 2048, 64, 40, -1, 0, 0, ATTN_SCORE_DOT, 0};
  for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype += 2) {
    whole w = make_whole(&s, (attn_dtype)dtype);
    point_args(&w, &s);
    w.p.dtype_o = ATTN_F32;
    w.p.scale /= 8;
    if (dtype == ATTN_BF16) w.p.dtype_q = ATTN_BF16, w.p.dtype_o = ATTN_F32;
    test_data one = test_data_share_inputs(&w.p, &w.data);
    test_ok(test_run(&w.p, &one.args, &ATTN_STRUCT(attn_options, .kernel = "flash_c")));
    const int64_t rows = BATCH * w.p.heads_q * w.p.seq_q, count = rows * w.p.dim_v;
    float *o = test_allocate((size_t)count * sizeof *o), *lse = test_allocate((size_t)rows * sizeof *lse);
    static const char *const others[] = {"flash_c", "decode_c", "flash_portable"};
    const double limit = dtype == ATTN_F32 ? 2e-6 : 8e-3;
    for (size_t i = 0; takes_pieces(kernel, &w.p) && i < COUNT(others); i++)
      for (int order = 0; order < 2; order++) {
        const attn_problem p = piece_problem(&w, 1024);
        float *first = new_state(&p), *later = new_state(&p);
        half(order ? kernel : others[i], &w, 0, first, NULL);
        half(order ? others[i] : kernel, &w, 1, later, NULL);
        const attn_partial whole_state = attn_partial_of_state(first, w.p.dim_v),
                           piece = attn_partial_of_state(later, w.p.dim_v);
        float *kept = new_state(&p);
        memcpy(kept, first, (size_t)(rows * attn_state_floats(w.p.dim_v)) * sizeof *kept);
        test_ok(attn_partial_merge(rows, w.p.dim_v, &piece, &whole_state));
        test_ok(attn_partial_finish(rows, w.p.dim_v, &whole_state, o, lse));
        const double merged = largest_difference(o, one.args.o, count), lses = largest_difference(lse, one.args.lse, rows);
        half(order ? others[i] : kernel, &w, 1, kept, o);
        const double carried = largest_difference(o, one.args.o, count);
        if (merged > limit || carried > limit || lses > limit)
          fail_msg("%s with %s: merged %g, LSE %g, carried %g", kernel, others[i], merged, lses, carried);
        free(first);
        free(later);
        free(kept);
      }
    free(o);
    free(lse);
    test_data_destroy_outputs(&one);
    free_whole(&w);
  }
}
KERNEL_TEST(states_pass_between_kernels)

/* ---- What is refused ---- */

TEST(bad_states_are_refused) {
  const shape s = {1, 3, 64, 16, 16, -1, 0, 0, ATTN_SCORE_DOT, 0};
  whole w = make_whole(&s, ATTN_F32);
  point_args(&w, &s);
  const attn_problem p = piece_problem(&w, 64);
  float *rows = new_state(&p), *row = rows + 4 * attn_state_floats(16) + 16; /* batch 0, head 1, query 1 */
  w.data.args.state = rows;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = "flash_c");
  row[ATTN_STATE_SUMS] = 0; /* like memory from calloc */
  for (int i = 0; i < ATTN_STATE_SUMS; i++) row[i] = 0;
  test_invalid(test_run(&p, &w.data.args, &options), "state", "sum 0", "head 1, query 1", "attn_state_start");
  row[3] = -2;
  test_invalid(test_run(&p, &w.data.args, &options), "sum -2");
  row[3] = 2;
  test_ok(test_run(&p, &w.data.args, &options));
  row[ATTN_STATE_SUMS] = INFINITY;
  test_invalid(test_run(&p, &w.data.args, &options), "reference inf");
  w.data.args.state = NULL;
  test_invalid(test_run(&p, &w.data.args, &options), "attn_args.state is NULL", "ATTN_USE_STATE");
  w.data.args.state = (float *)w.data.args.o;
  test_invalid(test_run(&p, &w.data.args, &options), "overlaps");
  w.data.args.state = rows;
  test_invalid(test_run(&w.p, &w.data.args, &options), "attn_args.state is given");
  test_invalid(attn_state_start(&w.p, rows), "lacks ATTN_USE_STATE");
  test_invalid(attn_state_start(&p, NULL), "state is NULL");
  attn_problem bad = p;
  bad.align = ATTN_ALIGN_BOTTOM_RIGHT;
  test_invalid(attn_problem_validate(&bad), "ATTN_USE_STATE", "BOTTOM_RIGHT", "ATTN_ALIGN_OFFSET");
  bad = p;
  bad.state_stride.s = 16;
  test_invalid(attn_problem_validate(&bad), "state_stride.s", "16", "overlap");
  free(rows);
  free_whole(&w);
}

/* Rows that have seen no key, in any number of pieces, give 0 and -inf; pieces without keys change nothing. */
TEST(pieces_without_keys) {
  const shape s = {1, 3, 64, 16, 16, -1, 0, ATTN_USE_KV_LEN, ATTN_SCORE_DOT, 0};
  static const char *const kernels[] = {"flash_c", "decode_c", "flash_portable", "decode_portable"};
  for (size_t k = 0; k < COUNT(kernels); k++) {
    whole w = make_whole(&s, ATTN_F32);
    point_args(&w, &s);
    attn_problem p = piece_problem(&w, 64);
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernels[k]);
    float *rows = new_state(&p);
    const int32_t none[BATCH] = {0, 0}, some[BATCH] = {64, 0};
    w.data.args.state = rows;
    w.data.args.kv_len = none;
    test_ok(test_run(&p, &w.data.args, &options));
    for (size_t i = 0; i < w.data.o_bytes / sizeof(float); i++) assert_true(((float *)w.data.args.o)[i] == 0);
    for (size_t i = 0; i < w.data.lse_bytes / sizeof(float); i++) assert_true(w.data.args.lse[i] == -INFINITY);
    w.data.args.kv_len = some;
    test_ok(test_run(&p, &w.data.args, &options));
    test_data again = test_data_share_inputs(&p, &w.data);
    again.args.kv_len = none;
    test_ok(test_run(&p, &again.args, &options));
    assert_memory_equal(again.args.o, w.data.args.o, w.data.o_bytes);
    assert_memory_equal(again.args.lse, w.data.args.lse, w.data.lse_bytes);
    assert_true(w.data.args.lse[0] > -INFINITY);
    test_data_destroy_outputs(&again);
    free(rows);
    free_whole(&w);
  }
}
