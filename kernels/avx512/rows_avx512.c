/* SPDX-License-Identifier: MIT */
/* Rows between dense layers in the vectors of avx512. */
#include "vec_avx512.h"

#include "kernels/common/memory/rows_tier.h"

ATTN_ROWS_OF(avx512)
