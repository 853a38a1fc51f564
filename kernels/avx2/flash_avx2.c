/* SPDX-License-Identifier: MIT */
/* flash_avx2: flash attention: streaming softmax over key blocks, no score matrix.
 * The loop is kernels/common/tiles/flash.h, the tiles kernels/common/tiles/tiles.h, 8 floats wide, FMA (vec_avx2.h). */
#include "vec_avx2.h"

#include "kernels/common/tiles/flash.h"
#include "kernels/common/tiles/flash_few_plan.h"

FLASH_OF_ANY_ROWS(avx2)

const attn_kernel attn_flash_avx2 = {
    .info = {.name = "flash_avx2",
             .algorithm = "flash",
             .isa = "avx2",
             .library = "",
             .summary =
                 "flash attention: streaming softmax over key blocks, no score matrix; tiles of 6 rows, 8 floats wide, FMA",
             .numerics = {.exp_error = 0x1p-22}},
    .steady = true,
    .key_blocks = true,
    .dropout = true,
    .rejects = takes_everything,
    .plan = plan_any_rows,
    .terms = ANY_ROWS_KERNEL_TERMS,
    .run = run_any_rows,
};
