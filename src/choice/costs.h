/* SPDX-License-Identifier: MIT */
/* The times that kernels are expected to take: their terms (attn/kernel.h) times the cost of each term, which a machine
 * class or a tuning file holds. */
#ifndef ATTN_COSTS_H
#define ATTN_COSTS_H

#include "attn/kernel.h"
#include "kernels/common/problem/dtypes.h"

/* The measured cost of each term of a kernel. */
typedef struct attn_kernel_costs {
  const attn_kernel *kernel;
  attn_dtype dtype;          /* type of K and V: attn_costs_shared() of those that it serves */
  double error;              /* error of the times that it comes from: root of the mean square, relative */
  double ns[ATTN_MAX_TERMS]; /* cost of each of the kernel's terms */
  int line;                  /* line of the file */
} attn_kernel_costs;

/* The type whose lines of costs serve a type of K and V: floats of 8 bits share theirs, and so do types of blocks. */
attn_dtype attn_costs_shared(attn_dtype dtype);

/* Whether K and V are integers without factors (ATTN_USE_KV_SCALES): their costs are measured with factors, with which
 * kernels choose other loops. */
bool attn_costs_lack_factors(const attn_problem *problem);

/* The type whose costs count for a problem: the one that serves its K and V or, where none of the costs are of that or
 * factors are lacking, float16. */
attn_dtype attn_costs_dtype(const attn_kernel_costs *costs, int count, const attn_problem *problem);

/* The time of one sequence on one thread, in nanoseconds. `ns`: of each of the kernel's terms. */
double attn_expected_ns(const attn_kernel *kernel, const double ns[ATTN_MAX_TERMS], const attn_problem *problem);

/* The term's place in attn_kernel.terms; -1 if the kernel has none of that name. */
int attn_term_find(const attn_kernel *kernel, const char *name);

/* The floating-point mode must be the default one. */
typedef struct attn_expected {
  const attn_kernel_costs *costs; /* NULL: none */
  double ns;
} attn_expected;

/* Which of `count` kernels are expected to take the least: those whose costs count for the problem's type and that `takes`
 * accepts. best[1] is the second, both may be missing. */
void attn_expect(const attn_kernel_costs *costs, int count, const attn_problem *problem,
                 bool (*takes)(const attn_kernel *kernel, void *context), void *context, attn_expected best[2]);

#endif
