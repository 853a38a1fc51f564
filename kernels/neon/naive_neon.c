/* SPDX-License-Identifier: MIT */
/* naive_neon: textbook: the whole score matrix of a head, three passes.
 * The loop is kernels/common/tiles/two_pass.h, the tiles kernels/common/tiles/tiles.h, 4 floats wide (vec_neon.h). */
#include "vec_neon.h"

#include "kernels/common/tiles/two_pass.h"

const attn_kernel attn_naive_neon = {
    .info = {.name = "naive_neon",
             .algorithm = "naive",
             .isa = "neon",
             .library = "",
             .summary = "textbook: the whole score matrix of a head, three passes; tiles of 8 rows, 4 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .dropout = true,
    .rejects = takes_no_state,
    .plan = naive_plan,
    .terms = TILED_KERNEL_TERMS,
    .run = two_pass_run,
};
