/* SPDX-License-Identifier: MIT */
/* blocked_avx2: row blocks with their scores kept in L2, two-pass softmax.
 * The loop is kernels/common/tiles/two_pass.h, the tiles kernels/common/tiles/tiles.h, 8 floats wide, FMA (vec_avx2.h). */
#include "vec_avx2.h"

#include "kernels/common/tiles/two_pass.h"

const attn_kernel attn_blocked_avx2 = {
    .info = {.name = "blocked_avx2",
             .algorithm = "blocked",
             .isa = "avx2",
             .library = "",
             .summary = "row blocks with their scores kept in L2, two-pass softmax; tiles of 6 rows, 8 floats wide, FMA",
             .numerics = {.exp_error = 0x1p-22}},
    .dropout = true,
    .rejects = takes_no_state,
    .plan = blocked_plan,
    .terms = TILED_KERNEL_TERMS,
    .run = two_pass_run,
};
