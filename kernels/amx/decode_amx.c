/* SPDX-License-Identifier: MIT */
/* decode_amx: few query rows on bf16 inputs in the tile unit, keys split at fixed borders and merged, K and V read once per
 * KV head and in place. The loop is kernels/common/decode/decode.h, the products few_rows_amx.h. */
#include "few_rows_amx.h"

#include "kernels/common/decode/decode.h"
#include "kernels/common/problem/terms.h"

/* A tile of 16 rows of a KV head; K and V are copied where their widths do not fill tiles. */
static void terms_of(const attn_problem *p, double *terms) {
  const tile_walk walk = {.width = 2 * DECODE_TILE_ROWS,
                          .keys = GROUP_KEYS,
                          .tiles = (double)ceil_div(rows_per_kv_head(p), DECODE_TILE_ROWS),
                          .seen = attn_seen_keys(p),
                          .copies = (p->dim_qk | p->dim_v) % (2 * DECODE_TILE_ROWS) != 0};
  attn_tile_terms(p, &walk, terms);
}

const attn_kernel attn_decode_amx = {
    .info = {.name = "decode_amx",
             .algorithm = "decode",
             .isa = "amx",
             .library = "",
             .summary =
                 "few queries on bf16 inputs in the tile unit, P rounded to bf16: keys split and merged, K and V read "
                 "once per KV head, in place",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .key_blocks = true,
    .rejects = decode_rejects_all_but_bf16,
    .plan = decode_plan,
    .terms = {TILE_TERM_COUNT, attn_tile_term_names, terms_of},
    .run = decode_run,
};
