/* SPDX-License-Identifier: MIT */
/* What the time of a kernel is a sum of. `attnbench tune` finds what each term takes on a machine; the library expects the
 * sum of what a tuning file says of them. */
#ifndef ATTN_COST_TERMS_H
#define ATTN_COST_TERMS_H

#include "attn/kernel.h"

enum { ATTN_COST_TERMS = 24 };

/* The terms of one sequence on one thread, none of them negative. */
void attn_cost_terms(const attn_kernel_info *kernel, const attn_problem *problem, double terms[ATTN_COST_TERMS]);

#endif
