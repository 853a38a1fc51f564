/* SPDX-License-Identifier: MIT */
/* flash for a few query rows of a KV head: the bits of flash.h, but K and V are read where they lie, once for all rows.
 *
 * Each score and each element of O is the same chain of sums as in a tile. References move at the same panels, and P and V
 * are multiplied by the same key blocks. Keys are transposed in registers, VEC_LANES at a time: a score is one chain over
 * the head dimension.
 *
 * Each tier compiles this in a file of its own: with more callers, compilers would inline other functions into the loops of
 * flash.h.
 *
 * Parameters: those of streaming_softmax.h; few_lanes.h, or a header with the same names that is included before. */
#ifndef ATTN_COMMON_FLASH_FEW_H
#define ATTN_COMMON_FLASH_FEW_H

#include "flash_few_plan.h"
#include "kernels/common/memory/prefetch.h"
#include "key_blocks.h"
#ifndef FEW_DTYPES
#include "few_lanes.h"
#endif

enum { VALUES = VEC_LANES * FEW_VALUES /* in a vector */ };

/* Lines that are next. Keys are read VEC_LANES side by side, and V in parts of rows where there are several; but memory is
 * read fastest in its own order. So while some keys are computed, the lines of the next ones are loaded in that order, and
 * lines that are LEAST_DISTANCE further prefetched into level 2. */
typedef struct line_touch {
  const char *at;
  int64_t lines, left, row; /* lines to come, of this row of K or V, and of a whole one */
  int64_t gap;              /* bytes from the end of a row to the next one */
  int64_t far;              /* bytes to the line that is prefetched; 0: none */
} line_touch;

/* The lines of `keys` rows of `dim` elements, `stride` apart. */
static ALWAYS_INLINE line_touch touch_of(attn_storage from, int64_t at, int64_t stride, int64_t keys, int64_t dim,
                                         int64_t far) {
  const int64_t bytes = attn_elements_bytes(from.dtype, dim), row = ceil_div(bytes, LINE_BYTES);
  const int64_t step = attn_elements_bytes(from.dtype, stride);
  return (line_touch){.at = attn_element_at(from.data, from.dtype, at),
                      .lines = keys * row,
                      .left = row,
                      .row = row,
                      .gap = step - row * LINE_BYTES,
                      .far = far};
}

/* Some rows of a block, and keys that lie in one run. */
typedef struct few_work {
  const row_block *block;
  int64_t row;        /* the first of the rows */
  attn_storage from;  /* K or V */
  int64_t at, stride; /* element of the first key, and from one key to the next */
  int64_t step;       /* from one dimension of K to the next */
  int64_t key, keys;
  int64_t in_run, end; /* keys of the run from `key` on, and of all rows: none sees keys from `end` on */
  float *score;        /* place of S or P of the first row and key */
  line_touch after;    /* lines behind these keys */
} few_work;

static attn_key_run few_run_at(const row_block *block, int64_t key) {
  return attn_key_run_at(block->problem, block->args, block->seq, block->head, key);
}

/* Bytes from the key that is `skip` behind the first one to the key `ahead` behind that, wherever it lies; 0: to none. */
static ALWAYS_INLINE int64_t bytes_ahead(const few_work *w, int64_t skip, int64_t ahead, const bool of_v) {
  int64_t distance = ahead * w->stride;
  if (skip + ahead >= w->in_run) {
    if (w->key + skip + ahead >= w->end) return 0;
    const attn_key_run run = few_run_at(w->block, w->key + skip + ahead);
    distance = (of_v ? run.v : run.k) - (w->at + skip * w->stride);
  }
  return attn_elements_bytes(w->from.dtype, distance);
}

/* Lines of `keys` keys of V from the one on that is `skip` behind the first. */
static ALWAYS_INLINE line_touch touch_of_v(const few_work *w, int64_t skip, int64_t keys) {
  const int64_t dim = w->block->problem->dim_v, lines = ceil_div(attn_elements_bytes(w->from.dtype, dim), LINE_BYTES);
  const int64_t far = bytes_ahead(w, skip, ceil_div(LEAST_DISTANCE, lines * LINE_BYTES), true);
  return touch_of(w->from, w->at + skip * w->stride, w->stride, keys, dim, far);
}

/* The same of K. Those that lie side by side have their next page prefetched. */
static ALWAYS_INLINE line_touch touch_of_k(const few_work *w, int64_t skip, int64_t keys, const bool beside) {
  const attn_problem *p = w->block->problem;
  const int64_t at = w->at + skip * w->stride, lines = ceil_div(attn_elements_bytes(w->from.dtype, p->dim_qk), LINE_BYTES);
  if (beside)
    return touch_of(w->from, at, w->step, p->dim_qk, keys,
                    attn_uses(p, ATTN_USE_PAGES) ? bytes_ahead(w, skip, p->page_tokens, false) : 0);
  const int64_t far = bytes_ahead(w, skip, ceil_div(LEAST_DISTANCE, lines * LINE_BYTES), false);
  return touch_of(w->from, at, w->stride, keys, p->dim_qk, far);
}

/* Up to `count` of them. */
static ALWAYS_INLINE void touch_lines(line_touch *next, int64_t count) {
  const char *at = next->at;
  int64_t left = next->left;
  NO_UNROLL
  for (count = min64(count, next->lines), next->lines -= count; count > 0; count--) {
    (void)*(const volatile char *)at;
    __builtin_prefetch((const void *)((uintptr_t)at + (uintptr_t)next->far), 0, 2); /* maybe beyond the array */
    at += LINE_BYTES;
    if (--left > 0) continue;
    left = next->row;
    at += next->gap;
  }
  next->at = at;
  next->left = left;
}

/* ---- S ---- */

/* sum[r * groups + g] += products of the rows' queries with VEC_LANES keys of each group, for `n` dimensions from d on.
 * Keys from `keys` on repeat the last one. */
static ALWAYS_INLINE void few_square(vec *sum, const few_work w, int64_t d, const int64_t n, const int rows,
                                     const int groups, const int64_t keys) {
  const float *q = w.block->q + w.row * w.block->q_stride + d / FEW_VALUES;
  UNROLL
  for (int g = 0; g < groups; g++) {
    vec x[VEC_LANES];
    UNROLL
    for (int i = 0; i < VEC_LANES; i++)
      x[i] = few_values(w.from, w.at + (g * VEC_LANES + (i < keys ? i : keys - 1)) * w.stride, d, n);
    vec_transpose(x);
    UNROLL
    for (int i = 0; i < VEC_LANES; i++) {
      if (i * FEW_VALUES >= n) continue;
      UNROLL
      for (int r = 0; r < rows; r++)
        sum[r * groups + g] = vec_fma_factor(vec_factor_at(q + r * w.block->q_stride + i), x[i], sum[r * groups + g]);
    }
  }
}

static ALWAYS_INLINE void few_squares(vec *sum, const few_work w, const int rows, const int groups, const int64_t keys,
                                      line_touch *next) {
  const int64_t dim = w.block->problem->dim_qk, at_once = ceil_div(next->lines, max64(dim / VALUES, 1));
  int64_t d = 0;
  NO_UNROLL
  for (; d + VALUES <= dim; d += VALUES) {
    touch_lines(next, at_once);
    few_square(sum, w, d, VALUES, rows, groups, keys);
  }
  if (d < dim) few_square(sum, w, d, dim - d, rows, groups, keys);
}

/* The same of keys that lie side by side, of all dimensions. The last group has `keys`. */
static ALWAYS_INLINE void few_beside(vec *sum, const few_work w, const int rows, const int groups, const int64_t keys,
                                     line_touch *next) {
  const row_block *block = w.block;
  const int64_t dim = block->problem->dim_qk, lanes = ceil_div(dim, FEW_VALUES), at_once = ceil_div(next->lines, lanes);
  NO_UNROLL
  for (int64_t i = 0; i < lanes; i++) {
    vec x[TILE_VECS];
    touch_lines(next, at_once);
    UNROLL
    for (int g = 0; g < groups; g++)
      x[g] = few_values_beside(w.from, w.at + g * VEC_LANES, i, w.step, dim, g + 1 < groups ? VEC_LANES : keys);
    UNROLL
    for (int r = 0; r < rows; r++) {
      const vec_factor q = vec_factor_at(block->q + (w.row + r) * block->q_stride + i);
      UNROLL
      for (int g = 0; g < groups; g++) sum[r * groups + g] = vec_fma_factor(q, x[g], sum[r * groups + g]);
    }
  }
}

/* Where a row's scores of group g are. */
static ALWAYS_INLINE float *few_place(const row_block *block, float *score, int64_t row, int64_t g) {
  return score + row * block->score_stride + g * VEC_LANES;
}

/* The addend of the products of row i, what few_shifts() left at `shift`: its reference, and bias and ALiBi, unless
 * relative_row() does it. */
static ALWAYS_INLINE vec few_added(const row_block *block, int64_t i, const float *shift) {
  if (block->shifted) return vec_load(shift);
  return block->adjusted ? vec_zero() : vec_set1(-reference_of(block, i));
}

static ALWAYS_INLINE void few_groups(const few_work w, const int rows, const int groups, const int64_t keys,
                                     const bool beside) {
  const row_block *block = w.block;
  vec sum[16];
  UNROLL
  for (int i = 0; i < rows * groups; i++)
    sum[i] = few_start(few_added(block, w.row + i / groups, few_place(block, w.score, i / groups, i % groups)));
  const int64_t side = groups * VEC_LANES, left = w.keys - side;
  line_touch next = left > 0 ? touch_of_k(&w, side, min64(side, left), beside) : w.after;
  if (beside)
    few_beside(sum, w, rows, groups, keys, &next);
  else
    few_squares(sum, w, rows, groups, keys, &next);
  UNROLL
  for (int i = 0; i < rows * groups; i++) {
    float *at = few_place(block, w.score, i / groups, i % groups);
    vec_store(at, few_score(block, sum[i], few_added(block, w.row + i / groups, at)));
  }
}

enum { FEW_KEYS = 16 /* side by side, where there are registers */ };

/* Scores of the rows and of all keys; up to VEC_LANES - 1 more are written. */
static ALWAYS_INLINE void few_scores(const few_work *given, const int rows, const attn_dtype dtype, const bool beside) {
  if (beside && attn_dtype_of(dtype).values > 1) return; /* keys_beside() */
  const int groups = beside ? TILE_VECS : rows < 4 ? (FEW_KEYS + VEC_LANES - 1) / VEC_LANES : 1;
  few_work w = *given;
  w.from = attn_storage_as(w.from, dtype);
  while (w.keys >= groups * VEC_LANES) {
    few_groups(w, rows, groups, VEC_LANES, beside);
    w.at += groups * VEC_LANES * w.stride;
    w.key += groups * VEC_LANES;
    w.keys -= groups * VEC_LANES;
    w.in_run -= groups * VEC_LANES;
    w.score += groups * VEC_LANES;
  }
  for (; w.keys > 0; w.at += VEC_LANES * w.stride, w.key += VEC_LANES, w.keys -= VEC_LANES, w.score += VEC_LANES)
    few_groups(w, rows, 1, min64(w.keys, VEC_LANES), beside);
}

/* ---- O += P V ---- */

/* Where the columns of a lane's keys begin. at: of lane 0's first key, which may not exist, as the last one's last key. Then
 * its P is 0, and it counts as the other. */
static ALWAYS_INLINE void few_places(const few_work *w, int64_t lane, int64_t lanes, int64_t at,
                                     int64_t places[FEW_VALUES]) {
  UNROLL
  for (int i = 0; i < FEW_VALUES; i++) places[i] = at + i * w->stride;
  if (FEW_VALUES == 1) return;
  if (lane == 0 && w->key % FEW_VALUES != 0) places[0] = places[FEW_VALUES - 1];
  if (lane + 1 == lanes && (w->key + w->keys) % FEW_VALUES != 0) places[FEW_VALUES - 1] = places[0];
}

static ALWAYS_INLINE int64_t few_lanes(const few_work *w) {
  return ceil_div(w->key + w->keys, FEW_VALUES) - w->key / FEW_VALUES;
}

/* acc += P V for `vecs` vectors of columns from `column` on, of which `last` are the last FEW_VALUES vectors'. */
static ALWAYS_INLINE void few_columns(const few_work w, int64_t column, const int64_t last, const int rows, const int vecs,
                                      line_touch *next, int64_t lines) {
  const row_block *block = w.block;
  float *acc = block->acc + w.row * block->acc_stride + column;
  const int64_t lanes = few_lanes(&w);
  vec sum[16];
  UNROLL
  for (int i = 0; i < rows * vecs; i++) sum[i] = vec_load(acc + i / vecs * block->acc_stride + i % vecs * VEC_LANES);
  const int64_t whole = columns_before(w.from.dtype, column, vecs), rest = column - whole;
  int64_t at = w.at + whole - w.key % FEW_VALUES * w.stride;
  NO_UNROLL
  for (int64_t j = 0; j < lanes; j++, at += FEW_VALUES * w.stride) {
    int64_t places[FEW_VALUES];
    vec_factor weight[4];
    touch_lines(next, lines);
    few_places(&w, j, lanes, at, places);
    UNROLL
    for (int r = 0; r < rows; r++) weight[r] = vec_factor_at(w.score + r * block->score_stride + j);
    UNROLL
    for (int c = 0; c < vecs; c += FEW_VALUES) {
      vec x[FEW_VALUES];
      int64_t columns[FEW_VALUES];
      UNROLL
      for (int i = 0; i < FEW_VALUES; i++) columns[i] = c < vecs - FEW_VALUES ? VALUES : last;
      few_values_of_keys(x, w.from, places, rest + c * VEC_LANES, columns);
      UNROLL
      for (int i = 0; i < FEW_VALUES; i++) {
        UNROLL
        for (int r = 0; r < rows; r++) sum[r * vecs + c + i] = vec_fma_factor(weight[r], x[i], sum[r * vecs + c + i]);
      }
    }
  }
  UNROLL
  for (int i = 0; i < rows * vecs; i++) vec_store(acc + i / vecs * block->acc_stride + i % vecs * VEC_LANES, sum[i]);
}

static ALWAYS_INLINE void few_sums(const few_work *given, const int rows, const attn_dtype dtype) {
  const int vecs = few_vecs(rows, VEC_LANES);
  few_work w = *given;
  w.from = attn_storage_as(w.from, dtype);
  const int64_t dim_v = w.block->problem->dim_v, end = w.keys, some = attn_elements_in(dtype, LINE_BYTES);
  for (int64_t done = 0; done < end; done += w.keys) {
    w.keys = vecs * VEC_LANES < dim_v ? min64(end - done, some - w.key % FEW_VALUES) : end;
    int64_t c = 0;
    const int64_t left = end - done - w.keys;
    line_touch next = vecs * VEC_LANES >= dim_v ? touch_of_v(&w, 0, w.keys)
                      : left > 0                ? touch_of_v(&w, w.keys, min64(w.keys, left))
                                                : w.after;
    const int64_t lines = ceil_div(next.lines * vecs * VALUES, w.keys * dim_v);
    for (; c + vecs * VEC_LANES <= dim_v; c += vecs * VEC_LANES) few_columns(w, c, VALUES, rows, vecs, &next, lines);
    for (; FEW_VALUES == 1 && c + 2 * VALUES <= dim_v; c += 2 * VALUES) few_columns(w, c, VALUES, rows, 2, &next, lines);
    for (; c < dim_v; c += VALUES) few_columns(w, c, min64(dim_v - c, VALUES), rows, FEW_VALUES, &next, lines);
    w.at += w.keys * w.stride;
    w.in_run -= w.keys;
    w.score += ceil_div(w.key % FEW_VALUES + w.keys, FEW_VALUES);
    w.key += w.keys;
  }
}

/* ---- A function for each type and number of rows ---- */

#define FEW_FUNCTIONS(rows, constant)                                                                                      \
  static NO_INLINE void few_scores_##rows##_##constant(const few_work *w) { few_scores(w, rows, ATTN_##constant, false); } \
  static NO_INLINE void few_beside_##rows##_##constant(const few_work *w) { few_scores(w, rows, ATTN_##constant, true); }  \
  static NO_INLINE void few_sums_##rows##_##constant(const few_work *w) { few_sums(w, rows, ATTN_##constant); }
#define DTYPE(constant, ...) FEW_FUNCTIONS(1, constant) FEW_FUNCTIONS(2, constant) FEW_FUNCTIONS(4, constant)
#include FEW_DTYPES
#undef DTYPE

typedef void few_function(const few_work *w);

static few_function *few_scores_of(const attn_problem *p, int64_t rows) {
  static few_function *const functions[][2][3] = {
#define DTYPE(constant, ...)                                                                        \
  [ATTN_##constant] = {{few_scores_1_##constant, few_scores_2_##constant, few_scores_4_##constant}, \
                       {few_beside_1_##constant, few_beside_2_##constant, few_beside_4_##constant}},
#include FEW_DTYPES
#undef DTYPE
  };
  return functions[p->dtype_kv][keys_beside(p)][rows / 2];
}

static few_function *few_sums_of(attn_dtype dtype, int64_t rows) {
  static few_function *const functions[][3] = {
#define DTYPE(constant, ...) [ATTN_##constant] = {few_sums_1_##constant, few_sums_2_##constant, few_sums_4_##constant},
#include FEW_DTYPES
#undef DTYPE
  };
  return functions[dtype][rows / 2];
}

/* ---- The loop ---- */

/* K or V of the rows of a block, of which none sees keys from `end` on. */
static few_work few_work_of(const row_block *block, const bool of_v, int64_t end) {
  const attn_problem *p = block->problem;
  return (few_work){.block = block,
                    .from = of_v ? attn_v_storage(p, block->args) : attn_k_storage(p, block->args),
                    .stride = of_v ? p->v_stride.s : p->k_stride.s,
                    .step = p->k_stride.d,
                    .end = end};
}

/* Leads to `key` and those behind it in its run, up to `end`. */
static void few_go_to(few_work *w, int64_t key, int64_t end, const bool of_v) {
  const attn_key_run run = few_run_at(w->block, key);
  w->key = key;
  w->at = of_v ? run.v : run.k;
  w->in_run = run.keys;
  w->keys = min64(run.keys, end - key);
}

/* The first lines of K or V behind its keys, before `end`. */
static line_touch lines_behind(const few_work *w, int64_t end, const bool of_v) {
  few_work next = *w;
  if (w->key + w->keys >= end) return (line_touch){0};
  few_go_to(&next, w->key + w->keys, end, of_v);
  const bool beside = !of_v && keys_beside(w->block->problem);
  const int64_t keys = min64(next.keys, beside ? PANEL_KEYS : FEW_KEYS);
  return of_v ? touch_of_v(&next, 0, keys) : touch_of_k(&next, 0, keys, beside);
}

/* Bias and ALiBi less the reference, of `rows` rows and all keys, to where their scores will be: here, because inlined for
 * each type, row and group they would be most of this file's code. */
static void few_shifts(const few_work *w, int64_t rows) {
  const row_block *block = w->block;
  const uint32_t uses = block->problem->uses;
  for (int64_t r = 0; r < rows; r++) {
    const vec start = vec_set1(-reference_of(block, w->row + r));
    const shift_row shift = shift_row_of(block, uses, w->row + r, w->key);
    for (int g = 0; g * VEC_LANES < w->keys; g++)
      vec_store(few_place(block, w->score, r, g), vec_add(shift_at(block, uses, &shift, w->row + r, w->key, g), start));
  }
}

/* Scores that bias and mask do not allow to -inf. */
static void few_select(const few_work *w, int64_t rows) {
  const row_block *block = w->block;
  const uint32_t uses = block->problem->uses;
  for (int64_t r = 0; r < rows && selects_keys(block->problem); r++) {
    const shift_row shift = shift_row_of(block, uses, w->row + r, w->key);
    for (int g = 0; g * VEC_LANES < w->keys; g++) {
      float *at = few_place(block, w->score, r, g);
      vec_store(at, select_at(block, uses, &shift, w->row + r, w->key, g, vec_load(at)));
    }
  }
}

/* P of a panel's keys from `begin` up to `end`, behind the `pending` keys that each row has in block->score. The rows see
 * keys in `keys`. */
static void few_panel(const row_block *block, int64_t begin, int64_t end, int64_t pending, attn_key_range keys) {
  const attn_problem *p = block->problem;
  const int64_t vecs = ceil_div(end - begin, VEC_LANES);
  few_work w = few_work_of(block, false, keys.end);
  for (int64_t key = max64(begin, round_down(keys.begin, VEC_LANES)); key < end; key += w.keys) {
    few_go_to(&w, key, end, false);
    w.after = lines_behind(&w, keys.end, false);
    for (int64_t step; w.row < block->rows; w.row += step) {
      step = few_at_once(block->rows - w.row);
      w.score = block->score + w.row * block->score_stride + pending + (w.key - begin);
      if (block->shifted) few_shifts(&w, step);
      few_scores_of(p, step)(&w);
      if (block->shifted) few_select(&w, step);
    }
    w.row = 0;
  }
  for (int64_t i = 0; i < block->rows; i++) {
    float *row = block->score + i * block->score_stride, *sum = block->row_sum + i * VEC_LANES;
    vec x[TILE_VECS];
    relative_row(block, i, begin, row + pending, row, pending, vecs, x);
    vec_store(sum, few_weights(x, row, pending, vec_load(sum), vecs));
  }
}

/* accumulate_selected() of tiles.h. The first P stands for key `from`. */
static void few_sums_selected(const row_block *block, int64_t from, int64_t begin, int64_t end) {
  const attn_problem *problem = block->problem;
  const attn_storage v = attn_v_storage(problem, block->args);
  for (int64_t i = 0; i < block->rows; i++)
    for (int64_t lane = begin / FEW_VALUES; lane < ceil_div(end, FEW_VALUES); lane++) {
      int64_t at[FEW_VALUES], n[FEW_VALUES];
      bool seen[FEW_VALUES], any = false;
      for (int64_t j = 0; j < FEW_VALUES; j++) {
        const int64_t key = lane * FEW_VALUES + j;
        any |= seen[j] = begin <= key && key < end && row_sees(block, i, key);
        at[j] = seen[j] ? few_run_at(block, key).v : 0;
      }
      if (!any) continue;
      const vec_factor weight = vec_factor_at(block->score + i * block->score_stride + lane - from / FEW_VALUES);
      for (int64_t c = 0; c < problem->dim_v; c += VALUES) {
        vec x[FEW_VALUES];
        float *acc = block->acc + i * block->acc_stride + c;
        for (int j = 0; j < FEW_VALUES; j++) n[j] = seen[j] ? min64(problem->dim_v - c, VALUES) : 0;
        few_values_of_keys(x, v, at, c, n);
        for (int j = 0; j < FEW_VALUES; j++)
          vec_store(acc + j * VEC_LANES, vec_fma_factor(weight, x[j], vec_load(acc + j * VEC_LANES)));
      }
    }
}

/* acc += P V of the keys [begin, end), of `all` that rows see. The first P stands for key `from`. */
static void few_accumulate(const row_block *block, int64_t from, int64_t begin, int64_t end, int64_t all) {
  few_work w = few_work_of(block, true, all);
  for (int64_t key = begin; key < end; key += w.keys) {
    few_go_to(&w, key, end, true);
    w.after = lines_behind(&w, end, true);
    for (int64_t step; w.row < block->rows; w.row += step) {
      step = few_at_once(block->rows - w.row);
      w.score = block->score + w.row * block->score_stride + (w.key - from) / FEW_VALUES;
      few_sums_of(block->problem->dtype_kv, step)(&w);
    }
    w.row = 0;
  }
}

static void few_order(const row_block *block, void (*order)(float *acc)) {
  for (int64_t i = 0; i < block->rows; i++)
    for (int64_t c = 0; c < block->acc_stride; c += VALUES) order(block->acc + i * block->acc_stride + c);
}

/* P of keys of a key block, behind the `pending` keys of it that each row has. The rows see keys in `keys`. */
static void few_visit(const row_block *block, key_visit visit, int64_t pending, attn_key_range keys) {
  const int64_t from = round_down(visit.begin, FEW_BORDER);
  for (int64_t key = from, next; key < visit.end; key = next) {
    next = min64(round_down(key, PANEL_KEYS) + PANEL_KEYS, visit.end);
    few_panel(block, key, next, pending + (key - from), keys);
  }
}

static int64_t few_pending(key_visit visit) { return round_up(visit.end, FEW_BORDER) - round_down(visit.begin, FEW_BORDER); }

/* O += P V of these keys, of `all` that rows see. */
static void few_sum_visit(const row_block *block, key_visit visit, int64_t pending, int64_t all) {
  const int64_t from = round_down(visit.begin, FEW_BORDER) - pending;
  if (block->careful)
    few_sums_selected(block, from, visit.begin, visit.end);
  else
    few_accumulate(block, from, visit.begin, visit.end, all);
}

/* The keys [begin, end) of a key block. O takes in all of their P at once (flash_visited_tile() of flash.h). */
static void few_key_block(key_visits *visits, int64_t begin, int64_t end, attn_key_range keys) {
  int64_t pending = 0;
  key_visit visit;
  start_key_block(visits, begin, end);
  for (int64_t key = begin; visit = next_visit(visits, key, end), visit.begin < visit.end; key = visit.next) {
    few_visit(block_of_visit(visits, visit), visit, pending, keys);
    pending += few_pending(visit);
  }
  pending = 0;
  for (int64_t key = begin; visit = next_visit(visits, key, end), visit.begin < visit.end; key = visit.next) {
    few_sum_visit(block_of_visit(visits, visit), visit, pending, keys.end);
    pending += few_pending(visit);
  }
}

static bool few_attend(const row_block *block, int64_t key_block) {
  const attn_key_range keys = keys_of_block(block);
  key_visits visits;
  start_visits(block, &visits);
  if (attn_uses(block->problem, ATTN_USE_STATE)) few_order(block, few_zip);
  for (int64_t first = keys.begin / key_block * key_block; first < keys.end; first += key_block) {
    few_key_block(&visits, max64(first, keys.begin), min64(first + key_block, keys.end), keys);
  }
  few_order(block, few_unzip);
  return finish_rows(block);
}

/* All rows that share the unit's KV head. */
static void few_run(const attn_schedule *schedule, const attn_args *args, int64_t unit, void *scratch) {
  const attn_problem *p = &schedule->problem;
  task_rows rows = {.b = attn_batch_of_unit(p, unit), .head = attn_head_of_unit(p, unit)};
  rows.seq = attn_sequence_of(p, args, rows.b);
  rows.rows = attn_group(p) * attn_rows(p, &rows.seq);
  if (rows.rows <= 0) return;
  scratch_layout at;
  (void)few_scratch_of(p, schedule->key_block, VALUES, &at);
  row_block block = block_of_task(p, args, &rows, &at, scratch);
  block.rows_per_head = attn_rows(p, &rows.seq);
  block.adjusted = scores_adjusted(p);
  block.shifted = scores_shifted(p);
  block.alike = rows_see_alike(&block);
  block.first_try = true;
  const int64_t capacity = few_capacity(rows.rows);
  float *q = block.q;
  block.q_stride = ceil_div(p->dim_qk, FEW_VALUES);
  for (int attempt = 0; attempt < 2; attempt++) {
    block.q = FEW_VALUES == 1 ? q : NULL;
    start_rows(&block, capacity);
    load_states(&block);
    block.q = q;
    few_queries(&block, capacity);
    if (few_attend(&block, schedule->key_block)) return;
    block.first_try = false;
    block.careful = true;
  }
}

#define ATTN_FLASH_FEW_OF(isa)                                                                                   \
  extern few_run_function attn_flash_few_##isa;                                                                  \
  void attn_flash_few_##isa(const attn_schedule *schedule, const attn_args *args, int64_t unit, void *scratch) { \
    few_run(schedule, args, unit, scratch);                                                                      \
  }

#endif
