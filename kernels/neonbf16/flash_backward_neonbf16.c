/* SPDX-License-Identifier: MIT */
/* flash_backward_neonbf16: gradients of attention on bf16 inputs by BFDOT. The loops are
 * kernels/common/backward/flash_backward.h, on pairs of values. */
#include "pairs_neonbf16.h"

#undef PRODUCT_STEPS /* those of vec_neon.h multiply floats */
#define PAIR_OPERANDS
#include "kernels/common/backward/flash_backward.h"

const attn_kernel attn_flash_backward_neonbf16 = {
    .info = {.name = "flash_backward_neonbf16",
             .algorithm = "flash_backward",
             .isa = "neonbf16",
             .library = "",
             .summary =
                 "gradients of attention on bf16 inputs by BFDOT, P and dS rounded to bf16, no score matrix; tiles of "
                 "8 rows, 4 pairs wide",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = backward_takes_bf16,
    .plan = backward_plan,
    .terms = BACKWARD_KERNEL_TERMS,
    .run = backward_run,
};
