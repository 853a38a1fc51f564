/* SPDX-License-Identifier: MIT */
/* decode_neonbf16: few query rows on bf16 inputs by BFDOT, keys split at fixed borders and merged, K and V read once per KV
 * head and in place. BFMMLA would do twice the work, but in tiles that one row leaves half empty.
 * The loop is kernels/common/decode/decode.h, 4 pairs wide (pairs_neonbf16.h). */
#define NEON_TILE_VECS 4
#include "pairs_neonbf16.h"

#define DECODE_KNOBS neonbf16_knobs
#include "kernels/common/decode/knobs.h"

static const decode_knobs neonbf16_knobs = {
    .tile_rows = 4, .score_sums = 16, /* with 4 queries and a key they fit into 32 registers; 4 would wait for each other */
};

#include "kernels/common/decode/few_pairs.h"

#include "kernels/common/decode/decode.h"

const attn_kernel attn_decode_neonbf16 = {
    .info = {.name = "decode_neonbf16",
             .algorithm = "decode",
             .isa = "neonbf16",
             .library = "",
             .summary =
                 "few queries on bf16 inputs by BFDOT, P rounded to bf16: keys split and merged, K and V read once per "
                 "KV head, in place; 4 pairs wide",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .key_blocks = true,
    .rejects = decode_rejects_all_but_bf16,
    .plan = decode_plan,
    .terms = DECODE_KERNEL_TERMS,
    .run = decode_run,
};
