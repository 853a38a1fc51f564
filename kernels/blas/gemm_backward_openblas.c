/* SPDX-License-Identifier: MIT */
/* gemm_backward_openblas: OpenBLAS computes the five products of the gradients of a block of query rows, and our code what
 * stands between them. */
#include "openblas.h"

/* Like gemm_openblas.c: P and dS of a block over 2048 keys fill 2 MiB. dK and dV are added to once a block. */
enum { GEMM_ROWS = 128 };

static bool gemm_backward_openblas_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  return attn_composed_plan_gradients(p, machine, GEMM_ROWS, schedule);
}

static void gemm_backward_openblas_run(const attn_schedule *schedule, const attn_args *args, attn_task task,
                                       void *unit_memory, void *scratch) {
  attn_composed_run_gradients(schedule, args, task, unit_memory, scratch, attn_openblas_product);
}

const attn_kernel attn_gemm_backward_openblas = {
    .info = {.name = "gemm_backward_openblas",
             .algorithm = "gemm_backward",
             .isa = "c", /* tier of our code; OpenBLAS chooses its own, and `unusable` compares that with the cap */
             .library = attn_openblas_library,
             .summary = "gradients of 128 query rows: five products by OpenBLAS sgemm, P and dS kept between them",
             .numerics = {.exp_error = 0x1p-22}},
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = attn_composed_rejects_gradients,
    .plan = gemm_backward_openblas_plan,
    .run = gemm_backward_openblas_run,
    .library = &attn_openblas_hooks,
};
