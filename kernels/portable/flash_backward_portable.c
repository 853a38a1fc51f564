/* SPDX-License-Identifier: MIT */
/* flash_backward_portable: gradients of attention, P computed again from the LSE. The loops are
 * kernels/common/backward/flash_backward.h. */
#include "vec_portable.h"

#include "kernels/common/backward/flash_backward.h"

const attn_kernel attn_flash_backward_portable = {
    .info = {.name = "flash_backward_portable",
             .algorithm = "flash_backward",
             .isa = "portable",
             .library = "",
             .summary =
                 "gradients of attention: P computed again from the LSE, no score matrix; 4 floats wide, in C vectors",
             .numerics = {.exp_error = 0x1p-22}},
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = takes_everything,
    .plan = backward_plan,
    .terms = BACKWARD_KERNEL_TERMS,
    .run = backward_run,
};
