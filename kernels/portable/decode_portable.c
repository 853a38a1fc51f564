/* SPDX-License-Identifier: MIT */
/* decode_portable: few query rows, keys split at fixed borders and merged, K and V read once per KV head and in place.
 * The loop is kernels/common/decode/decode.h, 4 floats wide (vec_portable.h). */
#define PORTABLE_TILE_VECS 2
#include "vec_portable.h"

#include "kernels/common/decode/one_row.h"

#include "kernels/common/decode/decode.h"

const attn_kernel attn_decode_portable = {
    .info = {.name = "decode_portable",
             .algorithm = "decode",
             .isa = "portable",
             .library = "",
             .summary = "few queries: keys split and merged, K and V read once per KV head, in place; 4 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .key_blocks = true,
    .rejects = decode_rejects,
    .plan = decode_plan,
    .terms = DECODE_KERNEL_TERMS,
    .run = decode_run,
};
