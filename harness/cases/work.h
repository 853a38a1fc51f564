/* SPDX-License-Identifier: MIT */
/* What one call has to do: pairs, floating-point operations, bytes; and how long that may take. */
#ifndef BENCH_WORK_H
#define BENCH_WORK_H

#include "cases/case.h"

/* Allowed (query, key) pairs over all batches and query heads, exactly. */
double bench_work_pairs(const attn_problem *problem, const attn_args *args);

/* Floating-point operations: 2 (dim_qk + dim_v) per pair for dot scores, 2 dim_v for precomputed ones, 3 dim_qk + 2 dim_v
 * for additive and gaussian ones; exp and tanh count nothing, nor do masked pairs. */
double bench_work_flops(const attn_problem *problem, double pairs);

/* Bytes of Q, K, V (or S) and O, each once; keys and queries beyond the lengths do not count. */
double bench_work_bytes(const attn_problem *problem, const attn_args *args);

/* A guess at the seconds of one call of a kernel, good to a factor of a few: for --dry-run and the ETA, nothing else. */
double bench_work_guess(const attn_problem *problem, const attn_kernel_info *kernel, int threads);

/* Memory that can still be had, in bytes: MemAvailable, or what the cgroup leaves if that is less. */
double bench_memory_available(void);

#endif
