/* SPDX-License-Identifier: MIT */
/* Rows of new tokens, written into a KV cache in the vectors of portable. */
#include "vec_portable.h"

#include "kernels/common/memory/kv_rows_tier.h"

ATTN_KV_ROWS_OF(portable)
