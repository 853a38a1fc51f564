/* SPDX-License-Identifier: MIT */
/* First touch by the threads that will use the memory. */
#include "machine/first_touch.h"

#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn/extend.h"
#include "machine/affinity.h"

enum { FEW_PAGES = 16 }; /* per thread; for fewer it is not worth waking */

static uintptr_t page_bytes(void) { return (uintptr_t)sysconf(_SC_PAGESIZE); }

void bench_pages_forget(void *memory, size_t bytes) {
  const uintptr_t page = page_bytes(), begin = ((uintptr_t)memory + page - 1) / page * page;
  const uintptr_t end = ((uintptr_t)memory + bytes) / page * page;
  if (bench_threads_held() && end > begin)
    (void)madvise((char *)memory + (begin - (uintptr_t)memory), end - begin, MADV_DONTNEED);
}

/* Thread `thread` of `team` writes the pages of its share. */
static void fill_share(unsigned char *memory, int byte, size_t bytes, size_t thread, size_t team) {
  const size_t page = page_bytes(), share = (bytes / team + page - 1) / page * page;
  const size_t begin = thread * share, end = thread + 1 == team || begin + share > bytes ? bytes : begin + share;
  if (begin < end) memset(memory + begin, byte, end - begin);
}

void bench_pages_fill(void *memory, int byte, size_t bytes) {
  const int threads = bench_threads_held();
  if (threads < 2 || bytes < (size_t)threads * FEW_PAGES * page_bytes()) {
    memset(memory, byte, bytes);
    return;
  }
#ifdef _OPENMP
#pragma omp parallel num_threads(attn_parallel_available(threads))
  {
    bench_thread_settle(omp_get_thread_num(), omp_get_num_threads());
    fill_share(memory, byte, bytes, (size_t)omp_get_thread_num(), (size_t)omp_get_num_threads());
  }
#else
  fill_share(memory, byte, bytes, 0, 1);
#endif
}
