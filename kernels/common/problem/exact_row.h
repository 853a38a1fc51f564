/* SPDX-License-Identifier: MIT */
/* One output row in double precision: the fallback of kernels whose float32 arithmetic did not give a finite row. */
#ifndef ATTN_COMMON_EXACT_ROW_H
#define ATTN_COMMON_EXACT_ROW_H

#include "attn/attn.h"

/* Computes row i of query head h in batch b from its allowed keys alone and stores o (and lse, if used), sinks included.
 *
 * It is for rows that are not finite, or whose largest score is -inf although keys are allowed. There are three causes: an
 * intermediate overflow (V near FLT_MAX), which double precision avoids; a masked element that a product of whole tiles
 * read, which is not read here; or an allowed NaN or infinity, for which the result follows float64 arithmetic. Empty
 * rows get o = 0, lse = -inf. The function needs no memory and writes only that row. It computes scores again for every
 * block of output columns: slow, and meant to be rare. */
void attn_exact_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i);

#endif
