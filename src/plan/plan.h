/* SPDX-License-Identifier: MIT */
/* Further functions on plans, which only the library and its tests use. */
#ifndef ATTN_PLAN_H
#define ATTN_PLAN_H

#include "src/choice/choice.h"

/* A plan for a kernel that need not be registered: what attn_plan_create does after dispatch. Tests check broken kernels
 * through it, on the same path as real ones. Validates the problem and the options, asks kernel->rejects, and plans.
 * `kernel` must outlive the plan. */
attn_status attn_plan_create_for_kernel(const attn_problem *problem, const attn_kernel *kernel, const attn_options *options,
                                        attn_plan **plan);

/* A plan for a kernel that has been chosen, of a problem and options that have been read. */
attn_status attn_plan_create_chosen(const attn_problem *problem, const attn_choice *choice, const attn_options *options,
                                    attn_plan **plan);

/* Runs a plan with arguments that have been read, and a workspace that is large enough. */
void attn_plan_run_read(const attn_plan *plan, const attn_args *args, void *workspace);

/* The same over `count` packed sequences alone, of a plan without pieces and ranges. */
void attn_plan_run_sequences(const attn_plan *plan, const attn_args *args, const int64_t *sequences, int64_t count,
                             void *workspace);

/* ---- For the simulator of attnbench ---- */

/* The schedule whose tasks a run deals out; NULL if other plans run instead: of pieces, ranges of lengths, or without
 * factors of channels. */
const attn_schedule *attn_plan_schedule(const attn_plan *plan);

/* Runs all tasks on the calling thread, as they are dealt out for the plan's threads when one of these does all the work.
 * seen() is called before and after each task. */
typedef void attn_plan_seen(void *context, const attn_task *task, bool ended);
void attn_plan_run_seen(const attn_plan *plan, const attn_args *args, void *workspace, attn_plan_seen *seen, void *context);

/* Threads that a run uses. */
int attn_plan_threads(const attn_plan *plan);

#endif
