/* SPDX-License-Identifier: MIT */
/* flash_amx: flash attention on bf16 inputs in the tile unit (flash_amx.h). */
#define PARTS 1
#include "flash_amx.h"

const attn_kernel attn_flash_amx = {
    .info = {.name = "flash_amx",
             .algorithm = "flash",
             .isa = "amx",
             .library = "",
             .summary = "flash attention on bf16 inputs in the tile unit, P rounded to bf16; 32 queries x 64 keys at a time",
             .numerics = {.exp_error = 0x1p-15, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .steady = true,
    .key_blocks = true,
    .rejects = takes_bf16,
    .plan = flash_amx_plan,
    .terms = {TILE_TERM_COUNT, attn_tile_term_names, terms_of},
    .run = flash_amx_run,
};
