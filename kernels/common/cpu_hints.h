/* SPDX-License-Identifier: MIT */
/* How this CPU takes hints (PREFETCHT0 and the like), where that was measured (notebook/performance-log.md). Asked for once
 * per process, thread-safe. A virtual machine may tell another CPU, so only speed may depend on it. Emulated builds say
 * true, for tests. */
#ifndef ATTN_COMMON_CPU_HINTS_H
#define ATTN_COMMON_CPU_HINTS_H

#include <stdbool.h>

/* Whether it drops hints that come faster than memory delivers: AMD's family 1Ah (Zen 5). */
bool attn_drops_hints(void);

/* Whether it fetches what a loop reads in order from level 3 by itself, so that hints only cost: AMD's family 19h with
 * AVX-512 (Zen 4). */
bool attn_needs_no_hints(void);

#endif
