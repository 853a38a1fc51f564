/* SPDX-License-Identifier: MIT */
/* How many threads pay for a call, where the caller leaves that to the library; attn_parallel_pays() is in attn/extend.h. */
#ifndef ATTN_PAYING_THREADS_H
#define ATTN_PAYING_THREADS_H

#include <stdbool.h>

#include "attn/extend.h"
#include "attn/kernel.h"

/* At most `threads`, at least 1: each has to save least_ns in each wave. */
int attn_threads_worth(double work_ns, double least_ns, int64_t waves, int threads);

/* The same by costs: those of `tuning` if it is not NULL and has some for the kernel, or of this machine's class. `waves`:
 * how often the threads of one call meet, of attn_schedule. A kernel without costs is taken to be as quick as the quickest,
 * but for the rates of their tiers (kernels/tiers.def). The floating-point mode must be the default one, as for the next
 * one. */
int attn_paying_threads(const attn_tuning *tuning, const attn_kernel *kernel, const attn_problem *problem, int64_t waves,
                        int threads);

/* Nanoseconds that a kernel takes for all sequences of the problem on one thread, by the same costs; 0 if nothing is
 * known. */
double attn_call_ns(const attn_tuning *tuning, const attn_kernel *kernel, const attn_problem *problem);

/* Nanoseconds in which one thread reads an element of K or V, in any floating-point mode: a share of what the quickest
 * kernel takes for one query and many keys; 0 if nothing is known. */
double attn_element_ns(void);

/* From how many rows on a dense layer of that tier is faster on several threads. */
int64_t attn_product_rows_worth(const char *isa, int64_t depth, int64_t columns);

/* Whether products of bf16 by that tier's instructions for them take less time here than those of another tier, which widens
 * bf16 to float32: one CPU adds twice as many in a cycle, another half as many. */
bool attn_bf16_products_pay(const char *isa, const char *other);

#endif
