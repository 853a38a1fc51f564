/* SPDX-License-Identifier: MIT */
/* Loops that only read, against the clock: the roof of a case's reading, and what this machine reads at most. */
#ifndef BENCH_READING_H
#define BENCH_READING_H

#include "data/tensors.h"

typedef uint64_t (*bench_read_loop)(const void *data, const void *beside, size_t bytes,
                                    size_t ahead); /* see attn_peak_loop.read */

/* The loop of the widest tier that this CPU runs. */
bench_read_loop bench_widest_read(void);

/* Bytes/s of all threads together, each reading `bytes` of its own over and over: the median of several passes, in the
 * quickest of three orders: from the first byte to the last, both halves side by side, and the same with prefetches. 0 if
 * memory is short. Without OpenMP, of one thread. */
double bench_read_bandwidth(size_t bytes, int threads);

/* The same of threads that copy one half of their bytes to the other half: what is read and what is written count. */
double bench_copy_bandwidth(size_t bytes, int threads);

/* Which tensors a rate is taken over: `passes` of a rotation of `count`, from tensors[first] on. */
typedef struct bench_read_span {
  const bench_tensors *tensors;
  int count;
  int64_t first, passes;
} bench_read_span;

enum { BENCH_READ_ORDERS = 3 };

/* Whether a loop can read the bytes that a call on the tensors reads: it cannot where rows of a head have gaps or repeat. */
bool bench_can_read(const bench_tensors *tensors);

/* The roof of a case: bytes/s of `threads` threads together (one without OpenMP) that read Q, K, V (or S) and O of the
 * tensors in place, keys and queries within lengths and windows, each thread its part of every tensor. They meet the same
 * caches, pages and placement as the kernel. The quickest of BENCH_READ_ORDERS orders: one tensor after the other; K beside
 * V and Q beside O; the same in turns of a page, the next of which is prefetched. Each takes all passes and begins where the
 * one before it ended in the rotation. 0 if memory is short. bench_can_read() is true. */
double bench_read_rate(bench_read_loop loop, bench_read_span span, int threads);

/* The same of two arrays, such as K and V of another library's call, in one of the orders: 0 .. BENCH_READ_ORDERS - 1. */
double bench_read_arrays(bench_read_loop loop, const void *const data[2], const size_t bytes[2], int threads, int order);

#endif
