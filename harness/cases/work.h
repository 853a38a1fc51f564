/* SPDX-License-Identifier: MIT */
/* The work of one call: pairs, floating-point operations, bytes; and how long it may take. */
#ifndef BENCH_WORK_H
#define BENCH_WORK_H

#include "cases/case.h"

/* Allowed (query, key) pairs over all batches and query heads, exactly. */
double bench_work_pairs(const attn_problem *problem, const attn_args *args);

/* Floating-point operations: 2 (dim_qk + dim_v) per pair for dot scores, 2 dim_v for precomputed ones, 3 dim_qk + 2 dim_v
 * for additive and gaussian ones; exp and tanh count nothing, nor do masked pairs. */
double bench_work_flops(const attn_problem *problem, double pairs);

/* Multiplications and additions of all pairs, masked ones too: what the oracle has to do. */
double bench_multiply_adds(const attn_problem *problem);

/* Bytes of Q, K, V (or S) and O, each once; keys and queries beyond the lengths do not count. */
double bench_work_bytes(const attn_problem *problem, const attn_args *args);

/* An estimate of the seconds of one call, right within a factor of a few: for --dry-run and the time left only. */
double bench_work_guess(const attn_problem *problem, const attn_kernel_info *kernel, int threads);

#endif
