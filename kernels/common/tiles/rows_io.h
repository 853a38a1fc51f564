/* SPDX-License-Identifier: MIT */
/* How query rows get into a block (start_rows) and out of it (finish_rows); row_block.h defines the block. Everything here
 * is static, so each kernel file has a copy compiled with its own tier's flags.
 *
 * Parameters: those of register_tile.h, and
 *   VEC_LOADS_PARTS  optional: the tier loads parts of vectors as quickly as whole ones, and brings vec_load_first_f16() and
 *                    its like for the other types; tested: set (avx512), not set (portable, avx2, neon, c)
 *   VEC_LOADS_FLOAT_PARTS  optional: so it loads floats; tested: set (avx2), not set (portable, neon, c) */
#ifndef ATTN_COMMON_ROWS_IO_H
#define ATTN_COMMON_ROWS_IO_H

#include <assert.h>
#include <math.h>
#include <string.h>

#include "kernels/common/memory/partial.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/exact_row.h"
#include "register_tile.h"
#include "row_block.h"

enum { PANEL_KEYS = VEC_LANES * TILE_VECS };

/* The most keys up to n that make whole panels: a tier's panels need not divide a power of two. */
#define WHOLE_PANELS(n) ((n) / PANEL_KEYS * PANEL_KEYS)

/* ---- Rows in ---- */

#ifdef VEC_LOADS_PARTS
enum { LOADS_PARTS = true };
#else
enum { LOADS_PARTS = false };
#define LOAD_FIRST_OF(name, element)                                               \
  static ALWAYS_INLINE vec vec_load_first_##name(const element *from, int64_t n) { \
    element padded[VEC_LANES] = {0};                                               \
    return vec_load_##name(memcpy(padded, from, (size_t)n * sizeof *from));        \
  }
LOAD_FIRST_OF(f16, uint16_t)
LOAD_FIRST_OF(bf16, uint16_t)
LOAD_FIRST_OF(e4m3, uint8_t)
LOAD_FIRST_OF(e5m2, uint8_t)
LOAD_FIRST_OF(i8, int8_t)
#undef LOAD_FIRST_OF
static ALWAYS_INLINE vec vec_load_first_nibbles(const uint8_t *from, int64_t n, int shift, vec scale) {
  uint8_t padded[VEC_LANES];
  memset(padded, 0x88, sizeof padded); /* zeros */
  return vec_load_nibbles(memcpy(padded, from, (size_t)n), shift, scale);
}
#endif

/* Whether parts of vectors of a type are loaded as quickly as whole ones: a constant. */
#ifdef VEC_LOADS_FLOAT_PARTS
#define LOADS_PARTS_OF(dtype) (LOADS_PARTS || (dtype) == ATTN_F32)
#else
#define LOADS_PARTS_OF(dtype) LOADS_PARTS
#endif

_Static_assert(ATTN_BLOCK_VALUES / 2 % VEC_LANES == 0, "a vector must lie in a half of a block");

static ALWAYS_INLINE int64_t in_blocks(int64_t elements) { return elements >> __builtin_ctz(ATTN_BLOCK_VALUES); }

/* n values from value d on, a multiple of VEC_LANES, of a row whose blocks begin there. A block that is not read may hold
 * anything. */
static ALWAYS_INLINE vec load_of_q8_0(const attn_q8_0 *row, int64_t d, int64_t n, bool whole) {
  if (!whole && n == 0) return vec_zero();
  const attn_q8_0 *block = row + in_blocks(d);
  const int8_t *from = block->values + (d & (ATTN_BLOCK_VALUES - 1));
  return vec_mul(vec_spread_f16(block->scale), whole ? vec_load_i8(from) : vec_load_first_i8(from, n));
}
static ALWAYS_INLINE vec load_of_q4_0(const attn_q4_0 *row, int64_t d, int64_t n, bool whole) {
  if (!whole && n == 0) return vec_zero();
  const attn_q4_0 *block = row + in_blocks(d);
  const vec scale = vec_spread_f16(block->scale);
  const int shift = (int)(d & ATTN_BLOCK_VALUES / 2) / (ATTN_BLOCK_VALUES / 8); /* 0, or 4 in the second half */
  const uint8_t *from = block->values + (d & (ATTN_BLOCK_VALUES / 2 - 1));
  return whole ? vec_load_nibbles(from, shift, scale) : vec_load_first_nibbles(from, n, shift, scale);
}

/* n <= VEC_LANES adjacent elements as float32, with 0 in the other lanes, from element index + d on: `index` begins a block
 * where the type has blocks, and d is a multiple of VEC_LANES then. Reads nothing beyond the n, or beyond their block. */
static ALWAYS_INLINE vec load_elements(attn_storage elements, int64_t index, int64_t d, int64_t n) {
  const attn_dtype dtype = elements.dtype;
  assert(n >= 0 && n <= VEC_LANES);
  const bool whole = LOADS_PARTS ? __builtin_constant_p(n) && n == VEC_LANES : n == VEC_LANES; /* no branch in loops */
  const void *from = attn_element_at(elements.data, dtype, index + d);
  switch (dtype) {
    case ATTN_F32: return whole ? vec_load(from) : vec_load_first(from, n);
    case ATTN_F16: return whole ? vec_load_f16(from) : vec_load_first_f16(from, n);
    case ATTN_BF16: return whole ? vec_load_bf16(from) : vec_load_first_bf16(from, n);
    case ATTN_F8_E4M3: return whole ? vec_load_e4m3(from) : vec_load_first_e4m3(from, n);
    case ATTN_F8_E5M2: return whole ? vec_load_e5m2(from) : vec_load_first_e5m2(from, n);
    case ATTN_I8: return whole ? vec_load_i8(from) : vec_load_first_i8(from, n);
    case ATTN_Q8_0: return load_of_q8_0((const attn_q8_0 *)elements.data + in_blocks(index), d, n, whole);
    case ATTN_Q4_0: return load_of_q4_0((const attn_q4_0 *)elements.data + in_blocks(index), d, n, whole);
  }
  return vec_zero(); /* not reached */
}

/* The columns before `column` that count as part of a row's place in load_elements(): all, if those are whole blocks; else
 * none. `vecs`: how many vectors each step had up to this one. Several numbers are joined by |: blocks are a power of 2
 * vectors long, so all steps are whole blocks if that is. */
static ALWAYS_INLINE int64_t columns_before(const attn_dtype dtype, int64_t column, const int vecs) {
  return vecs * VEC_LANES % attn_dtype_of(dtype).values == 0 ? column : 0;
}

/* Row i as floats that lie side by side; 0 up to row_floats, a multiple of VEC_LANES. */
static inline void copy_row(const row_source *from, int64_t i, float *row, int64_t row_floats) {
  const int64_t offset = from->offset + i * from->row_stride, columns = from->columns;
  assert(columns <= row_floats && row_floats % VEC_LANES == 0);
  if (from->column_stride == 1) {
    for (int64_t d = 0; d < columns; d += VEC_LANES)
      vec_store(row + d, load_elements(from->from, offset, d, min64(columns - d, VEC_LANES)));
  } else {
    for (int64_t d = 0; d < columns; d++) row[d] = attn_load_f32(from->from, offset + d * from->column_stride);
  }
  for (int64_t d = 0; from->scale && d < columns; d++) row[d] *= from->scale[i * from->scale_step];
  for (int64_t d = columns; d < row_floats; d++) row[d] = 0.0f;
}

/* q[i][d] = factor * the `dim` adjacent elements of `rows` queries, `step` apart from element `offset` on. The type is a
 * constant at every call. */
static ALWAYS_INLINE void load_dense_queries(attn_storage any, int64_t offset, int64_t step, int64_t rows, int64_t dim,
                                             float factor, float *q, int64_t stride, const attn_dtype dtype) {
  const attn_storage from = attn_storage_as(any, dtype);
  const vec factors = vec_set1(factor);
  NO_UNROLL
  for (; rows > 0; rows--, offset += step, q += stride) {
    int64_t d = 0;
    for (; d + 2 * VEC_LANES <= dim; d += 2 * VEC_LANES) {
      vec_store(q + d, vec_mul(factors, load_elements(from, offset, d, VEC_LANES)));
      vec_store(q + d + VEC_LANES, vec_mul(factors, load_elements(from, offset, d + VEC_LANES, VEC_LANES)));
    }
    for (int64_t n; (n = min64(dim - d, VEC_LANES)) > 0; d += n)
      vec_store_first(q + d, vec_mul(factors, load_elements(from, offset, d, n)), n);
  }
}

static void load_sparse_queries(const row_block *block, int64_t offset, int64_t rows, float factor, float *q) {
  const attn_problem *p = block->problem;
  for (int64_t i = 0; i < rows; i++)
    for (int64_t d = 0; d < p->dim_qk; d++)
      q[i * block->q_stride + d] =
          factor * attn_load_f32(attn_q_storage(p, block->args), offset + i * p->q_stride.s + d * p->q_stride.d);
}

/* How many rows from row i on, before `end`, either all have keys or (`empty`) all have none, as those beyond the block's
 * last. One at a time where the block has rows of several heads. */
static int64_t queries_alike(const row_block *block, int64_t i, int64_t end, bool *empty) {
  const attn_key_range *range = block->range;
  const int64_t rows = block->rows;
  int64_t next = i + 1;
  *empty = i >= rows || range[i].begin >= range[i].end;
  if (i >= rows) return end - i;
  if (block->rows_per_head != rows) return 1;
  while (next < min64(end, rows) && (range[next].begin >= range[next].end) == *empty) next++;
  return next - i;
}

/* Rows [begin, end) of the block. Those without keys are not read, because they may hold anything. */
static ALWAYS_INLINE void load_query_rows(const row_block *block, int64_t begin, int64_t end, float factor,
                                          const attn_dtype dtype) {
  const attn_problem *p = block->problem;
  const int64_t stride = block->q_stride;
  bool empty;
  for (int64_t i = begin, rows; i < end; i += rows) {
    float *q = block->q + i * stride;
    rows = queries_alike(block, i, end, &empty);
    if (empty || stride > p->dim_qk) memset(q, 0, (size_t)(rows * stride) * sizeof(float));
    if (empty) continue;
    const problem_row row = problem_row_of(block, i);
    const int64_t offset = attn_q_offset(p, block->seq, block->b, row.head, row.query);
    if (p->q_stride.d == 1)
      load_dense_queries(attn_q_storage(p, block->args), offset, p->q_stride.s, rows, p->dim_qk, factor, q, stride, dtype);
    else
      load_sparse_queries(block, offset, rows, factor, q);
  }
}

/* Loads the queries of rows [begin, end). Those of dot scores are multiplied by scale log2(e), so that scores are in log2
 * units. */
static void load_queries(const row_block *block, int64_t begin, int64_t end) {
  const attn_problem *p = block->problem;
  const float factor = p->score == ATTN_SCORE_DOT ? p->scale * LOG2_E : 1.0f;
  if (p->score == ATTN_SCORE_PRECOMPUTED || !block->q || block->own_queries) return;
  switch (p->dtype_q) { /* a copy of the code for each type */
#define DTYPE(constant, ...)                                     \
  case ATTN_##constant:                                          \
    load_query_rows(block, begin, end, factor, ATTN_##constant); \
    break;
#include "kernels/common/problem/floats.def"
#undef DTYPE
    default: assert(false);
  }
}

static void start_ranges(const row_block *block, int64_t capacity) {
  const attn_row_ranges of = attn_row_ranges_of(block->problem, block->args, block->seq, block->b);
  const int64_t rows = rows_see_alike(block) ? 1 : block->rows, of_head = block->rows_per_head;
  attn_key_range *range = block->range, keys = {0, 0};
  float *reference = block->row_max;
  for (int64_t i = 0; i < capacity; i++) {
    if (i < rows) keys = attn_range_of_row(&of, block->first_row + (i < of_head ? i : i % of_head));
    range[i] = keys;
    reference[i] = -INFINITY;
  }
}

/* Key ranges and state of the rows. Rows beyond the block's last repeat its range, so that they never make a tile an
 * edge. */
static inline void start_rows(const row_block *block, int64_t capacity) {
  assert(block->rows > 0 && block->rows <= capacity && block->acc_stride % VEC_LANES == 0);
  float *sums = block->row_sum, *end = sums + capacity * VEC_LANES;
  start_ranges(block, capacity);
  for (; sums < end; sums += VEC_LANES) { /* so few that a call of memset would take longer */
    __asm__("" : "+r"(sums));
    vec_store(sums, vec_zero());
  }
  if (block->direct) return;
  memset(block->acc, 0, (size_t)(capacity * block->acc_stride) * sizeof(float));
  load_queries(block, 0, capacity);
}

static float *state_of_row(const row_block *block, int64_t i) {
  const problem_row at = problem_row_of(block, i);
  return block->args->state + attn_state_offset(block->problem, block->seq, block->b, at.head, at.query);
}

/* Row i goes on from its state, which may be another kernel's: then its reference may lie between two floats. */
static void load_state(const row_block *block, int64_t i) {
  const int64_t dim_v = block->problem->dim_v;
  const float *state = state_of_row(block, i);
  const double reference = kept_reference(state, dim_v);
  float sums[VEC_LANES], *acc = block->acc + i * block->acc_stride;
  if (reference == -INFINITY) return;
  block->row_max[i] = isnan(reference) ? 0.0f : (float)reference; /* its sum is NaN and stays so */
  const float factor = exp2f((float)(reference - (double)block->row_max[i])), weight = isnan(factor) ? 1.0f : factor;
  kept_sums(state, dim_v, VEC_LANES, sums);
  vec_store(block->row_sum + i * VEC_LANES, vec_mul(vec_load(sums), vec_set1(weight)));
  for (int64_t c = 0; c < dim_v; c++) acc[c] = weight * state[c];
}

/* For kernels that take keys in pieces: after start_rows, the rows go on from their states. */
static inline void load_states(const row_block *block) {
  for (int64_t i = 0; attn_uses(block->problem, ATTN_USE_STATE) && i < block->rows; i++) load_state(block, i);
}

/* ---- Rows out ---- */

/* Rows of o are floats that lie side by side. */
static bool keeps_floats(const attn_problem *p) { return p->dtype_o == ATTN_F32 && p->o_stride.d == 1; }

/* Writes the first `count` floats of a row of whole vectors as float16 values that lie side by side. */
static void store_row_f16(uint16_t *o, const float *row, int64_t count) {
  uint16_t last[VEC_LANES];
  int64_t d = 0;
  for (; d + VEC_LANES <= count; d += VEC_LANES) vec_store_f16(o + d, vec_load(row + d));
  if (d == count) return;
  vec_store_f16(last, vec_load(row + d));
  memcpy(o + d, last, (size_t)(count - d) * sizeof *o);
}

/* Writes one row of acc, dim_v floats, by dtype and stride. */
static void store_row(const row_block *block, int64_t i, const float *row) {
  const attn_problem *p = block->problem;
  const problem_row at = problem_row_of(block, i);
  const int64_t offset = attn_o_offset(p, block->seq, block->b, at.head, at.query);
  if (keeps_floats(p)) {
    memcpy((float *)block->args->o + offset, row, (size_t)p->dim_v * sizeof(float));
  } else if (p->dtype_o == ATTN_BF16 && p->o_stride.d == 1) { /* a loop that compilers turn into vectors */
    uint16_t *o = (uint16_t *)block->args->o + offset;
    for (int64_t d = 0; d < p->dim_v; d++) o[d] = attn_bf16_of_f32(row[d]);
  } else if (p->dtype_o == ATTN_F16 && p->o_stride.d == 1) {
    store_row_f16((uint16_t *)block->args->o + offset, row, p->dim_v);
  } else {
    for (int64_t d = 0; d < p->dim_v; d++) attn_store_f32(block->args->o, p->dtype_o, offset + d * p->o_stride.d, row[d]);
  }
}

static void store_lse(const row_block *block, int64_t i, double lse) {
  const attn_problem *p = block->problem;
  if (!attn_uses(p, ATTN_USE_LSE)) return;
  const problem_row at = problem_row_of(block, i);
  block->args->lse[attn_lse_offset(p, block->seq, block->b, at.head, at.query)] = (float)lse;
}

/* to[c] = acc[c] / denominator for a row's whole vectors, of which `columns` values are stored. A result of -0 becomes 0,
 * because its sign would depend on whether masked keys have added their 0. False if the result is not finite. */
static ALWAYS_INLINE bool divide_row(const float *acc, int64_t acc_columns, float denominator, float *to, int64_t columns) {
  const vec inverse = vec_set1(1.0f / denominator);
  vec poison = vec_zero(); /* 0 * x is NaN for NaN and Inf */
  for (int64_t c = 0; c < acc_columns; c += VEC_LANES) {
    const vec o = vec_fma(vec_load(acc + c), inverse, vec_zero());
    if (c + VEC_LANES <= columns)
      vec_store(to + c, o);
    else if (c < columns)
      vec_store_first(to + c, o, columns - c);
    poison = vec_fma(o, vec_zero(), poison);
  }
  return !vec_any_nan(poison);
}

/* Stores row i of o = acc / denominator. False if it is not finite; its content does not matter then. */
static ALWAYS_INLINE bool store_divided(const row_block *block, int64_t i, float denominator) {
  const attn_problem *p = block->problem;
  float *acc = block->acc + i * block->acc_stride;
  if (keeps_floats(p)) {
    const problem_row at = problem_row_of(block, i);
    float *o = (float *)block->args->o + attn_o_offset(p, block->seq, block->b, at.head, at.query);
    return divide_row(acc, block->acc_stride, denominator, o, p->dim_v);
  }
  if (!divide_row(acc, block->acc_stride, denominator, acc, block->acc_stride)) return false;
  store_row(block, i, acc);
  return true;
}

/* The divisor of row i of acc: its sum of P, plus the weight of its sink if there are sinks. */
static ALWAYS_INLINE float denominator_of(const row_block *block, int64_t i, float sum) {
  if (!attn_uses(block->problem, ATTN_USE_SINKS)) return sum;
  return sum + exp2f(block->args->sinks[problem_row_of(block, i).head] * LOG2_E - block->row_max[i]);
}

static ALWAYS_INLINE float sum_of_row(const row_block *block, int64_t i) {
  return vec_reduce_add(vec_load(block->row_sum + i * VEC_LANES));
}

static void store_lse_of_sum(const row_block *block, int64_t i, float sum) {
  if (attn_uses(block->problem, ATTN_USE_LSE)) store_lse(block, i, LN_2 * (double)block->row_max[i] + log((double)sum));
}

/* O = acc / row_sum and LSE = row_max + log(row_sum) of row i. A row without keys gives 0 and -inf.
 *
 * acc may be non-finite because V of a masked key is NaN or infinite: its weight is 0, but 0 times NaN is NaN. On the first
 * try the function returns false at such a row. The caller then repeats the block without reading V of masked keys
 * (block->careful), which gives the bits of clean data, and calls again. A row that is still not finite, because sums of
 * huge values overflowed or an input is not finite, is computed in double precision from its allowed keys alone. */
static bool finish_row(const row_block *block, int64_t i) {
  const attn_problem *p = block->problem;
  if (block->range[i].begin >= block->range[i].end) {
    float *acc = block->acc + i * block->acc_stride;
    memset(acc, 0, (size_t)p->dim_v * sizeof(float));
    store_row(block, i, acc);
    store_lse(block, i, -INFINITY);
    return true;
  }
  const float sum = sum_of_row(block, i), denominator = denominator_of(block, i, sum);
  const bool weighted = sum > 0 && denominator < INFINITY;
  if (weighted && store_divided(block, i, denominator)) {
    store_lse_of_sum(block, i, sum);
    return true;
  }
  if (weighted && block->first_try) return false;
  const problem_row at = problem_row_of(block, i);
  attn_exact_row(p, block->args, block->b, at.head, at.query);
  return true;
}

/* ---- Rows out, where keys come in pieces ---- */

static bool acc_is_finite(const row_block *block, int64_t i) {
  const float *acc = block->acc + i * block->acc_stride;
  vec poison = vec_zero();
  for (int64_t c = 0; c < block->acc_stride; c += VEC_LANES) poison = vec_fma(vec_load(acc + c), vec_zero(), poison);
  return !vec_any_nan(poison);
}

static void store_state(const row_block *block, int64_t i) {
  const int64_t dim_v = block->problem->dim_v;
  const float *sums = block->row_sum + i * VEC_LANES;
  float *state = state_of_row(block, i);
  memcpy(state, block->acc + i * block->acc_stride, (size_t)dim_v * sizeof(float));
  keep_sums(state, dim_v, VEC_LANES, sums);
  keep_reference(state, dim_v, isnan(sum_of_row(block, i)) ? (double)NAN : (double)block->row_max[i]);
}

/* Divides acc and stores it to O, with LSE: the result over all keys so far. */
static void store_carried(const row_block *block, int64_t i) {
  const float sum = sum_of_row(block, i);
  float *acc = block->acc + i * block->acc_stride;
  const bool empty = sum == 0; /* not NaN */
  if (empty)
    memset(acc, 0, (size_t)block->acc_stride * sizeof(float));
  else
    (void)divide_row(acc, block->acc_stride, denominator_of(block, i, sum), acc, block->acc_stride);
  if (block->args->o) store_row(block, i, acc);
  if (!block->args->lse) return;
  if (empty)
    store_lse(block, i, -INFINITY);
  else
    store_lse_of_sum(block, i, sum);
}

/* finish_rows where keys come in pieces: a row that is not finite after the second try keeps what the arithmetic gave. */
static NO_INLINE bool finish_states(const row_block *block) {
  for (int64_t i = 0; block->first_try && i < block->rows; i++)
    if (!acc_is_finite(block, i)) return false;
  for (int64_t i = 0; i < block->rows; i++) {
    store_state(block, i);
    store_carried(block, i);
  }
  return true;
}

static inline bool finish_rows(const row_block *block) {
  if (attn_uses(block->problem, ATTN_USE_STATE)) return finish_states(block);
  for (int64_t i = 0; i < block->rows; i++)
    if (!finish_row(block, i)) return false;
  return true;
}

#endif
