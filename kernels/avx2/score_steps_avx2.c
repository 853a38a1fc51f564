/* SPDX-License-Identifier: MIT */
/* The steps of library-backed kernels around their products, in avx2. */
#include "vec_avx2.h"

#include "kernels/library/score_steps_tier.h"

ATTN_SCORE_STEPS_OF(avx2)
