/* SPDX-License-Identifier: MIT */
/* flash_neon: flash attention: streaming softmax over key blocks, no score matrix.
 * The loop is kernels/common/tiles/flash.h, the tiles kernels/common/tiles/tiles.h, 4 floats wide (vec_neon.h). */
#include "vec_neon.h"

#include "kernels/common/tiles/flash.h"
#include "kernels/common/tiles/flash_few_plan.h"

FLASH_OF_ANY_ROWS(neon)

const attn_kernel attn_flash_neon = {
    .info = {.name = "flash_neon",
             .algorithm = "flash",
             .isa = "neon",
             .library = "",
             .summary =
                 "flash attention: streaming softmax over key blocks, no score matrix; tiles of 8 rows, 4 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .steady = true,
    .key_blocks = true,
    .dropout = true,
    .rejects = takes_everything,
    .plan = plan_any_rows,
    .terms = ANY_ROWS_KERNEL_TERMS,
    .run = run_any_rows,
};
