/* SPDX-License-Identifier: MIT */
/* The choices that tiers have in decode's loops. The tier's file defines a decode_knobs, and DECODE_KNOBS as its name,
 * behind its vectors and before other headers of this folder. All values are constants for the compiler. Parameters:
 * DECODE_KNOBS, and VEC_LANES where that is not defined. */
#ifndef ATTN_COMMON_DECODE_KNOBS_H
#define ATTN_COMMON_DECODE_KNOBS_H

#include <stdbool.h>

typedef struct decode_knobs {
  int tile_rows;         /* the most rows that are scored and summed together, so that each load and conversion of K and V is
                            used as often; tested: 8 (avx2, avx512, avx512bf16), 4 (portable, neon, neonbf16) */
  int score_sums;        /* vectors of sums of scores at a time, a multiple of VEC_LANES up to MOST_SCORE_SUMS;
                            tested: 16 (neon, neonbf16), VEC_LANES (the others) */
  int group_rows;        /* rows of a tile of P V in wide_sums.h, 4 or 8; 0: the tier does not include group_rows.h;
                            tested: 4 (avx2), 8 (avx512, avx512bf16), 0 (the others) */
  bool wide_sums;        /* such tiles for all P V of group_rows or more rows; tested: true (avx2), false (the others) */
  bool prefetches_twice; /* on CPUs whose class says so (policy_of); tested: true (avx2, avx512, avx512bf16), false (the
                            others) */
} decode_knobs;

enum { MOST_TILE_ROWS = 8, MOST_SCORE_SUMS = 16 };

#ifndef DECODE_KNOBS
#define DECODE_KNOBS default_knobs
static const decode_knobs default_knobs = {.tile_rows = 4, .score_sums = VEC_LANES};
#endif

#endif
