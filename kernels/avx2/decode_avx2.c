/* SPDX-License-Identifier: MIT */
/* decode_avx2: few query rows, keys split at fixed borders and merged, K and V read once per KV head and in place.
 * The loop is kernels/common/decode.h, 8 floats wide, FMA (vec_avx2.h). */
#include "vec_avx2.h"

#define DECODE_EIGHT_ROWS /* K and V are loaded and converted once for 8 rows, whose queries come from memory */
#define DECODE_ASKS_TWICE
#define DECODE_WIDE_SUMS
#define DECODE_GROUP_ROWS 4 /* 12 sums, 3 vectors of V and a P: all 16 registers */
#include "kernels/common/decode.h"

const attn_kernel attn_decode_avx2 = {
    .info = {.name = "decode_avx2",
             .algorithm = "decode",
             .isa = "avx2",
             .library = "",
             .summary = "few queries: keys split and merged, K and V read once per KV head, in place; 8 floats wide, FMA",
             .numerics = {.exp_error = 0x1p-22}},
    .rejects = decode_rejects,
    .plan = decode_plan,
    .terms = DECODE_KERNEL_TERMS,
    .run = decode_run,
};
