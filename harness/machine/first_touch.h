/* SPDX-License-Identifier: MIT */
/* Where memory comes to lie: a page belongs to the NUMA node of the thread that writes to it first. While threads are held
 * (affinity.h), tensors are first written in shares, one per thread in the order of memory, which is the order of heads in
 * most layouts and of the library's tasks; and a workspace is left to the library's own threads. The library hands tasks out
 * as threads become free, so that a thread meets mostly, not only, its own share. */
#ifndef BENCH_FIRST_TOUCH_H
#define BENCH_FIRST_TOUCH_H

#include <stddef.h>

/* Gives the pages that lie wholly in this memory back to the system, contents and all, while threads are held: whoever writes
 * there next decides where they come to lie. */
void bench_pages_forget(void *memory, size_t bytes);

/* memset(); while several threads are held, each writes its share. */
void bench_pages_fill(void *memory, int byte, size_t bytes);

#endif
