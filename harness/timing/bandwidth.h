/* SPDX-License-Identifier: MIT */
/* Read bandwidth: how fast `threads` cores can read a buffer of a given size and do nothing else with it. */
#ifndef BENCH_BANDWIDTH_H
#define BENCH_BANDWIDTH_H

#include <stddef.h>
#include <stdint.h>

typedef uint64_t (*bench_read_loop)(const void *data, size_t bytes); /* as attn_peak_loop.read */

/* Of the widest tier that this CPU runs. */
bench_read_loop bench_widest_read(void);

/* Bytes/s of all threads together, each reading `bytes` of its own over and over: the median of several passes of the
 * faster of two read-only loops. 0 if memory is short. Without OpenMP, of one thread. A lower bound where the caches can
 * deliver more than 16 or 32 bytes a load (level 1). */
double bench_read_bandwidth(size_t bytes, int threads);

#endif
