/* SPDX-License-Identifier: MIT */
/* The steps of library-backed kernels around their products, for CPUs that have no tier above plain C. */
#include "vec_c.h"

#include "kernels/library/score_steps_tier.h"

ATTN_SCORE_STEPS_OF(c)
