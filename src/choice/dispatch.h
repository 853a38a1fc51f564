/* SPDX-License-Identifier: MIT */
/* Which kernel runs a problem, and why not another. */
#ifndef ATTN_DISPATCH_H
#define ATTN_DISPATCH_H

#include "src/choice/choice.h"

/* Honours, in this order: options->kernel, ATTN_KERNEL, rules and costs of options->tuning or ATTN_TUNING, costs of this
 * machine's class; and the lower of options->max_isa and ATTN_MAX_ISA. Never falls back from a named kernel. The problem is
 * valid; options may be NULL. */
attn_status attn_dispatch(const attn_problem *problem, const attn_options *options, attn_choice *choice);

/* Whether ATTN_KERNEL names the kernel where options do not. */
bool attn_dispatch_names_kernel(void);

/* Asks the operating system for what the kernel's instructions need. NULL, or why it refuses; thread-local or static text.
 */
const char *attn_dispatch_claim(const attn_kernel *kernel);

/* The lower of options->max_isa and ATTN_MAX_ISA, for attn_tier_unusable: NULL = no cap. Static text.
 * options may be NULL. */
attn_status attn_dispatch_cap(const attn_options *options, const char **cap);

#endif
