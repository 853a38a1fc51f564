/* SPDX-License-Identifier: MIT */
/* decode_amx: few query rows on bf16 inputs in the tile unit, keys split at fixed borders and merged, K and V read once per
 * KV head and in place. The loop is kernels/common/decode.h, the products few_rows_amx.h. */
#include "few_rows_amx.h"

#define DECODE_OWN_PRODUCTS
#include "kernels/common/decode.h"

const attn_kernel attn_decode_amx = {
    .info = {.name = "decode_amx",
             .algorithm = "decode",
             .isa = "amx",
             .library = "",
             .summary =
                 "few queries on bf16 inputs in the tile unit, P rounded to bf16: keys split and merged, K and V read "
                 "once per KV head, in place",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .rejects = decode_rejects_all_but_bf16,
    .plan = decode_plan,
    .run = decode_run,
};
