/* SPDX-License-Identifier: MIT */
/* flash_backward_avx512: gradients of attention, P computed again from the LSE. The loops are
 * kernels/common/backward/flash_backward.h. */
#include "vec_avx512.h"

#include "kernels/common/backward/flash_backward.h"

const attn_kernel attn_flash_backward_avx512 = {
    .info = {.name = "flash_backward_avx512",
             .algorithm = "flash_backward",
             .isa = "avx512",
             .library = "",
             .summary =
                 "gradients of attention: P computed again from the LSE, no score matrix; tiles of 6 rows, 16 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = takes_everything,
    .plan = backward_plan,
    .terms = BACKWARD_KERNEL_TERMS,
    .run = backward_run,
};
