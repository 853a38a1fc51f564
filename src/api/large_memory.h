/* SPDX-License-Identifier: MIT */
/* Memory that is read over and over: weights, keys and values. A file defines _DEFAULT_SOURCE before it includes anything,
 * for MADV_HUGEPAGE and syscall(). */
#ifndef ATTN_LARGE_MEMORY_H
#define ATTN_LARGE_MEMORY_H

#include "kernels/common/memory/aligned.h"
#include "kernels/common/memory/memory.h"

#ifndef _WIN32
#include <sys/mman.h>
#endif
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
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

/* Asks for whole pages that nobody has written yet to lie in NUMA node 0 .. 63: mbind(2), MPOL_PREFERRED. A hint: where the
 * system refuses, or the node is full, they lie where they are first written. */
static inline void attn_memory_prefer(void *memory, size_t bytes, int node) {
#ifdef SYS_mbind
  const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), end = ((uintptr_t)memory + bytes) / page * page;
  const uintptr_t begin = ((uintptr_t)memory + page - 1) / page * page;
  const uint64_t nodes[2] = {UINT64_C(1) << node, 0};
  if (begin < end) (void)syscall(SYS_mbind, begin, end - begin, 1L, nodes, 65L, 0L);
#else
  (void)memory, (void)bytes, (void)node;
#endif
}

#endif
