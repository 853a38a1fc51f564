/* SPDX-License-Identifier: MIT */
/* naive_openblas: the textbook algorithm with a BLAS. For each head one product makes the whole score matrix, softmax
 * follows, and one product multiplies with V. Most code that uses a BLAS is like this, so it is a baseline. */
#include "openblas.h"

static bool naive_openblas_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  return attn_composed_plan(p, machine, max64(p->seq_q, 1), schedule);
}

const attn_kernel attn_naive_openblas = {
    .info = {.name = "naive_openblas",
             .algorithm = "naive",
             .isa = "c", /* tier of our code; OpenBLAS chooses its own, and `unusable` compares that with the cap */
             .library = attn_openblas_library,
             .summary = "textbook: the whole score matrix of a head, two products by OpenBLAS sgemm; softmax, masks and "
                        "storage types ours",
             .numerics = {.exp_error = 0x1p-22}},
    .rejects = attn_composed_rejects,
    .plan = naive_openblas_plan,
    .run = attn_openblas_run,
    .library = &attn_openblas_hooks,
};
