/* SPDX-License-Identifier: MIT */
/* Streams: functions that take several rows, or one, through all whole blocks of keys of a split (group_rows.h, one_row.h).
 * Parameters: those of few_rows.h. */
#ifndef ATTN_COMMON_DECODE_STREAM_H
#define ATTN_COMMON_DECODE_STREAM_H

#include "few_rows.h"
#include "split_keys.h"

/* ---- Where keys lie ---- */

enum {
  BLOCK_RUNS = DECODE_KEYS / RUN_KEYS,
  MOST_BLOCKS_AHEAD = 8, /* from what is read to what is prefetched */
  MOST_RUNS = SPLIT_KEYS / RUN_KEYS + MOST_BLOCKS_AHEAD * BLOCK_RUNS
};
_Static_assert(BLOCK_RUNS == 2 && RUN_KEYS % VEC_LANES == 0, "blocks are two runs, and a vector of scores lies in one");

/* RUN_KEYS keys each, so that loops cross the borders of pages as if there were none. */
typedef struct key_runs {
  int64_t begin, count;               /* the first key; runs of the split's whole blocks */
  int64_t k_ahead, v_ahead;           /* runs from what is read to what is prefetched */
  int64_t k[MOST_RUNS], v[MOST_RUNS]; /* where each begins: elements */
} key_runs;

/* Runs to cover LEAST_DISTANCE: whole blocks, at least one. */
static int64_t runs_ahead(int64_t block_bytes) {
  const int64_t blocks = block_bytes > 0 ? min64(ceil_div(LEAST_DISTANCE, block_bytes), MOST_BLOCKS_AHEAD) : 1;
  return blocks * BLOCK_RUNS;
}

/* Finds the runs from `key` on up to `end`, and those to prefetch behind them. No row sees keys from `seen` on. */
static void find_runs(const row_block *block, int64_t key, int64_t end, int64_t seen, key_runs *runs) {
  const attn_problem *p = block->problem;
  runs->begin = key;
  runs->count = (end - key) / RUN_KEYS;
  runs->k_ahead = runs_ahead(attn_elements_bytes(p->dtype_kv, DECODE_KEYS * p->k_stride.s));
  runs->v_ahead = runs_ahead(attn_elements_bytes(p->dtype_kv, DECODE_KEYS * p->v_stride.s));
  const int64_t count = runs->count + max64(runs->k_ahead, runs->v_ahead);
  attn_key_run at = {0};
  for (int64_t i = 0; i < count; i++, key += RUN_KEYS) {
    if (at.keys <= 0 && key < seen) at = attn_key_run_at(p, block->args, block->seq, block->head, key);
    runs->k[i] = at.k;
    runs->v[i] = at.v;
    at.k += RUN_KEYS * p->k_stride.s;
    at.v += RUN_KEYS * p->v_stride.s;
    at.keys -= RUN_KEYS;
  }
}

/* A block's runs; as one piece if they adjoin, which saves loops their second start. */
static ALWAYS_INLINE key_pieces pieces_of(const int64_t first[BLOCK_RUNS], int64_t stride) {
  const bool adjoin = first[1] - first[0] == RUN_KEYS * stride;
  return (key_pieces){first, adjoin ? 1 : BLOCK_RUNS, adjoin ? DECODE_KEYS : RUN_KEYS};
}

/* Where the runs of K or V begin, for prefetches, and bytes of one. */
typedef struct run_places {
  attn_storage from;
  const int64_t *first;
  int64_t ahead, bytes;
} run_places;

static ALWAYS_INLINE run_places places_of(const int64_t *first, int64_t ahead, const key_rows rows, const few_kind kind) {
  return (run_places){attn_storage_as(rows.from, kind.dtype), first, ahead,
                      attn_elements_bytes(kind.dtype, RUN_KEYS * rows.stride)};
}

static ALWAYS_INLINE uintptr_t place_of(const run_places at, int64_t run) {
  return (uintptr_t)attn_element_at(at.from.data, at.from.dtype, at.first[run]);
}

/* From the end of a run to the next one. */
static ALWAYS_INLINE uintptr_t gap_behind(const run_places at, int64_t run) {
  return place_of(at, run + 1) - place_of(at, run) - (uintptr_t)at.bytes;
}

/* Aims at what is prefetched while `used`, K or V of a block, is read: of a later block, K and V of the run that lies as far
 * ahead of run `run`. Twice: as well both runs of `again` from run `again_run` on; or, where lines that are nearer are
 * prefetched instead, one run ahead of `run`, and half a run more before that. */
static ALWAYS_INLINE void aim_prefetches(prefetch_lines *next, const few_kind kind, const run_places k, const run_places v,
                                         int64_t run, const run_places used, const run_places again, int64_t again_run,
                                         lines_again *lines) {
  next->k = place_of(k, run + k.ahead);
  next->v = place_of(v, run + v.ahead);
  next->left = next->row;
  if (kind.policy != PREFETCH_TWICE && next->policy != PREFETCH_TWICE) return;
  next->left = 0;
  next->until_gap = used.bytes / (2 * LINE_BYTES);
  if (next->nearer) {
    next->k = place_of(k, run + 1) + (uintptr_t)k.bytes / 2;
    next->v = place_of(v, run + 1) + (uintptr_t)v.bytes / 2;
    next->k_gap = gap_behind(k, run + 1);
    next->v_gap = gap_behind(v, run + 1);
    next->again_gap = 0;
    *lines = (lines_again){place_of(k, run + 1), place_of(v, run + 1)};
  } else {
    next->k_gap = next->v_gap = 0;
    next->again_gap = gap_behind(again, again_run);
    lines->one = place_of(again, again_run);
  }
}

/* The same for the block that begins at run `run`. While its K is read, the first of two runs is prefetched, and V again;
 * while its V is read, the second run, and again K of the next block. */
static ALWAYS_INLINE void prefetch_beside_scores(prefetch_lines *next, const few_kind kind, const run_places k,
                                                 const run_places v, int64_t run) {
  aim_prefetches(next, kind, k, v, run, k, v, run, &next->v_again);
}
static ALWAYS_INLINE void prefetch_beside_sums(prefetch_lines *next, const few_kind kind, const run_places k,
                                               const run_places v, int64_t run) {
  aim_prefetches(next, kind, k, v, run + 1, v, k, run + BLOCK_RUNS, &next->k_again);
}

/* ---- Streams ---- */

/* The state of softmax for several rows side by side (group_rows.h). */
typedef struct group_softmax {
  float sum[VEC_LANES][VEC_LANES]; /* sums of P like row_sum, but in the order of scores; as many vectors as rows */
  float reference[VEC_LANES];      /* references of the rows, repeated as often as they fit */
  int64_t unset;                   /* rows that have no reference yet, and 0 as their sums */
} group_softmax;

/* Rows of a block that one function takes at once. */
typedef struct row_stream row_stream;

/* The blocks from `key` up to `end`. */
typedef void stream_function(row_stream *stream, const key_runs *runs, int64_t key, int64_t end);

struct row_stream {
  stream_function *run;
  const row_block *block; /* the whole block if they are its first, else `part` */
  row_block part;
  const float *q; /* from tile_queries() */
  int64_t rows;
  prefetch_policy policy;
  group_softmax state;
};

#endif
