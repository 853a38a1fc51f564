/* SPDX-License-Identifier: MIT */
/* Rows that the oracle did not compute are compared with the answer of another kernel, the reference. Where the two differ,
 * the oracle computes the row and decides. */
#ifndef BENCH_REFERENCE_H
#define BENCH_REFERENCE_H

#include "check/check.h"

/* Runs the plan in a workspace of its own, full of garbage. */
attn_status bench_run_once(const attn_plan *plan, const attn_args *args);

/* Compares the rows of o (and lse) in args that are not in `expected`, if there are any. PASS; FAIL with the oracle's value;
 * ERROR where there is no reference. kernel: the one that computed o, so that the reference is another; or NULL. */
bench_verdict bench_compare_others(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics,
                                   const attn_kernel_info *kernel);

#endif
