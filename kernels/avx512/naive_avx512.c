/* SPDX-License-Identifier: MIT */
/* naive_avx512: textbook: the whole score matrix of a head, three passes.
 * The loop is kernels/common/tiles/two_pass.h, the tiles kernels/common/tiles/tiles.h, 16 floats wide (vec_avx512.h). */
#include "vec_avx512.h"

#include "kernels/common/tiles/two_pass.h"

const attn_kernel attn_naive_avx512 = {
    .info = {.name = "naive_avx512",
             .algorithm = "naive",
             .isa = "avx512",
             .library = "",
             .summary = "textbook: the whole score matrix of a head, three passes; tiles of 6 rows, 16 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .dropout = true,
    .rejects = takes_no_state,
    .plan = naive_plan,
    .terms = TILED_KERNEL_TERMS,
    .run = two_pass_run,
};
