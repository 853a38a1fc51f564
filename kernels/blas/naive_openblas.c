/* SPDX-License-Identifier: MIT */
/* naive_openblas: the textbook with a BLAS, and the baseline that most code would be: per head one product for the whole
 * score matrix, softmax over it, one product with V. */
#include "openblas.h"

static bool plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  return attn_openblas_plan(p, machine, max64(p->seq_q, 1), schedule);
}

const attn_kernel attn_naive_openblas = {
    .info = {.name = "naive_openblas",
             .algorithm = "naive",
             .isa = "c", /* of its own code; OpenBLAS picks its own, which `unusable` holds against a cap */
             .library = attn_openblas_library,
             .summary = "textbook: the whole score matrix of a head, two products by OpenBLAS sgemm; softmax, masks and "
                        "storage types ours",
             .numerics = {.exp_error = 0x1p-22}},
    .rejects = attn_composed_rejects,
    .plan = plan,
    .identify = attn_openblas_identify,
    .unusable = attn_openblas_unusable,
    .begin_run = attn_openblas_hold,
    .end_run = attn_openblas_release,
    .run = attn_openblas_run,
};
