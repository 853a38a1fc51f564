/* SPDX-License-Identifier: MIT */
/* Memory at a multiple of `alignment`, a power of two; NULL where there is none. Windows has no aligned_alloc(), and its
 * free() takes no such memory: whoever allocates by attn_aligned_alloc() frees by attn_aligned_free(). */
#ifndef ATTN_ALIGNED_H
#define ATTN_ALIGNED_H
#include <stdint.h>
#include <stdlib.h>

#ifdef _WIN32
#include <malloc.h>
static inline void *attn_aligned_alloc(size_t alignment, size_t bytes) { return _aligned_malloc(bytes, alignment); }
static inline void attn_aligned_free(void *memory) { _aligned_free(memory); }
#else
static inline void *attn_aligned_alloc(size_t alignment, size_t bytes) {
  if (bytes > SIZE_MAX - alignment) return NULL;
  return aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment); /* it takes whole multiples alone */
}
static inline void attn_aligned_free(void *memory) { free(memory); }
#endif

#endif
