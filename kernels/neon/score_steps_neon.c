/* SPDX-License-Identifier: MIT */
/* The steps of library-backed kernels around their products, in neon. */
#define NEON_TILE_VECS 4 /* panels of 16 keys: score_steps.h promises that they divide 64 */
#include "vec_neon.h"

#include "kernels/library/score_steps_tier.h"

ATTN_SCORE_STEPS_OF(neon)
