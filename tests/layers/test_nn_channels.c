/* SPDX-License-Identifier: MIT */
/* Caches whose keys have a factor of each channel of a page, against a model that keeps every token twice: as it was given,
 * and as its page was kept. Outputs are within the error limit of the float64 oracle over the values that the model says are
 * read: those of a query's own page as given, those of earlier pages as kept. */
#include <math.h>
#include <string.h>

#include "attn/nn.h"
#include "kernels/common/problem/convert.h"
#include "kernels/ref/oracle_f64.h"
#include "src/nn/kv_cache.h"
#include "tests/support/nn_support.h"

enum { BATCH = 4, KV = 2, HEADS = 4, DIM = 20, DIM_V = 12, CAPACITY = 120, LAYERS = 2, PAGE = 16, BLOCKS = 8 };

static uint64_t seed;

/* 0 .. below - 1 */
static int pick(int below) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (int)((seed >> 33) % (uint64_t)below);
}

static float value(void) { return (float)(pick(20001) - 10000) / 9973.0f; }

/* ---- The model ---- */

/* A layer's tokens, by head. */
typedef struct rows {
  float k[KV][CAPACITY][DIM], v[KV][CAPACITY][DIM_V];
} rows;

typedef struct sequence {
  int length, held[2]; /* blocks whose tokens are there as they were given; -1 = none */
  bool full[BLOCKS];
  rows given[LAYERS], kept[LAYERS];
} sequence;

typedef struct scene {
  attn_kv_cache_shape shape;
  attn_options options;
  attn_kv_cache *cache;
  int most; /* tokens of a step */
  sequence now[BATCH], before[BATCH];
} scene;

static void cut(sequence *s, int length) {
  if (length >= s->length) return;
  s->length = length;
  for (int i = 0; i < 2; i++)
    if (s->held[i] * PAGE >= length) s->held[i] = -1;
  for (int block = (length + PAGE - 1) / PAGE; block < BLOCKS; block++) s->full[block] = false;
}

/* The page that the next token goes to was full before, and its floats are gone: they are as they were kept. */
static void read_back(sequence *s) {
  const int block = s->length / PAGE;
  for (int layer = 0; layer < LAYERS; layer++)
    for (int h = 0; h < KV; h++)
      for (int t = block * PAGE; t < s->length; t++) {
        memcpy(s->given[layer].k[h][t], s->kept[layer].k[h][t], sizeof s->kept[layer].k[h][t]);
        memcpy(s->given[layer].v[h][t], s->kept[layer].v[h][t], sizeof s->kept[layer].v[h][t]);
      }
}

static void grow(sequence *s, int count) {
  const int block = s->length / PAGE;
  if (count == 0) return;
  if (s->length % PAGE && s->held[0] != block && s->held[1] != block) read_back(s);
  s->length += count;
  s->held[0] = block, s->held[1] = (s->length - 1) / PAGE;
  for (int i = block; i < BLOCKS; i++) s->full[i] = false;
}

/* A page of the pool, as floats. */
static void load_page(const scene *s, int layer, int32_t page, int head, int block, rows *to) {
  attn_kv_pool *pool = attn_kv_cache_pool(s->cache);
  const attn_storage k = {attn_kv_pool_keys(pool, layer), s->shape.dtype},
                     v = {attn_kv_pool_values(pool, layer), s->shape.dtype};
  const float *k_scale = attn_kv_pool_key_scales(pool, layer) + (page * KV + head) * DIM;
  const float *v_scale = attn_kv_pool_value_scales(pool, layer) + (page * KV + head) * PAGE;
  for (int t = 0; t < PAGE; t++) {
    const int64_t row = (page * KV + head) * PAGE + t;
    for (int d = 0; d < DIM; d++) to->k[head][block * PAGE + t][d] = attn_load_f32(k, row * DIM + d) * k_scale[d];
    for (int d = 0; d < DIM_V; d++) to->v[head][block * PAGE + t][d] = attn_load_f32(v, row * DIM_V + d) * v_scale[t];
  }
}

/* Half a step of the type at `x`, in units of the largest of its row, which is `most` of the type. */
static double rounding_of(attn_dtype dtype, double x, double largest) {
  return dtype == ATTN_I8 ? largest / 127 / 2 : fmax(fabs(x) * 0x1p-4, largest / 448 * 0x1p-10);
}

/* A page that has just become full is no farther from what was given than rounding, with the factors of its channels and of
 * its values, explains. */
static void check_rounding(const scene *s, const sequence *seq, int layer, int head, int block) {
  const rows *given = &seq->given[layer], *kept = &seq->kept[layer];
  for (int d = 0; d < DIM; d++) {
    double largest = 0;
    for (int t = block * PAGE; t < (block + 1) * PAGE; t++) largest = fmax(largest, fabs((double)given->k[head][t][d]));
    for (int t = block * PAGE; t < (block + 1) * PAGE; t++) {
      const double x = (double)given->k[head][t][d];
      assert_true(fabs(x - (double)kept->k[head][t][d]) <= 1.0001 * rounding_of(s->shape.dtype, x, largest));
    }
  }
  for (int t = block * PAGE; t < (block + 1) * PAGE; t++) {
    double largest = 0;
    for (int d = 0; d < DIM_V; d++) largest = fmax(largest, fabs((double)given->v[head][t][d]));
    for (int d = 0; d < DIM_V; d++) {
      const double x = (double)given->v[head][t][d];
      assert_true(fabs(x - (double)kept->v[head][t][d]) <= 1.0001 * rounding_of(s->shape.dtype, x, largest));
    }
  }
}

/* Full pages: new ones are taken over, and the others are what they were. */
static void take_over(scene *s, int layer) {
  const int32_t *table = attn_kv_cache_pages(s->cache);
  static rows found;
  for (int b = 0; b < BATCH; b++)
    for (int block = 0; block < s->now[b].length / PAGE; block++) {
      sequence *seq = &s->now[b];
      const int32_t page = table[b * BLOCKS + block];
      for (int h = 0; h < KV && page >= 0; h++) { /* -1: it left the window */
        load_page(s, layer, page, h, block, seq->full[block] ? &found : &seq->kept[layer]);
        if (!seq->full[block]) check_rounding(s, seq, layer, h, block);
        for (int t = block * PAGE; seq->full[block] && t < (block + 1) * PAGE; t++) {
          assert_memory_equal(found.k[h][t], seq->kept[layer].k[h][t], sizeof found.k[h][t]);
          assert_memory_equal(found.v[h][t], seq->kept[layer].v[h][t], sizeof found.v[h][t]);
        }
      }
    }
}

/* The limit of docs/numerics.md for any data, with two roundings more of each element of a score, whose queries and keys
 * take factors, and those of a fold for each page. */
static double limit_of(const attn_oracle_row *row, double m, double o, int pages) {
  const double u = 0x1p-24, e = 0x1p-20, bend = 2 * e + 4 * u;
  const double terms = u * (DIM + 20) * row->abs_sum + bend * row->abs_sum + 2 * e + u * ((double)row->allowed + 8);
  return expm1(2 * terms + 8 * u * (pages + 1)) * m + u * fabs(o) + 1e-30;
}

/* The new tokens of a block of a sequence: [head][token][dim] of q and o. */
static void check_block(const scene *s, const sequence *seq, int layer, int first, int count, const float *q,
                        const float *o) {
  static rows read;
  static double right[DIM_V], m[DIM_V], w[DIM_V], probabilities[CAPACITY];
  const int own = first / PAGE * PAGE, keys = first + count;
  for (int h = 0; h < KV; h++)
    for (int t = 0; t < keys; t++) {
      const rows *from = t < own ? &seq->kept[layer] : &seq->given[layer];
      memcpy(read.k[h][t], from->k[h][t], sizeof read.k[h][t]);
      memcpy(read.v[h][t], from->v[h][t], sizeof read.v[h][t]);
    }
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, KV, count, keys, DIM, DIM_V);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  p.k_stride.h = CAPACITY * DIM, p.v_stride.h = CAPACITY * DIM_V;
  if (s->shape.scale != 0) p.scale = s->shape.scale;
  if (s->shape.window > 0) p.window_left = s->shape.window - 1;
  p.softcap = s->shape.softcap;
  p.uses = (s->shape.sinks ? (uint32_t)ATTN_USE_SINKS : 0u) | (s->shape.alibi_slopes ? (uint32_t)ATTN_USE_ALIBI : 0u);
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = read.k, .v = read.v, .sinks = s->shape.sinks,
                                     .alibi_slopes = s->shape.alibi_slopes);
  for (int h = 0; h < HEADS; h++)
    for (int t = 0; t < count; t++) {
      const attn_oracle_output out = {right, m, w, probabilities};
      const attn_oracle_row row = attn_oracle_f64_row(&p, &args, (attn_oracle_index){0, h, t}, &out);
      for (int d = 0; d < DIM_V; d++) {
        const double error = fabs((double)o[(h * count + t) * DIM_V + d] - right[d]);
        if (!(error <= limit_of(&row, m[d], right[d], keys / PAGE)))
          fail_msg("token %d head %d: %g, limit %g", first + t, h, error, limit_of(&row, m[d], right[d], keys / PAGE));
      }
    }
}

/* ---- Operations ---- */

static void rotate(const scene *s, float *row, int position) {
  const int32_t at = position;
  if (!s->shape.rope) return;
  test_ok(attn_rope_run(
      s->shape.rope,
      &ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = 1, .heads = 1, .dim = DIM, .x = row, .out = row, .past = &at),
      NULL));
}

/* Where a row is: padded [BATCH][heads][tokens][dim], or packed [all][heads][dim]. */
static int64_t index_of(bool packed, int heads, int tokens, const int32_t *cu, int b, int h, int t, int dim) {
  return packed ? ((int64_t)(cu[b] + t) * heads + h) * dim : (((int64_t)b * heads + h) * tokens + t) * dim;
}

static void step_layer(scene *s, int layer, const int32_t *counts, int tokens, bool packed) {
  static float q[BATCH * CAPACITY * HEADS * DIM], k[BATCH * CAPACITY * KV * DIM], v[BATCH * CAPACITY * KV * DIM_V];
  static float o[BATCH * CAPACITY * HEADS * DIM_V], turned[BATCH][HEADS][CAPACITY][DIM];
  static float some_q[HEADS * CAPACITY * DIM], some_o[HEADS * CAPACITY * DIM_V];
  int32_t cu[BATCH + 1] = {0};
  for (int b = 0; b < BATCH; b++) cu[b + 1] = cu[b] + counts[b];
  for (int b = 0; b < BATCH; b++)
    for (int t = 0; t < counts[b]; t++) {
      rows *given = &s->now[b].given[layer];
      const int position = s->now[b].length - counts[b] + t;
      for (int h = 0; h < HEADS; h++) {
        float *row = q + index_of(packed, HEADS, tokens, cu, b, h, t, DIM);
        for (int d = 0; d < DIM; d++) turned[b][h][t][d] = row[d] = value();
        rotate(s, turned[b][h][t], position);
      }
      for (int h = 0; h < KV; h++) {
        float *k_row = k + index_of(packed, KV, tokens, cu, b, h, t, DIM);
        float *v_row = v + index_of(packed, KV, tokens, cu, b, h, t, DIM_V);
        for (int d = 0; d < DIM; d++) given->k[h][position][d] = k_row[d] = value() * (d == 3 ? 40 : 1); /* an outlier */
        rotate(s, given->k[h][position], position);
        for (int d = 0; d < DIM_V; d++) given->v[h][position][d] = v_row[d] = value();
      }
    }
  memset(o, 0x7f, sizeof o);
  const attn_kv_cache_args args =
      ATTN_STRUCT(attn_kv_cache_args, .layer = layer, .tokens = packed ? 0 : tokens, .q = q, .k = k, .v = v, .o = o);
  for (int again = pick(4) == 0; again >= 0; again--)
    test_ok(attn_kv_cache_attend(s->cache, &args)); /* it may be repeated */
  take_over(s, layer);
  for (int b = 0; b < BATCH; b++) {
    const int past = s->now[b].length - counts[b];
    for (int t = 0, count; t < counts[b]; t += count) {
      count = PAGE - (past + t) % PAGE < counts[b] - t ? PAGE - (past + t) % PAGE : counts[b] - t;
      for (int h = 0; h < HEADS; h++)
        for (int i = 0; i < count; i++) {
          memcpy(some_q + (h * count + i) * DIM, turned[b][h][t + i], DIM * sizeof *some_q);
          memcpy(some_o + (h * count + i) * DIM_V, o + index_of(packed, HEADS, tokens, cu, b, h, t + i, DIM_V),
                 DIM_V * sizeof *some_o);
        }
      check_block(s, &s->now[b], layer, past + t, count, some_q, some_o);
    }
    for (int t = counts[b]; t < tokens && !packed; t++)
      for (int h = 0; h < HEADS; h++) assert_true(o[index_of(false, HEADS, tokens, cu, b, h, t, DIM_V)] == 0);
  }
}

/* Begins a step; its largest count, or 0 if there is none. */
static int begin(scene *s, int most, int32_t *counts) {
  int longest = 0;
  for (int b = 0; b < BATCH; b++) {
    const int room = CAPACITY - s->now[b].length;
    counts[b] = (int32_t)(pick(3) ? pick(most + 1) : pick(2));
    if (counts[b] > room) counts[b] = room;
    if (counts[b] > longest) longest = counts[b];
  }
  if (longest == 0) return 0;
  const attn_status status = attn_kv_cache_begin(s->cache, counts);
  if (status == ATTN_OUT_OF_MEMORY) {
    assert_true(s->shape.pages < BATCH * BLOCKS);
    test_contains(attn_last_error(), "out of pages: the step needs");
    return 0;
  }
  test_ok(status);
  for (int b = 0; b < BATCH; b++) grow(&s->now[b], counts[b]);
  return longest;
}

/* A step that fails: its tokens are forgotten. */
static void fail_step(scene *s, int most) {
  int32_t counts[BATCH];
  if (begin(s, most, counts) == 0) return;
  for (int b = 0; b < BATCH; b++) {
    const int past = s->now[b].length - counts[b];
    test_ok(attn_kv_cache_truncate_sequence(s->cache, b, past));
    cut(&s->now[b], past);
  }
}

static void step(scene *s, int most) {
  int32_t counts[BATCH];
  const bool packed = pick(2);
  const int longest = begin(s, most, counts);
  if (longest == 0) return;
  const int tokens = longest + pick(4) < CAPACITY ? longest + pick(4) : longest;
  for (int layer = 0; layer < LAYERS; layer++) step_layer(s, layer, counts, tokens, packed);
  for (int b = 0; b < BATCH; b++)
    for (int block = 0; block < s->now[b].length / PAGE; block++) s->now[b].full[block] = true;
}

/* True if the call succeeded. A windowed sequence may refuse it: it no longer has the keys that earlier tokens see. */
static bool went_back(attn_status status, const scene *s) {
  if (status == ATTN_OK) return true;
  assert_true(s->shape.window > 0);
  test_invalid(status, "left the window");
  return false;
}

static void check_pages(const scene *s) {
  const int32_t *lengths = attn_kv_cache_lengths(s->cache), *table = attn_kv_cache_pages(s->cache);
  bool used[BATCH * BLOCKS] = {false};
  int64_t distinct = 0;
  for (int i = 0; i < BATCH * BLOCKS; i++)
    if (table[i] >= 0 && !used[table[i]]) used[table[i]] = true, distinct++;
  for (int b = 0; b < BATCH; b++) {
    const sequence *seq = &s->now[b];
    const int block = seq->length / PAGE;
    assert_int_equal(lengths[b], seq->length);
    if (seq->length % PAGE) /* a page that is not full is in the pool only if its floats are gone */
      assert_int_equal(table[b * BLOCKS + block] < 0, seq->held[0] == block || seq->held[1] == block);
  }
  assert_int_equal(attn_kv_pool_free_pages(attn_kv_cache_pool(s->cache)), s->shape.pages - distinct);
}

static void operate(scene *s) {
  const int b = pick(BATCH), other = (b + 1 + pick(BATCH - 1)) % BATCH;
  const int length = s->now[b].length ? pick(s->now[b].length + 1) : 0;
  int32_t parents[BATCH];
  switch (pick(13)) {
    case 0:
    case 1:
      if (went_back(attn_kv_cache_truncate_sequence(s->cache, b, length), s)) cut(&s->now[b], length);
      break;
    case 2:
      test_ok(attn_kv_cache_truncate_sequence(s->cache, b, 0));
      cut(&s->now[b], 0);
      break;
    case 3:
      if (!went_back(attn_kv_cache_fork(s->cache, b, other, length), s)) break;
      s->now[other] = s->now[b];
      cut(&s->now[other], length);
      break;
    case 4:
      memcpy(s->before, s->now, sizeof s->now);
      for (int i = 0; i < BATCH; i++) {
        parents[i] = (int32_t)pick(BATCH + 1) - 1;
        if (parents[i] >= 0)
          s->now[i] = s->before[parents[i]];
        else
          cut(&s->now[i], 0);
      }
      test_ok(attn_kv_cache_reorder(s->cache, parents));
      break;
    case 5: fail_step(s, s->most); break;
    default: step(s, pick(4) ? 4 : s->most);
  }
  check_pages(s);
}

/* decode takes few query rows. */
static bool takes_blocks(const char *kernel) {
  attn_problem p;
  attn_problem_init(&p, 1, HEADS, KV, PAGE, PAGE, DIM, DIM_V);
  p.dtype_kv = ATTN_I8;
  return !kernel || !attn_kernel_rejects(attn_kernel_find(kernel), &p);
}

static const attn_kv_cache_shape usual = {.struct_size = sizeof(attn_kv_cache_shape),
                                          .batch = BATCH,
                                          .heads_q = HEADS,
                                          .heads_kv = KV,
                                          .dim_qk = DIM,
                                          .dim_v = DIM_V,
                                          .capacity = CAPACITY,
                                          .layers = LAYERS,
                                          .page_tokens = PAGE,
                                          .dtype = ATTN_I8,
                                          .float_tokens = true,
                                          .scales = true,
                                          .key_channels = true};

static void random_operations(const char *kernel) {
  static const float sinks[HEADS] = {0.5f, -1, 2, 0}, slopes[HEADS] = {0.5f, 0.25f, 0, 1};
  static scene s;
  attn_rope *rope;
  test_ok(attn_rope_create(&ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = 16, .base = 10000), &rope));
  for (int round = 0; round < (kernel || test_few() ? 4 : 8); round++) {
    seed = (uint64_t)round;
    memset(&s, 0, sizeof s);
    for (int b = 0; b < BATCH; b++) s.now[b].held[0] = s.now[b].held[1] = -1;
    s.shape = usual;
    s.options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1 + (round == 1));
    s.shape.dtype = round % 3 == 2 ? ATTN_F8_E4M3 : ATTN_I8;
    s.shape.window = round % 4 == 3 ? 1 + pick(40) : 0;
    s.shape.pages = round % 2 ? 12 : BATCH * BLOCKS;
    if (pick(2)) s.shape.scale = 0.1f;
    if (pick(3) == 0) s.shape.softcap = 2;
    if (pick(3) == 0) s.shape.sinks = sinks;
    if (pick(3) == 0) s.shape.alibi_slopes = slopes;
    if (pick(2)) s.shape.rope = rope;
    s.most = takes_blocks(kernel) ? 60 : 3;
    const attn_status status = attn_kv_cache_create(&s.shape, &s.options, &s.cache);
    if (kernel && status == ATTN_UNSUPPORTED) break; /* it takes no pieces, or no float32 queries */
    test_ok(status);
    for (int i = 0; i < 60; i++) operate(&s);
    attn_kv_cache_destroy(s.cache);
  }
  attn_rope_destroy(rope);
}

TEST(random_operations_by_choice) { random_operations(NULL); }

KERNEL_TEST(random_operations)

/* ---- One by one ---- */

/* The outputs of tokens in steps of `step`. */
static void outputs_of(int step, int tokens, const float *q, const float *k, const float *v, float *o) {
  attn_kv_cache_shape shape = usual;
  attn_kv_cache *cache;
  shape.batch = 1, shape.layers = 1;
  test_ok(attn_kv_cache_create(&shape, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .steady = 1), &cache));
  for (int t = 0; t < tokens; t += step) {
    const int32_t count = tokens - t < step ? tokens - t : step;
    test_ok(attn_kv_cache_begin(cache, &count));
    test_ok(attn_kv_cache_attend(cache, &ATTN_STRUCT(attn_kv_cache_args, .q = q + t * HEADS * DIM, .k = k + t * KV * DIM,
                                                     .v = v + t * KV * DIM_V, .o = o + t * HEADS * DIM_V)));
  }
  attn_kv_cache_destroy(cache);
}

TEST(outputs_do_not_depend_on_steps) {
  enum { TOKENS = 75 };
  static float o[3][TOKENS * HEADS * DIM_V];
  const float *q = nn_random(TOKENS * HEADS * DIM, 1), *k = nn_random(TOKENS * KV * DIM, 2),
              *v = nn_random(TOKENS * KV * DIM_V, 3);
  outputs_of(TOKENS, TOKENS, q, k, v, o[0]);
  outputs_of(1, TOKENS, q, k, v, o[1]);
  outputs_of(23, TOKENS, q, k, v, o[2]);
  assert_memory_equal(o[0], o[1], sizeof *o);
  assert_memory_equal(o[0], o[2], sizeof *o);
}

TEST(rejected_tokens_leave_no_trace) { /* speculative decoding: a step over the end of a page is cut */
  enum { TOKENS = 40, PAST = 30 };
  static float o[2][HEADS * DIM_V], all[TOKENS * HEADS * DIM_V];
  const float *q = nn_random(TOKENS * HEADS * DIM, 1), *k = nn_random(TOKENS * KV * DIM, 2),
              *v = nn_random(TOKENS * KV * DIM_V, 3);
  for (int cut = 0; cut < 2; cut++) {
    attn_kv_cache_shape shape = usual;
    attn_kv_cache *cache;
    shape.batch = 1, shape.layers = 1;
    test_ok(attn_kv_cache_create(&shape, NULL, &cache));
    const int32_t steps[] = {PAST, cut ? 5 : 1, 1};
    for (int i = 0, t = 0; i < 3; t += i ? 1 : PAST, i++) {
      test_ok(attn_kv_cache_begin(cache, &steps[i]));
      test_ok(attn_kv_cache_attend(cache, &ATTN_STRUCT(attn_kv_cache_args, .q = q + t * HEADS * DIM, .k = k + t * KV * DIM,
                                                       .v = v + t * KV * DIM_V, .o = all)));
      if (i == 1) test_ok(attn_kv_cache_truncate(cache, PAST + 1));
    }
    memcpy(o[cut], all, sizeof *o);
    attn_kv_cache_destroy(cache);
  }
  assert_memory_equal(o[0], o[1], sizeof *o);
}

/* A step over three pages, one more that is refused if it is tried, and one from the first page on, whose output stays in o.
 */
static void go_back(bool try_more, float *o) {
  attn_kv_cache_shape shape = usual;
  attn_kv_cache *cache;
  const float *x = nn_random(CAPACITY * HEADS * DIM, 1);
  shape.batch = 1, shape.layers = 1, shape.pages = 2;
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  test_ok(attn_kv_cache_step(cache, 2 * PAGE + 15, NULL, x, x, x, o)); /* two full pages, and one in float32 */
  if (try_more)
    test_refused(attn_kv_cache_step(cache, 1, NULL, x, x, x, o), ATTN_OUT_OF_MEMORY, "out of pages: the step needs 1");
  assert_int_equal(attn_kv_cache_lengths(cache)[0], 2 * PAGE + 15);
  test_ok(attn_kv_cache_truncate(cache, 5)); /* into a full page, whose floats are still there */
  assert_int_equal(attn_kv_pool_free_pages(attn_kv_cache_pool(cache)), 2);
  test_ok(attn_kv_cache_step(cache, 2 * PAGE, NULL, x, x, x, o));
  attn_kv_cache_destroy(cache);
}

TEST(too_few_pages_change_nothing) {
  static float o[2][CAPACITY * HEADS * DIM_V];
  go_back(false, o[0]);
  go_back(true, o[1]);
  assert_memory_equal(o[0], o[1], 2 * PAGE * HEADS * DIM_V * sizeof **o);
}

TEST(padding_needs_no_plan) {
  static float o[PAGE * HEADS * DIM_V];
  attn_kv_cache_shape shape = usual;
  attn_kv_cache *cache;
  const float *x = nn_random(PAGE * HEADS * DIM, 1);
  shape.batch = 1, shape.layers = 1;
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  const int created = cache->planned;
  test_ok(attn_kv_cache_step(cache, PAGE, &(int32_t){1}, x, x, x, o));
  assert_int_equal(cache->planned, created);
  attn_kv_cache_destroy(cache);
  shape.heads_q = shape.heads_kv = shape.dim_v = 1; /* one element, of a token that is not there */
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  test_ok(attn_kv_cache_step(cache, 1, &(int32_t){0}, x, x, x, o));
  assert_true(o[0] == 0);
  attn_kv_cache_destroy(cache);
}

TEST(an_infinite_key_spoils_its_full_page) {
  enum { TOKENS = 24, WINDOW = 8 };
  static float o[TOKENS * HEADS * DIM_V], k[TOKENS * KV * DIM];
  attn_kv_cache_shape shape = usual;
  attn_kv_cache *cache;
  const float *x = nn_random(TOKENS * HEADS * DIM, 1);
  memcpy(k, x, sizeof k);
  k[2 * KV * DIM + 3] = INFINITY; /* token 2, head 0 */
  shape.batch = 1, shape.layers = 1, shape.window = WINDOW;
  test_ok(attn_kv_cache_create(&shape, NULL, &cache));
  test_ok(attn_kv_cache_begin(cache, &(int32_t){TOKENS}));
  test_ok(attn_kv_cache_attend(cache, &ATTN_STRUCT(attn_kv_cache_args, .q = x, .k = k, .v = x, .o = o)));
  for (int t = 2 + WINDOW; t < TOKENS; t++) /* no window has token 2 */
    assert_int_equal(isnan(o[t * HEADS * DIM_V]), t >= PAGE && t - (WINDOW - 1) < PAGE);
  attn_kv_cache_destroy(cache);
}

TEST(arguments_are_checked) {
  attn_kv_cache *cache = NULL;
  attn_kv_pool *pool;
#define REFUSES(change, words) \
  TEST_REFUSES(attn_kv_cache_shape, usual, change, attn_kv_cache_create(&bad, NULL, &cache), cache, words)
  REFUSES((bad.scales = false, bad.dtype = ATTN_F8_E4M3), "attn_kv_cache_shape.key_channels is true without scales");
  REFUSES((bad.batch = INT64_C(1) << 30, bad.pages = 9),
          "attn_kv_cache_shape.batch is 1073741824; with key_channels it must be below 2^30");
  REFUSES((bad.window = 9, bad.window_first = 2), "attn_kv_cache_shape.window_first is 2 with key_channels; it must be 0");
  test_ok(attn_kv_pool_create(&ATTN_STRUCT(attn_kv_pool_shape, .layers = LAYERS, .pages = 9, .page_tokens = PAGE,
                                           .heads_kv = KV, .dim_qk = DIM, .dim_v = DIM_V, .dtype = ATTN_I8, .scales = true),
                              &pool));
  REFUSES(bad.pool = pool, "attn_kv_cache_shape.key_channels is 1; it must be 0, as in its pool");
#undef REFUSES
  attn_kv_pool_destroy(pool);
  pool = NULL;
  test_invalid(attn_kv_pool_create(&ATTN_STRUCT(attn_kv_pool_shape, .pages = 9, .heads_kv = KV, .dim_qk = DIM,
                                                .dim_v = DIM_V, .dtype = ATTN_F32, .key_channels = true),
                                   &pool),
               "attn_kv_pool_shape.key_channels is true without scales");
  test_refused(attn_kv_cache_create(&usual, &ATTN_STRUCT(attn_options, .kernel = "naive_c"), &cache), ATTN_UNSUPPORTED,
               "naive_c");
}
