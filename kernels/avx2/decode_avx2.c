/* SPDX-License-Identifier: MIT */
/* decode_avx2: few query rows, keys split at fixed borders and merged, K and V read once per KV head and in place.
 * The loop is kernels/common/decode/decode.h, 8 floats wide, FMA (vec_avx2.h). */
#include "vec_avx2.h"

#define DECODE_KNOBS avx2_knobs
#include "kernels/common/decode/knobs.h"

static const decode_knobs avx2_knobs = {
    .tile_rows = 8, /* K and V are loaded and converted once for 8 rows, whose queries come from memory */
    .score_sums = VEC_LANES,
    .group_rows = 4, /* 12 sums, 3 vectors of V and a P: all 16 registers */
    .wide_sums = true,
    .prefetches_twice = true,
};

#include "kernels/common/decode/group_rows.h"
#include "kernels/common/decode/one_row.h"

#include "kernels/common/decode/decode.h"

const attn_kernel attn_decode_avx2 = {
    .info = {.name = "decode_avx2",
             .algorithm = "decode",
             .isa = "avx2",
             .library = "",
             .summary = "few queries: keys split and merged, K and V read once per KV head, in place; 8 floats wide, FMA",
             .numerics = {.exp_error = 0x1p-22}},
    .key_blocks = true,
    .rejects = decode_rejects,
    .plan = decode_plan,
    .terms = DECODE_KERNEL_TERMS,
    .run = decode_run,
};
