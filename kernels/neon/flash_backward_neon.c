/* SPDX-License-Identifier: MIT */
/* flash_backward_neon: gradients of attention, P computed again from the LSE. The loops are
 * kernels/common/backward/flash_backward.h. */
#include "vec_neon.h"

#include "kernels/common/backward/flash_backward.h"

const attn_kernel attn_flash_backward_neon = {
    .info = {.name = "flash_backward_neon",
             .algorithm = "flash_backward",
             .isa = "neon",
             .library = "",
             .summary =
                 "gradients of attention: P computed again from the LSE, no score matrix; tiles of 8 rows, 4 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = takes_everything,
    .plan = backward_plan,
    .terms = BACKWARD_KERNEL_TERMS,
    .run = backward_run,
};
