/* SPDX-License-Identifier: MIT */
/* flash_portable: flash attention: streaming softmax over key blocks, no score matrix.
 * The loop is kernels/common/tiles/flash.h, the tiles kernels/common/tiles/tiles.h, 4 floats wide (vec_portable.h). */
#include "vec_portable.h"

#include "kernels/common/tiles/flash.h"
#include "kernels/common/tiles/flash_few_plan.h"

FLASH_OF_ANY_ROWS(portable)

const attn_kernel attn_flash_portable = {
    .info = {.name = "flash_portable",
             .algorithm = "flash",
             .isa = "portable",
             .library = "",
             .summary =
                 "flash attention: streaming softmax over key blocks, no score matrix; tiles of 3 rows, 4 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .steady = true,
    .key_blocks = true,
    .dropout = true,
    .rejects = takes_everything,
    .plan = plan_any_rows,
    .terms = ANY_ROWS_KERNEL_TERMS,
    .run = run_any_rows,
};
