/* Read bandwidth: how fast `threads` cores can read a buffer of a given size and do nothing else with it. */
#ifndef BENCH_BANDWIDTH_H
#define BENCH_BANDWIDTH_H

#include <stddef.h>

/* Bytes/s of the read-only loop over `bytes` per thread, the median of several passes; widest loads this CPU has. 0 if memory
 * is short. */
double bench_read_bandwidth(size_t bytes, int threads);

#endif
