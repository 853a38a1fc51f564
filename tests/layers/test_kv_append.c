/* SPDX-License-Identifier: MIT */
/* Writing a KV cache. For random shapes, types, strides and ways of saying where tokens go, every tier leaves the bytes that
 * a loop over single elements leaves: what is written, and what must not be. A bad entry is refused if a token needs it.
 * Rotations stay within a bound that follows from their arithmetic, against long double. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/kv.h"
#include "data/cached.h"
#include "kernels/common/memory/quantise.h"
#include "kernels/kv_rows.h"
#include "src/layers/rope.h"
#include "tests/support/failing_malloc.h"

static uint64_t seed;

/* 0 .. below - 1 */
static int64_t pick(int64_t below) {
  seed = seed * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((seed >> 33) % (uint64_t)below);
}

static void fill(void *data, attn_dtype dtype, int64_t count) {
  for (int64_t i = 0; i < count; i++)
    attn_store_f32(data, dtype, i, (float)(pick(20001) - 10000) / (pick(2) ? 4096.0f : 64.0f));
}

static attn_rope *make_rope(attn_rope_pairing pairing, int64_t dim) {
  attn_rope *rope;
  test_ok(attn_rope_create(&ATTN_STRUCT(attn_rope_config, .pairing = pairing, .dim = dim, .base = 10000), &rope));
  return rope;
}

/* ---- Places: against a loop over elements ---- */

enum { MOST = 1 << 16 };

typedef struct tensor {
  void *data;
  attn_dtype dtype;
  attn_strides stride;
} tensor;

/* Strides of [b][h][s][d] in a random order of axes, with gaps; not over MOST elements. */
static attn_strides pick_strides(int64_t b, int64_t h, int64_t s, int64_t d) {
  const int64_t size[4] = {b, h, s, d};
  int64_t stride[4], order[4] = {3, 2, 1, 0}, step = 1;
  if (pick(3) == 0)
    for (int i = 3; i > 0; i--) {
      const int64_t j = pick(i + 1), other = order[i];
      order[i] = order[j], order[j] = other;
    }
  for (int i = 0; i < 4; i++) {
    stride[order[i]] = step;
    step = step * size[order[i]] + (pick(3) == 0 ? pick(5) : 0);
  }
  assert_true(step <= MOST);
  return (attn_strides){stride[0], stride[1], stride[2], stride[3]};
}

typedef struct scene {
  attn_kv_append_args args;
  int32_t past[4], counts[4], cu[5], table[4][24], positions[512];
  int64_t slots[512];
  bool packed;
  float *k_factors, *v_factors; /* expected in k_scale_cache and v_scale_cache */
} scene;

/* Where token t of sequence b, its i-th new one, goes: page (or sequence) and token of it; false = nowhere. */
static bool place_of(const scene *s, int64_t b, int64_t i, int64_t t, int64_t *page, int64_t *at) {
  const attn_kv_append_args *a = &s->args;
  const int64_t unit = a->page_tokens ? a->page_tokens : a->capacity;
  const int64_t place = a->slots ? a->slots[t] : (a->past ? a->past[b] : 0) + i;
  if (place < 0) return false;
  *page = a->slots ? place / unit : a->page_tokens ? s->table[b][place / unit] : b;
  *at = place % unit;
  return true;
}

static int64_t new_tokens(const scene *s, int64_t b) {
  return s->packed ? s->cu[b + 1] - s->cu[b] : s->args.counts ? s->args.counts[b] : s->args.tokens;
}

static int64_t at(const attn_strides *s, int64_t b, int64_t h, int64_t t, int64_t d) {
  return b * s->b + h * s->h + t * s->s + d * s->d;
}

/* Hadamard (docs/semantics.md), element by element. */
static void mix_row(float *row, int64_t dim) {
  int64_t n = 1;
  while (dim % (2 * n) == 0) n *= 2;
  for (int64_t h = 1; h < n; h *= 2) {
    float before[2 * ROPE_MOST_DIM];
    memcpy(before, row, sizeof before);
    for (int64_t d = 0; d < dim; d++) row[d] = d & h ? before[d - h] - before[d] : before[d] + before[d + h];
  }
  for (int64_t d = 0; d < dim; d++) row[d] *= (float)(1 / sqrt((double)n));
}

/* Changes one of the tensors as a call does. of_qk: q or k. */
static void expect_rows(const scene *s, const tensor *from, const tensor *to, int64_t heads, int64_t dim, bool cached,
                        bool of_qk) {
  const attn_kv_append_args *a = &s->args;
  for (int64_t b = 0; b < a->batch; b++) {
    const int64_t first = s->packed ? s->cu[b] : 0;
    for (int64_t i = 0; i < new_tokens(s, b); i++) {
      const int64_t t = s->packed ? first + i : b * a->tokens + i, row_b = s->packed ? 0 : b, row_t = s->packed ? t : i;
      int64_t page = row_b, token = row_t, ignored_page, ignored_token;
      if (!place_of(s, b, i, t, cached ? &page : &ignored_page, cached ? &token : &ignored_token)) continue;
      const int32_t position = a->positions ? a->positions[t] : (int32_t)((a->past ? a->past[b] : 0) + i);
      for (int64_t h = 0; h < heads; h++) {
        float row[2 * ROPE_MOST_DIM] = {0}, turned[2 * ROPE_MOST_DIM];
        double stored[2 * ROPE_MOST_DIM];
        for (int64_t d = 0; d < dim; d++)
          row[d] = attn_load_f32((attn_storage){from->data, from->dtype}, at(&from->stride, row_b, h, row_t, d));
        memcpy(turned, row, sizeof turned);
        if (of_qk && a->rope)
          test_ok(attn_rope_run(a->rope,
                                &ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = 1, .heads = 1, .dim = dim, .x = row,
                                             .out = turned, .past = &position),
                                &ATTN_STRUCT(attn_options, .max_isa = "c", .threads = 1)));
        if (of_qk && a->hadamard) mix_row(turned, dim);
        for (int64_t d = 0; d < dim; d++) stored[d] = (double)turned[d];
        const bool of_k = from->data == a->k, of_v = from->data == a->v;
        const float *given = of_k ? a->k_scale : of_v ? a->v_scale : NULL;
        float *made = of_k ? s->k_factors : of_v ? s->v_factors : NULL;
        const int64_t factor_at = at(of_k ? &a->k_scale_stride : &a->v_scale_stride, page, h, token, 0);
        const bench_cached how = {to->dtype, made, given ? given[factor_at] : 1};
        const float factor = bench_cached_factor(&how, stored, dim);
        if (made) made[factor_at] = factor;
        bench_cached_store(to->data, to->dtype, at(&to->stride, page, h, token, 0), to->stride.d, stored, dim, factor);
      }
    }
  }
}

static void pick_tokens(scene *s) {
  attn_kv_append_args *a = &s->args;
  a->batch = 1 + pick(4);
  a->tokens = 1 + pick(40);
  s->packed = pick(2);
  for (int b = 0; b < 4; b++) {
    s->past[b] = (int32_t)pick(30);
    s->counts[b] = (int32_t)pick(a->tokens + 1);
    s->cu[b + 1] = s->cu[b] + s->counts[b];
  }
  if (pick(4)) a->past = s->past;
  if (s->packed) {
    a->tokens = s->cu[a->batch] + pick(3);
    a->cu_seqlens = s->cu;
  } else if (pick(2)) {
    a->counts = s->counts;
  }
}

/* Pages of a sequence are its own. A window's ring: they repeat after as many as hold the new tokens. */
static void pick_places(scene *s) {
  static const int64_t page_sizes[] = {1, 16, 5, 32};
  attn_kv_append_args *a = &s->args;
  const int way = (int)pick(4);
  if (way == 0) {
    a->capacity = 70 + pick(3);
  } else {
    a->page_tokens = page_sizes[pick(4)];
    a->pages = 4 * 24;
    if (a->page_tokens == 1) a->page_tokens = 3;
  }
  const int64_t total = s->packed ? a->tokens : a->batch * a->tokens, unit = a->page_tokens ? a->page_tokens : a->capacity;
  const int64_t places = unit * (a->page_tokens ? a->pages : a->batch);
  if (way == 3 && places >= total) {
    const int64_t begin = pick(places), step = total < places / 7 && places % 7 ? 7 : 1;
    for (int64_t t = 0; t < total; t++) s->slots[t] = pick(8) ? (begin + t * step) % places : -1;
    a->slots = s->slots;
  } else if (way > 0) {
    const int64_t ring = 40 / a->page_tokens + 2;
    const bool repeats = pick(2) && ring <= 24;
    for (int b = 0; b < 4; b++)
      for (int i = 0; i < 24; i++) s->table[b][i] = (int32_t)((b * 24 + (repeats ? i % ring : i)) * 5 % a->pages);
    a->page_table = s->table[0];
    a->page_table_stride = 24;
  }
  for (int64_t t = 0; t < total; t++) s->positions[t] = (int32_t)(pick(2) ? pick(100) : pick(1000000));
}

static const attn_dtype types[] = {ATTN_F32,     ATTN_F16, ATTN_BF16, ATTN_F8_E4M3, /* all but three: caches */
                                   ATTN_F8_E5M2, ATTN_I8,  ATTN_Q8_0, ATTN_Q4_0};

/* Factors of k and of v: none, given as one number, by head or by token, or made. */
static void pick_factors(scene *s, int64_t pages, int64_t unit, float memory[4][MOST]) {
  attn_kv_append_args *a = &s->args;
  s->k_factors = s->v_factors = NULL;
  for (int i = 0; i < 2; i++) {
    const int64_t way = pick(attn_makes_factors(a->cache_dtype) ? 5 : 4), heads = a->heads_kv;
    const attn_strides tokens = pick(2) ? (attn_strides){.b = heads * unit, .h = unit, .s = 1}
                                        : (attn_strides){.b = 3 * heads * unit, .h = 3, .s = 3 * heads};
    const attn_strides ways[] = {{0}, {0}, {.h = 2}, tokens, tokens};
    float *factors = memory[i], *model = memory[2 + i];
    assert_true(3 * pages * heads * unit <= MOST);
    for (int64_t n = 0; n < MOST; n++)
      factors[n] = model[n] = way == 4 ? 77.0f : (pick(2) ? -1.0f : 1.0f) * (float)(1 + pick(1000)) / 7000.0f;
    *(i ? &a->v_scale_stride : &a->k_scale_stride) = ways[way];
    *(i ? &a->v_scale : &a->k_scale) = way == 0 || way == 4 ? NULL : factors;
    *(i ? &a->v_scale_cache : &a->k_scale_cache) = way == 4 ? factors : NULL;
    *(i ? &s->v_factors : &s->k_factors) = way == 4 ? model : NULL;
  }
}

/* Whether a new token needs this entry of positions, slots, the page table, or factors by head or token. */
static bool needs(const scene *s, const void *entry) {
  const attn_kv_append_args *a = &s->args;
  for (int64_t b = 0; b < a->batch; b++)
    for (int64_t i = 0; i < new_tokens(s, b); i++) {
      const int64_t t = (s->packed ? s->cu[b] : b * a->tokens) + i, place = (a->past ? a->past[b] : 0) + i;
      int64_t page, token;
      if (entry == &s->slots[t]) return true;
      if (!place_of(s, b, i, t, &page, &token)) continue;
      if (entry == &s->positions[t]) return true;
      if (a->page_table && entry == &s->table[b][place / a->page_tokens]) return true;
      for (int64_t h = 0; h < a->heads_kv; h++)
        if ((a->k_scale && entry == a->k_scale + at(&a->k_scale_stride, page, h, token, 0)) ||
            (a->v_scale && entry == a->v_scale + at(&a->v_scale_stride, page, h, token, 0)))
          return true;
    }
  return false;
}

/* Spoils one entry of what the call reads about its tokens. Returns where it is, and what stood there; NULL: nothing is to
 * spoil. */
static void *spoil(scene *s, int64_t pages, int64_t unit, uint64_t *kept) {
  static const float no_factor[] = {0, NAN, INFINITY, -INFINITY, 1e-40f};
  attn_kv_append_args *a = &s->args;
  const int64_t total = s->packed ? a->tokens : a->batch * a->tokens, b = pick(a->batch), way = pick(5);
  const attn_strides *stride = way == 0 ? &a->k_scale_stride : &a->v_scale_stride;
  const float *factors = way == 0 ? a->k_scale : way == 1 ? a->v_scale : NULL;
  const float factor = no_factor[pick(COUNT(no_factor))];
  const int64_t slot = pick(2) ? pages * unit : -2;
  const int32_t index = pick(2) ? (int32_t)pages : -1, before = -1;
  int64_t page = pick(pages), token = pick(unit), count = new_tokens(s, b), i = count > 0 ? pick(count) : 0;
  if (total == 0) return NULL;
  const int64_t t = pick(total);
  if (pick(2) && count > 0) (void)place_of(s, b, i, (s->packed ? s->cu[b] : b * a->tokens) + i, &page, &token);
  void *entry = NULL;
  const void *bad = factors ? (const void *)&factor : way == 2 ? (const void *)&slot : way == 3 ? &index : &before;
  if (factors) entry = (float *)(uintptr_t)factors + at(stride, page, pick(a->heads_kv), token, 0);
  if (way == 2 && a->slots) entry = &s->slots[t];
  if (way == 3 && a->page_table) entry = &s->table[b][pick(24)];
  if (way == 4 && a->positions) entry = &s->positions[t];
  const size_t bytes = way == 2 ? sizeof slot : sizeof index;
  if (!entry) return NULL;
  memcpy(kept, entry, bytes);
  return memcpy(entry, bad, bytes);
}

/* The call with a spoilt entry is refused before anything is written if a new token needs the entry, and is as before if
 * none does. One number as the factor of all tokens is needed in any case. */
static void run_spoilt(scene *s, const attn_options *options, int64_t pages, int64_t unit, char (*memory)[MOST * 4]) {
  attn_kv_append_args *a = &s->args;
  uint64_t kept = 0;
  void *entry = spoil(s, pages, unit, &kept);
  if (!entry) return;
  const bool one = (entry == a->k_scale && !a->k_scale_stride.h && !a->k_scale_stride.s) ||
                   (entry == a->v_scale && !a->v_scale_stride.h && !a->v_scale_stride.s);
  const bool needed = one || needs(s, entry);
  for (int i = 3; i < 6; i++) memset(memory[i], 0x5a, sizeof memory[i]);
  assert_int_equal(attn_kv_append(a, options), needed ? ATTN_INVALID_ARGUMENT : ATTN_OK);
  for (int i = 3; i < 6; i++)
    if (needed)
      assert_true(memory[i][0] == 0x5a && memcmp(memory[i], memory[i] + 1, sizeof memory[i] - 1) == 0);
    else
      assert_memory_equal(memory[i], memory[3 + i], sizeof memory[i]);
  memcpy(entry, &kept, entry >= (void *)s->slots && entry < (void *)(s->slots + 512) ? sizeof(int64_t) : sizeof(int32_t));
}

/* Runs the scene in one tier and compares every byte with the model's. */
static void run_scene(scene *s, const attn_options *options) {
  static char memory[9][MOST * 4];
  static float factors[4][MOST];
  attn_kv_append_args *a = &s->args;
  const int64_t b = s->packed ? 1 : a->batch, unit = a->page_tokens ? a->page_tokens : a->capacity;
  const int64_t pages = a->page_tokens ? a->pages : a->batch;
  a->heads_q = 1 + pick(3), a->heads_kv = 1 + pick(2);
  a->dim_qk = a->rope ? 24 + pick(17) : 1 + pick(20), a->dim_v = 1 + pick(20);
  a->hadamard = pick(3) == 0;
  if (a->hadamard) a->dim_qk = pick(2) ? 32 : a->dim_qk + a->dim_qk % 2;
  if (pages == 1 && pick(4)) a->dim_qk += ROPE_MOST_DIM; /* more elements than are floats at a time */
  a->dtype = types[pick(3)], a->cache_dtype = types[pick(COUNT(types))], a->q_out_dtype = types[pick(3)];
  const bool blocks = attn_dtype_of(a->cache_dtype).values > 1;
  const int64_t most = blocks ? 3 * MOST : MOST / 2; /* elements that have room, of a byte or of four */
  while (pages * a->heads_kv * unit * attn_row_elements(a->cache_dtype, a->dim_qk > a->dim_v ? a->dim_qk : a->dim_v) >
         most) {
    a->heads_kv = 1;
    if (a->dim_v > 4) a->dim_v = 4;
    if (pages * unit * attn_row_elements(a->cache_dtype, a->dim_qk) > most) a->pages /= 2;
    if (a->pages < 96 && a->page_tokens) return; /* the table names them all */
  }
  const int64_t row_k = attn_row_elements(a->cache_dtype, a->dim_qk), row_v = attn_row_elements(a->cache_dtype, a->dim_v);
  if (pick(2)) a->q_stride = pick_strides(b, a->heads_q, a->tokens, a->dim_qk);
  if (pick(2)) a->k_stride = pick_strides(b, a->heads_kv, a->tokens, a->dim_qk);
  if (pick(2)) a->v_stride = pick_strides(b, a->heads_kv, a->tokens, a->dim_v);
  if (pick(2)) a->q_out_stride = pick_strides(b, a->heads_q, a->tokens, a->dim_qk);
  const attn_strides dense_k = {a->heads_kv * unit * row_k, unit * row_k, row_k, 1};
  const attn_strides tokens_first = {a->heads_kv * unit * row_k, row_k, a->heads_kv * row_k, 1};
  const attn_strides transposed = {dense_k.b, dense_k.h, 1, unit};
  const attn_strides dense_v = {a->heads_kv * unit * row_v, unit * row_v, row_v, 1};
  const bool turn = pick(2);
  const attn_strides turned = blocks ? tokens_first : transposed; /* rows of blocks cannot be transposed */
  if (turn) a->k_cache_stride = turned;
  for (int i = 0; i < 3; i++) fill(memory[i], a->dtype, MOST);
  for (int i = 3; i < 6; i++) memset(memory[i], 0x5a, sizeof memory[i]);
  for (int i = 6; i < 9; i++) memset(memory[i], 0x5a, sizeof memory[i]);
  a->q = memory[0], a->k = memory[1], a->v = memory[2];
  a->q_out = memory[3], a->k_cache = memory[4], a->v_cache = memory[5];
  pick_factors(s, pages, unit, factors);
  test_ok(attn_kv_append(a, options));

  const attn_strides rows_q = s->packed
                                  ? (attn_strides){0, a->dim_qk, a->heads_q * a->dim_qk, 1}
                                  : (attn_strides){a->heads_q * a->tokens * a->dim_qk, a->tokens * a->dim_qk, a->dim_qk, 1};
  const attn_strides rows_k = s->packed
                                  ? (attn_strides){0, a->dim_qk, a->heads_kv * a->dim_qk, 1}
                                  : (attn_strides){a->heads_kv * a->tokens * a->dim_qk, a->tokens * a->dim_qk, a->dim_qk, 1};
  const attn_strides rows_v = s->packed
                                  ? (attn_strides){0, a->dim_v, a->heads_kv * a->dim_v, 1}
                                  : (attn_strides){a->heads_kv * a->tokens * a->dim_v, a->tokens * a->dim_v, a->dim_v, 1};
#define GIVEN(stride, otherwise) ((stride).d ? (stride) : (otherwise))
  const tensor from[3] = {{memory[0], a->dtype, GIVEN(a->q_stride, rows_q)},
                          {memory[1], a->dtype, GIVEN(a->k_stride, rows_k)},
                          {memory[2], a->dtype, GIVEN(a->v_stride, rows_v)}};
  const tensor to[3] = {{memory[6], a->q_out_dtype, GIVEN(a->q_out_stride, rows_q)},
                        {memory[7], a->cache_dtype, turn ? turned : dense_k},
                        {memory[8], a->cache_dtype, dense_v}};
  expect_rows(s, &from[0], &to[0], a->heads_q, a->dim_qk, false, true);
  expect_rows(s, &from[1], &to[1], a->heads_kv, a->dim_qk, true, true);
  expect_rows(s, &from[2], &to[2], a->heads_kv, a->dim_v, true, false);
  for (int i = 0; i < 3; i++) assert_memory_equal(memory[3 + i], memory[6 + i], sizeof memory[0]);
  for (int i = 0; i < 2; i++) assert_memory_equal(factors[i], factors[2 + i], sizeof factors[0]);
  run_spoilt(s, options, pages, unit, memory);
}

TEST(every_tier_writes_what_a_loop_over_elements_writes) {
  char names[16][16];
  const int count = test_tiers(names);
  attn_rope *ropes[3] = {NULL, make_rope(ATTN_ROPE_INTERLEAVED, 24), make_rope(ATTN_ROPE_HALVES, 20)};
  for (int i = 0; i < (test_few() ? 60 : 400); i++) {
    const attn_options options = ATTN_STRUCT(attn_options, .max_isa = names[i % count], .threads = 1 + i % 2);
    scene s = {.args = ATTN_STRUCT(attn_kv_append_args, .rope = NULL)};
    seed = (uint64_t)i;
    pick_tokens(&s);
    pick_places(&s);
    s.args.rope = ropes[pick(3)];
    if (s.args.rope && pick(2)) s.args.positions = s.positions;
    run_scene(&s, &options);
  }
  for (int i = 0; i < 3; i++) attn_rope_destroy(ropes[i]);
}

/* ---- Hadamard: against its definition ---- */

/* Element (i, j) of the matrix that mixes `n` neighbours, in double precision. */
static double hadamard_at(int64_t i, int64_t j, int64_t n) {
  if (i / n != j / n) return 0;
  return (__builtin_popcountll((uint64_t)(i % n & j % n)) % 2 ? -1 : 1) / sqrt((double)n);
}

/* Bound: docs/numerics.md. Widths: powers of two, such with an odd factor, and more than is mixed at once. */
TEST(hadamard_is_its_matrix_and_keeps_products) {
  static const struct { int64_t dim, n, steps; } widths[] = {{2, 2, 1}, {128, 128, 7}, {80, 16, 4}, {8192, 4096, 12}};
  for (size_t w = 0; w < COUNT(widths); w++) {
    const int64_t dim = widths[w].dim, n = widths[w].n;
    float *rows = calloc((size_t)dim * 4, sizeof *rows), *q = rows, *k = q + dim, *mixed_q = k + dim,
          *mixed_k = mixed_q + dim;
    assert_non_null(rows);
    seed = w;
    fill(q, ATTN_F32, 2 * dim);
    test_ok(
        attn_kv_append(&ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = 1, .heads_q = 1, .heads_kv = 1, .dim_qk = dim,
                                    .q = q, .q_out = mixed_q, .k = k, .k_cache = mixed_k, .capacity = 1, .hadamard = true),
                       NULL));
    double before = 0, after = 0, sizes = 0;
    for (int64_t i = 0; i < dim; i++) {
      double exact = 0, size = 0;
      for (int64_t j = i / n * n; j < i / n * n + n; j++) {
        exact += hadamard_at(i, j, n) * (double)k[j];
        size += fabs(hadamard_at(i, j, n) * (double)k[j]);
      }
      assert_true(fabs((double)mixed_k[i] - exact) <= (double)(widths[w].steps + 2) * 0x1p-24 * 1.001 * size);
      before += (double)q[i] * (double)k[i];
      after += (double)mixed_q[i] * (double)mixed_k[i];
      sizes += fabs((double)mixed_q[i] * (double)mixed_k[i]);
    }
    assert_true(fabs(after - before) <= 1e-5 * sizes);
    free(rows);
  }
}

/* One channel of keys is 50 times as large as the others: q4_0 without and with the rotation. */
TEST(hadamard_saves_keys_with_a_large_channel) {
  enum { KEYS = 64, DIM = 128, ROW = DIM / 32 };
  static float k[KEYS * DIM], mixed[KEYS * DIM];
  static attn_q4_0 cache[KEYS * ROW];
  double loss[2] = {0, 0};
  seed = 5;
  for (int64_t i = 0; i < KEYS * DIM; i++) k[i] = (float)(pick(2001) - 1000) / (i % DIM == 40 ? 20.0f : 1000.0f);
  attn_kv_append_args args =
      ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = KEYS, .heads_kv = 1, .dim_qk = DIM, .k = k, .capacity = KEYS);
  for (int i = 0; i < 2; i++) {
    args.hadamard = i;
    args.cache_dtype = ATTN_F32, args.k_cache = mixed;
    test_ok(attn_kv_append(&args, NULL));
    args.cache_dtype = ATTN_Q4_0, args.k_cache = cache;
    test_ok(attn_kv_append(&args, NULL));
    for (int64_t d = 0; d < KEYS * DIM; d++) {
      const double error = (double)attn_load_f32((attn_storage){cache, ATTN_Q4_0}, d) - (double)mixed[d];
      loss[i] += error * error;
    }
  }
  assert_true(loss[1] < loss[0] / 2);
}

/* ---- Rotation: against long double ---- */

/* docs/numerics.md, "Rotation": the angle, the rounding of sine and cosine, of two products and a sum, of the result. */
static double bound_of(double x, double partner, double angle, double magnitude, double result, attn_dtype dtype) {
  const double u = 0x1p-24, of_angle = angle * 0x1p-50 + 0x1p-45;
  const double rows = (fabs(x) + fabs(partner)) * magnitude * (3 * u * (1 + 4 * u) + of_angle);
  const attn_dtype_info type = attn_dtype_of(dtype);
  return dtype == ATTN_F32 ? rows : rows + type.roundoff * (fabs(result) + rows) + type.least / 2;
}

static void rotations_are_within_the_bound(const attn_rope_config *config, double magnitude, const char *tier) {
  enum { TOKENS = 9, HEADS = 2, DIM = 136 };
  static const int32_t positions[TOKENS] = {0, 1, 2, 1000, 65535, 131071, 1000000, 16777217, INT32_MAX};
  static float x[HEADS * TOKENS * DIM];
  attn_rope *rope;
  double worst = 0;
  test_ok(attn_rope_create(config, &rope));
  for (int64_t i = 0; i < config->dim / 2; i++) { /* times any position the first part is exact; the second is the rest */
    const double high = rope->high[i], rest = rope->rest[i], most = INT32_MAX;
    assert_true(fma(high, most, -(high * most)) == 0 && rest >= 0 && rest <= 0x1p-21 * high);
    assert_true(high + rest == rope->frequency[i] / 6.283185307179586476925286766559);
  }
  test_fill(x, COUNT(x), 5);
  for (int type = 0; type < 3; type++) {
    static float out[HEADS * TOKENS * DIM];
    test_ok(attn_rope_run(rope,
                          &ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = TOKENS, .heads = HEADS, .dim = DIM, .x = x,
                                       .out = out, .out_dtype = types[type], .positions = positions),
                          &ATTN_STRUCT(attn_options, .max_isa = tier)));
    for (int64_t h = 0; h < HEADS; h++)
      for (int64_t t = 0; t < TOKENS; t++) {
        const int64_t row = (h * TOKENS + t) * DIM;
        for (int64_t d = 0; d < DIM; d++) {
          const double got = (double)attn_load_f32((attn_storage){out, types[type]}, row + d), own = (double)x[row + d];
          if (d >= config->dim) { /* not rotated */
            uint32_t kept = 0;
            attn_store_f32(&kept, types[type], 0, x[row + d]);
            assert_true(got == (double)attn_load_f32((attn_storage){&kept, types[type]}, 0));
            continue;
          }
          const bool near = config->pairing == ATTN_ROPE_INTERLEAVED, first = near ? d % 2 == 0 : d < config->dim / 2;
          const int64_t pair = near ? d / 2 : d % (config->dim / 2);
          const int64_t other = near ? d ^ 1 : first ? d + config->dim / 2 : d - config->dim / 2;
          const double partner = (double)x[row + other], frequency = attn_rope_frequencies(rope)[pair];
          const long double angle = (long double)positions[t] * (long double)frequency;
          const long double right = (long double)magnitude * ((long double)own * cosl(angle) +
                                                              (first ? -1.0L : 1.0L) * (long double)partner * sinl(angle));
          const double bound = bound_of(own, partner, (double)angle, magnitude, (double)right, types[type]);
          const double error = (double)fabsl((long double)got - right) / bound;
          if (!(error <= 1))
            fail_msg("%s, %d: [%d][%d][%d] is %.9g, not %.9g", tier, type, (int)h, (int)t, (int)d, got, (double)right);
          worst = error > worst ? error : worst;
        }
      }
  }
  if (!(worst <= 1) || worst < 0.1) fail_msg("%s: worst error / bound is %g", tier, worst);
  attn_rope_destroy(rope);
}

TEST(rotations_of_every_tier) {
  const attn_rope_config plain = ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_INTERLEAVED, .dim = 128, .base = 1e4);
  attn_rope_config yarn = plain, partial = plain;
  yarn.pairing = ATTN_ROPE_HALVES, yarn.scaling = ATTN_ROPE_YARN, yarn.factor = 8, yarn.original_length = 4096;
  partial.pairing = ATTN_ROPE_HALVES, partial.dim = 34, partial.base = 500000;
  char names[16][16];
  for (int i = 0, count = test_tiers(names); i < count; i++) {
    rotations_are_within_the_bound(&plain, 1, names[i]);
    rotations_are_within_the_bound(&yarn, 0.1 * log(8) + 1, names[i]);
    rotations_are_within_the_bound(&partial, 1, names[i]);
  }
}

/* Rotating by p, then by -p, is no rotation; scores depend on distances alone: <R_p q, R_r k> = <R_0 q, R_{r - p} k>. */
TEST(scores_depend_on_distances) {
  enum { DIM = 64 };
  float q[DIM], k[DIM], turned[4][DIM];
  static const int32_t at[4] = {1000, 1017, 0, 17};
  const float *rows[4] = {q, k, q, k};
  test_fill(q, DIM, 1);
  test_fill(k, DIM, 2);
  for (int pairing = ATTN_ROPE_INTERLEAVED; pairing <= ATTN_ROPE_HALVES; pairing++) {
    attn_rope *rope = make_rope((attn_rope_pairing)pairing, DIM);
    double score[2] = {0, 0};
    for (int i = 0; i < 4; i++)
      test_ok(attn_rope_run(rope,
                            &ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = 1, .heads = 1, .dim = DIM, .x = rows[i],
                                         .out = turned[i], .past = &at[i]),
                            NULL));
    for (int i = 0; i < 2; i++)
      for (int d = 0; d < DIM; d++) score[i] += (double)turned[2 * i][d] * (double)turned[2 * i + 1][d];
    assert_true(fabs(score[0] - score[1]) < 64 * 8 * 0x1p-24);
    attn_rope_destroy(rope);
  }
}

/* In place, from every tier: as into other memory. */
TEST(rows_may_be_rotated_where_they_are) {
  enum { ROWS = 6, DIM = 264 };
  static float x[ROWS * DIM], out[ROWS * DIM];
  char names[16][16];
  attn_rope *rope = make_rope(ATTN_ROPE_HALVES, 256);
  for (int i = 0, count = test_tiers(names); i < count; i++) {
    const attn_options options = ATTN_STRUCT(attn_options, .max_isa = names[i]);
    test_fill(x, COUNT(x), 3);
    attn_rope_args args = ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = 3, .heads = 2, .dim = DIM, .x = x, .out = out);
    test_ok(attn_rope_run(rope, &args, &options));
    args.out = x;
    test_ok(attn_rope_run(rope, &args, &options));
    assert_memory_equal(x, out, sizeof x);
    args.out = x + 1;
    test_invalid(attn_rope_run(rope, &args, &options), "attn_rope_args.out overlaps attn_rope_args.x");
  }
  attn_rope_destroy(rope);
}

/* More tokens than a block has, into pages in reverse order: the same for any tier and number of threads. */
TEST(long_appends_are_whole) {
  enum { TOKENS = 700, HEADS = 3, DIM = 24, PAGE = 16, PAGES = (TOKENS + PAGE - 1) / PAGE };
  static uint16_t k[HEADS][TOKENS][DIM], cache[PAGES][HEADS][PAGE][DIM];
  int32_t table[PAGES];
  char names[16][16];
  for (int i = 0; i < PAGES; i++) table[i] = PAGES - 1 - i;
  fill(k, ATTN_BF16, HEADS * TOKENS * DIM);
  for (int i = 0, count = test_tiers(names); i < 3 * count; i++) {
    memset(cache, 0, sizeof cache);
    const attn_kv_append_args args =
        ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = TOKENS, .heads_kv = HEADS, .dim_qk = DIM, .dim_v = 1, .k = k,
                    .k_cache = cache, .dtype = ATTN_BF16, .cache_dtype = ATTN_BF16, .page_tokens = PAGE, .pages = PAGES,
                    .page_table = table, .page_table_stride = PAGES);
    test_ok(attn_kv_append(&args, &ATTN_STRUCT(attn_options, .max_isa = names[i / 3], .threads = 1 + i % 3)));
    for (int h = 0; h < HEADS; h++)
      for (int t = 0; t < TOKENS; t++) assert_memory_equal(cache[table[t / PAGE]][h][t % PAGE], k[h][t], sizeof k[h][t]);
  }
}

/* Rows that do not fit into one stage, and many heads; zeros, denormals, infinities and NaN. What attention reads back is
 * within half a step of an integer, or 1/16 of a value of e4m3. */
TEST(factors_of_long_rows_and_of_special_ones) {
  enum { LONG = 9001, HEADS = 40 };
  static float k[2 * LONG], row[HEADS][3];
  static int8_t cache[2][LONG], of_heads[HEADS][3];
  static uint8_t bytes[2][LONG];
  float factor[2], factors[HEADS];
  char names[16][16];
  for (int i = 0, count = test_tiers(names); i < count; i++) {
    const attn_options options = ATTN_STRUCT(attn_options, .max_isa = names[i]);
    test_fill(k, COUNT(k), 7);
    k[8500] = -30, k[LONG + 1] = 50;
    attn_kv_append_args args =
        ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = 2, .heads_kv = 1, .dim_qk = LONG, .dim_v = 1, .k = k,
                    .k_cache = cache, .cache_dtype = ATTN_I8, .capacity = 2, .k_scale_cache = factor);
    test_ok(attn_kv_append(&args, &options));
    assert_true(factor[0] == 30.0f / 127 && factor[1] == 50.0f / 127 && cache[0][8500] == -127 && cache[1][1] == 127);
    for (int n = 0; n < 2 * LONG; n++)
      assert_true(fabsf((float)cache[n / LONG][n % LONG] * factor[n / LONG] - k[n]) <= 0.50001f * factor[n / LONG]);
    args.cache_dtype = ATTN_F8_E4M3, args.k_cache = bytes;
    test_ok(attn_kv_append(&args, &options));
    assert_true(factor[0] == 30.0f / 448 && bytes[0][8500] == 0xfe);
    for (int n = 0; n < 2 * LONG; n++) {
      const float back = attn_load_f32((attn_storage){bytes, ATTN_F8_E4M3}, n) * factor[n / LONG];
      assert_true(fabsf(back - k[n]) <= 0.0626f * fabsf(k[n]) + 0x1p-10f * factor[n / LONG]);
    }

    test_fill(row[0], HEADS * 3, 8);
    const float special[][3] = {{0, -0.0f, 0}, {0x1p-140f, 0, -0x1p-130f}, {1, -INFINITY, 2}, {NAN, INFINITY, 1}};
    memcpy(row[HEADS - 4], special, sizeof special);
    args = ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = 1, .heads_kv = HEADS, .dim_qk = 1, .dim_v = 3, .v = row,
                       .v_cache = of_heads, .cache_dtype = ATTN_I8, .capacity = 1, .v_scale_cache = factors);
    memset(of_heads, 0x5a, sizeof of_heads);
    test_ok(attn_kv_append(&args, &options));
    for (int h = 0; h < HEADS - 4; h++)
      for (int d = 0; d < 3; d++)
        assert_true(fabsf((float)of_heads[h][d] * factors[h] - row[h][d]) <= 0.50001f * factors[h]);
    assert_true(factors[HEADS - 4] == 0 && factors[HEADS - 3] == 0);
    assert_true(factors[HEADS - 2] == INFINITY && isnan(factors[HEADS - 1]));
    for (int n = 0; n < 12; n++) assert_int_equal(of_heads[HEADS - 4 + n / 3][n % 3], 0);
    args.cache_dtype = ATTN_F8_E4M3;
    test_ok(attn_kv_append(&args, &options));
    for (int n = 0; n < 12; n++) /* a finite number of a row that is not finite is 0, too */
      assert_int_equal(of_heads[HEADS - 4 + n / 3][n % 3] & 0x7f, isfinite(special[n / 3][n % 3]) ? 0 : 0x7f);
  }
}

/* A row of several stages, of which only the first has rotated elements. */
TEST(factors_of_long_rotated_rows) {
  enum { LONG = 9001 };
  static float k[LONG], turned[LONG];
  static double exact[LONG];
  static int8_t cache[LONG], right[LONG];
  static const int32_t past = 0, position = 1234;
  float factor;
  attn_rope *rope = make_rope(ATTN_ROPE_HALVES, 64);
  test_fill(k, LONG, 9);
  test_ok(attn_rope_run(rope,
                        &ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = 1, .heads = 1, .dim = LONG, .x = k, .out = turned,
                                     .positions = &position),
                        NULL));
  for (int d = 0; d < LONG; d++) exact[d] = (double)turned[d];
  const bench_cached how = {ATTN_I8, true, 1};
  bench_cached_store(right, ATTN_I8, 0, 1, exact, LONG, bench_cached_factor(&how, exact, LONG));
  test_ok(attn_kv_append(&ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = 1, .heads_kv = 1, .dim_qk = LONG,
                                      .dim_v = 1, .k = k, .k_cache = cache, .cache_dtype = ATTN_I8, .capacity = 1,
                                      .past = &past, .k_scale_cache = &factor, .rope = rope, .positions = &position),
                         NULL));
  assert_true(factor == bench_cached_factor(&how, exact, LONG));
  assert_memory_equal(cache, right, sizeof cache);
  attn_rope_destroy(rope);
}

/* Blocks of zeros, denormals, infinities, NaN, factors beyond float16, halves, and of two numbers that are farthest from 0.
 * Integers of blocks that are not finite are arbitrary, but alike in all tiers. */
TEST(blocks_of_special_rows) {
  enum { ROWS = 10, DIM = 32 };
  static float rows[ROWS][DIM];
  static attn_q8_0 q8[2][ROWS];
  static attn_q4_0 q4[2][ROWS];
  char names[16][16];
  for (int d = 0; d < DIM; d++) {
    rows[1][d] = d ? 0x1p-140f : 0x1p-130f;
    rows[2][d] = d == 3 ? -INFINITY : d == 4 ? NAN : (float)(d - 9);
    rows[3][d] = d == 30 ? INFINITY : (float)(d - 9);
    rows[4][d] = d == 0 ? 65504.0f * 200 : (float)d;
    rows[5][d] = d == 0 ? 127 : d % 2 ? 0.5f + (float)(d / 2) : -0.5f - (float)(d / 2);
    rows[6][d] = d == 31 ? -127 : d < 8 ? 0x1.fffffep-2f + (float)d : 0x1.fffffep-1f * (float)d; /* just below a half */
    rows[7][d] = d == 9 ? -8 : d == 10 ? 8 : (float)(d % 15 - 7);
    rows[8][d] = d == 9 ? 8 : d == 10 ? -8 : (float)(d % 15 - 7) + 0.5f;
    rows[9][d] = d % 3 ? -0.0f : 0;
  }
  for (int i = 0, count = test_tiers(names); i < count; i++) {
    const attn_options options = ATTN_STRUCT(attn_options, .max_isa = names[i]);
    attn_kv_append_args args =
        ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = ROWS, .heads_kv = 1, .dim_qk = DIM, .dim_v = 1, .k = rows,
                    .k_cache = q8[i > 0], .cache_dtype = ATTN_Q8_0, .capacity = ROWS);
    test_ok(attn_kv_append(&args, &options));
    args.k_cache = q4[i > 0], args.cache_dtype = ATTN_Q4_0;
    test_ok(attn_kv_append(&args, &options));
    for (int r = 0; r < ROWS; r++) {
      attn_q8_0 right_q8;
      attn_q4_0 right_q4;
      double exact[DIM];
      for (int d = 0; d < DIM; d++) exact[d] = (double)rows[r][d];
      const attn_storage of_q8 = {q8[i > 0], ATTN_Q8_0}, of_q4 = {q4[i > 0], ATTN_Q4_0};
      const int d = r == 2 ? 4 : r == 3 ? 30 : 0; /* where the value is that is not finite */
      if (r >= 2 && r <= 4) {
        assert_true(!isfinite(attn_load_f32(of_q8, r * DIM + d)) && !isfinite(attn_load_f32(of_q4, r * DIM + d)));
        continue;
      }
      if (r == 1) continue; /* factors are 0 */
      bench_cached_store(&right_q8, ATTN_Q8_0, 0, 1, exact, DIM, 1);
      bench_cached_store(&right_q4, ATTN_Q4_0, 0, 1, exact, DIM, 1);
      assert_memory_equal(&q8[i > 0][r], &right_q8, sizeof right_q8);
      assert_memory_equal(&q4[i > 0][r], &right_q4, sizeof right_q4);
    }
    for (int d = 0; d < DIM; d++)
      assert_true(attn_load_f32((attn_storage){q8[i > 0], ATTN_Q8_0}, DIM + d) == 0 &&
                  attn_load_f32((attn_storage){q4[i > 0], ATTN_Q4_0}, DIM + d) == 0);
    if (i == 0) continue;
    assert_memory_equal(q8[1], q8[0], sizeof q8[0]);
    assert_memory_equal(q4[1], q4[0], sizeof q4[0]);
  }
}

/* ---- Frequencies ---- */

static void frequencies_are(const attn_rope_config *config, const int *pair, const double *value, int count) {
  attn_rope *rope;
  test_ok(attn_rope_create(config, &rope));
  for (int i = 0; i < count; i++)
    if (fabs(attn_rope_frequencies(rope)[pair[i]] / value[i] - 1) > 1e-6)
      fail_msg("frequency %d is %.9g; it must be %.9g", pair[i], attn_rope_frequencies(rope)[pair[i]], value[i]);
  attn_rope_destroy(rope);
}

/* The values are those of the formulas in transformers.modeling_rope_utils, in double precision. */
TEST(frequencies_are_those_of_models) {
  const attn_rope_config base = ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = 128, .base = 500000);
  static const int pair[] = {0, 1, 20, 27, 30, 33, 40, 50, 63};
  attn_rope_config c = base;
  static const double unscaled[] = {1,
                                    0.814617234,
                                    0.0165604401,
                                    0.00394227603,
                                    0.00213111954,
                                    0.00115204274,
                                    0.000274248176,
                                    3.52922774e-05,
                                    2.45514079e-06};
  static const double linear[] = {0.25,           0.203654308,    0.00414011002,  0.000985569008, 0.000532779884,
                                  0.000288010685, 6.85620439e-05, 8.82306935e-06, 6.13785198e-07};
  static const double llama3[] = {1,
                                  0.814617234,
                                  0.0165604401,
                                  0.00394227603,
                                  0.00137189357,
                                  0.00031269375,
                                  3.4281022e-05,
                                  4.41153467e-06,
                                  3.06892599e-07};
  static const double yarn[] = {1,
                                0.814617234,
                                0.0113853026,
                                0.00127302663,
                                0.000355186589,
                                7.20026713e-05,
                                1.7140511e-05,
                                2.20576734e-06,
                                1.53446299e-07};
  static const double yarn_exact[] = {1,
                                      0.814617234,
                                      0.0116928776,
                                      0.001252965,
                                      0.000322730524,
                                      7.20026713e-05,
                                      1.7140511e-05,
                                      2.20576734e-06,
                                      1.53446299e-07};
  static const double ntk[] = {1,
                               0.800534845,
                               0.0116843568,
                               0.0024618778,
                               0.00126301123,
                               0.000647959608,
                               0.000136524193,
                               1.47574738e-05,
                               8.18380264e-07};
  frequencies_are(&c, pair, unscaled, COUNT(pair));
  c.scaling = ATTN_ROPE_LINEAR, c.factor = 4;
  frequencies_are(&c, pair, linear, COUNT(pair));
  c = base, c.scaling = ATTN_ROPE_LLAMA3, c.factor = 8, c.original_length = 8192;
  frequencies_are(&c, pair, llama3, COUNT(pair));
  c = base, c.scaling = ATTN_ROPE_YARN, c.factor = 16, c.original_length = 4096;
  frequencies_are(&c, pair, yarn, COUNT(pair));
  c.exact_ramp = true;
  frequencies_are(&c, pair, yarn_exact, COUNT(pair));
  c = base, c.scaling = ATTN_ROPE_NTK, c.factor = 3;
  frequencies_are(&c, pair, ntk, COUNT(pair));
  static double own[64];
  for (int i = 0; i < 64; i++) own[i] = 0.5 / (i + 1);
  c.frequencies = own;
  frequencies_are(&c, pair, (const double[]){own[0], own[1], own[20], own[27], own[30], own[33], own[40], own[50], own[63]},
                  COUNT(pair));
}

/* ---- Errors ---- */

/* The last values before those that are refused. */
TEST(rotations_take_their_limits) {
  static const double most_frequencies[] = {1e6, 0};
  static const attn_rope_config limits[] = {
      {.dim = 4, .frequencies = most_frequencies},
      {.dim = 256, .base = 1.0000001},
      {.dim = 4, .base = 1e4, .scaling = ATTN_ROPE_NTK, .factor = 1},
      {.dim = 2, .base = 1e4, .scaling = ATTN_ROPE_YARN, .factor = 1, .original_length = 1, .beta_fast = 1, .beta_slow = 1}};
  for (size_t i = 0; i < COUNT(limits); i++) {
    attn_rope_config config = limits[i];
    attn_rope *rope;
    config.struct_size = sizeof config, config.pairing = ATTN_ROPE_HALVES;
    test_ok(attn_rope_create(&config, &rope));
    attn_rope_destroy(rope);
  }
}

TEST(rotations_check_their_fields) {
  const attn_rope_config good = ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = 64, .base = 1e4,
                                            .scaling = ATTN_ROPE_YARN, .factor = 2, .original_length = 4096);
  static const double wrong_frequencies[32] = {1, -1};
  attn_rope *rope;
#define REFUSED(change, part) TEST_REFUSES(attn_rope_config, good, change, attn_rope_create(&bad, &rope), rope, part)
  REFUSED(bad.pairing = (attn_rope_pairing)0, "pairing is 0; it must be ATTN_ROPE_INTERLEAVED or ATTN_ROPE_HALVES");
  REFUSED(bad.dim = 63, "dim is 63; it must be even");
  REFUSED(bad.dim = 0, "dim is 0");
  REFUSED(bad.dim = 258, "dim is 258");
  REFUSED(bad.base = 1, "base is 1");
  REFUSED(bad.base = NAN, "base is");
  REFUSED(bad.scaling = (attn_rope_scaling)5, "scaling is 5");
  REFUSED(bad.factor = 0.5, "factor is 0.5");
  REFUSED(bad.original_length = 0, "original_length is 0");
  REFUSED(bad.beta_fast = 0.5, "beta_fast is 0.5 with beta_slow 1");
  REFUSED(bad.attention_factor = -1, "attention_factor is -1");
  REFUSED((bad.scaling = ATTN_ROPE_LLAMA3, bad.low_freq_factor = 4), "high_freq_factor is 4 with low_freq_factor 4");
  REFUSED((bad.scaling = ATTN_ROPE_NTK, bad.dim = 2), "dim is 2 with ATTN_ROPE_NTK");
  REFUSED(bad.frequencies = wrong_frequencies, "frequencies[1] is -1");
#undef REFUSED
  test_invalid(attn_rope_create(NULL, &rope), "config is NULL");
  test_invalid(attn_rope_create(&good, NULL), "rope is NULL");
  attn_rope_destroy(NULL);
  assert_null(attn_rope_frequencies(NULL));
}

TEST(refused_appends_write_nothing) {
  enum { B = 2, T = 3, LONG = 17, H = 2, D = 8, P = 16, PAGES = 6 };
  static float k[B * H * LONG * D + 1], v[B * H * LONG * D], cache[2][PAGES * H * P * D], before[2][PAGES * H * P * D];
  static const int32_t table[B][2] = {{0, 3}, {5, 1}}, past[B] = {14, 0}, negative[B] = {0, -1}, many[B] = {3, 4},
                       late[B] = {0, INT32_MAX - 2};
  static const int32_t beyond[B] = {30, 0}, cu[B + 1] = {0, 2, 7}, falls[B + 1] = {0, 3, 2}, wrong[B][2] = {{0, 6}, {5, -1}};
  static const int32_t ring[B][2] = {{4, 4}, {5, 1}};
  static const int64_t slots[B * T] = {0, 1, 2, -1, 5, PAGES * P}, low[B * T] = {0, 1, 2, -2, 5, 6};
  static const int32_t positions[B * T] = {0, 0, 0, 0, 0, -7};
  static float factors[PAGES * H * P];
  static const float nan = NAN;
  float *odd = (float *)(void *)((char *)factors + 2);
  attn_rope *rope = make_rope(ATTN_ROPE_HALVES, 10);
  test_fill(cache[0], COUNT(cache[0]), 1);
  memcpy(before[0], cache[0], sizeof cache[0]);
  const attn_kv_append_args good =
      ATTN_STRUCT(attn_kv_append_args, .batch = B, .tokens = T, .heads_kv = H, .dim_qk = D, .dim_v = D, .k = k, .v = v,
                  .k_cache = cache[0], .v_cache = cache[1], .page_tokens = P, .pages = PAGES, .page_table = table[0],
                  .page_table_stride = 2, .past = past);
  static const float one = 1;
#define REFUSED(change, ...) /* and also where K has a factor */ \
  do {                                                           \
    attn_kv_append_args bad = good;                              \
    change;                                                      \
    test_invalid(attn_kv_append(&bad, NULL), __VA_ARGS__);       \
    if (!bad.k_scale && !bad.k_scale_cache) bad.k_scale = &one;  \
    test_invalid(attn_kv_append(&bad, NULL), __VA_ARGS__);       \
  } while (0)
  REFUSED(bad.batch = -1, "attn_kv_append_args.batch is -1; it must be in 0..2^31");
  REFUSED(bad.batch = ((int64_t)1 << 31) + 1, "attn_kv_append_args.batch is 2147483649; it must be in 0..2^31");
  REFUSED(bad.tokens = -1, "tokens is -1; it must be in 0..2^31");
  REFUSED((bad.q = k, bad.q_out = v, bad.heads_q = 0), "heads_q is 0; it must be in 1..2^31");
  REFUSED(bad.heads_kv = 0, "heads_kv is 0; it must be in 1..2^31");
  REFUSED(bad.capacity = -1, "capacity is -1; it must be in 0..2^31");
  REFUSED(bad.page_tokens = -1, "page_tokens is -1; it must be in 0..2^31");
  REFUSED(bad.pages = -1, "pages is -1; it must be in 0..2^31");
  REFUSED(bad.dim_qk = 0, "dim_qk is 0; it must be in 1..2^31");
  REFUSED(bad.dim_v = 0, "dim_v is 0; it must be in 1..2^31");
  REFUSED(bad.dtype = (attn_dtype)9, "dtype is 9");
  REFUSED(bad.cache_dtype = (attn_dtype)9, "cache_dtype is 9");
  REFUSED(bad.k = NULL, "attn_kv_append_args.k is", "both must be given, or none");
  REFUSED(bad.v = NULL, "attn_kv_append_args.v is", "both must be given, or none");
  REFUSED(bad.v_cache = NULL, "attn_kv_append_args.v is", "both must be given, or none");
  REFUSED((bad.q = k, bad.heads_q = 1), "attn_kv_append_args.q is", "with q_out");
  REFUSED(bad.k = (const char *)k + 2, "attn_kv_append_args.k is", "aligned");
  REFUSED(bad.v_scale = odd, "attn_kv_append_args.v_scale is", "aligned");
  REFUSED((bad.cache_dtype = ATTN_I8, bad.k_scale_cache = odd), "attn_kv_append_args.k_scale_cache is", "aligned");
  REFUSED(bad.capacity = 4, "capacity is 4 with page_tokens 16");
  REFUSED(bad.page_tokens = 0, "capacity is 0");
  REFUSED(bad.page_table = NULL, "page_table is NULL");
  REFUSED(bad.slots = slots, "page_table is given with slots");
  REFUSED((bad.page_table = NULL, bad.slots = slots), "slots[5] is 96; it must be in 0..95, or -1 for nowhere");
  REFUSED((bad.page_table = NULL, bad.slots = low), "slots[3] is -2");
  REFUSED(bad.past = negative, "past[1] is -1");
  REFUSED(bad.counts = many, "counts[1] is 4");
  REFUSED((bad.counts = past, bad.cu_seqlens = cu), "counts is given with cu_seqlens");
  REFUSED((bad.cu_seqlens = cu, bad.tokens = 6), "cu_seqlens[2] is 7; the tensors hold 6 tokens");
  REFUSED(bad.cu_seqlens = negative + 1, "cu_seqlens[0] is -1; it must be at least 0");
  REFUSED((bad.past = late, bad.slots = slots, bad.page_table = NULL), "sequence 1 would have 2147483648 tokens");
  REFUSED((bad.batch = bad.tokens = (int64_t)1 << 31, bad.past = NULL), "tokens is 2147483648 with batch 2147483648");
  REFUSED(bad.cu_seqlens = falls, "cu_seqlens[2] is 2 after 3");
  REFUSED(bad.past = beyond, "page_table_stride is 2", "sequence 0 has 33", "at least 3");
  REFUSED(bad.page_table = wrong[0], "page_table[0][1] is 6; it must be in 0..5");
  REFUSED((bad.past = NULL, bad.page_table = wrong[0], bad.tokens = LONG), "page_table[0][1] is 6");
  REFUSED((bad.page_table = ring[0], bad.tokens = LONG), "comes back to page 4 after 16 tokens", "17 new ones");
  REFUSED((bad.page_tokens = 0, bad.page_table = NULL, bad.capacity = 16), "sequence 0 holds 14 of 16 tokens; 3 more");
  REFUSED(bad.positions = positions, "positions is given without rope");
  REFUSED((bad.hadamard = true, bad.dim_qk = 7), "dim_qk is 7 with hadamard; it must be even");
  REFUSED(bad.rope = rope, "rope rotates 10");
  REFUSED(bad.k_scale = factors, "attn_kv_append_args.k_scale is 0 where new token 0 goes in head 0",
          "neither 0 nor denormal, infinite or NaN");
  REFUSED(bad.v_scale = &nan, "attn_kv_append_args.v_scale is nan");
  REFUSED((bad.v_scale = factors, bad.v_scale_stride.s = 1), "attn_kv_append_args.v_scale is 0 where new token", "head 0");
  REFUSED((bad.k_scale = factors + 1, bad.k_scale_cache = factors), "k_scale and k_scale_cache are both given");
  REFUSED(bad.k_scale_cache = factors, "attn_kv_append_args.k_scale_cache is given with cache_dtype 0", "8 bits");
  REFUSED((bad.cache_dtype = ATTN_I8, bad.v_scale_cache = factors, bad.v_scale_stride.h = 1), "v_scale_cache", "overlap");
  REFUSED((bad.cache_dtype = ATTN_I8, bad.v_scale_cache = v), "attn_kv_append_args.v_scale_cache overlaps attn_kv");
  REFUSED((bad.v = NULL, bad.v_cache = NULL, bad.v_scale = factors), "attn_kv_append_args.v_scale is given without v");
  REFUSED(bad.k_cache_stride.s = 1, "attn_kv_append_args.k_cache.b is 0; elements would overlap");
  REFUSED(bad.v_cache = k + B * H * T * D - 1, "v_cache overlaps attn_kv_append_args.k;"); /* in the last element */
  REFUSED((bad.cache_dtype = ATTN_Q8_0, bad.k_scale_cache = factors), "k_scale_cache is given with cache_dtype 6", "8 bits");
  REFUSED((bad.cache_dtype = ATTN_Q4_0, bad.k_cache_stride = (attn_strides){H * P * 32, P * 32, 32, 2}), "k_cache.d is 2",
          "must be 1");
  REFUSED((bad.cache_dtype = ATTN_Q4_0, bad.v_cache_stride = (attn_strides){H * P * D, P * D, D, 1}), "v_cache.s is 8",
          "multiple of 32");
  REFUSED((bad.cache_dtype = ATTN_Q8_0, bad.v_cache_stride = (attn_strides){P * 32, P * 32, 32, 1}), "v_cache.", "overlap");
#undef REFUSED
  attn_rope *short_rope = make_rope(ATTN_ROPE_HALVES, 8);
  attn_kv_append_args bad = good;
  bad.rope = short_rope, bad.positions = positions;
  test_invalid(attn_kv_append(&bad, NULL), "positions[5] is -7");
  test_invalid(attn_kv_append(NULL, NULL), "args is NULL");
  bad = good, bad.tokens = 0;
  test_ok(attn_kv_append(&bad, NULL));
  bad.tokens = T, bad.batch = 0;
  test_ok(attn_kv_append(&bad, NULL));
  assert_memory_equal(cache, before, sizeof cache);
  attn_rope_args rows = ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = 1, .heads = 1, .dim = 8, .x = k, .out = v);
  test_invalid(attn_rope_run(NULL, &rows, NULL), "rope is NULL");
  test_invalid(attn_rope_run(rope, NULL, NULL), "args is NULL");
#define REFUSED(change, field)                                                        \
  do {                                                                                \
    attn_rope_args faulty = rows;                                                     \
    faulty.change;                                                                    \
    test_invalid(attn_rope_run(rope, &faulty, NULL), "attn_rope_args." field " is "); \
  } while (0)
  REFUSED(batch = -1, "batch");
  REFUSED(tokens = -1, "tokens");
  REFUSED(heads = 0, "heads");
  REFUSED(dim = 0, "dim");
  REFUSED(dtype = ATTN_I8, "dtype");
  REFUSED(out_dtype = ATTN_I8, "out_dtype");
#undef REFUSED
  test_invalid(attn_rope_run(rope, &rows, NULL), "attn_rope_args.x has rows of 8 elements; rope rotates 10");
  rows.x = NULL;
  test_invalid(attn_rope_run(rope, &rows, NULL), "attn_rope_args.x is NULL");
  test_refused(attn_kv_append(&good, &ATTN_STRUCT(attn_options, .max_isa = "mmx")), ATTN_INVALID_ARGUMENT, "mmx");
  attn_rope_destroy(short_rope);
  attn_rope_destroy(rope);
}
