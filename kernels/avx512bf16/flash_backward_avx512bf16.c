/* SPDX-License-Identifier: MIT */
/* flash_backward_avx512bf16: gradients of attention on bf16 inputs by VDPBF16PS, for CPUs where that is faster than
 * widening. The loops are kernels/common/backward/flash_backward.h, on pairs of values. */
#include "pairs_avx512bf16.h"

#define PAIR_OPERANDS
#include "kernels/common/backward/flash_backward.h"

const attn_kernel attn_flash_backward_avx512bf16 = {
    .info = {.name = "flash_backward_avx512bf16",
             .algorithm = "flash_backward",
             .isa = "avx512bf16",
             .library = "",
             .summary = "gradients of attention on bf16 inputs by VDPBF16PS, P and dS rounded to bf16, no score matrix; "
                        "tiles of 6 rows, 16 pairs wide",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = backward_takes_bf16,
    .plan = backward_plan,
    .terms = BACKWARD_KERNEL_TERMS,
    .run = backward_run,
};
