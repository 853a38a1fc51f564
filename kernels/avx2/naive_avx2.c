/* SPDX-License-Identifier: MIT */
/* naive_avx2: textbook: the whole score matrix of a head, three passes.
 * The loop is kernels/common/tiles/two_pass.h, the tiles kernels/common/tiles/tiles.h, 8 floats wide, FMA (vec_avx2.h). */
#include "vec_avx2.h"

#include "kernels/common/tiles/two_pass.h"

const attn_kernel attn_naive_avx2 = {
    .info = {.name = "naive_avx2",
             .algorithm = "naive",
             .isa = "avx2",
             .library = "",
             .summary = "textbook: the whole score matrix of a head, three passes; tiles of 6 rows, 8 floats wide, FMA",
             .numerics = {.exp_error = 0x1p-22}},
    .dropout = true,
    .rejects = takes_no_state,
    .plan = naive_plan,
    .terms = TILED_KERNEL_TERMS,
    .run = two_pass_run,
};
