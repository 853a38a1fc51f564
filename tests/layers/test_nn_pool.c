/* SPDX-License-Identifier: MIT */
/* Caches on a pool of pages, against a model that keeps every sequence densely: random steps, forks, reorderings and
 * truncations, with every option, in every kernel. A step's rows have the bits of one dense call over the whole sequence. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "attn/nn.h"
#include "kernels/common/memory/quantise.h"
#include "src/plan/deal.h"
#include "tests/support/nn_support.h"

enum { BATCH = 5, KV = 2, HEADS = 4, DIM = 20, DIM_V = 12, CAPACITY = 120, LAYERS = 2 };

static uint64_t seed;

/* 0 .. below - 1 */
static int64_t pick(int64_t below) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((seed >> 33) % (uint64_t)below);
}

/* ---- The model ---- */

/* Keys and values of a sequence as floats, as the cache's type holds them: [layer][head][token][dim]. */
typedef struct sequence {
  int length;
  float k[LAYERS][KV][CAPACITY][DIM], v[LAYERS][KV][CAPACITY][DIM_V];
  float k_scale[LAYERS][KV][CAPACITY], v_scale[LAYERS][KV][CAPACITY]; /* with scales */
} sequence;

typedef struct scene {
  attn_kv_cache_shape shape;
  attn_options options;
  attn_kv_cache *cache;
  attn_kv_pool *pool;
  int most; /* tokens of a step */
  sequence now[BATCH], before[BATCH];
} scene;

static float rounded(float x, attn_dtype dtype) {
  uint32_t memory = 0;
  attn_store_f32(&memory, dtype, 0, x);
  return attn_load_f32((attn_storage){&memory, dtype}, 0);
}

/* A row as the cache holds it, and its factor if it has one. Blocks of what comes out of blocks are the same again. */
static void keep_row(const scene *s, const float *row, int dim, float *kept, float *factor) {
  const attn_dtype dtype = s->shape.dtype;
  attn_q8_0 blocks[DIM];
  float largest = 0;
  *factor = 1;
  if (attn_dtype_of(dtype).values > 1) {
    attn_store_row(blocks, dtype, 0, row, dim);
    for (int d = 0; d < dim; d++) kept[d] = attn_load_f32((attn_storage){blocks, dtype}, d);
    return;
  }
  for (int d = 0; d < dim; d++) largest = fmaxf(largest, fabsf(row[d]));
  *factor = s->shape.scales ? largest / rounded(INFINITY, dtype) : 1;
  for (int d = 0; d < dim; d++) kept[d] = rounded(*factor == 0 ? 0 : row[d] * (1 / *factor), dtype);
}

static void rotate(const scene *s, float *row, int position) {
  const int32_t at = position;
  if (!s->shape.rope) return;
  test_ok(attn_rope_run(
      s->shape.rope,
      &ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = 1, .heads = 1, .dim = DIM, .x = row, .out = row, .past = &at),
      NULL));
}

/* The dense problem that gives the last `count` rows of a sequence. */
static void attend_densely(const scene *s, const sequence *seq, int layer, int count, const float *q, float *o) {
  static uint32_t k[KV * CAPACITY * DIM], v[KV * CAPACITY * DIM_V], typed_q[HEADS * CAPACITY * DIM];
  const attn_dtype dtype = s->shape.dtype, given = s->shape.float_tokens ? ATTN_F32 : dtype;
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, KV, count, seq->length, DIM, DIM_V);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  p.dtype_kv = dtype, p.dtype_q = given;
  p.k_stride.s = attn_row_elements(dtype, DIM), p.v_stride.s = attn_row_elements(dtype, DIM_V);
  p.k_stride.h = seq->length * p.k_stride.s, p.v_stride.h = seq->length * p.v_stride.s;
  if (s->shape.scale != 0) p.scale = s->shape.scale;
  if (s->shape.window > 0) p.window_left = s->shape.window - 1;
  p.window_first = s->shape.window_first;
  p.softcap = s->shape.softcap;
  p.k_scale_stride = p.v_scale_stride = (attn_strides){.h = CAPACITY, .s = 1};
  p.uses = (s->shape.scales ? (uint32_t)ATTN_USE_KV_SCALES : 0u) | (s->shape.sinks ? (uint32_t)ATTN_USE_SINKS : 0u) |
           (s->shape.alibi_slopes ? (uint32_t)ATTN_USE_ALIBI : 0u);
  for (int h = 0; h < KV; h++)
    for (int t = 0; t < seq->length; t++) {
      attn_store_row(k, dtype, h * p.k_stride.h + t * p.k_stride.s, seq->k[layer][h][t], DIM);
      attn_store_row(v, dtype, h * p.v_stride.h + t * p.v_stride.s, seq->v[layer][h][t], DIM_V);
    }
  for (int i = 0; i < HEADS * count * DIM; i++) attn_store_f32(typed_q, given, i, q[i]);
  const attn_args args =
      ATTN_STRUCT(attn_args, .q = typed_q, .k = k, .v = v, .o = o, .sinks = s->shape.sinks,
                  .alibi_slopes = s->shape.alibi_slopes, .k_scale = s->shape.scales ? seq->k_scale[layer][0] : NULL,
                  .v_scale = s->shape.scales ? seq->v_scale[layer][0] : NULL);
  test_ok(test_run(&p, &args, &s->options));
}

/* ---- What must always hold ---- */

static void check_state(const scene *s) {
  const int32_t *lengths = attn_kv_cache_lengths(s->cache), *table = attn_kv_cache_pages(s->cache);
  const int64_t tokens = s->shape.page_tokens, columns = (CAPACITY + tokens - 1) / tokens;
  bool used[512] = {false};
  int64_t distinct = 0;
  for (int b = 0; b < BATCH; b++) {
    assert_int_equal(lengths[b], s->now[b].length);
    for (int64_t i = 0; i < columns; i++) {
      const int32_t page = table[b * columns + i];
      const bool behind = i * tokens >= lengths[b], seen = !s->shape.window ||
                                                           (i + 1) * tokens > lengths[b] - s->shape.window + 1 ||
                                                           i * tokens < s->shape.window_first;
      assert_true(behind ? page == -1 : !seen || (page >= 0 && page < s->shape.pages));
      if (page >= 0 && !used[page]) distinct++, used[page] = true;
    }
  }
  assert_int_equal(attn_kv_pool_free_pages(s->pool), s->shape.pages - distinct);
}

/* ---- Operations ---- */

/* Values that no bf16 holds, so that rounding matters. */
static float value(void) { return (float)(pick(20001) - 10000) / 9973.0f; }

/* [rows of the step]: padded [BATCH][heads][tokens][dim], or packed [all][heads][dim]. */
static int64_t index_of(bool packed, int heads, int tokens, const int32_t *cu, int b, int h, int t, int dim) {
  return packed ? ((int64_t)(cu[b] + t) * heads + h) * dim : (((int64_t)b * heads + h) * tokens + t) * dim;
}

static void step_layer(scene *s, int layer, const int32_t *counts, int tokens, bool packed) {
  enum { ROWS = BATCH * CAPACITY };
  static uint32_t q[ROWS * HEADS * DIM], k[ROWS * KV * DIM], v[ROWS * KV * DIM_V];
  static float o[ROWS * HEADS * DIM_V], expected[HEADS * CAPACITY * DIM_V], model_q[BATCH][HEADS * CAPACITY * DIM];
  const attn_dtype dtype = s->shape.dtype, given = s->shape.float_tokens ? ATTN_F32 : dtype;
  int32_t cu[BATCH + 1] = {0};
  for (int b = 0; b < BATCH; b++) cu[b + 1] = cu[b] + counts[b];
  for (int b = 0; b < BATCH; b++)
    for (int t = 0; t < counts[b]; t++) {
      sequence *seq = &s->now[b];
      const int position = seq->length - counts[b] + t;
      for (int h = 0; h < HEADS; h++) {
        float row[DIM];
        const int64_t at = index_of(packed, HEADS, tokens, cu, b, h, t, DIM);
        for (int d = 0; d < DIM; d++) {
          row[d] = rounded(value(), given);
          attn_store_f32(q, given, at + d, row[d]);
        }
        rotate(s, row, position);
        for (int d = 0; d < DIM; d++) model_q[b][(h * counts[b] + t) * DIM + d] = rounded(row[d], given);
      }
      for (int h = 0; h < KV; h++) {
        float row[DIM];
        const int64_t at_k = index_of(packed, KV, tokens, cu, b, h, t, DIM);
        const int64_t at_v = index_of(packed, KV, tokens, cu, b, h, t, DIM_V);
        for (int d = 0; d < DIM; d++) {
          row[d] = rounded(value(), given);
          attn_store_f32(k, given, at_k + d, row[d]);
        }
        rotate(s, row, position);
        keep_row(s, row, DIM, seq->k[layer][h][position], &seq->k_scale[layer][h][position]);
        for (int d = 0; d < DIM_V; d++) {
          row[d] = rounded(value(), given);
          attn_store_f32(v, given, at_v + d, row[d]);
        }
        keep_row(s, row, DIM_V, seq->v[layer][h][position], &seq->v_scale[layer][h][position]);
      }
    }
  memset(o, 0x7f, sizeof o);
  test_ok(attn_kv_cache_attend(s->cache, &ATTN_STRUCT(attn_kv_cache_args, .layer = layer, .tokens = packed ? 0 : tokens,
                                                      .q = q, .k = k, .v = v, .o = o)));
  for (int b = 0; b < BATCH; b++) {
    if (counts[b] == 0) continue;
    attend_densely(s, &s->now[b], layer, counts[b], model_q[b], expected);
    for (int h = 0; h < HEADS; h++)
      for (int t = 0; t < counts[b]; t++)
        assert_memory_equal(o + index_of(packed, HEADS, tokens, cu, b, h, t, DIM_V), expected + (h * counts[b] + t) * DIM_V,
                            DIM_V * sizeof *o);
  }
}

static void step(scene *s, int most) {
  int32_t counts[BATCH];
  int longest = 0;
  int64_t at_most = 0;
  const bool packed = pick(2);
  for (int b = 0; b < BATCH; b++) {
    const int room = CAPACITY - s->now[b].length;
    counts[b] = (int32_t)(pick(3) ? pick(most + 1) : pick(2));
    if (counts[b] > room) counts[b] = room;
    if (counts[b] > longest) longest = counts[b];
    at_most += counts[b] ? (counts[b] + s->shape.page_tokens - 1) / s->shape.page_tokens + 1 : 0;
  }
  const int64_t free_pages = attn_kv_pool_free_pages(s->pool);
  const attn_status status = attn_kv_cache_begin(s->cache, counts);
  if (status == ATTN_OUT_OF_MEMORY) { /* pages that leave the window may be taken at once */
    test_contains(attn_last_error(), "out of pages: the step needs");
    assert_true(free_pages < at_most);
    return;
  }
  test_ok(status);
  for (int b = 0; b < BATCH; b++) s->now[b].length += counts[b];
  if (longest == 0) return;
  for (int layer = 0; layer < LAYERS; layer++) step_layer(s, layer, counts, longest + (int)pick(4), packed);
}

/* True if the call succeeded. A windowed sequence may refuse it: it no longer has the keys that earlier tokens see. */
static bool went_back(attn_status status, const scene *s) {
  if (status != ATTN_OK) {
    assert_true(s->shape.window > 0);
    test_invalid(status, "left the window");
  }
  return status == ATTN_OK;
}

static void operate(scene *s) {
  const int b = (int)pick(BATCH), other = (int)((b + 1 + pick(BATCH - 1)) % BATCH);
  const int length = s->now[b].length ? (int)pick(s->now[b].length + 1) : 0;
  int32_t parents[BATCH];
  switch (pick(12)) {
    case 0:
      if (went_back(attn_kv_cache_truncate_sequence(s->cache, b, length), s)) s->now[b].length = length;
      break;
    case 1: /* it leaves */
      test_ok(attn_kv_cache_truncate_sequence(s->cache, b, 0));
      s->now[b].length = 0;
      break;
    case 2:
      if (went_back(attn_kv_cache_truncate(s->cache, 60), s))
        for (int i = 0; i < BATCH; i++)
          if (s->now[i].length > 60) s->now[i].length = 60;
      break;
    case 3:
    case 4:
      if (!went_back(attn_kv_cache_fork(s->cache, b, other, length), s)) break;
      s->now[other] = s->now[b];
      s->now[other].length = length;
      break;
    case 5:
      memcpy(s->before, s->now, sizeof s->now);
      for (int i = 0; i < BATCH; i++) {
        parents[i] = (int32_t)pick(BATCH + 1) - 1;
        if (parents[i] >= 0)
          s->now[i] = s->before[parents[i]];
        else
          s->now[i].length = 0;
      }
      test_ok(attn_kv_cache_reorder(s->cache, parents));
      break;
    default: step(s, pick(4) ? 3 : s->most);
  }
  check_state(s);
}

/* decode takes few query rows, and some kernels need queries in 16 bits. */
static bool takes_steps_of(const scene *s, int64_t tokens) {
  attn_problem p;
  attn_problem_init(&p, BATCH, HEADS, KV, tokens, CAPACITY, DIM, DIM_V);
  p.dtype_kv = s->shape.dtype;
  attn_problem_set_pages(&p, s->shape.page_tokens, s->shape.pages);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  p.dtype_q = s->shape.float_tokens ? ATTN_F32 : s->shape.dtype;
  if (s->shape.scales) p.uses |= ATTN_USE_KV_SCALES;
  return !attn_kernel_rejects(attn_kernel_find(s->options.kernel), &p);
}

static void random_operations(const char *kernel) {
  static const float sinks[HEADS] = {0.5f, -1, 2, 0}, slopes[HEADS] = {0.5f, 0.25f, 0, 1};
  static scene s;
  attn_rope *rope;
  test_ok(attn_rope_create(&ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = 16, .base = 10000), &rope));
  static const attn_dtype dtypes[] = {ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_I8, ATTN_F8_E4M3, ATTN_Q8_0, ATTN_Q4_0};
  for (int round = 0; round < (test_few() ? 7 : 14); round++) {
    seed = (uint64_t)round;
    s = (scene){.shape =
                    ATTN_STRUCT(attn_kv_cache_shape, .batch = BATCH, .heads_q = HEADS, .heads_kv = KV, .dim_qk = DIM,
                                .dim_v = DIM_V, .capacity = CAPACITY, .layers = LAYERS, .page_tokens = round % 2 ? 16 : 32)};
    s.options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1 + round % 2);
    s.shape.dtype = dtypes[round % 7];
    s.shape.scales = attn_makes_factors(s.shape.dtype);
    s.shape.float_tokens = pick(2) || !attn_dtype_is_float(s.shape.dtype);
    s.shape.window = round % 3 == 2 ? 1 + pick(40) : 0;
    if (round == 5) s.shape.window = 1 + pick(10), s.shape.window_first = 1 + pick(20);
    if (pick(2)) s.shape.scale = 0.3f;
    if (pick(3) == 0) s.shape.softcap = 2;
    if (pick(3) == 0) s.shape.sinks = sinks;
    if (pick(3) == 0) s.shape.alibi_slopes = slopes;
    if (pick(2)) s.shape.rope = rope;
    s.shape.pages = (pick(3) ? 60 : 22) * 16 / s.shape.page_tokens;
    s.most = takes_steps_of(&s, 48) ? 40 : 12;
    if (!takes_steps_of(&s, 16)) continue;
    test_pretend_nodes(round % 4);
    test_ok(attn_kv_cache_create(&s.shape, &s.options, &s.cache));
    s.pool = attn_kv_cache_pool(s.cache);
    for (int i = 0; i < 60; i++) operate(&s);
    attn_kv_cache_destroy(s.cache);
  }
  test_pretend_nodes(0);
  attn_rope_destroy(rope);
}

KERNEL_TEST(random_operations)

/* ---- One by one ---- */

static const attn_kv_cache_shape small = {.struct_size = sizeof(attn_kv_cache_shape),
                                          .batch = 4,
                                          .heads_q = 2,
                                          .heads_kv = 1,
                                          .dim_qk = 8,
                                          .dim_v = 8,
                                          .capacity = 64,
                                          .page_tokens = 16,
                                          .pages = 5};
static float rows[4 * 2 * 64 * 8], out[4 * 2 * 64 * 8];

static attn_status steps(attn_kv_cache *cache, int tokens, const int32_t *counts) {
  return attn_kv_cache_step(cache, tokens, counts, rows, rows, rows, out);
}

TEST(a_common_prompt_is_kept_once) {
  attn_kv_cache *cache;
  const int32_t prompt[4] = {40, 0, 0, 0}, one[4] = {1, 1, 1, 1};
  test_ok(attn_kv_cache_create(&small, NULL, &cache));
  const attn_kv_pool *pool = attn_kv_cache_pool(cache);
  test_ok(steps(cache, 40, prompt));
  assert_int_equal(attn_kv_pool_free_pages(pool), 2); /* 2 of 5 pages: 40 tokens take 3 */
  test_ok(attn_kv_cache_fork(cache, 0, 1, 40));
  test_ok(attn_kv_cache_fork(cache, 0, 2, 32));
  assert_int_equal(attn_kv_pool_free_pages(pool), 2);
  /* Sequence 2 needs a new page, 0 or 1 a copy of their third one, 3 a page of its own: 3 */
  test_refused(steps(cache, 1, one), ATTN_OUT_OF_MEMORY, "out of pages: the step needs 3, and 2 of the pool's 5 are free");
  assert_int_equal(attn_kv_cache_lengths(cache)[0], 40);
  assert_int_equal(attn_kv_pool_free_pages(pool), 2);
  const int32_t without_last[4] = {1, 1, 1, 0};
  test_ok(steps(cache, 1, without_last));
  assert_int_equal(attn_kv_pool_free_pages(pool), 0);
  const int32_t *table = attn_kv_cache_pages(cache);
  assert_true(table[0] == table[4] && table[4] == table[8] && table[2] != table[6]);
  test_ok(attn_kv_cache_truncate_sequence(cache, 0, 0));
  assert_int_equal(attn_kv_pool_free_pages(pool), 1); /* the others share the rest */
  test_ok(steps(cache, 1, (const int32_t[4]){0, 0, 0, 1}));
  attn_kv_cache_destroy(cache);
}

TEST(a_window_takes_no_more_pages_than_it_needs) {
  attn_kv_cache_shape shape = small;
  attn_kv_cache *cache;
  shape.batch = 1, shape.capacity = 1000, shape.window = 20, shape.pages = 3;
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  for (int i = 0; i < 900; i++) test_ok(steps(cache, 1, NULL));
  assert_int_equal(attn_kv_pool_free_pages(attn_kv_cache_pool(cache)), 1);
  test_invalid(attn_kv_cache_truncate(cache, 500), "length is 500; sequence 0 has given back its first", "left the window");
  assert_int_equal(attn_kv_cache_lengths(cache)[0], 900);
  test_ok(attn_kv_cache_truncate(cache, 899));
  test_ok(attn_kv_cache_truncate(cache, 0));
  assert_int_equal(attn_kv_pool_free_pages(attn_kv_cache_pool(cache)), 3);
  attn_kv_cache_destroy(cache);
}

TEST(caches_share_a_pool) {
  attn_kv_pool *pool;
  attn_kv_cache *a, *b;
  test_ok(attn_kv_pool_create(
      &ATTN_STRUCT(attn_kv_pool_shape, .pages = 6, .page_tokens = 16, .heads_kv = 1, .dim_qk = 8, .dim_v = 8), &pool));
  attn_kv_cache_shape shape = small;
  shape.pool = pool, shape.page_tokens = shape.pages = 0;
  test_ok(attn_kv_cache_create(&shape, NULL, &a));
  test_ok(attn_kv_cache_create(&shape, NULL, &b));
  assert_ptr_equal(attn_kv_cache_pool(a), pool);
  test_ok(steps(a, 1, NULL));
  assert_int_equal(attn_kv_pool_free_pages(pool), 2);
  test_refused(steps(b, 1, NULL), ATTN_OUT_OF_MEMORY, "needs 4, and 2 of the pool's 6");
  attn_kv_cache_destroy(a);
  test_ok(steps(b, 1, NULL));
  attn_kv_cache_destroy(b);
  assert_int_equal(attn_kv_pool_free_pages(pool), 6);
  test_ok(attn_kv_cache_create(&shape, NULL, &a));
  attn_kv_pool *kept = pool;
  test_ok(attn_kv_pool_create(&ATTN_STRUCT(attn_kv_pool_shape, .pages = 6, .page_tokens = 16, .heads_kv = 1, .dim_qk = 8,
                                           .dim_v = 8, .dtype = ATTN_BF16),
                              &pool));
  attn_kv_pool_destroy(kept); /* in use until the cache goes */
  test_ok(steps(a, 1, NULL));
  attn_kv_cache_destroy(a);
  shape.pool = pool;
  test_invalid(attn_kv_cache_create(&shape, NULL, &a), "dtype is 0; it must be 2, as in its pool");
  shape.dtype = ATTN_BF16;
  shape.dim_v = 4;
  test_invalid(attn_kv_cache_create(&shape, NULL, &a), "dim_v is 4; it must be 8, as in its pool");
  shape.dim_v = 8, shape.pages = 0, shape.page_tokens = 32;
  test_invalid(attn_kv_cache_create(&shape, NULL, &a), "page_tokens is 32; it must be 16");
  attn_kv_pool_destroy(pool);
}

/* Each of four nodes has four of 16 pages. */
TEST(sequences_keep_to_the_pages_of_their_node) {
  attn_kv_cache *cache;
  attn_kv_cache_shape shape = small;
  shape.pages = 16, shape.capacity = 96;
  test_pretend_nodes(4);
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  const int32_t *table = attn_kv_cache_pages(cache);
  for (int round = 0; round < 3; round++) { /* pages come back to the node that they are of */
    test_ok(steps(cache, 40, (const int32_t[4]){40, 33, 20, 0}));
    test_ok(steps(cache, 31, (const int32_t[4]){24, 31, 0, 1}));
    for (int64_t i = 0; i < 4 * 6; i++)
      if (table[i] >= 0) assert_int_equal(attn_deal_part_of(16, 4, table[i]), i / 6);
    assert_int_equal(attn_kv_pool_free_pages(attn_kv_cache_pool(cache)), 5);
    test_ok(attn_kv_cache_truncate(cache, 0));
  }
  test_ok(steps(cache, 64, (const int32_t[4]){64, 64, 64, 0}));
  test_ok(steps(cache, 30, (const int32_t[4]){0, 30, 0, 20})); /* a node that has none takes another's */
  assert_true(table[6 + 4] >= 0 && table[6 + 5] >= 0);
  assert_int_equal(attn_kv_pool_free_pages(attn_kv_cache_pool(cache)), 0);
  attn_kv_cache_destroy(cache);
  shape.batch = 2; /* fewer sequences than nodes */
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  test_ok(steps(cache, 64, (const int32_t[2]){64, 64}));
  for (int64_t i = 0; i < 4; i++) assert_int_equal(attn_deal_part_of(16, 4, attn_kv_cache_pages(cache)[i]), i);
  attn_kv_cache_destroy(cache);
  test_pretend_nodes(0);
}

/* The system is asked to place node 0's pages there; node 1 may not exist. */
TEST(pages_are_placed_in_nodes) {
#ifdef SYS_get_mempolicy
  enum { PREFERRED = 1, OF_ADDRESS = 2 };
  attn_kv_pool *pool;
  test_pretend_nodes(2);
  test_ok(
      attn_kv_pool_create(&ATTN_STRUCT(attn_kv_pool_shape, .pages = 64, .heads_kv = 8, .dim_qk = 64, .dim_v = 64), &pool));
  test_pretend_nodes(0);
  char *memory[] = {attn_kv_pool_keys(pool, 0), attn_kv_pool_values(pool, 0)};
  for (int i = 0; i < 2; i++) {
    int mode = 0;
    uint64_t nodes[16] = {0};
    const long failed = syscall(SYS_get_mempolicy, &mode, nodes, 1024L, memory[i] + (1 << 20), (long)OF_ADDRESS);
    if (failed) print_message("not tested: get_mempolicy fails, %s\n", strerror(errno));
    if (!failed) assert_true(mode == PREFERRED && nodes[0] == 1);
  }
  attn_kv_pool_destroy(pool);
#endif
}

TEST(pools_check_arguments) {
  const attn_kv_pool_shape good =
      ATTN_STRUCT(attn_kv_pool_shape, .pages = 2, .page_tokens = 16, .heads_kv = 1, .dim_qk = 8, .dim_v = 8);
  attn_kv_pool *pool;
#define REFUSED(field, wrong, word)                                                                 \
  TEST_REFUSES(attn_kv_pool_shape, good, bad.field = wrong, attn_kv_pool_create(&bad, &pool), pool, \
               "attn_kv_pool_shape." word)
  REFUSED(layers, -1, "layers is -1");
  REFUSED(pages, 0, "pages is 0");
  REFUSED(page_tokens, 8, "page_tokens is 8");
  REFUSED(page_tokens, 2048, "page_tokens is 2048");
  REFUSED(heads_kv, 0, "heads_kv is 0");
  REFUSED(dim_qk, 0, "dim_qk is 0");
  REFUSED(dim_v, 0, "dim_v is 0");
  REFUSED(dtype, (attn_dtype)9, "dtype is 9; it must be ATTN_F32");
  REFUSED(scales, true, "scales is true with dtype 0; factors go with types of 8 bits");
#undef REFUSED
  test_invalid(attn_kv_pool_create(NULL, &pool), "shape is NULL");
  test_invalid(attn_kv_pool_create(&good, NULL), "pool is NULL");
  test_ok(attn_kv_pool_create(&good, &pool));
  assert_non_null(attn_kv_pool_keys(pool, 0));
  assert_null(attn_kv_pool_keys(pool, 1));
  assert_null(attn_kv_pool_values(pool, -1));
  assert_true(!attn_kv_pool_key_scales(pool, 0) && !attn_kv_pool_value_scales(pool, 0));
  attn_kv_pool_destroy(pool);
  attn_kv_pool_shape blocks = good;
  blocks.dtype = ATTN_Q8_0, blocks.pages = (int64_t)1 << 30, blocks.layers = (int64_t)1 << 20;
  test_invalid(attn_kv_pool_create(&blocks, &pool), "attn_kv_pool_shape.dim_v is 32; multiplied with");
  blocks.scales = true, blocks.layers = 1;
  test_invalid(attn_kv_pool_create(&blocks, &pool), "attn_kv_pool_shape.scales is true with dtype 6");
  attn_kv_pool_shape scaled = good;
  scaled.dtype = ATTN_I8, scaled.scales = true, scaled.layers = 2;
  test_ok(attn_kv_pool_create(&scaled, &pool));
  assert_ptr_equal(attn_kv_pool_key_scales(pool, 1), attn_kv_pool_key_scales(pool, 0) + 2 * 16);
  assert_ptr_equal(attn_kv_pool_value_scales(pool, 1), attn_kv_pool_value_scales(pool, 0) + 2 * 16);
  assert_null(attn_kv_pool_value_scales(pool, 2));
  attn_kv_pool_destroy(pool);
  assert_null(attn_kv_pool_key_scales(NULL, 0));
  attn_kv_pool_destroy(NULL);
}

TEST(sequences_check_arguments) {
  attn_kv_cache *cache;
  attn_kv_cache_shape two = small;
  two.layers = 2;
  test_ok(attn_kv_cache_create(&two, NULL, &cache));
  const int32_t parents[4] = {0, 4, 1, 1}, counts[4] = {2, 0, 1, 0}, many[4] = {65, 0, 0, 0}, negative[4] = {0, 0, 0, -1};
  attn_kv_cache_args args = ATTN_STRUCT(attn_kv_cache_args, .q = rows, .k = rows, .v = rows, .o = out);
  test_invalid(steps(cache, 1, NULL), "the cache has 2 layers");
  test_invalid(attn_kv_cache_begin(cache, NULL), "counts is NULL");
  test_invalid(attn_kv_cache_begin(cache, many), "sequence 0 holds 0 of 64 tokens; 65 more do not fit");
  test_invalid(attn_kv_cache_begin(cache, negative), "counts[3] is -1");
  test_invalid(attn_kv_cache_begin(NULL, counts), "cache is NULL");
  test_ok(attn_kv_cache_attend(cache, &args)); /* no step has begun: nothing to do */
  test_ok(attn_kv_cache_begin(cache, counts));
  args.layer = 2;
  test_invalid(attn_kv_cache_attend(cache, &args), "attn_kv_cache_args.layer is 2; it must be in 0..1");
  args.layer = 1, args.tokens = 1;
  test_invalid(attn_kv_cache_attend(cache, &args), "attn_kv_cache_args.tokens is 1; it must be in 2..64, or 0");
  args.tokens = 0, args.k = NULL;
  test_invalid(attn_kv_cache_attend(cache, &args), "attn_kv_cache_args.k is NULL");
  test_invalid(attn_kv_cache_attend(cache, NULL), "args is NULL");
  args.k = rows;
  test_ok(attn_kv_cache_attend(cache, &args));
  test_invalid(attn_kv_cache_fork(cache, 0, 0, 1), "to is 0; it must be another sequence");
  test_invalid(attn_kv_cache_fork(cache, 4, 0, 1), "from is 4; it must be in 0..3");
  test_invalid(attn_kv_cache_fork(cache, 0, -1, 1), "to is -1");
  test_invalid(attn_kv_cache_fork(cache, 0, 1, 3), "length is 3; sequence 0 holds 2 tokens");
  test_invalid(attn_kv_cache_fork(cache, 0, 1, -1), "length is -1");
  test_invalid(attn_kv_cache_reorder(cache, NULL), "parents is NULL");
  test_invalid(attn_kv_cache_reorder(cache, parents), "parents[1] is 4; it must be in 0..3, or -1");
  test_invalid(attn_kv_cache_truncate_sequence(cache, 9, 0), "sequence is 9");
  test_invalid(attn_kv_cache_truncate_sequence(cache, 0, -1), "length is -1");
  assert_int_equal(attn_kv_cache_lengths(cache)[0], 2);
  attn_kv_cache_destroy(cache);
  two.window_first = 4;
  test_invalid(attn_kv_cache_create(&two, NULL, &cache), "window_first is 4; it must be at least 0, and 0 without a window");
  two.window_first = 0, two.window = -1;
  test_invalid(attn_kv_cache_create(&two, NULL, &cache), "window is -1");
}
