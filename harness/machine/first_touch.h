/* SPDX-License-Identifier: MIT */
/* Placement of memory: a page lies on the NUMA node of the thread that writes to it first. While threads are held
 * (affinity.h), each thread first writes its share of every tensor. Shares follow the order of memory, which in most layouts
 * is the order of heads and of the library's tasks. Workspaces are first written by the library's own threads. The library
 * gives tasks to threads as they become free, so a thread works mostly, but not only, on its own share. */
#ifndef BENCH_FIRST_TOUCH_H
#define BENCH_FIRST_TOUCH_H

#include <stddef.h>

/* While threads are held, gives the pages that lie wholly in this memory back to the system and loses their contents. The
 * next thread that writes there decides on which node they lie. */
void bench_pages_forget(void *memory, size_t bytes);

/* As memset(). While several threads are held, each writes its share. */
void bench_pages_fill(void *memory, int byte, size_t bytes);

#endif
