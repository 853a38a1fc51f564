/* SPDX-License-Identifier: MIT */
/* How well the costs of a class say what kernels take on this CPU, by calls that were timed here. */
#ifndef ATTN_PROBE_H
#define ATTN_PROBE_H

#include "src/choice/tuning.h"

enum { ATTN_CLASS_LINES = 128 /* with costs, of a class */ };

/* A call that was timed. */
typedef struct attn_probe_time {
  const attn_kernel *kernel;
  attn_problem problem;
  double ns; /* INFINITY: it was not */
} attn_probe_time;

/* The standard deviation of the logarithm of time over costs; a common factor does not count. */
double attn_probe_distance(const attn_tuning *costs, const attn_probe_time *times, int count);

/* Multiplies the costs of each tier by a factor, so that tiers compare with the highest one as they do here. Returns whether
 * these are much nearer: if not, they are to be forgotten. */
bool attn_probe_adjust(attn_tuning *costs, const attn_probe_time *times, int count, const char *highest);

#endif
