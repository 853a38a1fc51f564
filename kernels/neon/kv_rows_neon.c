/* SPDX-License-Identifier: MIT */
/* Rows of new tokens, written into a KV cache in the vectors of neon. */
#include "vec_neon.h"

#include "kernels/common/memory/kv_rows_tier.h"

ATTN_KV_ROWS_OF(neon)
