/* SPDX-License-Identifier: MIT */
/* A KV cache, as layers see it that step through it. */
#ifndef ATTN_NN_KV_CACHE_H
#define ATTN_NN_KV_CACHE_H

#include "attn/nn.h"

/* Checks the step that has begun: each of the first `sequences` has so many new tokens, and the others have none. The error
 * gives `why` as the reason. */
attn_status attn_kv_cache_check_even(const attn_kv_cache *cache, int64_t sequences, int64_t tokens, const char *why);

/* Memory of the cache for the rows of a block, until the next call. ATTN_OUT_OF_MEMORY leaves what is there. */
attn_status attn_kv_cache_block_rows(attn_kv_cache *cache, size_t bytes, void **memory);

#endif
