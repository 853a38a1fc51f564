/* SPDX-License-Identifier: MIT */
/* How fast the K and V of a case can be read when nothing is done with them: what decode is measured against. */
#ifndef BENCH_READ_RATE_H
#define BENCH_READ_RATE_H

#include "data/tensors.h"

/* Bytes of K and V, each read once; 0 if they lie in memory with gaps or twice, so that no plain loop reads just them. */
double bench_read_bytes(const attn_problem *problem);

/* Bytes/s of `threads` threads together (one without OpenMP) that read K and V of `passes` tensors of a rotation of `count`,
 * from tensors[first] on, each thread its part of every tensor; widest loads of the best tier. bench_read_bytes() is not 0. */
double bench_read_rate(const bench_tensors *tensors, int count, int64_t first, int64_t passes, int threads);

#endif
