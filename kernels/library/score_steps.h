/* SPDX-License-Identifier: MIT */
/* The steps around the two products of another library, on the best tier of this CPU: load rows, turn scores into
 * probabilities, store rows.
 *
 * Files of kernels/blas and kernels/onednn are compiled with baseline flags, so they reach the vectors of a tier through
 * this table. Each tier fills one in, from the same code that its own kernels are made of (score_steps_tier.h); the plan
 * hands the best one to kernel->plan() (attn_machine), which keeps it in its plan data. */
#ifndef ATTN_LIBRARY_SCORE_STEPS_H
#define ATTN_LIBRARY_SCORE_STEPS_H

#include "kernels/common/tiles/row_block.h"
#include "library_product.h"

enum {
  STEPS_LANES = 16, /* floats of row_sum per row: the most lanes of any tier */
  STEPS_KEYS = 64,  /* scores are read and written up to the next multiple of this beyond a row's keys: at least any tier's
                       PANEL_KEYS */
  STEPS_OWN_BYTES = ATTN_OWN_BYTES - sizeof(void *) /* the part of attn_schedule.own for plan data of gradients */
};

typedef struct attn_score_steps {
  const char *isa;

  /* to[i] = row i as floats, 0 from `columns` up to to_stride, a multiple of STEPS_LANES. Where `finite` is not NULL:
   * finite[i] = 1, or 0 for a row that holds NaN or infinity, which is replaced by zeros. */
  void (*copy_rows)(const row_source *from, int64_t rows, float *to, int64_t to_stride, uint8_t *finite);

  /* Fills in range, row_max, row_sum, acc and q for `capacity` rows, those beyond block->rows with a range that repeats the
   * last and q = 0. q holds queries times scale log2(e), so that products with keys are scores in log2 units; leaves q alone
   * if it is NULL. */
  void (*start_rows)(const row_block *block, int64_t capacity);

  /* Turns scores into P, relative to each row's largest, and leaves row_max and row_sum. score[i][j] belongs to key j;
   * factor: what scores are multiplied by to be in log2 units (1 if start_rows has seen to it). Softcap, bias, ALiBi and
   * masks as the problem has them. What stood in scores that a row may not see does not matter: P is 0 there for all keys
   * [keys.begin, keys.end), which is what the product with V will read. Rows 0 .. block->rows - 1. */
  void (*softmax_rows)(const row_block *block, attn_key_range keys, float factor);

  /* The steps around a softmax that a library computes. mask_rows() turns scores into the library's input: natural units,
   * and -inf where a row may not see the key, for all keys [keys.begin, keys.end), both multiples of STEPS_KEYS; it sets
   * row_max. Rows that see no key are left unchanged. take_softmax() reads the library's P, whose rows add up to 1, and sets
   * row_sum and row_max as finish_rows() needs them. With 16-bit K and V it sets row_sum to 0, because P is then narrowed to
   * their type and row_sum must be the sum of the narrowed values (docs/numerics.md): add_narrowed() adds `keys` of them per
   * row; rows are `stride` apart. */
  void (*mask_rows)(const row_block *block, attn_key_range keys, float factor);
  void (*take_softmax)(const row_block *block, attn_key_range keys);
  void (*add_narrowed)(const row_block *block, const void *p, int64_t stride, int64_t keys);

  /* O = acc / row_sum (sinks joined) and LSE of every row, stored. A row that does not come out finite is computed anew in
   * double precision, from its allowed keys alone. */
  void (*finish_rows)(const row_block *block);

  /* Gradients on blocks of `rows` query rows, whose products are the library's: plan and run of a kernel, but that its plan
   * data are STEPS_OWN_BYTES (unfused_backward.h). */
  bool (*plan_gradients)(const attn_problem *problem, int64_t rows, attn_schedule *schedule);
  void (*run_gradients)(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                        void *scratch, library_product_fn product);
} attn_score_steps;

#endif
