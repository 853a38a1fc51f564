/* SPDX-License-Identifier: MIT */
/* decode_avx512: few query rows, keys split at fixed borders and merged, K and V read once per KV head and in place.
 * The loop is kernels/common/decode/decode.h, 16 floats wide (vec_avx512.h). */
#include "vec_avx512.h"

#define DECODE_KNOBS avx512_knobs
#include "kernels/common/decode/knobs.h"

static const decode_knobs avx512_knobs = {
    .tile_rows = 8, /* 16 sums, 8 queries and a key fit into 32 registers */
    .score_sums = VEC_LANES,
    .group_rows = 8, /* 24 sums, 3 vectors of V and a P */
    .prefetches_twice = true,
};

#include "kernels/common/decode/group_rows.h"
#include "kernels/common/decode/one_row.h"

#include "kernels/common/decode/decode.h"

const attn_kernel attn_decode_avx512 = {
    .info = {.name = "decode_avx512",
             .algorithm = "decode",
             .isa = "avx512",
             .library = "",
             .summary = "few queries: keys split and merged, K and V read once per KV head, in place; 16 floats wide",
             .numerics = {.exp_error = 0x1p-22}},
    .key_blocks = true,
    .rejects = decode_rejects,
    .plan = decode_plan,
    .terms = DECODE_KERNEL_TERMS,
    .run = decode_run,
};
