/* SPDX-License-Identifier: MIT */
/* The pack phase: brings K and V of one KV head into the layout that tiles.h reads, once for all row blocks and for all
 * query heads that share the KV head. The result is float32, whatever the storage type and strides are.
 *
 * K is transposed into panels of PANEL_KEYS keys, [panel][dim_qk][PANEL_KEYS], so that a vector holds one dimension of
 * VEC_LANES keys. V is read in place if its rows are dense floats of whole vectors, and of short pages if few rows read it;
 * otherwise it is copied to padded rows.
 *
 * Only keys that some row may see are read, so the contents beyond lengths never matter.
 *
 * Parameters: those of register_tile.h, and
 *   VEC_LOADS_TRANSPOSED  optional: the tier brings vec_load_transposed(), which is quicker than vec_transpose(); tested:
 * set (avx512), not set (the others) */
#ifndef ATTN_COMMON_PACK_H
#define ATTN_COMMON_PACK_H

#include <assert.h>

#include "kernels/common/problem/terms.h"
#include "scores.h"

/* Tiles can read V in place. */
static bool v_in_place(const attn_problem *p) {
  return p->dtype_kv == ATTN_F32 && !attn_uses(p, ATTN_USE_KV_SCALES) && p->v_stride.d == 1 && p->dim_v % VEC_LANES == 0;
}

/* Whether V of so many queries of each head is copied nevertheless: a tile loads and stores O of its rows for each page, and
 * a copy stores each key's row once. So it pays where rows outnumber the keys of a page. */
static bool copies_pages(const attn_problem *p, int64_t queries) {
  return attn_uses(p, ATTN_USE_PAGES) && attn_group(p) * queries > p->page_tokens;
}

typedef struct packed_layout {
  int64_t k, v, bytes; /* offsets of the panels and of copied rows of V in a unit's memory, and its size */
  int64_t v_stride;    /* floats of a copied row of V; 0 = V is read in place */
} packed_layout;

/* Given scores need no K. */
static int64_t k_dimensions(const attn_problem *p) { return p->score == ATTN_SCORE_PRECOMPUTED ? 0 : p->dim_qk; }

/* False if a size overflows. */
static inline bool packed_layout_of(const attn_problem *p, int64_t key_block, packed_layout *at) {
  const int64_t keys = round_up(p->seq_k, PANEL_KEYS);
  const bool cut = copies_pages(p, p->seq_q) && p->page_tokens < min64(key_block, p->seq_k); /* in several pages */
  *at = (packed_layout){.v_stride = v_in_place(p) && !cut ? 0 : round_up(p->dim_v, VEC_LANES)};
  const memory_part parts[] = {{&at->k, keys, float_bytes(k_dimensions(p))}, {&at->v, keys, float_bytes(at->v_stride)}};
  return LAY_OUT(parts, &at->bytes);
}

/* Kernels that pack by pack_unit() begin their plan data with this. */
static const packed_layout *packed_layout_in(const attn_schedule *schedule) { return (const void *)schedule->own; }

/* Whether V of a sequence is copied: one of few queries beside long ones reads its pages in place. */
static bool copies_v(const attn_problem *p, const packed_layout *at, const attn_sequence *seq) {
  return at->v_stride > 0 && (!v_in_place(p) || copies_pages(p, seq->len_q));
}

static inline packed_keys packed_keys_at(const attn_schedule *schedule, const attn_args *args, const task_rows *rows,
                                         void *unit_memory) {
  const attn_problem *p = &schedule->problem;
  const packed_layout *at = packed_layout_in(schedule);
  packed_keys keys = {.k = floats_at(unit_memory, at->k), .v = floats_at(unit_memory, at->v), .v_stride = at->v_stride};
  if (copies_v(p, at, &rows->seq)) return keys;
  const bool paged = attn_uses(p, ATTN_USE_PAGES);
  keys.v = paged || !args->v ? NULL : (const float *)args->v + attn_key_run_at(p, args, &rows->seq, rows->head, 0).v;
  keys.v_stride = p->v_stride.s;
  return keys;
}

/* Transposes `width` dimensions from d on of VEC_LANES keys into the rows of a panel. The keys are `stride` apart, the first
 * is at element `offset`, and `count` of them exist. */
static ALWAYS_INLINE void transpose_square(attn_storage k, int64_t offset, int64_t stride, int64_t d, const int64_t count,
                                           const int64_t width, float *rows) {
  vec r[VEC_LANES];
  UNROLL
  for (int i = 0; i < VEC_LANES; i++) r[i] = i < count ? load_elements(k, offset + i * stride, d, width) : vec_zero();
  vec_transpose(r);
  UNROLL
  for (int i = 0; i < VEC_LANES; i++)
    if (i < width) vec_store(rows + i * PANEL_KEYS, r[i]);
}

#ifdef VEC_LOADS_TRANSPOSED
enum { LOADS_TRANSPOSED = true };
#else
enum { LOADS_TRANSPOSED = false };
static inline void vec_load_transposed(const void *from, int64_t stride, vec r[4]) { (void)from, (void)stride, (void)r; }
#endif

/* VEC_LANES keys of floats that lie side by side, times `factor`, into a panel's columns, as far as the tier can. Returns
 * the dimension that is next. */
static ALWAYS_INLINE int64_t transpose_floats(const float *keys, int64_t stride, int64_t dim, const float factor,
                                              float *panel) {
  int64_t d = 0;
  for (; LOADS_TRANSPOSED && d + 4 <= dim; d += 4) {
    vec r[4];
    vec_load_transposed(keys + d, float_bytes(stride), r);
    UNROLL
    for (int i = 0; i < 4; i++) vec_store(panel + (d + i) * PANEL_KEYS, vec_mul(r[i], vec_set1(factor)));
  }
  return d;
}

/* VEC_LANES keys whose elements lie side by side, transposed into a panel's columns. The type is constant at every call. */
static ALWAYS_INLINE void transpose_dense(const attn_problem *p, attn_storage any, int64_t offset, int64_t count,
                                          float *panel, const attn_dtype dtype) {
  const attn_storage k = attn_storage_as(any, dtype);
  const int64_t dim_qk = p->dim_qk, stride = p->k_stride.s;
  int64_t d = 0;
  if (dtype == ATTN_F32 && count == VEC_LANES)
    d = transpose_floats((const float *)k.data + offset, stride, dim_qk, 1.0f, panel);
  if (count == VEC_LANES) /* most squares are whole: no tests for each of their rows */
    for (; d + VEC_LANES <= dim_qk; d += VEC_LANES)
      transpose_square(k, offset, stride, d, VEC_LANES, VEC_LANES, panel + d * PANEL_KEYS);
  for (; d < dim_qk; d += VEC_LANES)
    transpose_square(k, offset, stride, d, count, min64(dim_qk - d, VEC_LANES), panel + d * PANEL_KEYS);
}

static void transpose_any(const attn_problem *p, attn_storage k, int64_t offset, int64_t count, float *panel) {
  for (int64_t d = 0; d < p->dim_qk; d++)
    for (int64_t i = 0; i < VEC_LANES; i++)
      panel[d * PANEL_KEYS + i] = i < count ? attn_load_f32(k, offset + i * p->k_stride.s + d * p->k_stride.d) : 0.0f;
}

/* VEC_LANES keys that lie side by side, as panels have them. */
static ALWAYS_INLINE void copy_beside(const attn_problem *p, attn_storage any, int64_t offset, int64_t count, float *panel,
                                      const attn_dtype dtype) {
  const attn_storage k = attn_storage_as(any, dtype);
  NO_UNROLL
  for (int64_t d = 0; d < p->dim_qk; d++, offset += p->k_stride.d)
    vec_store(panel + d * PANEL_KEYS, load_elements(k, offset, 0, count));
}

/* VEC_LANES keys, the first at element `offset`, into a panel's columns. */
static ALWAYS_INLINE void pack_lanes(const attn_problem *p, attn_storage k, int64_t offset, int64_t count, float *panel) {
  const bool beside = keys_beside(p);
  if (p->k_stride.d != 1 && !beside) {
    transpose_any(p, k, offset, count, panel);
    return;
  }
  switch (p->dtype_kv) { /* a copy of the code for each type */
#define DTYPE(constant, ...)                                        \
  case ATTN_##constant:                                             \
    if (beside && attn_dtype_of(ATTN_##constant).values == 1)       \
      copy_beside(p, k, offset, count, panel, ATTN_##constant);     \
    else                                                            \
      transpose_dense(p, k, offset, count, panel, ATTN_##constant); \
    break;
#include "kernels/common/problem/dtypes.def"
#undef DTYPE
  }
}

/* Multiplies `count` keys in a panel's columns by the factors of keys from `key` on. */
static NO_INLINE void scale_lanes(const unit_keys *unit, int64_t key, int64_t count, float *panel) {
  const attn_key_scales scales = scales_of_unit(unit, key);
  float each[VEC_LANES] = {0};
  for (int64_t i = 0; i < count; i++) each[i] = scales.k[i * scales.k_step];
  for (int64_t d = 0; d < unit->problem->dim_qk; d++)
    vec_store(panel + d * PANEL_KEYS, vec_mul(vec_load(panel + d * PANEL_KEYS), vec_load(each)));
}

static void pack_k(const unit_keys *unit, attn_key_range keys, float *panels) {
  const attn_problem *p = unit->problem;
  const attn_storage k = attn_k_storage(p, unit->args);
  for (int64_t first = round_down(keys.begin, VEC_LANES), end; first < keys.end; first = end) {
    const attn_key_run run = run_of_unit(unit, first);
    end = min64(first + run.keys, keys.end);
    for (int64_t key = first; key < end; key += VEC_LANES) {
      float *panel = panels + round_down(key, PANEL_KEYS) * p->dim_qk + key % PANEL_KEYS;
      pack_lanes(p, k, run.k + (key - first) * p->k_stride.s, min64(end - key, VEC_LANES), panel);
      if (attn_uses(p, ATTN_USE_KV_SCALES)) scale_lanes(unit, key, min64(end - key, VEC_LANES), panel);
    }
  }
}

static void copy_v(const unit_keys *unit, attn_key_range keys, float *rows, int64_t row_floats) {
  for (int64_t key = keys.begin, count; key < keys.end; key += count) {
    const attn_key_run run = run_of_unit(unit, key);
    const attn_key_scales scales = scales_of_unit(unit, key);
    const row_source v = scaled_rows(unit, v_rows(unit, run), scales.v, scales.v_step);
    count = min64(run.keys, keys.end - key);
    for (int64_t i = 0; i < count; i++) copy_row(&v, i, rows + (key + i) * row_floats, row_floats);
  }
}

static bool is_listed(const unit_keys *unit, int64_t key) {
  return attn_key_visited(unit->problem, unit->args, unit->b, unit->head, 0, key);
}

/* The first keys from `key` on that tiles may read, before `end`: all, but where all rows have one list of key blocks.
 * Several lists mostly name each block. */
static attn_key_range next_to_pack(const unit_keys *unit, int64_t key, int64_t end) {
  const attn_problem *p = unit->problem;
  if (!attn_lists_keys(p) || unit->seq.len_q > p->block_queries) return (attn_key_range){key, end};
  while (key < end && !is_listed(unit, key)) key = round_down(key, p->block_keys) + p->block_keys;
  attn_key_range keys = {key, key};
  while (keys.end < end && is_listed(unit, keys.end)) keys.end = round_down(keys.end, p->block_keys) + p->block_keys;
  keys.end = min64(keys.end, end);
  return keys;
}

/* Task `item` packs keys [item, item + 1) x PACK_KEYS of the unit's KV head. */
static inline void pack_unit(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory) {
  const attn_problem *p = &schedule->problem;
  const unit_keys unit = keys_of_unit(p, args, task.unit);
  const attn_key_range item = keys_of_item(&unit, task.item, PACK_KEYS);
  assert(task.phase == 0 && task.item < schedule->items[0]);
  const packed_layout *at = packed_layout_in(schedule);
  for (attn_key_range keys = next_to_pack(&unit, item.begin, item.end); keys.begin < keys.end;
       keys = next_to_pack(&unit, keys.end, item.end)) {
    if (k_dimensions(p)) pack_k(&unit, keys, floats_at(unit_memory, at->k));
    if (copies_v(p, at, &unit.seq)) copy_v(&unit, keys, floats_at(unit_memory, at->v), at->v_stride);
  }
}

#endif
