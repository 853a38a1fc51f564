/* SPDX-License-Identifier: MIT */
/* Rows between dense layers in the vectors of neon. */
#include "vec_neon.h"

#include "kernels/common/memory/rows_tier.h"

ATTN_ROWS_OF(neon)
