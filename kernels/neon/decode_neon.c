/* SPDX-License-Identifier: MIT */
/* decode_neon: few query rows, keys split at fixed borders and merged, K and V read once per KV head and in place.
 * The loop is kernels/common/decode/decode.h, 4 floats wide (vec_neon.h). */
#define NEON_TILE_VECS 4
#include "vec_neon.h"

#define DECODE_KNOBS neon_knobs
#include "kernels/common/decode/knobs.h"

static const decode_knobs neon_knobs = {
    .tile_rows = 4, .score_sums = 16, /* with 4 queries and a key they fit into 32 registers; 4 would wait for each other */
};

#include "kernels/common/decode/one_row.h"

#include "kernels/common/decode/decode.h"

const attn_kernel attn_decode_neon = {
    .info = {.name = "decode_neon",
             .algorithm = "decode",
             .isa = "neon",
             .library = "",
             .summary = "few queries: keys split and merged, K and V read once per KV head, in place; 4 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .key_blocks = true,
    .rejects = decode_rejects,
    .plan = decode_plan,
    .terms = DECODE_KERNEL_TERMS,
    .run = decode_run,
};
