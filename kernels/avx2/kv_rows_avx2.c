/* SPDX-License-Identifier: MIT */
/* Rows of new tokens, written into a KV cache in the vectors of avx2. */
#include "vec_avx2.h"

#include "kernels/common/memory/kv_rows_tier.h"

ATTN_KV_ROWS_OF(avx2)
