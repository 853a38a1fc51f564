/* SPDX-License-Identifier: MIT */
/* naive_backward_avx2: the textbook's gradients of attention. The loops are kernels/common/backward/naive_backward.h. */
#include "vec_avx2.h"

#include "kernels/common/backward/naive_backward.h"

const attn_kernel attn_naive_backward_avx2 = {
    .info = {.name = "naive_backward_avx2",
             .algorithm = "naive_backward",
             .isa = "avx2",
             .library = "",
             .summary = "textbook gradients: P and dS of a head, whole matrices, in memory; tiles of 6 rows, 8 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = takes_dot_gradients,
    .plan = naive_backward_plan,
    .terms = NAIVE_BACKWARD_TERMS,
    .run = naive_backward_run,
};
