/* SPDX-License-Identifier: MIT */
/* gemm_openblas: OpenBLAS computes both products of a block of query rows, and our code the softmax and masks between them.
 * This is what a careful user of a BLAS would write: the scores of one block are in memory, and P is still in a cache when
 * it is multiplied with V. */
#include "openblas.h"

/* Enough rows to pay for OpenBLAS's packing of K and V; their scores over 2048 keys fill 1 MiB of cache. The number is
 * fixed, because the order in which OpenBLAS sums a row depends on the row's place in its block. */
enum { GEMM_ROWS = 128 };

static bool gemm_openblas_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  return attn_composed_plan(p, machine, GEMM_ROWS, schedule);
}

const attn_kernel attn_gemm_openblas = {
    .info = {.name = "gemm_openblas",
             .algorithm = "gemm",
             .isa = "c", /* tier of our code; OpenBLAS chooses its own, and `unusable` compares that with the cap */
             .library = attn_openblas_library,
             .summary =
                 "products of 128 query rows by OpenBLAS sgemm, their scores kept; softmax, masks and storage types ours",
             .numerics = {.exp_error = 0x1p-22}},
    .rejects = attn_composed_rejects,
    .plan = gemm_openblas_plan,
    .run = attn_openblas_run,
    .library = &attn_openblas_hooks,
};
