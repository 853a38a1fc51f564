/* SPDX-License-Identifier: MIT */
/* decode_avx512bf16: few query rows on bf16 inputs by VDPBF16PS, keys split at fixed borders and merged, K and V read once
 * per KV head and in place. It is for CPUs where that is faster than widening: no value of K or V is converted, which takes
 * decode_avx512 longer than the products of a few rows.
 * The loop is kernels/common/decode/decode.h, 16 pairs wide (pairs_avx512bf16.h). */
#include "pairs_avx512bf16.h"

#define DECODE_KNOBS avx512bf16_knobs
#include "kernels/common/decode/knobs.h"

static const decode_knobs avx512bf16_knobs = {
    .tile_rows = 8, /* 16 sums, 8 queries and a key fit into 32 registers */
    .score_sums = VEC_LANES,
    .group_rows = 8, /* 16 sums, 2 vectors of V and a P */
    .prefetches_twice = true,
};

#include "kernels/common/decode/few_pairs.h"

#include "kernels/common/decode/group_rows.h"
#include "kernels/common/decode/one_row.h"

#include "kernels/common/decode/decode.h"

const attn_kernel attn_decode_avx512bf16 = {
    .info = {.name = "decode_avx512bf16",
             .algorithm = "decode",
             .isa = "avx512bf16",
             .library = "",
             .summary = "few queries on bf16 inputs by VDPBF16PS, P rounded to bf16: keys split and merged, K and V read "
                        "once per KV head, in place; 16 pairs wide",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .key_blocks = true,
    .rejects = decode_rejects_all_but_bf16,
    .plan = decode_plan,
    .terms = DECODE_KERNEL_TERMS,
    .run = decode_run,
};
