/* SPDX-License-Identifier: MIT */
/* Attention composed of two matrix products of a library, S = Q K^T and O = P V, with our softmax between them. Kernels on
 * such libraries share this code.
 *
 * All scores of a row block are kept. Both products run over one range of keys, without padding: from the first to the last
 * key that any row of the block may see. Keys that a single row may not see are masked in S and 0 in P. */
#ifndef ATTN_LIBRARY_COMPOSED_H
#define ATTN_LIBRARY_COMPOSED_H

#include "score_steps.h"

/* Why such a kernel cannot take the problem: scores that are no product, or more than a library counts in 32 bits. NULL =
 * takes it. */
const char *attn_composed_rejects(const attn_problem *problem, char *buffer, size_t buffer_bytes);

/* Two phases: pack, then compute with `rows` query rows per task. False if a size overflows. */
bool attn_composed_plan(const attn_problem *problem, const attn_machine *machine, int64_t rows, attn_schedule *schedule);

void attn_composed_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                       void *scratch, library_product_fn product);

/* ---- Gradients: the five products of unfused_backward.h, on blocks of `rows` query rows ---- */

const char *attn_composed_rejects_gradients(const attn_problem *problem, char *buffer, size_t buffer_bytes);

/* Two phases: terms of queries, then a KV head per task. False if a size overflows. */
bool attn_composed_plan_gradients(const attn_problem *problem, const attn_machine *machine, int64_t rows,
                                  attn_schedule *schedule);

void attn_composed_run_gradients(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                 void *scratch, library_product_fn product);

#endif
