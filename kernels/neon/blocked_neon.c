/* SPDX-License-Identifier: MIT */
/* blocked_neon: row blocks with their scores kept in L2, two-pass softmax.
 * The loop is kernels/common/tiles/two_pass.h, the tiles kernels/common/tiles/tiles.h, 4 floats wide (vec_neon.h). */
#include "vec_neon.h"

#include "kernels/common/tiles/two_pass.h"

const attn_kernel attn_blocked_neon = {
    .info = {.name = "blocked_neon",
             .algorithm = "blocked",
             .isa = "neon",
             .library = "",
             .summary = "row blocks with their scores kept in L2, two-pass softmax; tiles of 8 rows, 4 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .dropout = true,
    .rejects = takes_no_state,
    .plan = blocked_plan,
    .terms = TILED_KERNEL_TERMS,
    .run = two_pass_run,
};
