/* A block of query rows of one head: its inputs, and its state between key blocks. Nothing here depends on a tier: files without
 * one share blocks with those that have one (score_steps.h). */
#ifndef ATTN_COMMON_BLOCK_H
#define ATTN_COMMON_BLOCK_H

#include "kernels/kernel.h"
#include "rows.h"

static const float LOG2_E = 0x1.715476p+0f; /* scores are kept in log2 units: exp(s) = 2^(s log2(e)) */

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
static inline int64_t round_down(int64_t x, int64_t multiple) { return x / multiple * multiple; }

/* K and V of one KV head as the tiles read them. */
typedef struct packed_keys {
  const float *k;   /* [panel][dim_qk][PANEL_KEYS]: keys in lanes; keys beyond the sequence are 0 */
  const float *v;   /* row of key 0: dim_v floats, readable up to a multiple of VEC_LANES */
  int64_t v_stride; /* floats from one key's row to the next's */
} packed_keys;

/* Query rows that are worked on together, and their state: rows first_row .. of one head, or the rows of several heads that share a KV
 * head, rows_per_head of each. `capacity` = rows rounded up to TILE_ROWS; the rows beyond `rows` are computed like the others, on
 * zero queries, and never stored. */
typedef struct row_block {
  const attn_problem *problem;
  const attn_args *args;
  const attn_sequence *seq;
  int64_t b, head, first_row, rows, rows_per_head;
  packed_keys keys;

  float *q;              /* [capacity][q_stride], those of dot scores times scale log2(e), 0 beyond dim_qk */
  float *acc;            /* [capacity][acc_stride]: O before division */
  float *row_max;        /* [capacity]: reference of the exponentials, log2 units */
  float *row_sum;        /* [capacity][VEC_LANES]: sum of P, one partial sum per lane */
  attn_key_range *range; /* [capacity]: keys that the row may see */
  float *score;          /* [rows of S kept][score_stride]: S, then P */
  int64_t q_stride, acc_stride, score_stride;
  bool adjusted;  /* scores are more than dot products: scores.h has the rest */
  bool shifted;   /* flash: what they are more is added or selected, so sums start from it (shift_of, select_keys) */
  bool first_try; /* finish_rows may ask for a second one */
  bool careful;   /* second try: leave V of masked keys alone, whatever stands there (accumulate_tile) */
} row_block;

/* Which row of the problem row i of a block is; those beyond the last repeat it. */
typedef struct problem_row {
  int64_t head, query;
} problem_row;

static inline problem_row problem_row_of(const row_block *block, int64_t i) {
  i = min64(i, block->rows - 1);
  if (i < block->rows_per_head) return (problem_row){block->head, block->first_row + i};
  return (problem_row){block->head + i / block->rows_per_head, block->first_row + i % block->rows_per_head};
}

#endif
