/* SPDX-License-Identifier: MIT */
/* Rows between dense layers in the vectors of avx2. */
#include "vec_avx2.h"

#include "kernels/common/memory/rows_tier.h"

ATTN_ROWS_OF(avx2)
