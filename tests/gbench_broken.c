/* SPDX-License-Identifier: MIT */
/* attnbench-gbench with broken kernels. It is linked with --wrap=attn_plan_run, so every run of a plan comes here. From run
 * number BROKEN_FROM on, one output is off by 1. */
#include <stdlib.h>

#include "attn/attn.h"

attn_status __real_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes);
attn_status __wrap_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes);

attn_status __wrap_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes) {
  static long calls;
  const char *from = getenv("BROKEN_FROM");
  const attn_status status = __real_attn_plan_run(plan, args, workspace, workspace_bytes);
  if (calls++ >= (from ? atol(from) : 0)) *(float *)args->o += 1.0f;
  return status;
}
