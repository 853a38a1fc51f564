/* SPDX-License-Identifier: MIT */
/* What library-backed kernels need around their products, where the CPU has no tier above plain C. */
#include "vec_c.h"

#include "kernels/library/score_steps_tier.h"

ATTN_SCORE_STEPS_OF(c)
