/* SPDX-License-Identifier: MIT */
/* Memory that is read over and over: weights, keys and values. A file defines _DEFAULT_SOURCE before it includes anything,
 * for MADV_HUGEPAGE. */
#ifndef ATTN_LARGE_MEMORY_H
#define ATTN_LARGE_MEMORY_H

#include "kernels/common/memory/aligned.h"
#include "kernels/common/memory/memory.h"

#ifndef _WIN32
#include <sys/mman.h>
#endif

enum { ATTN_HUGE_PAGE = 2 << 20 };

/* At a multiple of ATTN_MEMORY_ALIGN; its whole huge pages are such where the system gives them on request. NULL where there
 * is none; attn_aligned_free() frees it. */
static inline void *attn_large_alloc(size_t bytes) {
#ifdef MADV_HUGEPAGE
  if (bytes >= ATTN_HUGE_PAGE) {
    void *memory = attn_aligned_alloc(ATTN_HUGE_PAGE, bytes);
    if (memory) (void)madvise(memory, bytes / ATTN_HUGE_PAGE * ATTN_HUGE_PAGE, MADV_HUGEPAGE); /* a hint */
    return memory;
  }
#endif
  return attn_aligned_alloc(ATTN_MEMORY_ALIGN, bytes);
}

#endif
