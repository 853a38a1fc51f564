/* SPDX-License-Identifier: MIT */
/* flash_amx_x3: flash attention on float32 inputs in the tile unit, each value rounded to a sum of two bf16 (flash_amx.h).
 */
#define PARTS 2
#include "flash_amx.h"

const attn_kernel attn_flash_amx_x3 = {
    .info = {.name = "flash_amx_x3",
             .algorithm = "flash",
             .isa = "amx",
             .library = "",
             .summary = "flash attention on float32 inputs in the tile unit: values are rounded to sums of two bf16, three "
                        "products of these",
             .numerics = {.exp_error = 0x1p-22, .input_flush = 0x1p-126, .input_rounding = 0x1.9p-16}},
    .steady = true,
    .key_blocks = true,
    .rejects = takes_f32,
    .plan = flash_amx_plan,
    .terms = {TILE_TERM_COUNT, attn_tile_term_names, terms_of},
    .run = flash_amx_run,
};
