/* SPDX-License-Identifier: MIT */
/* decode's products on vectors as its tasks call them: rows and keys of a block to the functions of few_rows.def. A tier
 * with products of its own brings the same names, and DECODE_PRODUCTS, before decode.h (few_rows_amx.h).
 *
 * Parameters: those of few_rows.h. */
#ifndef ATTN_COMMON_DECODE_PRODUCTS_H
#define ATTN_COMMON_DECODE_PRODUCTS_H
#define DECODE_PRODUCTS

#include "few_rows.h"
#include "kernels/common/problem/terms.h"
#include "split_keys.h"

/* acc += P V for all columns of the rows, as many vectors at a time as there are registers for their sums: too few sums
 * could not hide the latency of multiply-add. */
static ALWAYS_INLINE void accumulate_keys(const few_rows *t, const few_kind kind) {
  const few_rows left = rows_left(t);
  int64_t column = 0;
  prefetch_lines next = *t->next;
#ifdef ATTN_COMMON_DECODE_WIDE_SUMS_H
  if (DECODE_KNOBS.wide_sums && kind.rows >= DECODE_KNOBS.group_rows) {
    accumulate_wide_vecs(left, &column, kind, 3, 3, &next);
    accumulate_wide_vecs(left, &column, kind, 2, 3 | 2, &next);
    accumulate_wide_vecs(left, &column, kind, 1, 3 | 2 | 1, &next);
    *t->next = next;
    return;
  }
#endif
  accumulate_vecs(left, &column, kind, 16, &next);
  accumulate_vecs(left, &column, kind, 8, &next);
  accumulate_vecs(left, &column, kind, 4, &next);
  accumulate_vecs(left, &column, kind, 2, &next);
  accumulate_vecs(left, &column, kind, 1, &next);
  *t->next = next;
}

/* ---- The functions of few_rows.def ---- */

/* Whether a line is for this tier. */
#define HAS_ROWS(rows, policy, type) \
  ((rows) <= DECODE_KNOBS.tile_rows && ((policy) != PREFETCH_TWICE || DECODE_KNOBS.prefetches_twice) && LANES_TAKE(type))
#define FEW_ROWS(rows, policy, type, scores, sums)                                                                 \
  static NO_INLINE void scores(const few_rows *t) { score_keys(t, (few_kind){rows, ATTN_##type, policy, false}); } \
  static NO_INLINE void sums(const few_rows *t) { accumulate_keys(t, (few_kind){rows, ATTN_##type, policy, false}); }
#include "few_rows.def"
#undef FEW_ROWS

enum {
#define FEW_ROWS(...) +1
  FEW_ROWS_FUNCTIONS = 0
#include "few_rows.def"
#undef FEW_ROWS
};
_Static_assert(FEW_ROWS_FUNCTIONS == 9 * ATTN_FLOAT_COUNT + 5 * (ATTN_DTYPE_COUNT - ATTN_FLOAT_COUNT),
               "few_rows.def has 9 lines for each type, 5 for those of 8 bits");

/* Tells the functions apart. */
#define FEW_KEY(rows, policy, type) (((type)*4 + (policy)) * 16 + (rows))
static int64_t few_key(const few_rows *t, int64_t rows) {
  const prefetch_policy policy = t->next->policy;
  return FEW_KEY(rows, rows > 1 && policy == PREFETCH_NONE ? PREFETCH_ONCE : policy, (int64_t)t->keys.from.dtype);
}

static void score_by_rows(const few_rows *t, int64_t rows) {
  switch (few_key(t, rows)) {
#define FEW_ROWS(count, policy, type, scores, sums)      \
  case FEW_KEY(count, policy, ATTN_##type):              \
    if (HAS_ROWS(count, policy, ATTN_##type)) scores(t); \
    break;
#include "few_rows.def"
#undef FEW_ROWS
    default: assert(false);
  }
}

static void accumulate_by_rows(const few_rows *t, int64_t rows) {
  switch (few_key(t, rows)) {
#define FEW_ROWS(count, policy, type, scores, sums)    \
  case FEW_KEY(count, policy, ATTN_##type):            \
    if (HAS_ROWS(count, policy, ATTN_##type)) sums(t); \
    break;
#include "few_rows.def"
#undef FEW_ROWS
    default: assert(false);
  }
}

/* Calls one of these for all `rows` rows. `read`: other rows have already read the keys. */
static ALWAYS_INLINE void for_few_rows(void (*const call)(const few_rows *, int64_t), few_rows *t, int64_t rows, bool read) {
  prefetch_lines none; /* not initialised before it is needed: that would take 10 ns of every call */
  for (int64_t step; t->row < rows; t->row += step, read = true) {
    step = rows_at_once(rows - t->row);
    if (read) {
      none = (prefetch_lines){.policy = PREFETCH_NONE};
      t->next = &none;
    }
    call(t, step);
  }
}

/* ---- What tasks call ---- */

/* A thread's memory for products, and the block of keys at work. */
typedef struct products {
  float *q_tiles, *v_copy;
  key_rows k, v; /* rows of the keys from `begin` on that lie in one run, or a copy of V of all keys */
  prefetch_lines next;
  int64_t begin, end;
  int64_t behind; /* a block of keys that comes soon, maybe beyond the last, or -1; here for other products */
  bool picks;     /* V of a key is read only for rows that may see it */
  prefetch_policy policy;
  bool nearer; /* distances of prefetch_of() */
  float factor;
} products;

/* Offsets in bytes, and the size; how a single row, and several, prefetch K and V. */
typedef struct products_layout {
  int64_t q_tiles, v, total;
  prefetch_policy one_row, more_rows;
  bool nearer; /* distances of prefetch_of() */
} products_layout;

static int64_t decode_capacity(int64_t rows) { return round_up(rows, DECODE_KNOBS.tile_rows); }
static int64_t decode_columns(const attn_problem *p) { return round_up(p->dim_v, VEC_VALUES); }

/* Bytes of a key and its value. */
static int64_t key_bytes_of(const attn_problem *p) { return attn_elements_bytes(p->dtype_kv, p->dim_qk + p->dim_v); }

/* How K and V of a call are prefetched. Twice where the CPU drops prefetches, if K and V are too large to be in a cache and
 * have no gaps between rows. Not at all where a single row reads K and V in their order, level 3 may hold them and the CPU
 * fetches such lines by itself. On such CPUs, rows of 16-bit values without gaps or pages need none beyond level 3, either;
 * float32 does, and pairs do, which meet V of two keys side by side. */
static prefetch_policy policy_of(const attn_problem *p, const attn_prefetch *cpu, bool one_row) {
  const bool dense = p->k_stride.s == p->dim_qk && p->v_stride.s == p->dim_v;
  const double bytes = (double)(p->batch * p->heads_kv) * (double)p->seq_k * (double)key_bytes_of(p);
  const bool drops = attn_dtype_is_float(p->dtype_kv) && cpu->twice_beyond > 0 && bytes > cpu->twice_beyond;
  if (DECODE_KNOBS.prefetches_twice && dense && drops) return PREFETCH_TWICE;
  const bool narrow = dense && LANE_VALUES == 1 && p->dtype_kv != ATTN_F32 && !attn_uses(p, ATTN_USE_PAGES);
  const bool fetched = bytes <= cpu->none_up_to || (narrow && cpu->none_up_to > 0);
  return one_row && fetched ? PREFETCH_NONE : PREFETCH_ONCE;
}

/* Lines that are prefetched twice: two blocks exceed level 1, and one leaves a third of it free. */
static bool prefetches_nearer(const attn_problem *p, attn_caches cpu) {
  const int64_t share = cpu.level1 / DECODE_KEYS, bytes = key_bytes_of(p);
  return bytes > share / 2 && bytes <= share / 3 * 2;
}

static bool products_layout_of(const attn_problem *p, const attn_machine *machine, int64_t capacity, products_layout *at) {
  const memory_part parts[] = {{&at->q_tiles, capacity, float_bytes(lanes_of(p->dim_qk))},
                               {&at->v, DECODE_KEYS, float_bytes(lanes_of(p->dim_v))}};
  const attn_prefetch cpu = machine->prefetch();
  at->one_row = policy_of(p, &cpu, true);
  at->more_rows = policy_of(p, &cpu, false);
  at->nearer = at->more_rows == PREFETCH_TWICE && prefetches_nearer(p, machine->caches());
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

/* Called once the block's queries are loaded. */
static products start_products(const row_block *block, const products_layout *at, void *memory) {
  const products work = {.q_tiles = floats_at(memory, at->q_tiles),
                         .v_copy = floats_at(memory, at->v),
                         .policy = block->rows == 1 ? at->one_row : at->more_rows,
                         .nearer = at->nearer,
                         .factor = score_factor(block->problem)};
  tile_queries(block, work.q_tiles);
  return work;
}

/* Where the key's run ends, or the block. */
static ALWAYS_INLINE int64_t end_of_run(const products *work, const row_block *block, int64_t key) {
  return min64(work->end, key + attn_run_keys(block->problem, block->seq, key));
}

static attn_key_run run_from(const row_block *block, int64_t key) {
  return attn_key_run_at(block->problem, block->args, block->seq, block->head, key);
}

static key_rows k_rows_of(const row_block *block, attn_key_run run) {
  return (key_rows){attn_k_storage(block->problem, block->args), run.k, block->problem->k_stride.s};
}

static key_rows v_rows_of(const row_block *block, attn_key_run run) {
  return (key_rows){attn_v_storage(block->problem, block->args), run.v, block->problem->v_stride.s};
}

/* Copies V of the block's keys to rows of whole vectors, with zeros for keys that `row` may not see, unless that is
 * negative. */
static key_rows copy_values(const products *work, const row_block *block, int64_t row) {
  const int64_t columns = block->acc_stride, dim_v = block->problem->dim_v;
  float *to = work->v_copy;
  for (int64_t key = work->begin, end; key < work->end; key = end) {
    key_rows v = key == work->begin ? work->v : v_rows_of(block, run_from(block, key));
    end = end_of_run(work, block, key);
    for (int64_t j = key; j < end; j++, v.first += v.stride) {
      const bool used = row < 0 || row_sees(block, row, j);
      for (int64_t c = 0; c < columns; c += VEC_VALUES, to += VEC_LANES)
        vec_store(to, load_row_lanes(v.from, v.first, c, used ? min64(dim_v - c, VEC_VALUES) : 0));
    }
  }
  return (key_rows){{work->v_copy, LANE_VALUES == 1 ? ATTN_F32 : work->v.from.dtype}, 0, columns};
}

/* Before the rows of a block meet the keys [begin, end). `picks`: V of keys that a row may not see must not touch it. */
static void take_keys(products *work, const row_block *block, int64_t begin, int64_t end, bool picks) {
  const attn_problem *p = block->problem;
  work->begin = begin;
  work->end = end;
  work->picks = picks;
  const attn_key_run run = run_from(block, begin);
  work->k = k_rows_of(block, run);
  work->v = v_rows_of(block, run);
  work->next =
      prefetch_of(block_lines(work->k, p->dim_qk), block_lines(work->v, p->dim_v), DECODE_KEYS, work->policy, work->nearer);
  const bool whole = LOADS_PARTS_OF(p->dtype_kv) || p->dim_v % VEC_VALUES == 0;
  if (!whole && !picks) work->v = copy_values(work, block, -1);
}

/* The keys [begin, end), whose rows are `keys`. */
static few_rows few_rows_of(products *work, const row_block *block, int64_t tile_row, key_rows keys, int64_t begin,
                            int64_t end) {
  return (few_rows){.keys = keys,
                    .next = &work->next,
                    .count = end - begin,
                    .lanes = ceil_div(end, LANE_VALUES) - begin / LANE_VALUES,
                    .before = begin % LANE_VALUES,
                    .factor = work->factor,
                    .q = work->q_tiles + tile_row * lanes_of(block->problem->dim_qk),
                    .score = block->score + begin % DECODE_KEYS,
                    .acc = block->acc + tile_row * block->acc_stride,
                    .dim_qk = block->problem->dim_qk,
                    .acc_stride = block->acc_stride,
                    .columns = keys.from.data == work->v_copy ? block->acc_stride : block->problem->dim_v};
}

/* S of `rows` rows from tile_row on, to block->score. */
static void score_rows(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  for (int64_t key = work->begin, end; key < work->end; key = end) {
    end = end_of_run(work, block, key);
    const key_rows k = key == work->begin ? work->k : k_rows_of(block, run_from(block, key));
    few_rows tile = few_rows_of(work, block, tile_row, k, key, end);
    for_few_rows(score_by_rows, &tile, rows, tile_row > 0);
  }
}

/* acc += P V for the same rows. Where V of single keys counts, each row reads a copy of its own. */
static void accumulate_rows(products *work, const row_block *block, int64_t tile_row, int64_t rows) {
  const int64_t first = work->begin % DECODE_KEYS, step = work->picks ? 1 : rows;
  for (int64_t i = 0; i < rows; i++) join_weights(block->score + i * DECODE_SCORE_STRIDE, first + work->end - work->begin);
  for (int64_t i = 0; i < rows; i += step)
    for (int64_t key = work->begin, end; key < work->end; key = end) {
      const key_rows v = work->picks         ? copy_values(work, block, tile_row + i)
                         : key > work->begin ? v_rows_of(block, run_from(block, key))
                                             : work->v;
      const bool copied = v.from.data == work->v_copy;
      end = copied ? work->end : end_of_run(work, block, key);
      few_rows tile = few_rows_of(work, block, tile_row + i, v, key, end);
      tile.score = block->score + i * DECODE_SCORE_STRIDE + key % DECODE_KEYS / LANE_VALUES;
      for_few_rows(accumulate_by_rows, &tile, step, tile_row > 0 || copied);
    }
}

/* After a split's last block: puts the columns of acc in their order. */
static void end_products(const products *work, const row_block *block) {
  (void)work;
  for (int64_t i = 0; i < block->rows; i++)
    for (int64_t c = 0; c < block->acc_stride; c += VEC_VALUES) order_columns(block->acc + i * block->acc_stride + c);
}

/* ---- Their time ---- */

static inline void decode_terms_of(const attn_problem *p, double *terms) {
  const decode_walk walk = {{VEC_LANES, VEC_VALUES}, DECODE_SUMS, (double)split_count(p), MOST_STREAM_ROWS};
  attn_decode_terms(p, &walk, terms);
}

#define DECODE_KERNEL_TERMS \
  { DECODE_TERM_COUNT, attn_decode_term_names, decode_terms_of }

#endif
