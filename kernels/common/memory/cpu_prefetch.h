/* SPDX-License-Identifier: MIT */
/* How this CPU takes prefetches (PREFETCHT0 and the like), where that was measured (docs/performance-log.md). Found out
 * once per process, thread-safe. A virtual machine may tell another CPU, so only speed may depend on it. Emulated builds say
 * true, for tests. */
#ifndef ATTN_COMMON_CPU_PREFETCH_H
#define ATTN_COMMON_CPU_PREFETCH_H

#include <stdbool.h>

/* Whether it drops prefetches that come faster than memory delivers: AMD's family 1Ah (Zen 5). */
bool attn_cpu_drops_prefetches(void);

/* Whether it fetches what a loop reads in order from level 3 by itself, so that prefetches only cost: AMD's family 19h with
 * AVX-512 (Zen 4). */
bool attn_cpu_prefetches_alone(void);

#endif
