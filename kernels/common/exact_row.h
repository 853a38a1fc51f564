/* SPDX-License-Identifier: MIT */
/* One output row in double precision: what a kernel falls back to when its float32 arithmetic gave out. */
#ifndef ATTN_COMMON_EXACT_ROW_H
#define ATTN_COMMON_EXACT_ROW_H

#include "attn/attn.h"

/* Computes row i of query head h in batch b from its allowed keys alone and stores o (and lse, if used), sinks included.
 *
 * For rows that came out non-finite, or whose largest score is -inf although keys are allowed. The cause may be an
 * intermediate overflow (V near FLT_MAX), which double precision does not have; a masked element that a whole-tile product let
 * in, which is not read here; or an allowed NaN or infinity, which then yields what extended real arithmetic gives. Empty rows
 * get o = 0, lse = -inf. Needs no memory and writes nothing but that row; scores are computed anew for every block of output
 * columns, which is slow and meant to be rare. */
void attn_exact_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i);

#endif
