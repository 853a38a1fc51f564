/* SPDX-License-Identifier: MIT */
/* flash_avx512: flash attention: streaming softmax over key blocks, no score matrix.
 * The loop is kernels/common/tiles/flash.h, the tiles kernels/common/tiles/tiles.h, 16 floats wide (vec_avx512.h). */
#include "vec_avx512.h"

#include "kernels/common/tiles/flash.h"
#include "kernels/common/tiles/flash_few_plan.h"

FLASH_OF_ANY_ROWS(avx512)

const attn_kernel attn_flash_avx512 = {
    .info = {.name = "flash_avx512",
             .algorithm = "flash",
             .isa = "avx512",
             .library = "",
             .summary =
                 "flash attention: streaming softmax over key blocks, no score matrix; tiles of 6 rows, 16 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .steady = true,
    .key_blocks = true,
    .dropout = true,
    .rejects = takes_everything,
    .plan = plan_any_rows,
    .terms = ANY_ROWS_KERNEL_TERMS,
    .run = run_any_rows,
};
