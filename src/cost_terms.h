/* SPDX-License-Identifier: MIT */
/* What the time of a kernel is a sum of. `attnbench tune` finds what each term takes on a machine; the library expects the
 * sum of what a tuning file, or its own table, says of them. */
#ifndef ATTN_COST_TERMS_H
#define ATTN_COST_TERMS_H

#include "attn/kernel.h"
#include "plugin.h"

enum { ATTN_COST_TERMS = 38 };

/* Keys that decode on vectors may take in whole blocks of 32: only those that all rows see. */
int64_t attn_keys_in_blocks(const attn_problem *problem);

/* The terms of one sequence on one thread, none of them negative. */
void attn_cost_terms(const attn_kernel_info *kernel, const attn_problem *problem, double terms[ATTN_COST_TERMS]);

/* What each term takes, as it was measured. */
typedef struct attn_kernel_costs {
  char kernel[ATTN_KERNEL_NAME_BYTES];
  attn_dtype dtype;
  double error;               /* of the times that it comes from: root of the mean square, relative */
  double ns[ATTN_COST_TERMS]; /* of each term */
  int line;                   /* of the tuning file */
} attn_kernel_costs;

/* What a kernel is expected to take. */
typedef struct attn_expected_cost {
  const attn_kernel_costs *costs;
  double ns;
} attn_expected_cost;

enum { ATTN_EXPECTED_COSTS = 32 /* of one type; tuning files have no more */ };

/* Of one sequence on one thread, the time of a kernel with these costs. */
double attn_expected_ns(const double of_term_ns[ATTN_COST_TERMS], const attn_kernel_info *kernel,
                        const attn_problem *problem);

/* What kernels of this process are expected to take by those of `count` costs that are of the problem's type, quickest
 * first; how many there are. 0 where Q has another type than K and V. */
int attn_expect(const attn_kernel_costs *costs, int count, const attn_problem *problem,
                attn_expected_cost expected[ATTN_EXPECTED_COSTS]);

#endif
