/* SPDX-License-Identifier: MIT */
/* flash_avx512bf16: flash attention on bf16 inputs by VDPBF16PS, which adds the products of 16 pairs of values to 16 float32
 * sums. It is for CPUs where that is faster than widening: some make twice as many products a second by it as by float32
 * multiply-adds, others half as many.
 *
 * The tiles are those of flash.h, with a pair of values where they have a float: two neighbours along the dimension that a
 * product sums over. So register_tile.h multiplies and tiles.h accumulates; only the packing is different:
 *
 *   Q  [row][dim / 2]                     K  [panel][dim / 2][PANEL_KEYS]
 *   P  [row][key / 2], over its floats    V  [key / 2][column]
 *
 * Scores are multiplied by the scale after the product, because Q times the scale is no bf16 value. P is rounded to bf16 for
 * the product with V and for its own sum, as the kernel's numerics declare. References are whole numbers, so that P of a row
 * whose reference moves is multiplied by a power of 2, exactly.
 *
 * The scores of a panel wait in memory, relative to their references, while the next panel's are multiplied: a row's
 * exponentials stand after every few steps of that product, across tiles of rows. They would leave the multipliers idle if
 * all came at once, because they are chains of instructions that run on the other pipes.
 *
 * A tile's O goes from registers to memory with its last keys. Where all keys lie in one key block, its Q is read in place
 * if it can be. */
#include "flash_pairs_bf16.h"

#include "kernels/common/tiles/flash.h"
#include "kernels/common/tiles/flash_few_plan.h"

enum { SCORE_ROWS = 2 * TILE_ROWS /* first P of a tile and a key block, then scores of a panel */ };

static int64_t pairs(int64_t n) { return ceil_div(n, 2); }

/* ---- Memory of a unit: K, then V, in pairs ---- */

typedef struct pair_layout {
  int64_t k, v, bytes;
} pair_layout;

/* Plan data. */
typedef struct pair_plan {
  tiled_layout tiled;
  pair_layout unit;
} pair_plan;
_Static_assert(sizeof(pair_plan) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

/* False if a size overflows. */
static bool pair_layout_of(const attn_problem *p, pair_layout *at) {
  const int64_t keys = round_up(p->seq_k, PANEL_KEYS);
  *at = (pair_layout){0};
  const memory_part parts[] = {{&at->k, keys, float_bytes(pairs(p->dim_qk))},
                               {&at->v, keys / 2, float_bytes(round_up(p->dim_v, VEC_LANES))}};
  return LAY_OUT(parts, &at->bytes);
}

static bool flash_avx512bf16_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  pair_plan *own = (void *)schedule->own;
  scratch_layout *scratch = &own->tiled.scratch;
  if (!flash_plan(p, machine, schedule) || !pair_layout_of(p, &own->unit)) return false;
  if (!scratch_layout_for(p, round_up(schedule->row_block, TILE_ROWS), SCORE_ROWS, scratch->score_stride, VEC_LANES,
                          scratch))
    return false;
  schedule->unit_bytes = (size_t)own->unit.bytes;
  schedule->scratch_bytes = (size_t)scratch->total;
  return plan_few(p, ROW_VALUES, schedule);
}

static packed_keys packed_pairs_at(const attn_schedule *schedule, void *unit_memory) {
  const pair_layout *at = &((const pair_plan *)(const void *)schedule->own)->unit;
  return (packed_keys){floats_at(unit_memory, at->k), floats_at(unit_memory, at->v),
                       round_up(schedule->problem.dim_v, VEC_LANES)};
}

/* ---- Packing ---- */

/* Values of row i from `column` on; zeros beyond the last column and for keys that no row uses. */
static __m512i load_row(const row_source *rows, int64_t i, int64_t column, bool used) {
  if (!used) return _mm512_setzero_si512();
  const uint16_t *from = (const uint16_t *)rows->from.data + rows->offset + i * rows->row_stride;
  return load_values(from + column * rows->column_stride, rows->column_stride, rows->columns - column);
}

static bool is_used(const unit_keys *unit, int64_t key) { return unit->used.begin <= key && key < unit->used.end; }

/* The first of `keys` rows from row i on, which is key `key`, if all of them are used and their values lie side by side;
 * else NULL. */
static const uint16_t *dense_rows(const unit_keys *unit, const row_source *rows, int64_t i, int64_t key, int64_t keys) {
  const bool dense = rows->column_stride == 1 && unit->used.begin <= key && key + keys <= unit->used.end;
  return dense ? (const uint16_t *)rows->from.data + rows->offset + i * rows->row_stride : NULL;
}

/* VEC_LANES keys from `key` on, transposed into a panel's columns. `first`: the key of row 0. */
static void pack_k_pairs(const unit_keys *unit, const row_source *k, int64_t first, int64_t key, float *panel) {
  if (keys_beside(unit->problem) && unit->used.begin <= key) {
    const uint16_t *from = (const uint16_t *)k->from.data + k->offset + (key - first);
    for (int64_t d = 0; d < k->columns; d += 2)
      vec_store(panel + d / 2 * PANEL_KEYS, pairs_beside(from, d, k->column_stride, k->columns, unit->used.end - key));
    return;
  }
  const uint16_t *dense = dense_rows(unit, k, key - first, key, VEC_LANES);
  for (int64_t d = 0; d < k->columns; d += ROW_VALUES) {
    vec r[VEC_LANES];
    if (dense && d + ROW_VALUES <= k->columns) {
      UNROLL
      for (int i = 0; i < VEC_LANES; i++) r[i] = load_pairs(dense + i * k->row_stride + d, ROW_VALUES);
    } else {
      NO_UNROLL
      for (int i = 0; i < VEC_LANES; i++)
        r[i] = _mm512_castsi512_ps(load_row(k, key - first + i, d, is_used(unit, key + i)));
    }
    vec_transpose(r);
    for (int i = 0; i < VEC_LANES && d + 2 * i < k->columns; i++) vec_store(panel + (d / 2 + i) * PANEL_KEYS, r[i]);
  }
}

/* Two keys in pairs, the even one first. */
static void pack_v_pairs(const unit_keys *unit, const row_source *v, int64_t first, int64_t key, float *to) {
  const uint16_t *dense = dense_rows(unit, v, key - first, key, 2);
  int64_t c = 0;
  for (; dense && c + ROW_VALUES <= v->columns; c += ROW_VALUES) {
    vec pairs[2];
    pair_columns(load_pairs(dense + c, ROW_VALUES), load_pairs(dense + v->row_stride + c, ROW_VALUES), pairs);
    vec_store(to + c, pairs[0]);
    vec_store(to + c + VEC_LANES, pairs[1]);
  }
  for (; c < v->columns; c += ROW_VALUES) {
    const __m512i even = load_row(v, key - first, c, is_used(unit, key));
    const __m512i odd = load_row(v, key - first + 1, c, is_used(unit, key + 1));
    vec pairs[2];
    pair_columns(_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd), pairs);
    vec_store(to + c, pairs[0]);
    if (c + VEC_LANES < v->columns) vec_store(to + c + VEC_LANES, pairs[1]);
  }
}

static void pack_key_pairs(const unit_keys *unit, attn_key_range keys, packed_keys to) {
  const attn_problem *p = unit->problem;
  for (int64_t first = round_down(keys.begin, VEC_LANES), end; first < keys.end; first = end) {
    const attn_key_run run = run_of_unit(unit, first);
    const row_source k = k_rows(unit, run), v = v_rows(unit, run);
    end = min64(first + run.keys, keys.end);
    for (int64_t key = first; key < end; key += VEC_LANES) {
      const int64_t column = key % PANEL_KEYS;
      pack_k_pairs(unit, &k, first, key, (float *)(uintptr_t)to.k + (key - column) * pairs(p->dim_qk) + column);
      for (int64_t i = key; i < key + VEC_LANES; i += 2)
        pack_v_pairs(unit, &v, first, i, (float *)(uintptr_t)to.v + i / 2 * to.v_stride);
    }
  }
}

static void pack(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory) {
  const unit_keys unit = keys_of_unit(&schedule->problem, args, task.unit);
  const attn_key_range item = keys_of_item(&unit, task.item, PACK_KEYS);
  for (attn_key_range keys = next_to_pack(&unit, item.begin, item.end); keys.begin < keys.end;
       keys = next_to_pack(&unit, keys.end, item.end))
    pack_key_pairs(&unit, keys, packed_pairs_at(schedule, unit_memory));
}

static bool row_is_used(const row_block *block, int64_t i) {
  return i < block->rows && block->range[i].begin < block->range[i].end;
}

/* Rows [begin, end) of the block. */
static void pack_queries(const row_block *block, int64_t begin, int64_t end) {
  const attn_problem *p = block->problem;
  for (int64_t i = begin; i < end; i++) {
    const bool used = row_is_used(block, i);
    const problem_row at = problem_row_of(block, i);
    const row_source q = {.from = attn_q_storage(p, block->args),
                          .offset = used ? attn_q_offset(p, block->seq, block->b, at.head, at.query) : 0,
                          .column_stride = p->q_stride.d,
                          .columns = p->dim_qk};
    for (int64_t d = 0; d < p->dim_qk; d += ROW_VALUES)
      vec_store_first(block->q + i * block->q_stride + d / 2, _mm512_castsi512_ps(load_row(&q, 0, d, used)),
                      min64(pairs(p->dim_qk - d), VEC_LANES));
  }
}

/* Whether the tile's rows of Q can be read where they lie, the first at `q`: as pairs of values side by side. */
static bool queries_in_place(const row_block *block, int64_t tile_row, const uint16_t *q) {
  const attn_problem *p = block->problem;
  if (p->q_stride.d != 1 || p->dim_qk % 2 || p->q_stride.s % 2 || (uintptr_t)q % sizeof(float)) return false;
  bool used = tile_row + TILE_ROWS <= block->rows_per_head;
  for (int64_t i = tile_row; used && i < tile_row + TILE_ROWS; i++) used = row_is_used(block, i);
  return used;
}

/* Q of a tile. A tile that sees all of its keys at once reads its rows only a few times, in place or from a copy. */
static float_rows tile_queries(const row_block *block, int64_t tile_row) {
  const attn_problem *p = block->problem;
  const float_rows copy = {block->q + tile_row * block->q_stride, block->q_stride};
  if (!block->direct) return copy;
  const uint16_t *q =
      (const uint16_t *)block->args->q + attn_q_offset(p, block->seq, block->b, block->head, block->first_row + tile_row);
  if (queries_in_place(block, tile_row, q)) return (float_rows){(const float *)(const void *)q, p->q_stride.s / 2};
  pack_queries(block, tile_row, tile_row + TILE_ROWS);
  return copy;
}

/* ---- P ---- */

/* A panel whose scores, relative to their references, wait to become P: [TILE_ROWS][`vecs` vectors], an even number. The
 * rows of s and p are `stride` apart. */
typedef struct waiting_panel {
  const float *s;
  float *p, *row_sum;
  int64_t stride, vecs;
} waiting_panel;

/* P and row_sum of row i. `vecs` need not be a constant. */
static ALWAYS_INLINE void weigh_row(const waiting_panel *w, int64_t i, const int64_t vecs) {
  const float *s = w->s + i * w->stride;
  float *p = w->p + i * w->stride, *sum = w->row_sum + i * VEC_LANES;
  vec added = vec_zero();
  if (vecs == 0) return;
  UNROLL
  for (int64_t v = 0; v < TILE_VECS; v += 2) {
    if (v >= vecs) continue;
    const vec low = weights_of(s + v * VEC_LANES), high = weights_of(s + (v + 1) * VEC_LANES);
    vec_store(p + v / 2 * VEC_LANES, narrow(low, high));
    added = v == 0 ? vec_add(low, high) : vec_add(added, vec_add(low, high));
  }
  vec_store(sum, vec_add(vec_load(sum), added));
}

/* A panel of a tile whose scores are next, and the one that waits for its P. */
typedef struct pair_work {
  panel_work panel;
  float_rows q;           /* rows of Q */
  waiting_panel *waiting; /* vecs is 0 if no panel waits */
} pair_work;

static NO_INLINE void weigh_waiting(waiting_panel *w) {
  for (int64_t i = 0; i < TILE_ROWS; i++) weigh_row(w, i, w->vecs);
  w->vecs = 0;
}

/* Kinds of panels, by what turns their scores into P. PLAIN_PAIRS: only their references, which all rows have. EDGE_PAIRS:
 * also the range of keys that each row may see, and first references. SHIFTED_PAIRS: bias, ALiBi or a mask as well.
 * ADJUSTED_PAIRS: relative_rows() does all of it. */
typedef enum panel_kind { PLAIN_PAIRS, EDGE_PAIRS, SHIFTED_PAIRS, ADJUSTED_PAIRS } panel_kind;

/* Which panel becomes P during a product: none, a whole one, or whatever waits. */
typedef enum panel_beside { NOTHING, WHOLE_PANEL, ANY_PANEL } panel_beside;

/* sum = Q K^T. */
static ALWAYS_INLINE void multiply_pairs(const pair_work *work, vec sum[TILE_ROWS][TILE_VECS], const panel_beside beside,
                                         const int vecs, const int64_t depth) {
  const panel_work *w = &work->panel;
  float_rows q = work->q, k = {w->block->keys.k + w->key * depth, PANEL_KEYS};
  const int64_t waiting = beside == ANY_PANEL ? work->waiting->vecs : TILE_VECS;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_zero();
  }
  if (beside == NOTHING) product(sum, q, k, depth, vecs);
  UNROLL
  for (int64_t i = 0; i < TILE_ROWS; i++) {
    if (beside == NOTHING) continue;
    const int64_t steps = depth * (i + 1) / TILE_ROWS - depth * i / TILE_ROWS;
    product(sum, q, k, steps, vecs);
    q.at += steps, k.at += steps * PANEL_KEYS;
    weigh_row(work->waiting, i, waiting);
  }
}

/* From Q K^T to scores in log2 units; unless they are ADJUSTED_PAIRS, relative to the references. */
static ALWAYS_INLINE void scale_pairs(const panel_work *w, vec sum[TILE_ROWS][TILE_VECS], const panel_kind kind,
                                      const int vecs) {
  const row_block *block = w->block;
  const vec factor = vec_set1(block->problem->scale * LOG2_E);
  const uint32_t uses = block->problem->uses;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    const int64_t row = w->tile_row + i;
    const vec start = kind == ADJUSTED_PAIRS ? vec_zero() : vec_set1(-reference_of(block, row));
    const shift_row shift = kind == SHIFTED_PAIRS ? shift_row_of(block, uses, row, w->key) : (shift_row){0};
    UNROLL
    for (int v = 0; v < vecs; v++) {
      const vec added = kind == SHIFTED_PAIRS ? vec_add(shift_at(block, uses, &shift, row, w->key, v), start) : start;
      sum[i][v] = vec_fma(sum[i][v], factor, added);
      if (kind == SHIFTED_PAIRS) sum[i][v] = select_at(block, uses, &shift, row, w->key, v, sum[i][v]);
    }
    if (kind == EDGE_PAIRS || kind == SHIFTED_PAIRS) select_allowed_vecs(block->range[row], w->key, sum[i], vecs);
  }
}

/* The panel's scores, in memory, to what P is made of. */
static NO_INLINE void relative_rows(const panel_work *w, int64_t vecs) {
  const int64_t stride = w->block->score_stride;
  for (int64_t i = 0; i < TILE_ROWS; i++) {
    float *s = w->score + i * stride;
    vec x[TILE_VECS];
    relative_row(w->block, w->tile_row + i, w->key, s, w->block->score + i * stride, w->pending, vecs, x);
    for (int64_t v = 0; v < vecs; v++) vec_store(s + v * VEC_LANES, x[v]);
  }
}

/* Computes and stores the scores of a tile. Returns true if softmax takes them as they are, false if relative_rows() has to
 * come first. */
static ALWAYS_INLINE bool score_pairs(const pair_work *work, const panel_kind kind, const panel_beside beside,
                                      const int vecs, const int64_t depth) {
  const panel_work *w = &work->panel;
  vec sum[TILE_ROWS][TILE_VECS];
  multiply_pairs(work, sum, beside, vecs, depth);
  scale_pairs(w, sum, kind, vecs);
  const bool bounded =
      (kind == EDGE_PAIRS || kind == SHIFTED_PAIRS) && !w->settled && settle_rows(w->block, w->tile_row, sum, vecs);
  const bool fits = kind != ADJUSTED_PAIRS && (bounded || !some_above(sum, RESCALE_AT, vecs));
  store_tile(sum, w->score, w->block->score_stride, vecs);
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++)
    if (vecs % 2) vec_store(w->score + i * w->block->score_stride + vecs * VEC_LANES, vec_set1(-INFINITY));
  return fits;
}

static int64_t depth_of(const pair_work *w) { return pairs(w->panel.block->problem->dim_qk); }

/* The usual depths are constants. */
static NO_INLINE bool plain_32(const pair_work *w) { return score_pairs(w, PLAIN_PAIRS, WHOLE_PANEL, TILE_VECS, 32); }
static NO_INLINE bool plain_64(const pair_work *w) { return score_pairs(w, PLAIN_PAIRS, WHOLE_PANEL, TILE_VECS, 64); }
static NO_INLINE bool plain_any(const pair_work *w) {
  return score_pairs(w, PLAIN_PAIRS, ANY_PANEL, TILE_VECS, depth_of(w));
}

static bool score_plain(const pair_work *w) {
  const int64_t depth = w->waiting->vecs == TILE_VECS ? depth_of(w) : 0;
  return depth == 32 ? plain_32(w) : depth == 64 ? plain_64(w) : plain_any(w);
}

static NO_INLINE bool score_edge(const pair_work *w, int64_t vecs) {
  bool fits = false;
#define SCORE_PAIRS(work, vecs) fits = score_pairs(work, EDGE_PAIRS, ANY_PANEL, vecs, depth_of(work))
  WITH_CONSTANT_VECS(vecs, SCORE_PAIRS, w)
#undef SCORE_PAIRS
  return fits;
}
static NO_INLINE bool score_shifted(const pair_work *w) {
  return score_pairs(w, SHIFTED_PAIRS, NOTHING, TILE_VECS, depth_of(w));
}
static NO_INLINE bool score_adjusted(const pair_work *w) {
  return score_pairs(w, ADJUSTED_PAIRS, NOTHING, TILE_VECS, depth_of(w));
}

static panel_kind kind_of(const panel_work *w, const tile_keys *keys) {
  if (w->block->shifted) return SHIFTED_PAIRS;
  if (w->block->adjusted) return ADJUSTED_PAIRS;
  return w->settled && keys->all_begin <= w->key && w->key + PANEL_KEYS <= keys->all_end ? PLAIN_PAIRS : EDGE_PAIRS;
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

/* A tile's P of the keys [begin, end) of a visit. */
typedef struct unseen_keys {
  const row_block *block;
  int64_t begin, end;
  const float *p;
} unseen_keys;

/* A tile whose P of these keys acc has not seen yet. */
typedef struct unseen_tile {
  int64_t row, visits;
  bool last; /* with these keys, O of its rows is finished */
  unseen_keys keys[MOST_VISITS];
} unseen_tile;

static void accumulate_keys(const unseen_keys *u, int64_t row) {
  if (!u->block->careful) {
    accumulate_tile(u->block, row, u->begin / 2, u->end / 2, u->p);
    return;
  }
  for (int64_t i = 0; i < min64(TILE_ROWS, u->block->rows - row); i++)
    accumulate_seen(u->block, row + i, u->begin, u->end, u->p + i * u->block->score_stride);
}

/* ---- The loop ---- */

/* Work that one tile leaves to the next tile, which does it beside its own first product. */
typedef struct left_over {
  waiting_panel waiting;
  unseen_tile tile;
  bool failed; /* O of a tile, as finish_row says */
} left_over;

static void accumulate_unseen(left_over *left) {
  unseen_tile *t = &left->tile;
  for (int64_t i = 0; i < t->visits; i++) {
    const unseen_keys *u = &t->keys[i];
    if (t->last)
      left->failed |= !finish_tile(u->block, t->row, u->begin / 2, u->end / 2, u->p);
    else
      accumulate_keys(u, t->row);
  }
  t->visits = 0;
}

static void finish_left_over(left_over *left) {
  weigh_waiting(&left->waiting);
  accumulate_unseen(left);
}

/* Computes the scores of a panel, which then waits. Everything that an earlier tile has left is done before any of it is
 * overwritten, or references move. Only rows that have no P yet get their first reference before that. */
static void panel_pairs(const pair_work *work, const tile_keys *keys, left_over *left) {
  const panel_work *w = &work->panel;
  const row_block *block = w->block;
  const panel_kind kind = kind_of(w, keys);
  const int64_t vecs = kind == EDGE_PAIRS ? min64(ceil_div(keys->end - w->key, VEC_LANES), TILE_VECS) : TILE_VECS;
  bool fits;
  if (kind == PLAIN_PAIRS) {
    fits = score_plain(work);
  } else if (kind == EDGE_PAIRS) {
    fits = score_edge(work, vecs);
  } else {
    weigh_waiting(&left->waiting);
    fits = kind == SHIFTED_PAIRS ? score_shifted(work) : score_adjusted(work);
  }
  left->waiting.vecs = 0;
  accumulate_unseen(left);
  if (!fits) relative_rows(w, vecs);
  left->waiting = (waiting_panel){.s = w->score,
                                  .p = block->score + w->pending / 2,
                                  .row_sum = block->row_sum + w->tile_row * VEC_LANES,
                                  .stride = block->score_stride,
                                  .vecs = round_up(vecs, 2)};
}

static bool tile_settled(const row_block *block, int64_t tile_row) {
  const vec row_max = vec_load_first(block->row_max + tile_row, TILE_ROWS);
  return _mm512_cmp_ps_mask(row_max, vec_set1(-INFINITY), _CMP_EQ_OQ) == 0;
}

/* P of the tile's keys, of which `pending` have P in the same key block already. Returns where it will stand. */
static unseen_keys tile_pairs(const row_block *block, int64_t tile_row, tile_keys keys, int64_t pending, left_over *left) {
  pair_work work = {.panel = {.block = block, .tile_row = tile_row, .settled = tile_settled(block, tile_row)},
                    .q = tile_queries(block, tile_row),
                    .waiting = &left->waiting};
  work.panel.score = block->score + TILE_ROWS * block->score_stride;
  for (int64_t key = keys.first; key < keys.end; key += PANEL_KEYS) {
    work.panel.key = key;
    work.panel.pending = pending + key - keys.first;
    panel_pairs(&work, &keys, left);
    if (!work.panel.settled) work.panel.settled = tile_settled(block, tile_row);
  }
  const int64_t first = round_down(keys.begin, 2);
  return (unseen_keys){block, first, round_up(keys.end, 2), block->score + (pending + first - keys.first) / 2};
}

/* The same for the keys of a key block that are visited; O takes in all of their P at once (flash_visited_tile()). */
static void visited_pairs(const key_visits *visits, int64_t tile_row, int64_t begin, int64_t end, left_over *left) {
  unseen_tile tile = {.row = tile_row};
  int64_t pending = 0;
  for (tile_visit visit = {.next = begin}; next_tile_visit(visits, tile_row, visit.next, end, &visit);) {
    tile.keys[tile.visits++] = tile_pairs(visit.block, tile_row, visit.keys, pending, left);
    pending += round_up(visit.keys.end, PANEL_KEYS) - visit.keys.first;
  }
  if (tile.visits > 0) left->tile = tile;
}

static bool ranges_alike(const row_block *block, int64_t capacity) {
  bool alike = true;
  for (int64_t i = 1; i < capacity; i++)
    alike &= block->range[i].begin == block->range[0].begin && block->range[i].end == block->range[0].end;
  return alike;
}

static bool attend(const attn_schedule *schedule, const row_block *given, int64_t capacity) {
  row_block block = *given;
  left_over left = {.waiting = {.vecs = 0}};
  block.keys = packed_pairs_at(schedule, (void *)(uintptr_t)block.keys.k);
  block.q_stride = pairs(block.problem->dim_qk);
  if (!block.direct) pack_queries(&block, 0, capacity);
  const attn_key_range keys = keys_of_block(&block);
  const bool alike = !selects_keys(block.problem) && ranges_alike(&block, capacity), listed = visits_blocks(block.problem);
  const bool by_tile = block.first_try && !listed && !attn_uses(block.problem, ATTN_USE_STATE); /* rows are finished */
  key_visits visits;
  if (listed) start_visits(&block, &visits);
  tile_keys tile;
  for (int64_t key = keys.begin / schedule->key_block * schedule->key_block; key < keys.end; key += schedule->key_block) {
    const int64_t end = min64(key + schedule->key_block, keys.end);
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS) {
      if (listed) {
        visited_pairs(&visits, tile_row, key, end, &left);
        continue;
      }
      if (tile_row == 0 || !alike) tile = keys_of_tile(&block, tile_row, key, end);
      const bool last = by_tile && end == keys.end;
      if (tile.class == TILE_SKIP) {
        if (last) finish_left_over(&left); /* which may be of these rows */
        left.failed |= last && !finish_rows_of_tile(&block, tile_row);
        continue;
      }
      const unseen_keys unseen = tile_pairs(&block, tile_row, tile, 0, &left);
      left.tile = (unseen_tile){.row = tile_row, .visits = 1, .last = last, .keys = {unseen}};
    }
  }
  finish_left_over(&left);
  return by_tile && keys.begin < keys.end ? !left.failed : finish_rows(&block);
}

static NO_INLINE void run_tiles(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                void *scratch) {
  const tiled_algorithm flash = {.attend = attend, .direct = keys_at_once(schedule), .own_queries = true};
  run_phase(schedule, args, task, unit_memory, scratch, pack, &flash);
}

extern few_run_function attn_flash_few_avx512bf16;

static void flash_avx512bf16_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                 void *scratch) {
  if (!ran_few(attn_flash_few_avx512bf16, schedule, args, task, scratch))
    run_tiles(schedule, args, task, unit_memory, scratch);
}

const attn_kernel attn_flash_avx512bf16 = {
    .info = {.name = "flash_avx512bf16",
             .algorithm = "flash",
             .isa = "avx512bf16",
             .library = "",
             .summary = "flash attention on bf16 inputs by VDPBF16PS, P rounded to bf16; tiles of 6 rows, 16 pairs wide",
             .numerics = {.exp_error = 0x1p-15, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .steady = true,
    .key_blocks = true,
    .rejects = takes_bf16,
    .plan = flash_avx512bf16_plan,
    .terms = ANY_ROWS_KERNEL_TERMS,
    .run = flash_avx512bf16_run,
};
