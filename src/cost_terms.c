/* SPDX-License-Identifier: MIT */
/* The terms follow the loops of decode.h and flash.h. Each counts how often something is done: a call, a KV head, a key, an
 * element of K and V, a row, a group of rows that is computed at once, a tile, and products of these. Widths are counted in
 * whole vectors of the tier; kernels on tiles of 32 have terms of their own. What a kernel does not do takes nothing: the
 * fit leaves the term at 0. */
#include "cost_terms.h"

#include <math.h>
#include <string.h>

#include "kernels/common/dtypes.h"

enum { TILE = 32, TILE_ROWS = 6, TASK_ROWS = 96, BLOCK_KEYS = 32, LEVELS = 3, STEPS = 3 };

/* Where the terms that kernels share begin; the first ones mean something else for decode than for flash. */
enum { LEVEL = 20, STEP = LEVEL + LEVELS, PARTS = STEP + STEPS, BLOCKS, CALL = ATTN_COST_TERMS - 1 };

static bool is_decode(const attn_kernel_info *kernel) { return strcmp(kernel->algorithm, "decode") == 0; }

/* Whether the kernel decodes pairs of bf16 values on vectors of 16 floats. */
static bool decodes_pairs(const attn_kernel_info *kernel) {
  return is_decode(kernel) && strcmp(kernel->isa, "avx512bf16") == 0;
}

/* Floats of the tier's vectors, values of a vector of K, and keys of a panel of flash. */
typedef struct widths {
  int lanes, values, panel;
} widths;

static widths widths_of(const attn_kernel_info *kernel) {
  if (decodes_pairs(kernel)) return (widths){16, 32, 64};
  if (strncmp(kernel->isa, "avx512", 6) == 0 || strcmp(kernel->isa, "amx") == 0) return (widths){16, 16, 64};
  if (strcmp(kernel->isa, "avx2") == 0) return (widths){8, 8, 16};
  return (widths){4, 4, 16};
}

static double whole(double count, int of) { return ceil(count / of); }

static double padded(double count, int of) { return of * whole(count, of); }

/* 0 up to 2^from bytes, 1 from 2^to on, and a line over their logarithm between. */
static double beyond(double log2_bytes, double from, double to) {
  return fmin(fmax((log2_bytes - from) / (to - from), 0), 1);
}

/* A head's elements of K and V as often as the call's K and V exceed a level of the caches. */
static void add_levels(double elements, double bytes, double level[LEVELS]) {
  static const double from[LEVELS] = {16, 19, 23};
  for (int i = 0; i < LEVELS; i++) level[i] = elements * beyond(log2(bytes), from[i], from[i] + 2);
}

/* The same around level 2, whose end is a cliff: of all bytes that a call goes through, what it packs included. */
static void add_steps(double elements, double bytes, double step[STEPS]) {
  static const double from[STEPS] = {19, 20, 21}, to[STEPS] = {20, 21, 23};
  for (int i = 0; i < STEPS; i++) step[i] = elements * beyond(log2(bytes), from[i], to[i]);
}

int64_t attn_keys_in_blocks(const attn_problem *p) {
  int64_t seen_by_all = p->seq_k;
  if (p->window_right == 0 && p->seq_q > 1)
    seen_by_all = p->align == ATTN_ALIGN_TOP_LEFT || p->seq_k < p->seq_q ? 0 : p->seq_k - p->seq_q + 1;
  return seen_by_all / BLOCK_KEYS * BLOCK_KEYS;
}

/* Keys that a tile of rows sees, on average. */
static double visible_keys(const attn_problem *p) {
  const double q = (double)p->seq_q, k = (double)p->seq_k, half = (q + fmin(q, TILE_ROWS)) / 2;
  if (p->window_right != 0 || p->seq_q <= 1) return k;
  return fmax(fmin(p->align == ATTN_ALIGN_TOP_LEFT ? half : k - q + half, k), 1);
}

typedef struct sizes {
  double heads, group, rows, queries, keys, dim; /* KV heads; rows of a KV head; dim: the mean of dim_qk and dim_v */
  double in_blocks;                              /* keys that may go in whole blocks */
  widths of;
  double wide, wider;         /* dim in whole vectors, and in whole tiles */
  double tail, causal;        /* 1 or 0: whether a vector is not full; whether rows see different keys */
  bool streams_one;           /* whether a single row goes through whole blocks of keys (one_row.h) */
  double bytes, packed_bytes; /* of the call's K and V; of a head's that flash packs, as floats */
  double level[LEVELS];
} sizes;

static sizes sizes_of(const attn_problem *p, widths of) {
  sizes s = {
      .of = of, .heads = (double)p->heads_kv, .group = (double)(p->heads_q / p->heads_kv), .queries = (double)p->seq_q};
  s.keys = (double)p->seq_k;
  s.rows = s.group * s.queries;
  s.dim = (double)(p->dim_qk + p->dim_v) / 2;
  s.in_blocks = (double)attn_keys_in_blocks(p);
  s.wide = (padded((double)p->dim_qk, of.values) + padded((double)p->dim_v, of.lanes)) / 2;
  s.wider = (padded((double)p->dim_qk, TILE) + padded((double)p->dim_v, TILE)) / 2;
  s.tail = s.wide > s.dim;
  s.causal = p->window_right == 0 && p->seq_q > 1;
  s.streams_one = of.values == of.lanes && p->dim_qk == p->dim_v && (p->dim_qk == 64 || p->dim_qk == 128);
  s.bytes = 2 * s.heads * s.keys * s.dim * (double)attn_dtype_bytes(p->dtype_kv);
  s.packed_bytes =
      s.keys * s.dim * (double)sizeof(float) * (p->dtype_kv == ATTN_F32 ? 1 : 2); /* K; V where it is no float */
  add_levels(s.keys * s.dim, s.bytes, s.level);
  return s;
}

enum { AT_ONCE = 4 };
static const int ROWS_AT_ONCE[AT_ONCE] = {8, 4, 2, 1}; /* of decode */

/* Splits rows as few_rows.h does: 7 as 8 and 3 as 4, of pairs 5 and 6 as 8, too. Returns how many parts they are. */
static double split_rows(double rows, bool pairs, double count[AT_ONCE]) {
  const double from[AT_ONCE] = {pairs ? 5 : 7, 3, 2, 1};
  double parts = 0;
  for (int i = 0; i < AT_ONCE; i++) {
    count[i] = rows >= from[i] ? floor((rows - from[i]) / ROWS_AT_ONCE[i]) + 1 : 0;
    rows = fmax(rows - count[i] * ROWS_AT_ONCE[i], 0);
    parts += count[i];
  }
  return parts;
}

/* Decode goes through K and V once for every 8, 4, 2 or 1 rows of a KV head, or 16 in the tile unit: through whole blocks of
 * keys by group_rows.h and one_row.h if these are for all of the rows, through the other keys by few_rows.h. */
static void decode_terms(const sizes *s, double *t) {
  double count[AT_ONCE];
  const double passes = split_rows(s->rows, s->of.values > s->of.lanes, count);
  const double rows = 8 * count[0] + 4 * count[1] + 2 * count[2] + count[3]; /* with those of zeros */
  const bool streams = count[3] == 0 || s->streams_one;
  const double blocks = streams ? s->in_blocks : 0, rest = s->keys - blocks;
  t[10] = 0; /* scores, which come by the vector: of a row and 16 keys, or of 8 rows and 2 */
  for (int i = 0; i < AT_ONCE; i++) {
    const int keys = s->of.lanes > ROWS_AT_ONCE[i] ? s->of.lanes / ROWS_AT_ONCE[i] : 1;
    t[i] = count[i];
    t[4 + i] = count[i] * rest * s->wide;
    t[10] += count[i] * s->of.lanes * whole(rest, keys) * s->wide;
  }
  t[8] = 1;
  t[9] = rest;
  t[11] = s->rows;
  t[12] = s->rows * s->wide;
  t[13] = s->rows * padded(rest, s->of.lanes);
  t[14] = s->keys * (s->wider - s->wide) * passes;
  t[15] = whole(s->rows, 16) * padded(s->keys, 16) * s->wider;
  t[16] = passes * rest * s->tail;
  t[17] = s->rows * s->tail;
  t[18] = s->rows * s->causal;
  t[19] = count[3] * blocks * s->wide;
  t[PARTS] = rows * rest * s->tail;
  for (int i = 0; i < 3; i++) {
    t[BLOCKS + i] = count[i] * blocks * s->wide;
    t[BLOCKS + 3 + i] = count[i] * blocks * s->tail;
  }
  t[BLOCKS + 6] = rows * blocks;
  t[BLOCKS + 7] = passes * blocks;
  t[BLOCKS + 8] = blocks > 0 && rest > 0 ? passes : 0;
  t[BLOCKS + 9] = s->rows * whole(rest, BLOCK_KEYS);
}

/* Flash packs K and V, and goes through them once for every 6 queries of a head, or 32 in the tile unit. */
static void flash_terms(const sizes *s, double visible, double *t) {
  const double tiles = s->group * whole(s->queries, TILE_ROWS), wide_tiles = s->group * whole(s->queries, TILE);
  const double keys = visible < s->keys ? visible + s->of.lanes / 2.0 : padded(s->keys, s->of.lanes);
  const double packed = padded(s->keys, s->of.lanes);
  t[0] = 1;
  t[1] = packed;
  t[2] = packed * s->wide;
  t[3] = s->group * whole(s->queries, TASK_ROWS);
  t[4] = tiles;
  t[5] = tiles * s->wide;
  t[6] = tiles * visible * s->wide;
  t[7] = packed * s->tail;
  t[8] = tiles * keys * s->wide;
  t[9] = tiles * keys;
  t[10] = tiles * whole(keys, s->of.panel);
  t[11] = s->rows;
  t[12] = s->rows * s->wide;
  t[13] = wide_tiles * padded(visible, TILE) * s->wider;
  t[14] = tiles * s->wide * fmax(whole(s->keys, s->dim <= 128 ? 256 : 128) - 1, 0);
  t[15] = s->rows * s->tail;
  t[16] = tiles * s->keys * s->tail;
  t[17] = tiles * s->causal;
  t[18] = s->keys * (s->wider - s->wide);
  t[19] = tiles * keys * (s->wider - s->wide);
  t[PARTS] = s->rows * s->keys * s->tail; /* rows that wait for a part of a vector */
  memset(t + BLOCKS, 0, (CALL - BLOCKS) * sizeof *t);
}

static bool have_equal_terms(const attn_kernel_info *a, const attn_kernel_info *b) {
  const widths of_a = widths_of(a), of_b = widths_of(b);
  return strcmp(a->algorithm, b->algorithm) == 0 && of_a.lanes == of_b.lanes && of_a.values == of_b.values;
}

void attn_cost_terms(const attn_kernel_info *kernel, const attn_problem *problem, double terms[ATTN_COST_TERMS]) {
  const sizes s = sizes_of(problem, widths_of(kernel));
  const bool decode = is_decode(kernel);
  if (decode)
    decode_terms(&s, terms);
  else
    flash_terms(&s, visible_keys(problem), terms);
  memcpy(terms + LEVEL, s.level, sizeof s.level);
  add_steps(s.keys * s.dim, s.bytes + (decode ? 0 : s.packed_bytes), terms + STEP);
  for (int i = 0; i < CALL; i++) terms[i] *= s.heads;
  terms[CALL] = 1;
}

static double sum_of(const double of_term_ns[ATTN_COST_TERMS], const double terms[ATTN_COST_TERMS]) {
  double ns = 0;
  for (int i = 0; i < ATTN_COST_TERMS; i++) ns += of_term_ns[i] * terms[i];
  return ns;
}

double attn_expected_ns(const double of_term_ns[ATTN_COST_TERMS], const attn_kernel_info *kernel,
                        const attn_problem *problem) {
  double terms[ATTN_COST_TERMS];
  attn_cost_terms(kernel, problem, terms);
  return sum_of(of_term_ns, terms);
}

int attn_expect(const attn_kernel_costs *costs, int count, const attn_problem *problem,
                attn_expected_cost expected[ATTN_EXPECTED_COSTS]) {
  const attn_kernel_info *last = NULL; /* whose terms there are */
  double terms[ATTN_COST_TERMS];
  int found = 0;
  for (int i = 0; i < count && found < ATTN_EXPECTED_COSTS && problem->dtype_q == problem->dtype_kv; i++) {
    const attn_kernel_costs *c = &costs[i];
    const attn_kernel_info *kernel = c->dtype == problem->dtype_kv ? attn_kernel_find(c->kernel) : NULL;
    if (!kernel) continue; /* as one of a plug-in that is not loaded */
    if (!last || !have_equal_terms(kernel, last)) attn_cost_terms(kernel, problem, terms);
    last = kernel;
    const double ns = sum_of(c->ns, terms);
    int at = found++;
    for (; at > 0 && expected[at - 1].ns > ns; at--) expected[at] = expected[at - 1];
    expected[at] = (attn_expected_cost){.costs = c, .ns = ns};
  }
  return found;
}
