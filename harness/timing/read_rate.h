/* SPDX-License-Identifier: MIT */
/* How fast the K and V of a case can be read by a loop that does nothing else: the roof of decoding. */
#ifndef BENCH_READ_RATE_H
#define BENCH_READ_RATE_H

#include "data/tensors.h"
#include "timing/bandwidth.h"

/* Bytes of K and V, each read once; 0 if gaps or repeats in memory keep a plain loop from reading just them. */
double bench_read_bytes(const attn_problem *problem);

/* Which tensors a rate is taken over: `passes` of a rotation of `count`, from tensors[first] on. */
typedef struct bench_read_span {
  const bench_tensors *tensors;
  int count;
  int64_t first, passes;
} bench_read_span;

/* Bytes/s of `threads` threads together (one without OpenMP) that read K and V of the tensors with the loop, each thread
 * its part of every tensor. bench_read_bytes() is not 0. */
double bench_read_rate(bench_read_loop loop, bench_read_span span, int threads);

#endif
