/* SPDX-License-Identifier: MIT */
/* gemm_openblas: both products of a block of query rows by OpenBLAS, the scores of the block kept between them, softmax and
 * masks ours. What a careful user of a BLAS would write: the score memory is bounded, and P is still in a cache when V
 * comes. */
#include "openblas.h"

/* Enough rows for OpenBLAS to spread its packing of K and V over; their scores over 2048 keys fill 1 MiB of cache. Fixed,
 * because OpenBLAS sums in an order that depends on where a row stands in its block. */
enum { GEMM_ROWS = 128 };

static bool plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  return attn_openblas_plan(p, machine, GEMM_ROWS, schedule);
}

const attn_kernel attn_gemm_openblas = {
    .info = {.name = "gemm_openblas",
             .algorithm = "gemm",
             .isa = "c", /* of its own code; OpenBLAS picks its own, which `unusable` holds against a cap */
             .library = attn_openblas_library,
             .summary =
                 "products of 128 query rows by OpenBLAS sgemm, their scores kept; softmax, masks and storage types ours",
             .numerics = {.exp_error = 0x1p-22}},
    .rejects = attn_composed_rejects,
    .plan = plan,
    .identify = attn_openblas_identify,
    .unusable = attn_openblas_unusable,
    .begin_run = attn_openblas_hold,
    .end_run = attn_openblas_release,
    .run = attn_openblas_run,
};
