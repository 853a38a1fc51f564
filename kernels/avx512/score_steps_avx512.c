/* SPDX-License-Identifier: MIT */
/* The steps of library-backed kernels around their products, in avx512. */
#include "vec_avx512.h"

#include "kernels/library/score_steps_tier.h"

ATTN_SCORE_STEPS_OF(avx512)
