/* SPDX-License-Identifier: MIT */
/* The pack phase: K and V of one KV head brought into the layout that tiles.h reads, once for all row blocks and all query heads
 * that share it. Whatever the storage type and strides were, float32 comes out.
 *
 * K is transposed into panels of PANEL_KEYS keys, [panel][dim_qk][PANEL_KEYS], so that a vector holds one dimension of as many
 * keys. V is read where it stands when its rows are dense floats of whole vectors; otherwise it is copied to padded rows.
 *
 * Only keys that some row may see are read, so what stands beyond lengths never matters.
 */
#ifndef ATTN_COMMON_PACK_H
#define ATTN_COMMON_PACK_H

#include "scores.h"

typedef struct packed_layout {
  int64_t keys;     /* seq_k rounded up to whole panels */
  int64_t k_floats; /* of the panels */
  int64_t v_stride; /* floats of a copied V row; 0 = V is read in place */
} packed_layout;

/* Given scores need no K. */
static int64_t k_dimensions(const attn_problem *p) { return p->score == ATTN_SCORE_PRECOMPUTED ? 0 : p->dim_qk; }

static packed_layout packed_layout_of(const attn_problem *p) {
  const bool v_in_place = p->dtype_kv == ATTN_F32 && p->v_stride.d == 1 && p->dim_v % VEC_LANES == 0;
  const int64_t keys = round_up(p->seq_k, PANEL_KEYS);
  return (packed_layout){
      .keys = keys, .k_floats = keys * k_dimensions(p), .v_stride = v_in_place ? 0 : round_up(p->dim_v, VEC_LANES)};
}

/* Bytes of one unit, false on overflow. */
static bool packed_bytes(const attn_problem *p, size_t *bytes) {
  int64_t k, v, floats;
  const int64_t keys = round_up(p->seq_k, PANEL_KEYS), columns = packed_layout_of(p).v_stride;
  if (__builtin_mul_overflow(keys, k_dimensions(p), &k) || __builtin_mul_overflow(keys, columns, &v)) return false;
  if (__builtin_add_overflow(k, v, &floats) || floats > INT64_MAX / 8) return false;
  *bytes = (size_t)floats * sizeof(float);
  return true;
}

static packed_keys packed_keys_at(const attn_problem *p, const attn_args *args, const attn_sequence *seq, int64_t b,
                                  int64_t head, const float *unit_memory) {
  const packed_layout layout = packed_layout_of(p);
  packed_keys keys = {.k = unit_memory, .v = unit_memory + layout.k_floats, .v_stride = layout.v_stride};
  if (layout.v_stride == 0 && args->v) {
    keys.v = (const float *)args->v + attn_v_offset(p, seq, b, head, 0);
    keys.v_stride = p->v_stride.s;
  }
  return keys;
}

/* VEC_LANES keys, of which `count` exist, the first at element `offset`: rows of adjacent elements, transposed into a panel's columns.
 * The type is a constant at every call. */
static ALWAYS_INLINE void transpose_dense(const attn_problem *p, const void *k, int64_t offset, int64_t count, float *panel,
                                          const attn_dtype dtype) {
  for (int64_t d = 0; d < p->dim_qk; d += VEC_LANES) {
    const int64_t width = min64(p->dim_qk - d, VEC_LANES);
    vec r[VEC_LANES];
    UNROLL
    for (int i = 0; i < VEC_LANES; i++)
      r[i] = i < count ? load_elements(k, dtype, offset + i * p->k_stride.s + d, width) : vec_zero();
    vec_transpose(r);
    UNROLL
    for (int i = 0; i < VEC_LANES; i++)
      if (i < width) vec_store(panel + (d + i) * PANEL_KEYS, r[i]);
  }
}

static void transpose_any(const attn_problem *p, const void *k, int64_t offset, int64_t count, float *panel) {
  for (int64_t d = 0; d < p->dim_qk; d++)
    for (int64_t i = 0; i < VEC_LANES; i++)
      panel[d * PANEL_KEYS + i] =
          i < count ? attn_load_f32(k, p->dtype_kv, offset + i * p->k_stride.s + d * p->k_stride.d) : 0.0f;
}

static void pack_k(const attn_problem *p, const attn_args *args, const attn_sequence *seq, int64_t b, int64_t head,
                   attn_key_range keys, float *panels) {
  for (int64_t key = round_down(keys.begin, VEC_LANES); key < keys.end; key += VEC_LANES) {
    float *panel = panels + round_down(key, PANEL_KEYS) * p->dim_qk + key % PANEL_KEYS;
    const int64_t offset = attn_k_offset(p, seq, b, head, key), count = min64(keys.end - key, VEC_LANES);
    if (p->k_stride.d != 1)
      transpose_any(p, args->k, offset, count, panel);
    else if (p->dtype_kv == ATTN_F32)
      transpose_dense(p, args->k, offset, count, panel, ATTN_F32);
    else if (p->dtype_kv == ATTN_F16)
      transpose_dense(p, args->k, offset, count, panel, ATTN_F16);
    else
      transpose_dense(p, args->k, offset, count, panel, ATTN_BF16);
  }
}

static void copy_v(const attn_problem *p, const attn_args *args, const attn_sequence *seq, int64_t b, int64_t head,
                   attn_key_range keys, float *rows, int64_t row_floats) {
  for (int64_t key = keys.begin; key < keys.end; key++)
    copy_row(args->v, p->dtype_kv, attn_v_offset(p, seq, b, head, key), p->v_stride.d, p->dim_v, rows + key * row_floats,
             row_floats);
}

/* Task `item` packs keys [item, item + 1) x PACK_KEYS of the unit's KV head. */
static inline void pack_unit(const attn_schedule *schedule, const attn_args *args, attn_task task, float *unit_memory) {
  const attn_problem *p = &schedule->problem;
  const int64_t b = task.unit / p->heads_kv, head = task.unit % p->heads_kv * (p->heads_q / p->heads_kv);
  const attn_sequence seq = attn_sequence_of(p, args, b);
  const attn_key_range used = keys_in_use(p, args, &seq, b);
  const attn_key_range keys = {max64(used.begin, task.item * PACK_KEYS), min64(used.end, (task.item + 1) * PACK_KEYS)};
  if (keys.begin >= keys.end) return;
  const packed_layout layout = packed_layout_of(p);
  if (layout.k_floats) pack_k(p, args, &seq, b, head, keys, unit_memory);
  if (layout.v_stride) copy_v(p, args, &seq, b, head, keys, unit_memory + layout.k_floats, layout.v_stride);
}

#endif
