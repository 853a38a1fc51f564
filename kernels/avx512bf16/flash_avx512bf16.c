/* SPDX-License-Identifier: MIT */
/* flash_avx512bf16: flash attention on bf16 inputs by VDPBF16PS, which adds the products of 16 pairs of values to 16 float32
 * sums. It is for CPUs where that is faster than widening (src/bf16_probe.c): Zen 5 makes
 * twice as many products a second by it as by float32 multiply-adds, Granite Rapids half as many.
 *
 * The tiles are those of flash.h, with a pair of values where they have a float: two neighbours along the dimension that a
 * product sums over. So register_tile.h multiplies and tiles.h accumulates; only the packing is different:
 *
 *   Q  [row][dim / 2]                     K  [panel][dim / 2][PANEL_KEYS]
 *   P  [row][key / 2], over its floats    V  [key / 2][column]
 *
 * Scores are multiplied by the scale after the product, because Q times the scale is no bf16 value. P is rounded to bf16 for
 * the product with V and for its own sum, as the kernel's numerics declare. */
#include "pairs_avx512bf16.h"

#include "kernels/common/flash.h"
#include "kernels/common/pair_weights.h"

static int64_t pairs(int64_t n) { return ceil_div(n, 2); }

/* ---- Memory of a unit: K, then V, in pairs ---- */

typedef struct pair_layout {
  int64_t k, v, bytes;
} pair_layout;

/* False if a size overflows. */
static bool pair_layout_of(const attn_problem *p, pair_layout *at) {
  const int64_t keys = round_up(p->seq_k, PANEL_KEYS);
  *at = (pair_layout){0};
  const memory_part parts[] = {{&at->k, keys, float_bytes(pairs(p->dim_qk))},
                               {&at->v, keys / 2, float_bytes(round_up(p->dim_v, VEC_LANES))}};
  return LAY_OUT(parts, &at->bytes);
}

static bool plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  pair_layout unit;
  if (!flash_plan(p, machine, schedule) || !pair_layout_of(p, &unit)) return false;
  schedule->unit_bytes = (size_t)unit.bytes;
  return true;
}

static packed_keys packed_pairs_at(const attn_problem *p, void *unit_memory) {
  pair_layout at;
  (void)pair_layout_of(p, &at); /* plan() has tried the same */
  return (packed_keys){floats_at(unit_memory, at.k), floats_at(unit_memory, at.v), round_up(p->dim_v, VEC_LANES)};
}

/* ---- Packing ---- */

/* Values of row i from `column` on; zeros beyond the last column, and for keys that nobody uses. */
static __m512i load_row(const row_source *rows, int64_t i, int64_t column, bool used) {
  if (!used) return _mm512_setzero_si512();
  const uint16_t *from = (const uint16_t *)rows->data + rows->offset + i * rows->row_stride;
  return load_values(from + column * rows->column_stride, rows->column_stride, rows->columns - column);
}

/* VEC_LANES keys from `key` on, transposed into a panel's columns. */
static void pack_k_pairs(const unit_keys *unit, int64_t key, float *panel) {
  const row_source k = k_rows(unit, key);
  for (int64_t d = 0; d < k.columns; d += ROW_VALUES) {
    vec r[VEC_LANES];
    UNROLL
    for (int i = 0; i < VEC_LANES; i++)
      r[i] = _mm512_castsi512_ps(load_row(&k, i, d, unit->used.begin <= key + i && key + i < unit->used.end));
    vec_transpose(r);
    for (int i = 0; i < VEC_LANES && d + 2 * i < k.columns; i++) vec_store(panel + (d / 2 + i) * PANEL_KEYS, r[i]);
  }
}

/* Two keys, the even one first, side by side. */
static void pack_v_pairs(const unit_keys *unit, int64_t key, float *to) {
  const row_source v = v_rows(unit, key);
  for (int64_t c = 0; c < v.columns; c += ROW_VALUES) {
    const __m512i even = load_row(&v, 0, c, unit->used.begin <= key && key < unit->used.end);
    const __m512i odd = load_row(&v, 1, c, unit->used.begin <= key + 1 && key + 1 < unit->used.end);
    vec pairs[2];
    zip_pairs(_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd), pairs);
    unzip_columns(pairs[0], pairs[1], pairs);
    vec_store(to + c, pairs[0]);
    if (c + VEC_LANES < v.columns) vec_store(to + c + VEC_LANES, pairs[1]);
  }
}

static void pack(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory) {
  const attn_problem *p = &schedule->problem;
  const packed_keys to = packed_pairs_at(p, unit_memory);
  const unit_keys unit = keys_of_unit(p, args, task.unit);
  const attn_key_range keys = keys_of_item(&unit, task.item, PACK_KEYS);
  for (int64_t key = round_down(keys.begin, VEC_LANES); key < keys.end; key += VEC_LANES) {
    const int64_t column = key % PANEL_KEYS;
    pack_k_pairs(&unit, key, (float *)(uintptr_t)to.k + (key - column) * pairs(p->dim_qk) + column);
    for (int64_t i = 0; i < VEC_LANES; i += 2)
      pack_v_pairs(&unit, key + i, (float *)(uintptr_t)to.v + (key + i) / 2 * to.v_stride);
  }
}

/* Over the floats that start_rows has loaded. */
static void pack_queries(const row_block *block, int64_t capacity) {
  const attn_problem *p = block->problem;
  for (int64_t i = 0; i < capacity; i++) {
    const bool used = i < block->rows && block->range[i].begin < block->range[i].end;
    const problem_row at = problem_row_of(block, i);
    const row_source q = {.data = block->args->q,
                          .offset = used ? attn_q_offset(p, block->seq, block->b, at.head, at.query) : 0,
                          .column_stride = p->q_stride.d,
                          .columns = p->dim_qk};
    for (int64_t d = 0; d < p->dim_qk; d += ROW_VALUES)
      vec_store_first(block->q + i * block->q_stride + d / 2, _mm512_castsi512_ps(load_row(&q, 0, d, used)),
                      min64(pairs(p->dim_qk - d), VEC_LANES));
  }
}

/* ---- P ---- */

/* P of the first `vecs` vectors of a panel, as floats that are bf16 values. `plain`: no row needs a mask, a first reference
 * or anything added to its scores. */
static ALWAYS_INLINE void score_pairs(const panel_work w, const bool plain, const int vecs) {
  const row_block *block = w.block;
  const int64_t depth = pairs(block->problem->dim_qk);
  const vec factor = vec_set1(block->problem->scale * LOG2_E);
  vec sum[TILE_ROWS][TILE_VECS];
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_zero();
  }
  const float_rows q = {block->q + w.tile_row * block->q_stride, block->q_stride};
  const float_rows k = {block->keys.k + w.key * depth, PANEL_KEYS};
  product(sum, q, k, depth, vecs);
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    const vec start = block->adjusted ? vec_zero() : vec_set1(-reference_of(block, w.tile_row + i));
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_fma(sum[i][v], factor, start);
  }
  softmax_sums(w, sum, plain, false, vecs);
}

static NO_INLINE void plain_panel_pairs(const panel_work *w) { score_pairs(*w, true, TILE_VECS); }

static NO_INLINE void other_panel_pairs(const panel_work *w, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, score_pairs, *w, false)
}

static void score_tile_pairs(const row_block *block, int64_t tile_row, tile_keys keys) {
  panel_work w = {.block = block, .tile_row = tile_row, .settled = rows_settled(block, tile_row)};
  for (int64_t key = keys.first; key < keys.end; key += PANEL_KEYS) {
    w.key = key;
    w.pending = key - keys.first;
    w.score = block->score + w.pending;
    if (w.settled && !block->adjusted && keys.all_begin <= key && key + PANEL_KEYS <= keys.all_end)
      plain_panel_pairs(&w);
    else
      other_panel_pairs(&w, min64(ceil_div(keys.end - key, VEC_LANES), TILE_VECS));
    w.settled = w.settled || rows_settled(block, tile_row);
  }
}

/* ---- O += P V ---- */

/* The same sums as accumulate_tile's, with zeros for V of keys that a row may not see. p: the row's pairs from `begin` on.
 */
static void accumulate_seen(const row_block *block, int64_t i, int64_t begin, int64_t end, const float *p) {
  float *acc = block->acc + i * block->acc_stride;
  for (int64_t key = begin; key < end; key += 2) {
    const __m512i seen =
        _mm512_set1_epi32((row_sees(block, i, key) ? 0xffff : 0) | (row_sees(block, i, key + 1) ? (int)0xffff0000u : 0));
    const vec weights = vec_set1(p[(key - begin) / 2]);
    const float *v = block->keys.v + key / 2 * block->keys.v_stride;
    for (int64_t c = 0; c < block->acc_stride; c += VEC_LANES) {
      const __m512i values = _mm512_and_si512(_mm512_castps_si512(vec_load(v + c)), seen);
      vec_store(acc + c, dot_pairs(weights, _mm512_castsi512_ps(values), vec_load(acc + c)));
    }
  }
}

static void tile_pairs(const row_block *block, int64_t tile_row, int64_t begin, int64_t end) {
  const tile_keys keys = keys_of_tile(block, tile_row, begin, end);
  if (keys.class == TILE_SKIP) return;
  const int64_t first = round_down(keys.begin, 2), last = round_up(keys.end, 2);
  const float *p = block->score + (first - keys.first) / 2;
  score_tile_pairs(block, tile_row, keys);
  for (int64_t i = 0; i < TILE_ROWS; i++) pair_weights(block->score + i * block->score_stride, keys.end - keys.first);
  if (!block->careful) {
    accumulate_tile(block, tile_row, first / 2, last / 2, p);
    return;
  }
  for (int64_t i = 0; i < min64(TILE_ROWS, block->rows - tile_row); i++)
    accumulate_seen(block, tile_row + i, first, last, p + i * block->score_stride);
}

/* ---- The loop ---- */

static bool attend(const attn_schedule *schedule, const row_block *given, int64_t capacity) {
  row_block block = *given;
  block.keys = packed_pairs_at(block.problem, (void *)(uintptr_t)block.keys.k);
  block.shifted = false; /* nothing has been added to scores before softmax_panel() */
  pack_queries(&block, capacity);
  const attn_key_range keys = keys_of_block(&block);
  for (int64_t key = keys.begin / schedule->key_block * schedule->key_block; key < keys.end; key += schedule->key_block)
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS)
      tile_pairs(&block, tile_row, key, min64(key + schedule->key_block, keys.end));
  return finish_rows(&block);
}

static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  flash_run_by(schedule, args, task, unit_memory, scratch, pack, attend, false);
}

const attn_kernel attn_flash_avx512bf16 = {
    .info = {.name = "flash_avx512bf16",
             .algorithm = "flash",
             .isa = "avx512bf16",
             .library = "",
             .summary = "flash attention on bf16 inputs by VDPBF16PS, P rounded to bf16; tiles of 6 rows, 16 pairs wide",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .rejects = takes_bf16,
    .plan = plan,
    .run = run,
};
