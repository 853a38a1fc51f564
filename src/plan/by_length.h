/* SPDX-License-Identifier: MIT */
/* Plans of packed sequences by length: sequences of few queries on kernels that take no more, the others on the kernel of
 * the longest. */
#ifndef ATTN_PLAN_BY_LENGTH_H
#define ATTN_PLAN_BY_LENGTH_H

#include "src/choice/choice.h"

typedef struct attn_by_length attn_by_length;

/* Makes a plan for each range of lengths that gets a kernel of its own. `choice` is that of the longest sequences. *ranges
 * is NULL, and the status ATTN_OK, where one plan serves all: sequences are not packed, the kernel is named, or all get the
 * same one. */
attn_status attn_by_length_create(const attn_problem *problem, const attn_choice *choice, const attn_options *options,
                                  attn_by_length **ranges);
void attn_by_length_destroy(attn_by_length *ranges);

size_t attn_by_length_workspace(const attn_by_length *ranges);
int attn_by_length_threads(const attn_by_length *ranges);

/* The plan of sequences of so many queries. */
const attn_plan *attn_by_length_plan(const attn_by_length *ranges, int64_t queries);

/* Writes which ranges there are, and the plan of each. */
void attn_by_length_describe(const attn_by_length *ranges, char *text, size_t bytes);

/* The arguments have been read, and the workspace is large enough. */
void attn_by_length_run(const attn_by_length *ranges, const attn_args *args, void *workspace);

#endif
