/* SPDX-License-Identifier: MIT */
/* decode_avx512vnni: few query rows, rounded to int8, against K and V in 8 or 4 bits, by VPDPBUSD. The loop is
 * kernels/common/decode/decode.h, the products few_rows_avx512vnni.h. */
#include "few_rows_avx512vnni.h"

#include "kernels/common/decode/decode.h"
#include "kernels/common/problem/terms.h"

/* A tile of 8 rows of a KV head, read in place. */
static void terms_of(const attn_problem *p, double *terms) {
  const tile_walk walk = {.width = BLOCK_VALUES,
                          .keys = GROUP_KEYS,
                          .tiles = (double)ceil_div(rows_per_kv_head(p), MOST_TILE_ROWS),
                          .seen = attn_seen_keys(p)};
  attn_tile_terms(p, &walk, terms);
}

static const char *rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  if (p->dtype_kv != ATTN_I8 && p->dtype_kv != ATTN_Q8_0 && p->dtype_kv != ATTN_Q4_0)
    return "its products are of integers: dtype_kv must be ATTN_I8, ATTN_Q8_0 or ATTN_Q4_0";
  if (!has_places(p->dtype_kv, p->k_stride.s) || !has_places(p->dtype_kv, p->v_stride.s))
    return "it reads factors of 16 keys at once: their rows must lie less than 128 MiB apart (k_stride.s, v_stride.s)";
  return decode_rejects(p, buffer, buffer_bytes);
}

const attn_kernel attn_decode_avx512vnni = {
    .info = {.name = "decode_avx512vnni",
             .algorithm = "decode",
             .isa = "avx512vnni",
             .library = "",
             .summary =
                 "few queries, rounded to int8, by VPDPBUSD on K and V in 8 or 4 bits: keys split and merged, K and V "
                 "read once per KV head, in place",
             .numerics = {.exp_error = 0x1p-22, .query_rounding = 0x1.03p-8}},
    .key_blocks = true,
    .rejects = rejects,
    .plan = decode_plan,
    .terms = {TILE_TERM_COUNT, attn_tile_term_names, terms_of},
    .run = decode_run,
};
