/* SPDX-License-Identifier: MIT */
/* flash: streaming softmax over key blocks (Milakov & Gimelshein 2018, https://arxiv.org/abs/1805.02867; Dao et al. 2022,
 * https://arxiv.org/abs/2205.14135). The score matrix never exists: one tile of S at a time, TILE_ROWS x key_block, stays in
 * L1 from its product to its use.
 *
 * Where all keys lie in one key block, each tile of rows is computed from Q to O before the next, and its sums never leave
 * the registers.
 *
 * Loop order: a task holds up to FLASH_ROWS query rows, or MOST_FLASH_ROWS where keys are far; all their tiles read a key
 * block from L2 before the next block comes.
 *
 * Parameters: those of tiles.h. */
#ifndef ATTN_COMMON_FLASH_H
#define ATTN_COMMON_FLASH_H

#include <float.h>

#include "cold_lines.h"
#include "key_blocks.h"
#include "streaming_softmax.h"
#include "two_phase.h"

/* ---- score_softmax_tile: P straight from the registers that S was summed in ---- */

/* The panel from key `key` on of the tile at tile_row. */
typedef struct panel_work {
  const row_block *block;
  int64_t tile_row, key;
  float *score;    /* score[i][0] belongs to `key` */
  int64_t pending; /* P of the tile's panels so far, which acc has not seen yet; they end at `score` */
  bool settled;    /* every row has a reference */
  bool fresh;      /* none has one, and none of the rows has a sum */
} panel_work;

/* Prefetches bias and mask of the panel's keys for row i of the next tile. Rows lie far apart: their first lines would come
 * one latency after the other. */
static ALWAYS_INLINE void prefetch_shift(const panel_work w, const uint32_t uses, int64_t i) {
  const row_block *block = w.block;
  const int64_t row = w.tile_row + TILE_ROWS + i;
  if (row >= block->rows) return;
  const shift_row at = shift_row_of(block, uses, row, w.key);
  if (at.mask) __builtin_prefetch(at.mask, 0, 2);
  if (!at.bias) return;
  UNROLL
  for (int64_t j = 0; j < PANEL_KEYS; j += LINE_BYTES / 4) /* maybe beyond the array: no pointer to there */
    __builtin_prefetch((const void *)((uintptr_t)at.bias + (uintptr_t)j * sizeof(float)), 0, 2);
}

/* sum = Q K^T + shift - reference. The last two are the sums' starting value, so that the reference costs nothing.
 * `prefetches`: the next tile's shifts are prefetched on the way, row by row. All at once they would take every buffer for
 * misses of level 1, and the product, which reads K from level 2, would wait for memory. */
static ALWAYS_INLINE void relative_scores(const panel_work w, vec sum[TILE_ROWS][TILE_VECS], const uint32_t uses,
                                          const shift_row *shift, const bool prefetches, const int vecs) {
  const row_block *block = w.block;
  const int64_t dim_qk = block->problem->dim_qk, panel = round_down(w.key, PANEL_KEYS);
  const float *reference = block->row_max + w.tile_row;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    const bool settled = !shift && w.settled; /* with shift a test costs more than it saves */
    const vec start = vec_set1(settled ? -reference[i] : reference[i] == -INFINITY ? 0.0f : -reference[i]);
    UNROLL
    for (int v = 0; v < vecs; v++)
      sum[i][v] = shift ? vec_add(shift_at(block, uses, &shift[i], w.tile_row + i, w.key, v), start) : start;
  }
  const float_rows q = {block->q + w.tile_row * block->q_stride, block->q_stride};
  const float_rows k = {block->keys.k + panel * dim_qk + (w.key - panel), PANEL_KEYS};
  if (!prefetches) {
    product(sum, q, k, dim_qk, vecs);
    return;
  }
  int64_t d = 0;
  NO_UNROLL
  for (int i = 1; i <= TILE_ROWS; i++) {
    const int64_t end = i < TILE_ROWS ? round_down(dim_qk * i / TILE_ROWS, 4) : dim_qk; /* products take 4 steps at once */
    prefetch_shift(w, uses, i - 1);
    product(sum, (float_rows){q.at + d, q.stride}, (float_rows){k.at + d * k.stride, k.stride}, end - d, vecs);
    d = end;
  }
}

/* The largest of a row's scores. */
static ALWAYS_INLINE float largest_of(const vec *sum, const int vecs) {
  vec best = vec_set1(-INFINITY);
  UNROLL
  for (int v = 0; v < vecs; v++) best = vec_max(sum[v], best);
  return vec_reduce_max(best);
}

/* Gives rows that have seen no allowed key yet the largest score of this panel as their reference, and subtracts it from
 * their scores. True if all rows got one: then no score is above 0. */
static ALWAYS_INLINE bool settle_rows(const row_block *block, int64_t tile_row, vec sum[TILE_ROWS][TILE_VECS],
                                      const int vecs) {
  bool all = true;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    const float largest = largest_of(sum[i], vecs);
    const bool settled = block->row_max[tile_row + i] > -INFINITY;
    all &= !settled;
    if (settled || largest == -INFINITY) continue;
    const float reference = REFERENCE_ABOVE(largest);
    block->row_max[tile_row + i] = reference;
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_sub(sum[i][v], vec_set1(reference));
  }
  return all;
}

/* The same where no row has a reference or a sum yet. True if all rows got a reference; no score is above 0 in any case. */
static ALWAYS_INLINE bool settle_fresh_rows(const row_block *block, int64_t tile_row, vec sum[TILE_ROWS][TILE_VECS],
                                            const int vecs) {
  float *reference = block->row_max + tile_row;
  bool all = true;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    reference[i] = REFERENCE_ABOVE(largest_of(sum[i], vecs));
    all &= reference[i] > -INFINITY;
    const vec step = vec_set1(reference[i] > -FLT_MAX ? reference[i] : -FLT_MAX); /* -inf stays so */
    UNROLL
    for (int v = 0; v < vecs; v++) sum[i][v] = vec_sub(sum[i][v], step);
  }
  return all;
}

static ALWAYS_INLINE bool some_above(vec sum[TILE_ROWS][TILE_VECS], float limit, const int vecs) {
  vec largest[2] = {vec_set1(-INFINITY), vec_set1(-INFINITY)}; /* not sums: a NaN would hide what others have in its lane */
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; v < vecs; v++) largest[i % 2] = vec_max(sum[i][v], largest[i % 2]);
  }
  return vec_any_above(vec_max(largest[0], largest[1]), limit);
}

/* P and row_sum from a panel's sums: in registers, or through memory where a row may lack its reference or outgrow it.
 * `bounded`: no score is above its reference. */
static ALWAYS_INLINE void softmax_sums(const panel_work w, vec sum[TILE_ROWS][TILE_VECS], const bool in_registers,
                                       bool bounded, const int vecs) {
  const row_block *block = w.block;
  if (!in_registers || (!bounded && some_above(sum, RESCALE_AT, vecs))) {
    store_tile(sum, w.score, block->score_stride, vecs);
    softmax_panel(block, w.tile_row, w.key, w.score, w.pending, vecs);
    return;
  }
  float *row_sum = block->row_sum + w.tile_row * VEC_LANES; /* found once: stores of floats could change what block holds */
  const int64_t stride = block->score_stride;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    float *sum_of_row = row_sum + i * VEC_LANES;
    vec_store(sum_of_row, exponentials(sum[i], w.score + i * stride, vec_load(sum_of_row), vecs));
  }
}

static bool rows_settled(const row_block *block, int64_t tile_row) {
  bool settled = true;
  for (int i = 0; i < TILE_ROWS; i++) settled &= block->row_max[tile_row + i] > -INFINITY;
  return settled;
}

/* Terms that are added to scores: none, all that the problem uses, or, where keys lie side by side and every row may see all
 * of the panel, a bias alone or a mask alone. */
typedef enum panel_shift { UNSHIFTED, SHIFTED, BIASED, MASKED } panel_shift;

/* Which rows see all of a panel: all, those whose ranges do not end in it, or others. */
typedef enum panel_edge { WHOLE, ENDING, RAGGED } panel_edge;

/* The first `vecs` vectors of the panel. True if every row has a reference afterwards. */
static ALWAYS_INLINE bool dot_panel(const panel_work w, const panel_shift kind, const panel_edge edge, const int vecs) {
  const row_block *block = w.block;
  const uint32_t uses = kind == BIASED ? ATTN_USE_BIAS : kind == MASKED ? ATTN_USE_MASK : block->problem->uses;
  vec sum[TILE_ROWS][TILE_VECS];
  shift_row shift[TILE_ROWS];
  for (int i = 0; kind != UNSHIFTED && i < TILE_ROWS; i++) {
    shift[i] = shift_row_of(block, uses, w.tile_row + i, w.key);
    if (kind != SHIFTED) shift[i].dense = true;
  }
  relative_scores(w, sum, uses, kind != UNSHIFTED ? shift : NULL, kind == BIASED || kind == MASKED, vecs);
  const attn_key_range *range = block->range + w.tile_row;
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int v = 0; kind != UNSHIFTED && v < vecs; v++)
      sum[i][v] = select_at(block, uses, &shift[i], w.tile_row + i, w.key, v, sum[i][v]);
    if (edge != WHOLE) select_allowed_of(range[i], w.key, sum[i], edge == ENDING, vecs);
  }
  if (kind == UNSHIFTED && w.fresh) {
    const bool settled = settle_fresh_rows(block, w.tile_row, sum, vecs);
    softmax_sums(w, sum, true, true, vecs);
    return settled;
  }
  const bool bounded = !w.settled && settle_rows(block, w.tile_row, sum, vecs);
  softmax_sums(w, sum, true, bounded, vecs);
  return w.settled || rows_settled(block, w.tile_row);
}

/* The cases of dot_panel. Each is a function of its own, because they would compete for registers if they were inlined into
 * one. */
static NO_INLINE bool full_panel(const panel_work *w) { return dot_panel(*w, UNSHIFTED, WHOLE, TILE_VECS); }

static NO_INLINE bool biased_panel(const panel_work *w) { return dot_panel(*w, BIASED, WHOLE, TILE_VECS); }

static NO_INLINE bool masked_panel(const panel_work *w) { return dot_panel(*w, MASKED, WHOLE, TILE_VECS); }

static NO_INLINE bool shifted_panel(const panel_work *w) { return dot_panel(*w, SHIFTED, RAGGED, TILE_VECS); }

static NO_INLINE bool ending_panel(const panel_work *w, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, return dot_panel, *w, UNSHIFTED, ENDING)
  return false; /* not reached */
}

static NO_INLINE bool ragged_panel(const panel_work *w, int64_t vecs) {
  WITH_CONSTANT_VECS(vecs, return dot_panel, *w, UNSHIFTED, RAGGED)
  return false; /* not reached */
}

/* A panel with a bias, ALiBi or a mask; `full`: every row may see all of it. */
static bool any_shifted_panel(const panel_work *w, bool full) {
  const attn_problem *p = w->block->problem;
  const uint32_t uses = p->uses & SCORE_SHIFTS;
  if (full && uses == ATTN_USE_BIAS && p->bias_stride.k == 1) return biased_panel(w);
  if (full && uses == ATTN_USE_MASK && p->mask_stride.k == 1 && w->key >= attn_first_masked(p, w->block->seq->len_k))
    return masked_panel(w);
  const bool prefetches = (uses & (ATTN_USE_BIAS | ATTN_USE_MASK)) && shifts_side_by_side(p);
  for (int i = 0; prefetches && i < TILE_ROWS; i++) prefetch_shift(*w, uses, i);
  return shifted_panel(w);
}

/* A panel whose scores are other similarities or pass through a softcap (scores.h); the reference comes off after that. */
static bool adjusted_panel(const panel_work *w) {
  if (w->block->problem->score == ATTN_SCORE_DOT)
    score_panel(w->block, w->tile_row, w->key, w->score, TILE_VECS);
  else
    other_panel(w->block, w->tile_row, w->key, w->score);
  softmax_panel(w->block, w->tile_row, w->key, w->score, w->pending, TILE_VECS);
  return rows_settled(w->block, w->tile_row);
}

/* The key of a tile's first score: panels go from border to border, but the first starts at the first vector with a key, and
 * the last ends with the last such vector, so that a narrow window costs little more than its keys. */
static int64_t first_score(const row_block *block, tile_keys keys) {
  return block->adjusted ? keys.first : round_down(keys.begin, VEC_LANES);
}

/* P of the tile's keys, relative to each row's reference; score[i][j - first_score]. P of `pending` keys of the same key
 * block stands before them. */
static void score_softmax_tile(const row_block *block, int64_t tile_row, tile_keys keys, float *score, int64_t pending,
                               cold_lines *cold) {
  const int64_t first = first_score(block, keys);
  panel_work w = {.block = block, .tile_row = tile_row, .fresh = block->direct};
  if (!block->direct) w.settled = rows_settled(block, tile_row);
  for (int64_t key = first, next; key < keys.end; key = next) {
    next = round_down(key, PANEL_KEYS) + PANEL_KEYS;
    w.key = key;
    w.score = score + (key - first);
    w.pending = pending + (key - first);
    prefetch_cold_lines(cold);
    const bool full = key + PANEL_KEYS == next && keys.all_begin <= key && next <= keys.all_end;
    const int64_t vecs = ceil_div(min64(keys.end, next) - key, VEC_LANES);
    if (block->shifted)
      w.settled = any_shifted_panel(&w, full);
    else if (block->adjusted)
      w.settled = adjusted_panel(&w);
    else if (full)
      w.settled = full_panel(&w);
    else
      w.settled = (keys.all_begin <= key ? ending_panel : ragged_panel)(&w, vecs);
    w.fresh = false;
  }
}

/* ---- Blocks and tasks ---- */

enum {
  FLASH_ROWS = 96,      /* 16 tiles reuse a key block: L2 traffic is 1/16 of a tile's; q and acc still fit L2 beside it */
  FLASH_SCORE_PAD = 16, /* floats between rows of S: breaks up powers of two, which would share L1 sets */
  MOST_FLASH_ROWS = 4 * FLASH_ROWS
};

/* Fixed by the dimensions alone, because key borders decide when a row rescales: K and V of a block take at most half of a
 * 512 KiB L2, and a tile of S at most 8 KiB of L1. */
static int64_t flash_key_block(const attn_problem *p) {
  const int64_t dims = p->dim_qk + p->dim_v;
  return WHOLE_PANELS(dims <= 256 ? 256 : dims <= 512 ? 128 : 64);
}

/* Rows of the busiest of `threads` threads if `heads` heads of seq_q rows are cut into blocks of `rows`: its share of the
 * whole blocks, rounded up, and its share of the smaller last blocks, less those that threads with one whole block less can
 * take. Each task costs `lost` rows more. */
static int64_t busiest_rows(int64_t seq_q, int64_t rows, int64_t heads, int64_t threads, int64_t lost) {
  const int64_t whole = heads * (seq_q / rows), rest = seq_q % rows, small = rest ? heads : 0;
  const int64_t share = (whole + threads - 1) / threads, idle = share * threads - whole;
  const int64_t beside = rest ? min64(small, idle * (rows / rest)) : 0;
  return share * (rows + lost) + (small - beside + threads - 1) / threads * (rest + lost);
}

/* The same where rows see from no to all keys: the longest and the shortest tasks make up for each other, so half the rows
 * count, but never less than the longest. */
static int64_t busiest_causal_rows(int64_t seq_q, int64_t rows, int64_t heads, int64_t threads, int64_t lost) {
  return max64(rows + lost, ceil_div(heads * (seq_q / 2 + ceil_div(seq_q, rows) * lost), threads));
}

/* Whether K and V of a head come from beyond level 2 for every task. */
static bool keys_are_far(const attn_problem *p, const attn_machine *machine) {
  return p->window_left < 0 && p->seq_k >= machine->caches().level2 / float_bytes(p->dim_qk + p->dim_v);
}

/* Rows of a task. Where keys are far, up to MOST_FLASH_ROWS rows use them: as many as keep q and acc in three sixteenths of
 * level 2. */
static int64_t usual_rows(const attn_problem *p, const attn_machine *machine) {
  const int64_t row_bytes = float_bytes(p->dim_qk + p->dim_v), level2 = machine->caches().level2;
  if (!keys_are_far(p, machine)) return FLASH_ROWS;
  return min64(MOST_FLASH_ROWS, max64(1, level2 / 16 * 3 / row_bytes / FLASH_ROWS) * FLASH_ROWS);
}

/* The most rows that never belong to two lists of key blocks. */
static int64_t listed_rows(const attn_problem *p) {
  int64_t rows = min64(p->block_queries, MOST_LISTED_ROWS);
  while (p->block_queries % rows) rows--;
  return min64(rows, round_up(max64(p->seq_q, 1), TILE_ROWS));
}

/* The usual number, or fewer if a thread would be idle at the end: for short sequences with few heads, or many threads. Far
 * keys take a task about as long as the products of a tile of rows. */
static int64_t flash_rows(const attn_problem *p, const attn_machine *machine) {
  const bool far = keys_are_far(p, machine), causal = far && p->window_right >= 0 && 2 * p->seq_q > p->seq_k;
  const int64_t heads = p->batch * p->heads_q, threads = machine->threads, lost = far ? TILE_ROWS : 0;
  const int64_t most = min64(usual_rows(p, machine), round_up(max64(p->seq_q, 1), TILE_ROWS));
  if (threads < 2 || heads * p->seq_q > (far ? 8 * MOST_FLASH_ROWS : 16 * FLASH_ROWS) * threads) return most;
  int64_t best = most, least = INT64_MAX;
  for (int64_t rows = most; rows >= FLASH_ROWS / 4; rows -= TILE_ROWS) {
    const int64_t busiest = (causal ? busiest_causal_rows : busiest_rows)(p->seq_q, rows, heads, threads, lost);
    if (busiest < least) best = rows, least = busiest;
  }
  return best;
}

static inline bool flash_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  const int64_t key_block = flash_key_block(p), rows = attn_lists_keys(p) ? listed_rows(p) : flash_rows(p, machine);
  ((tiled_layout *)(void *)schedule->own)->cold = !fits_level_2(p, machine);
  return plan_tiles(p, rows, key_block, TILE_ROWS, key_block + FLASH_SCORE_PAD, schedule);
}

/* ---- Where a tile's keys lie in one key block: from P to O without acc ---- */

/* Rows that a tile fills: of O, if its values are floats or bfloat16 and lie side by side, else of acc. Where the tile has
 * fewer rows, the others are acc's. */
typedef struct tile_output {
  void *o[TILE_ROWS];
  void *rest[TILE_ROWS];    /* acc's; for the last columns of bfloat16 rows, if these fill no vector */
  bool bf16;                /* else floats */
  bool more;                /* acc holds the sums of earlier keys */
  float inverse[TILE_ROWS]; /* reciprocals of the denominators */
  int64_t columns;
  bool finite; /* all that was stored, in acc too */
} tile_output;

/* The first `count` lanes to row i's columns from `column` on. */
static ALWAYS_INLINE void store_output(const tile_output *out, int i, int64_t column, vec o, int64_t count,
                                       const bool bf16) {
  if (bf16)
    store_numbers_bf16(count == VEC_LANES ? (uint16_t *)out->o[i] + column : out->rest[i], o);
  else if (count == VEC_LANES)
    vec_store((float *)out->o[i] + column, o);
  else
    vec_store_first((float *)out->o[i] + column, o, count);
}

/* The `vecs` vectors of columns from `column` on: the sums of accumulate_columns, divided as by divide_row. Their total is
 * not finite if one of them is not; if it overflows, the second try decides. Additions have pipes of their own on some CPUs.
 */
static ALWAYS_INLINE void output_columns(tile_output *out, const float_rows p, const float_rows v, int64_t keys,
                                         int64_t column, const bool bf16, const int vecs) {
  const int64_t last = min64(out->columns - column - (vecs - 1) * VEC_LANES, VEC_LANES);
  vec sum[TILE_ROWS][TILE_VECS], total = vec_zero();
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int c = 0; c < vecs; c++)
      sum[i][c] = out->more ? vec_load((const float *)out->rest[i] + column + c * VEC_LANES) : vec_zero();
  }
  product(sum, p, v, keys, vecs);
  UNROLL
  for (int i = 0; i < TILE_ROWS; i++) {
    UNROLL
    for (int c = 0; c < vecs; c++) {
      const vec o = vec_fma(sum[i][c], vec_set1(out->inverse[i]), vec_zero());
      store_output(out, i, column + c * VEC_LANES, o, c < vecs - 1 ? VEC_LANES : last, bf16);
      total = vec_add(o, total);
    }
  }
  out->finite &= !vec_any_nan(vec_mul(total, vec_zero())); /* 0 * x is NaN for NaN and Inf */
}

/* finish_row for the tile's rows. */
static bool finish_rows_of_tile(const row_block *block, int64_t tile_row) {
  for (int64_t i = tile_row; i < min64(tile_row + TILE_ROWS, block->rows); i++)
    if (!finish_row(block, i)) return false;
  return true;
}

/* Whether tiles fill rows of O themselves. */
static bool fills_o(const attn_problem *p) {
  return p->o_stride.d == 1 && (p->dtype_o == ATTN_F32 || p->dtype_o == ATTN_BF16);
}

/* False if a row has no P: then its result is no quotient. */
static bool find_output(const row_block *block, int64_t tile_row, tile_output *out) {
  const attn_problem *p = block->problem;
  const int64_t rows = min64(TILE_ROWS, block->rows - tile_row);
  const int64_t first = attn_o_offset(p, block->seq, block->b, block->head, block->first_row + tile_row);
  float *acc = block->acc + tile_row * block->acc_stride;
  const bool in_o = fills_o(p);
  out->bf16 = in_o && p->dtype_o == ATTN_BF16;
  out->more = !block->direct;
  out->columns = p->dim_v;
  out->finite = true;
  for (int64_t i = 0; i < TILE_ROWS; i++) {
    out->inverse[i] = 0.0f;
    out->o[i] = out->rest[i] = acc + i * block->acc_stride;
    if (in_o && i < rows) out->o[i] = (char *)block->args->o + (first + i * p->o_stride.s) * (out->bf16 ? 2 : 4);
    if (i >= rows) continue;
    const float sum = sum_of_row(block, tile_row + i), denominator = denominator_of(block, tile_row + i, sum);
    if (!(sum > 0 && denominator < INFINITY)) return false;
    out->inverse[i] = 1.0f / denominator;
  }
  return true;
}

/* Rows of O from the tile's P of the keys [begin, end). */
static ALWAYS_INLINE void output_as(const row_block *block, tile_output *out, int64_t begin, int64_t end, const float *p,
                                    const bool bf16) {
  const float_rows weights = {p, block->score_stride};
  float_rows v = {block->keys.v + begin * block->keys.v_stride, block->keys.v_stride};
  column_strips strips = strips_of(block->acc_stride);
  for (int64_t done = 0, vecs; (vecs = next_strip(&strips)) > 0; done += vecs) {
    WITH_CONSTANT_VECS(vecs, output_columns, out, weights, v, end - begin, done * VEC_LANES, bf16)
    v.at += vecs * VEC_LANES;
  }
}

static NO_INLINE void output_floats(const row_block *block, tile_output *out, int64_t begin, int64_t end, const float *p) {
  output_as(block, out, begin, end, p, false);
}

/* n values, fewer than a vector: by copies of constant sizes, without calls. */
static ALWAYS_INLINE void copy_rest(uint16_t *to, const uint16_t *from, int64_t n) {
  UNROLL
  for (int size = VEC_LANES / 2; size > 0; size /= 2) {
    if (!(n & size)) continue;
    memcpy(to, from, (size_t)size * sizeof *to);
    to += size, from += size;
  }
}

static NO_INLINE void output_bf16(const row_block *block, tile_output *out, int64_t begin, int64_t end, const float *p) {
  const int64_t rest = out->columns % VEC_LANES;
  output_as(block, out, begin, end, p, true);
  NO_UNROLL
  for (int i = 0; rest > 0 && i < TILE_ROWS; i++)
    if (out->o[i] != out->rest[i]) copy_rest((uint16_t *)out->o[i] + (out->columns - rest), out->rest[i], rest);
}

/* Rows of floats: a NaN that is stored as bfloat16 may become a number (store_numbers_bf16). */
static bool rows_are_finite(const tile_output *out, int64_t rows) {
  float poison = 0.0f;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t d = 0; d < out->columns; d++) poison += 0.0f * ((const float *)out->o[i])[d];
  return poison == 0.0f;
}

/* O and LSE of the tile's rows from their P of the keys [begin, end), which are their last. False as finish_row. */
static bool finish_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, const float *p) {
  tile_output out;
  if (!find_output(block, tile_row, &out)) {
    if (block->direct)
      memset(block->acc + tile_row * block->acc_stride, 0, (size_t)(TILE_ROWS * block->acc_stride) * sizeof(float));
    accumulate_tile(block, tile_row, begin, end, p);
    return finish_rows_of_tile(block, tile_row);
  }
  (out.bf16 ? output_bf16 : output_floats)(block, &out, begin, end, p);
  const int64_t rows = min64(TILE_ROWS, block->rows - tile_row);
  for (int64_t i = 0; !fills_o(block->problem) && i < rows; i++) store_row(block, tile_row + i, out.o[i]);
  for (int64_t i = 0; attn_uses(block->problem, ATTN_USE_LSE) && i < rows; i++)
    store_lse_of_sum(block, tile_row + i, sum_of_row(block, tile_row + i));
  return out.finite || (rows < TILE_ROWS && !out.bf16 && rows_are_finite(&out, rows));
}

/* ---- The loop ---- */

static bool flash_tile(const row_block *block, int64_t tile_row, int64_t begin, int64_t end, cold_lines *cold) {
  const tile_keys keys = keys_of_tile(block, tile_row, begin, end);
  if (keys.class == TILE_SKIP) return !block->direct || finish_rows_of_tile(block, tile_row);
  float *p = block->score + (keys.begin - keys.first);
  score_softmax_tile(block, tile_row, keys, block->score + (first_score(block, keys) - keys.first), 0, cold);
  if (block->dropout) drop_tile(block, tile_row, keys.begin, keys.end, p);
  if (block->direct) return finish_tile(block, tile_row, keys.begin, keys.end, p);
  accumulate_tile(block, tile_row, keys.begin, keys.end, p);
  return true;
}

/* The same for the keys of a key block that are visited. O takes in all of their P at once, as it does without lists: where
 * a later visit moves a reference, P of earlier ones is rescaled, not their share of O. */
static void flash_visited_tile(const key_visits *visits, int64_t tile_row, int64_t begin, int64_t end, cold_lines *cold) {
  struct {
    tile_visit visit;
    float *p;
  } scored[MOST_VISITS];
  int count = 0;
  int64_t pending = 0;
  for (tile_visit visit = {.next = begin}; next_tile_visit(visits, tile_row, visit.next, end, &visit);) {
    float *score = visit.block->score + pending;
    const int64_t first = first_score(visit.block, visit.keys);
    score_softmax_tile(visit.block, tile_row, visit.keys, score, pending, cold);
    scored[count].visit = visit;
    scored[count++].p = score + (visit.keys.begin - first);
    pending += round_up(visit.keys.end, VEC_LANES) - first;
  }
  for (int i = 0; i < count; i++) {
    const tile_visit *visit = &scored[i].visit;
    if (visit->block->dropout) drop_tile(visit->block, tile_row, visit->keys.begin, visit->keys.end, scored[i].p);
    accumulate_tile(visit->block, tile_row, visit->keys.begin, visit->keys.end, scored[i].p);
  }
}

enum { ROWS_AT_ONCE = 4 * TILE_ROWS /* rows whose queries are loaded together, which stay in level 1 */ };

static bool flash_attend(const attn_schedule *schedule, const row_block *block, int64_t capacity) {
  const attn_key_range keys = keys_of_block(block);
  cold_lines cold = cold_lines_of(schedule, block, tiled_layout_in(schedule)->cold);
  const bool listed = visits_blocks(block->problem);
  key_visits visits;
  if (listed) start_visits(block, &visits);
  for (int64_t key = keys.begin / schedule->key_block * schedule->key_block; key < keys.end; key += schedule->key_block) {
    const int64_t end = min64(key + schedule->key_block, keys.end);
    if (listed && next_visit(&visits, key, end).begin >= end) continue;
    if (listed) start_key_block(&visits, key, end);
    for (int64_t tile_row = 0; tile_row < capacity; tile_row += TILE_ROWS) {
      if (block->direct && tile_row % ROWS_AT_ONCE == 0)
        load_queries(block, tile_row, min64(tile_row + ROWS_AT_ONCE, capacity));
      if (listed)
        flash_visited_tile(&visits, tile_row, key, end, &cold);
      else if (!flash_tile(block, tile_row, key, end, &cold))
        return false;
    }
  }
  return (block->direct && keys.begin < keys.end) || finish_rows(block);
}

/* Whether each tile sees all of its keys in one key block, so that O need not wait for others. */
static inline bool keys_at_once(const attn_schedule *schedule) {
  const attn_problem *p = &schedule->problem;
  return p->seq_k <= schedule->key_block && !attn_uses(p, ATTN_USE_STATE) && !visits_blocks(p);
}

static NO_INLINE void flash_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                void *scratch) {
  const attn_problem *p = &schedule->problem;
  const bool one_run = !attn_uses(p, ATTN_USE_PAGES) || !v_in_place(p); /* all V that a tile reads */
  const tiled_algorithm flash = {.attend = flash_attend, .direct = one_run && keys_at_once(schedule)};
  run_phase(schedule, args, task, unit_memory, scratch, pack_unit, &flash);
}

#endif
