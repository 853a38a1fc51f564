/* SPDX-License-Identifier: MIT */
/* attn_tune() with a clock and calls of the caller's: tests pass scripted ones, and so know every number that must come out;
 * attnbench leaves out kernels that are known to be slow. */
#ifndef ATTN_TUNE_H
#define ATTN_TUNE_H

#include "attn/attn.h"
#include "src/api/process_usage.h"

typedef struct attn_tune_meter {
  double (*now_ns)(void *context);
  attn_status (*call)(void *context, const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes);
  void *context;
  bool (*takes)(void *context, const attn_kernel_info *kernel); /* kernels to try beside the automatic choice; NULL */
  attn_process_usage (*usage)(void *context); /* NULL: it is not known whether other programs take the CPUs */
} attn_tune_meter;

attn_status attn_tune_by(const attn_tune_meter *meter, const attn_problem *problem, const attn_args *args,
                         const attn_options *options, double seconds, attn_tune_report *report);

#endif
