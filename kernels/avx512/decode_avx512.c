/* SPDX-License-Identifier: MIT */
/* decode_avx512: few query rows, keys split at fixed borders and merged, K and V read once per KV head and in place.
 * The loop is kernels/common/decode.h, 16 floats wide (vec_avx512.h). */
#include "vec_avx512.h"

#define DECODE_EIGHT_ROWS /* 16 sums, 8 queries and a key fit into 32 registers */
#define DECODE_ASKS_TWICE
#define DECODE_GROUP_ROWS 8 /* 24 sums, 3 vectors of V and a P */
#include "kernels/common/decode.h"

const attn_kernel attn_decode_avx512 = {
    .info = {.name = "decode_avx512",
             .algorithm = "decode",
             .isa = "avx512",
             .library = "",
             .summary = "few queries: keys split and merged, K and V read once per KV head, in place; 16 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .rejects = decode_rejects,
    .plan = decode_plan,
    .terms = DECODE_KERNEL_TERMS,
    .run = decode_run,
};
