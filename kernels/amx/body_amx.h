/* SPDX-License-Identifier: MIT */
/* The products of the tile unit, with softmax of another block spread between them. Tiles 0-3 hold sums, 4 and 5 the left
 * operand, 6 and 7 the right one.
 *
 * A group is four tiles of sums, 32 x 32 values, over all steps of its product. A body is all groups of O^T += V^T P^T of
 * the block before and of S^T = K Q^T of the block behind; softmax of the block between runs beside them. A tile product
 * keeps the unit busy for 16 cycles, and the vectors do not wait for it. The sums of a group are stored by the next group,
 * each tile just before it is needed again: a store right behind its product would wait for it. */
#ifndef ATTN_BODY_AMX_H
#define ATTN_BODY_AMX_H

#include "softmax_amx.h"

/* Where a group's operands are. The left one is read once for 32 queries and should not push S, P, O and Q out of level
 * 1. */
typedef struct operands {
  const char *left, *right;
  int64_t left_stride, left_step; /* bytes from row to row, from step to step */
  int64_t part;                   /* bytes from part to part, on both sides */
} operands;

/* Stores a tile of the group before, and starts one of this group: from what `sums` holds, or from 0. A macro, because tiles
 * are constants of the instruction. */
#define START_TILE(tile, before, sums, starts)                \
  do {                                                        \
    _tile_stored(tile, before, TILE_QUERIES * sizeof(float)); \
    if (starts)                                               \
      _tile_zero(tile);                                       \
    else                                                      \
      _tile_loadd(tile, sums, TILE_QUERIES * sizeof(float));  \
  } while (0)

enum {
  SUMS_0 = 0,
  SUMS_1 = HALF,
  SUMS_2 = HALF * TILE_QUERIES,
  SUMS_3 = HALF * TILE_QUERIES + HALF
}; /* rows of the four tiles */

/* How much softmax runs beside one step of four products: `pairs` of keys, for all queries. Pairs that do not fit wait until
 * the block ends. Constants of each body. */
typedef struct softmax_pace {
  int pairs;
  bool too_many, masked, biased;
} softmax_pace;

enum { SLOTS = 4 * PART_PRODUCTS }; /* tile products of a step */

/* Runs the share of softmax that comes before product `slot` of a step. */
static ALWAYS_INLINE void softmax_share(softmax *x, const softmax_pace pace, const int slot) {
  for (int i = (pace.pairs * slot + SLOTS - 1) / SLOTS; i < (pace.pairs * (slot + 1) + SLOTS - 1) / SLOTS; i++)
    if (!pace.too_many || x->s < x->end) softmax_pair(x, pace.masked, pace.biased);
}

/* The sums of the last group, which the tiles still hold: where they belong. */
typedef struct pending_sums {
  float *at;
} pending_sums;

/* A group on its way. */
typedef struct tile_group {
  float *before; /* where the sums of the group before belong */
  const float *in;
  operands at;
} tile_group;

/* Product i of the parts of a step: four tile products. The first one of a group starts its sums. Softmax comes before the
 * product, and an operand is loaded just before its first product, so that the data for the tile unit has more time to
 * arrive. */
static ALWAYS_INLINE void multiply_parts(const tile_group *g, const int i, const bool first, const bool starts, softmax *x,
                                         const softmax_pace pace) {
  const bool load_left = i == 0 || left_part[i] != left_part[i - 1];
  const bool load_right = i == 0 || right_part[i] != right_part[i - 1];
  const char *left = g->at.left + left_part[i] * g->at.part, *right = g->at.right + right_part[i] * g->at.part;
  const int64_t stride = g->at.left_stride;
  softmax_share(x, pace, 4 * i);
  if (first) START_TILE(0, g->before + SUMS_0, g->in + SUMS_0, starts);
  tiles_see_stores();
  if (load_left) _tile_stream_loadd(4, left, stride);
  if (load_right) _tile_loadd(6, right, 128);
  _tile_dpbf16ps(0, 4, 6);
  softmax_share(x, pace, 4 * i + 1);
  if (first) START_TILE(1, g->before + SUMS_1, g->in + SUMS_1, starts);
  if (load_right) _tile_loadd(7, right + 64, 128);
  _tile_dpbf16ps(1, 4, 7);
  softmax_share(x, pace, 4 * i + 2);
  if (first) START_TILE(2, g->before + SUMS_2, g->in + SUMS_2, starts);
  if (load_left) _tile_stream_loadd(5, left + HALF * stride, stride);
  _tile_dpbf16ps(2, 5, 6);
  softmax_share(x, pace, 4 * i + 3);
  if (first) START_TILE(3, g->before + SUMS_3, g->in + SUMS_3, starts);
  _tile_dpbf16ps(3, 5, 7);
}

/* One step of a group. The products are no loop, so that compilers see early which shares of softmax are empty: unrolling
 * takes them minutes. */
static ALWAYS_INLINE void run_step(tile_group *g, const bool first, const bool starts, softmax *x, const softmax_pace pace) {
  multiply_parts(g, 0, first, starts, x, pace);
#if PARTS > 1
  multiply_parts(g, 1, false, starts, x, pace);
  multiply_parts(g, 2, false, starts, x, pace);
#endif
#if PARTS > 2
  multiply_parts(g, 3, false, starts, x, pace);
  multiply_parts(g, 4, false, starts, x, pace);
  multiply_parts(g, 5, false, starts, x, pace);
#endif
  g->at.left += g->at.left_step;
  g->at.right += STEP * sizeof(uint16_t);
}

/* One group of `steps` steps: out = in, or 0 if it starts, + left right. `in` may be `out`. */
typedef struct group_work {
  const float *in;
  bool starts;
  float *out;
  operands at;
  int steps;
} group_work;

static ALWAYS_INLINE void run_group(pending_sums *pending, const group_work w, softmax *x, const softmax_pace pace) {
  tile_group g = {.before = pending->at, .in = w.in, .at = w.at};
  tiles_see_stores();
  if (pace.too_many) { /* any shape: less code */
    for (int step = 0; step < w.steps; step++) run_step(&g, step == 0, w.starts, x, pace);
  } else {
    run_step(&g, true, w.starts, x, pace);
    for (int step = 1; step < w.steps; step++) run_step(&g, false, w.starts, x, pace);
  }
  pending->at = w.out;
}

/* Stores the pending tiles; then nothing is pending, and the next call stores to `nowhere`. */
static void store_pending(pending_sums *pending, float *nowhere) {
  const int64_t stride = TILE_QUERIES * sizeof(float);
  _tile_stored(0, pending->at + SUMS_0, stride);
  _tile_stored(1, pending->at + SUMS_1, stride);
  _tile_stored(2, pending->at + SUMS_2, stride);
  _tile_stored(3, pending->at + SUMS_3, stride);
  tiles_see_stores();
  pending->at = nowhere;
}

/* Where a body's operands are: of O^T += V^T P^T, and of S^T = K Q^T. */
typedef struct output_work {
  float *o;
  bool starts; /* o holds nothing yet */
  const uint16_t *v, *p;
} output_work;

typedef struct score_work {
  float *s;
  const uint16_t *q;
  const uint16_t *k;
  int64_t k_stride, k_step, k_group; /* bytes from key to key, from 32 dimensions to the next, from 32 keys to the next */
} score_work;

static ALWAYS_INLINE void output_groups(pending_sums *pending, const output_work *w, const int depth_v, softmax *x,
                                        const softmax_pace pace) {
  for (int d = 0; d < depth_v; d++) {
    const operands at = {.left = (const char *)(w->v + d * PARTS * GROUPS * STEP),
                         .right = (const char *)w->p,
                         .left_stride = 64,
                         .left_step = STEP * sizeof(uint16_t),
                         .part = GROUPS * STEP * sizeof(uint16_t)};
    run_group(pending, (group_work){w->o + d * SUMS, w->starts, w->o + d * SUMS, at, GROUPS}, x, pace);
  }
}

static ALWAYS_INLINE void score_groups(pending_sums *pending, const score_work *w, const int depth_qk, softmax *x,
                                       const softmax_pace pace) {
  for (int g = 0; g < GROUPS; g++) {
    const operands at = {.left = (const char *)w->k + g * w->k_group,
                         .right = (const char *)w->q,
                         .left_stride = w->k_stride,
                         .left_step = w->k_step,
                         .part = depth_qk * STEP * (int64_t)sizeof(uint16_t)};
    run_group(pending, (group_work){w->s, true, w->s + g * SUMS, at, depth_qk}, x, pace);
  }
}

/* ---- Bodies ---- */

/* Blocks of keys that a body works through: softmax of each, the output of the one before it, the scores of the one behind
 * it. If there are several, all are of one tile of queries, which sees every key of them. */
typedef struct block_run {
  int64_t blocks;
  int64_t k_block, v_block; /* values from block to block */
  float *total;             /* [TILE_QUERIES]: sums of the blocks before */
  uint16_t *other_p;        /* place for P of every second block; first it holds P of the block before */
} block_run;

/* Returns for how many blocks softmax has run: less than all if some query's reference did not suit the last one of these.
 * The sums of that one are not in `total`. */
typedef int64_t body_function(pending_sums *pending, const output_work *output, int depth_v, const score_work *scores,
                              int depth_qk, const softmax_work *x, const block_run *run);

typedef struct depths {
  int v, qk;
} depths;

static ALWAYS_INLINE int64_t run_body(pending_sums *pending, const output_work *output, const score_work *scores,
                                      const depths depth, const softmax_work *given, const block_run *run,
                                      const softmax_pace pace) {
  output_work out = *output;
  score_work in = *scores;
  uint16_t *const p[2] = {given->p, run->other_p};
  softmax x = start_softmax(given);
  int64_t done = 1;
  for (;; done++) {
    output_groups(pending, &out, depth.v, &x, pace);
    score_groups(pending, &in, depth.qk, &x, pace);
    if (pace.masked || pace.biased || done == run->blocks || !add_sums(&x, run->total)) break;
    out = (output_work){.o = out.o, .v = out.v + run->v_block, .p = p[(done - 1) % 2]};
    in.k += run->k_block;
    next_block(&x, given, p[done % 2]);
  }
  end_softmax(&x, given);
  return done;
}

/* The usual depths, which divide a block's 32 pairs of keys evenly among their 4 x depth steps, and any others. */
#define EVEN_BODY(name, depth, masked, biased)                                                                           \
  static NO_INLINE int64_t name(pending_sums *pending, const output_work *output, int depth_v, const score_work *scores, \
                                int depth_qk, const softmax_work *x, const block_run *run) {                             \
    (void)depth_v, (void)depth_qk;                                                                                       \
    const softmax_pace pace = {8 / (depth), false, masked, biased};                                                      \
    return run_body(pending, output, scores, (depths){depth, depth}, x, run, pace);                                      \
  }
#define ANY_BODY(name, pairs, masked, biased)                                                                            \
  static NO_INLINE int64_t name(pending_sums *pending, const output_work *output, int depth_v, const score_work *scores, \
                                int depth_qk, const softmax_work *x, const block_run *run) {                             \
    return run_body(pending, output, scores, (depths){depth_v, depth_qk}, x, run,                                        \
                    (softmax_pace){pairs, true, masked, biased});                                                        \
  }
EVEN_BODY(body_2, 2, false, false)
EVEN_BODY(body_4, 4, false, false)
ANY_BODY(body_few, 8, false, false)
ANY_BODY(body_many, 3, false, false)
EVEN_BODY(masked_body_2, 2, true, false)
EVEN_BODY(masked_body_4, 4, true, false)
ANY_BODY(masked_body_few, 8, true, false)
ANY_BODY(masked_body_many, 3, true, false)
EVEN_BODY(biased_body_2, 2, false, true)
EVEN_BODY(biased_body_4, 4, false, true)
ANY_BODY(biased_body_few, 8, false, true)
ANY_BODY(biased_body_many, 3, false, true)

/* How softmax takes scores: PLAIN as they are, MASKED without those of hidden keys, BIASED with the bias added. */
typedef enum score_kind { PLAIN, MASKED, BIASED, SCORE_KINDS } score_kind;

/* Few steps take more pairs of keys each: 8 where there are 4 steps, 3 from 12 steps on. */
static body_function *body_for(int depth_v, int depth_qk, score_kind kind) {
  static body_function *const of_2[] = {body_2, masked_body_2, biased_body_2};
  static body_function *const of_4[] = {body_4, masked_body_4, biased_body_4};
  static body_function *const few[] = {body_few, masked_body_few, biased_body_few};
  static body_function *const many[] = {body_many, masked_body_many, biased_body_many};
  if (depth_v == depth_qk && depth_v == 2) return of_2[kind];
  if (depth_v == depth_qk && depth_v == 4) return of_4[kind];
  return depth_v + depth_qk >= 6 ? many[kind] : few[kind];
}

/* S^T of a block, with no softmax beside it; its last group stays pending. */
static NO_INLINE void scores_alone(pending_sums *pending, const score_work *scores, int depth_qk) {
  softmax none = {.key = 0};
  score_groups(pending, scores, depth_qk, &none, (softmax_pace){0});
}

/* O^T of a block, with no softmax beside it; its last group stays pending. */
static NO_INLINE void output_alone(pending_sums *pending, const output_work *output, int depth_v) {
  softmax none = {.key = 0};
  output_groups(pending, output, depth_v, &none, (softmax_pace){0});
}

/* Softmax of a block whose S^T is stored, with no products beside it. */
static NO_INLINE void softmax_alone(const softmax_work *given, bool masked) {
  softmax x = start_softmax(given);
  while (x.s < x.end) {
    if (masked)
      softmax_pair(&x, true, false);
    else
      softmax_pair(&x, false, false);
  }
  end_softmax(&x, given);
}

#endif
