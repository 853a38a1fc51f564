/* SPDX-License-Identifier: MIT */
/* How many threads pay for a call, where the caller leaves that to the library; attn_parallel_pays() is in attn/extend.h. */
#ifndef ATTN_SMALL_CALLS_H
#define ATTN_SMALL_CALLS_H

#include "attn/extend.h"
#include "attn/kernel.h"

/* At most `threads`, at least 1: each thread has to save least_ns in each wave. */
int attn_threads_worth(double work_ns, double least_ns, int64_t waves, int threads);

/* At most `threads`, at least 1. `waves`: how often the threads of one call meet, of attn_schedule. */
int attn_paying_threads(const attn_kernel_info *kernel, const attn_problem *problem, int64_t waves, int threads);

/* From how many rows on a dense layer of that tier is faster on several threads. */
int64_t attn_product_rows_worth(const char *isa, int64_t depth, int64_t columns);

#endif
