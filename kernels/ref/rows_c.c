/* SPDX-License-Identifier: MIT */
/* Rows between dense layers in the vectors that every CPU has. */
#include "vec_c.h"

#include "kernels/common/memory/rows_tier.h"

ATTN_ROWS_OF(c)
