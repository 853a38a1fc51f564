/* SPDX-License-Identifier: MIT */
/* A tier's attn_kv_rows_kernel (kernels/kv_rows.h) made from its vectors: rows of new tokens become floats, are rotated, and
 * are stored in the cache's type. Arithmetic is written as plain loops, which compilers turn into the tier's vectors: no
 * operation is fused, so that all tiers give the same bits. kernels/ref/kv_rows_c.c is the same without vectors.
 *
 * Parameters: the tier's vec_<isa>.h. ATTN_KV_ROWS_OF(isa) defines the tier's attn_kv_rows_<isa>. */
#ifndef ATTN_COMMON_KV_ROWS_TIER_H
#define ATTN_COMMON_KV_ROWS_TIER_H

#include <string.h>

#include "kernels/common/memory/prefetch.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/convert.h"
#include "kernels/common/problem/unroll.h"
#include "kernels/kv_rows.h"
#include "lanes.h"
#include "quantise.h"
#include "rope_angles.h"

enum {
  CHUNK = ROPE_MOST_DIM, /* elements of a row that are floats at a time: the rotated ones are in the first */
  STAGE_FLOATS = 4608,   /* rows of a transposed page as floats: 32 of 128 elements, a line of 16-bit ones in each column */
  STAGE_GAP = 16         /* floats between them, so that rows do not share cache sets */
};

/* Elements 2i and 2i + 1 change places. */
static ALWAYS_INLINE vec swap_neighbours(vec x) {
  typedef uint64_t pairs __attribute__((vector_size(VEC_LANES * sizeof(float))));
  pairs p;
  memcpy(&p, &x, sizeof p);
  p = p << 32 | p >> 32;
  memcpy(&x, &p, sizeof x);
  return x;
}

/* ---- The rows of one token ---- */

/* Rows of one token: `heads` of them, `from_head` and `to_head` apart, each from element `from_at` to element `to_at`, `dim`
 * elements, of which the first `turned` are rotated. */
typedef struct token_rows {
  const void *from;
  void *to;
  attn_dtype from_dtype, to_dtype;
  int64_t heads, from_head, to_head;
  int64_t from_at, from_element, to_at, to_element, dim, turned;
  attn_rope_pairing pairing;
  const float *cosine, *sine;
} token_rows;

static token_rows rows_at(const attn_kv_rows *r, int64_t t, int64_t head, int64_t heads) {
  const int64_t turned = r->turns ? r->turns->dim : 0;
  return (token_rows){.from = r->from.data,
                      .to = r->to,
                      .from_dtype = r->from.dtype,
                      .to_dtype = r->to_dtype,
                      .heads = heads,
                      .from_head = r->from_head,
                      .to_head = r->to_head,
                      .from_at = r->from_at[t] + head * r->from_head,
                      .from_element = r->from_element,
                      .to_at = r->to_at[t] + head * r->to_head,
                      .to_element = r->to_element,
                      .dim = r->dim,
                      .turned = turned,
                      .pairing = r->turns ? r->turns->pairing : ATTN_ROPE_HALVES,
                      .cosine = turned ? r->cosine + t * turned : NULL,
                      .sine = turned ? r->sine + t * turned : NULL};
}

static float element(const token_rows *r, int64_t d) {
  return attn_load_f32((attn_storage){r->from, r->from_dtype}, r->from_at + d * r->from_element);
}

static void put(const token_rows *r, int64_t d, float x) {
  attn_store_f32(r->to, r->to_dtype, r->to_at + d * r->to_element, x);
}

/* Elements [first, end) of the first row, each as it is. */
static NO_INLINE void put_elements(token_rows r, int64_t first, int64_t end) {
  for (int64_t d = first; d < end; d++) put(&r, d, element(&r, d));
}

/* Pairs [first, end) of the first row, both elements of each: the row may be rotated where it is. */
static NO_INLINE void put_pairs(token_rows r, int64_t first, int64_t end) {
  const int64_t half = r.turned / 2;
  for (int64_t i = first; i < end; i++) {
    const int64_t a = r.pairing == ATTN_ROPE_HALVES ? i : 2 * i, b = r.pairing == ATTN_ROPE_HALVES ? half + i : a + 1;
    const float x = element(&r, a), y = element(&r, b);
    put(&r, a, x * r.cosine[a] + y * r.sine[a]);
    put(&r, b, y * r.cosine[b] + x * r.sine[b]);
  }
}

static ALWAYS_INLINE void next_head(token_rows *r) {
  r->from_at += r->from_head;
  r->to_at += r->to_head;
}

/* The three ways of rows whose elements lie side by side. Whole vectors here, what is left above. The rows are passed on by
 * value: were a pointer to them known elsewhere, each store might change them, and they would be read again for each vector.
 */

static ALWAYS_INLINE void turn_halves(token_rows r, const attn_dtype from, const attn_dtype to) {
  const int64_t half = r.turned / 2;
  for (int64_t h = 0; h < r.heads; h++, next_head(&r)) {
    int64_t i = 0;
    for (; i + VEC_LANES <= half; i += VEC_LANES) {
      const vec x = load_lanes(r.from, r.from_at + i, from), y = load_lanes(r.from, r.from_at + half + i, from);
      const vec cosine = vec_load(r.cosine + i);
      const vec first = vec_add(vec_mul(x, cosine), vec_mul(y, vec_load(r.sine + i)));
      const vec second = vec_add(vec_mul(y, cosine), vec_mul(x, vec_load(r.sine + half + i)));
      store_lanes(r.to, r.to_at + i, to, first);
      store_lanes(r.to, r.to_at + half + i, to, second);
    }
    if (i < half) put_pairs(r, i, half);
  }
}

static ALWAYS_INLINE void turn_neighbours(token_rows r, const attn_dtype from, const attn_dtype to) {
  for (int64_t h = 0; h < r.heads; h++, next_head(&r)) {
    int64_t i = 0;
    for (; i + VEC_LANES <= r.turned; i += VEC_LANES) {
      const vec x = load_lanes(r.from, r.from_at + i, from);
      const vec turned = vec_mul(swap_neighbours(x), vec_load(r.sine + i));
      store_lanes(r.to, r.to_at + i, to, vec_add(vec_mul(x, vec_load(r.cosine + i)), turned));
    }
    if (i < r.turned) put_pairs(r, i / 2, r.turned / 2);
  }
}

static ALWAYS_INLINE void convert(token_rows r, const attn_dtype from, const attn_dtype to) {
  for (int64_t h = 0; h < r.heads; h++, next_head(&r)) {
    int64_t i = r.turned;
    for (; i + VEC_LANES <= r.dim; i += VEC_LANES)
      store_lanes(r.to, r.to_at + i, to, load_lanes(r.from, r.from_at + i, from));
    if (i < r.dim) put_elements(r, i, r.dim);
  }
}

static void write_elements(token_rows r) {
  for (int64_t h = 0; h < r.heads; h++, next_head(&r)) {
    put_pairs(r, 0, r.turned / 2);
    put_elements(r, r.turned, r.dim);
  }
}

typedef void row_function(token_rows r, attn_dtype from, attn_dtype to);

/* Calls it with both types as constants, for a copy of the loops for each pair. */
static ALWAYS_INLINE void call_with_to_dtype(row_function *const call, const token_rows *r, const attn_dtype from) {
  switch (r->to_dtype) {
#define DTYPE(constant, ...)         \
  case ATTN_##constant:              \
    call(*r, from, ATTN_##constant); \
    break;
#define BLOCK_DTYPE(...) /* write_blocks() */
#include "kernels/common/problem/dtypes.def"
#undef DTYPE
#undef BLOCK_DTYPE
    default: break;
  }
}

static ALWAYS_INLINE void call_with_dtypes(row_function *const call, const token_rows *r) {
  switch (r->from_dtype) {
#define DTYPE(constant, ...)                      \
  case ATTN_##constant:                           \
    call_with_to_dtype(call, r, ATTN_##constant); \
    break;
#include "kernels/common/problem/floats.def"
#undef DTYPE
    default: break; /* tokens come in no other type */
  }
}

static void write_token_rows(const token_rows *r) {
  if (r->from_element != 1 || r->to_element != 1) {
    write_elements(*r);
    return;
  }
  if (r->turned > 0 && r->pairing == ATTN_ROPE_HALVES) {
    call_with_dtypes(turn_halves, r);
  } else if (r->turned > 0) {
    call_with_dtypes(turn_neighbours, r);
  }
  if (r->turned < r->dim) call_with_dtypes(convert, r);
}

/* ---- Ways of writing ---- */

/* How many tokens from t on lie side by side, their elements `step` apart. */
static int64_t tokens_in_step(const int64_t *at, int64_t t, int64_t end, int64_t step) {
  int64_t n = 1;
  while (t + n < end && at[t + n] - at[t + n - 1] == step) n++;
  return n;
}

/* Bytes as they are. */
static void copy_tokens(const attn_kv_rows *r, int64_t t, int64_t head, int64_t elements) {
  const attn_dtype dtype = r->from.dtype;
  memcpy((char *)r->to + attn_elements_bytes(dtype, r->to_at[t] + head * r->to_head),
         attn_element_at(r->from.data, dtype, r->from_at[t] + head * r->from_head),
         (size_t)attn_elements_bytes(dtype, elements));
}

/* `heads` rows of `elements` a token; tokens that follow each other in both places are one copy. */
static void copy_runs(const attn_kv_rows *r, int64_t heads, int64_t elements) {
  int64_t first[KV_ROWS_MOST_TOKENS + 1], runs = 0;
  for (int64_t t = 0; t < r->tokens; runs++) {
    first[runs] = t;
    const int64_t n = tokens_in_step(r->from_at, t, r->tokens, elements);
    t += tokens_in_step(r->to_at, t, t + n, elements);
  }
  first[runs] = r->tokens;
  for (int64_t h = 0; h < heads; h++)
    for (int64_t i = 0; i < runs; i++) copy_tokens(r, first[i], h, (first[i + 1] - first[i]) * elements);
}

static void copy_rows(const attn_kv_rows *r, bool heads_inside) {
  if (r->from_head == r->dim && r->to_head == r->dim) { /* the heads of a token are one row */
    copy_runs(r, 1, r->heads * r->dim);
  } else if (heads_inside) {
    for (int64_t t = 0; t < r->tokens; t++)
      for (int64_t h = 0; h < r->heads; h++) copy_tokens(r, t, h, r->dim);
  } else {
    copy_runs(r, r->heads, r->dim);
  }
}

static int64_t stage_stride(const attn_kv_rows *r) { return min64(CHUNK, r->dim) + STAGE_GAP; }

/* Rows of some tokens as floats. */
typedef struct staged_rows {
  const float *data;
  int64_t stride, tokens, count; /* count: elements of a row */
} staged_rows;

/* A square of floats: to[d][t] = rows[t][d]. */
static ALWAYS_INLINE void store_square(const attn_kv_rows *r, const float *rows, int64_t stride, int64_t at,
                                       const attn_dtype dtype) {
  vec square[VEC_LANES];
  UNROLL
  for (int t = 0; t < VEC_LANES; t++) square[t] = vec_load(rows + t * stride);
  vec_transpose(square);
  UNROLL
  for (int i = 0; i < VEC_LANES; i++) store_lanes(r->to, at + i * r->to_element, dtype, square[i]);
}

/* A column's squares are stored one behind the other, so that lines of the cache are written whole. */
static ALWAYS_INLINE void store_squares(const attn_kv_rows *r, staged_rows rows, int64_t at, const attn_dtype dtype) {
  for (int64_t d = 0; d + VEC_LANES <= rows.count; d += VEC_LANES)
    for (int64_t t = 0; t < rows.tokens; t += VEC_LANES)
      store_square(r, rows.data + t * rows.stride + d, rows.stride, at + d * r->to_element + t, dtype);
}

/* Its own function, because the stage of write_columns() fills a stack frame. */
static NO_INLINE void store_stage(const attn_kv_rows *r, staged_rows rows, int64_t at) {
  switch (r->to_dtype) {
#define DTYPE(constant, ...)                     \
  case ATTN_##constant:                          \
    store_squares(r, rows, at, ATTN_##constant); \
    break;
#define BLOCK_DTYPE(...) /* write_blocks() */
#include "kernels/common/problem/dtypes.def"
#undef DTYPE
#undef BLOCK_DTYPE
    default: break;
  }
}

/* Columns are far apart, so the CPU does not foresee their lines. */
static void prefetch_columns(const attn_kv_rows *r, int64_t at, int64_t tokens, int64_t count) {
  const int64_t bytes = attn_elements_bytes(r->to_dtype, tokens);
  for (int64_t d = 0; d < count; d++) {
    const char *column = attn_element_at(r->to, r->to_dtype, at + d * r->to_element);
    for (int64_t line = 0; line < bytes; line += LINE_BYTES) __builtin_prefetch(column + line, 1);
  }
}

/* `count` elements from `first` on, a multiple of CHUNK, of a token's row in one head, rotated, as floats. */
static void write_floats(const attn_kv_rows *r, int64_t t, int64_t head, int64_t first, int64_t count, float *to) {
  token_rows row = rows_at(r, t, head, 1);
  row.from_at += first * row.from_element;
  row.to = to;
  row.to_dtype = ATTN_F32;
  row.to_at = 0;
  row.to_element = 1;
  row.dim = count;
  if (first > 0) row.turned = 0;
  write_token_rows(&row);
}

/* Elements `first` .. of tokens' rows as floats: where they lie, if they are floats evenly apart, or in the stage. */
static staged_rows stage_rows(const attn_kv_rows *r, int64_t t, int64_t tokens, int64_t head, int64_t first, float *stage) {
  staged_rows rows = {stage, stage_stride(r), tokens, min64(CHUNK, r->dim - first)};
  const int64_t step = tokens > 1 ? r->from_at[t + 1] - r->from_at[t] : r->dim;
  if (!r->turns && r->from.dtype == ATTN_F32 && r->from_element == 1 &&
      tokens_in_step(r->from_at, t, t + tokens, step) == tokens) {
    rows.data = (const float *)r->from.data + r->from_at[t] + head * r->from_head + first;
    rows.stride = step;
    return rows;
  }
  for (int64_t i = 0; i < tokens; i++) write_floats(r, t + i, head, first, rows.count, stage + i * rows.stride);
  return rows;
}

/* `tokens` (a multiple of VEC_LANES) from t on, which lie side by side in a transposed page: squares of their rows. */
static void write_columns(const attn_kv_rows *r, int64_t t, int64_t tokens, int64_t head) {
  float stage[STAGE_FLOATS];
  staged_rows rows;
  for (int64_t first = 0; first < r->dim; first += rows.count) {
    const int64_t at = r->to_at[t] + head * r->to_head + first * r->to_element;
    prefetch_columns(r, at, tokens, min64(CHUNK, r->dim - first));
    rows = stage_rows(r, t, tokens, head, first, stage);
    store_stage(r, rows, at);
    for (int64_t d = round_down(rows.count, VEC_LANES); d < rows.count; d++)
      for (int64_t i = 0; i < tokens; i++)
        attn_store_f32(r->to, r->to_dtype, at + d * r->to_element + i, rows.data[i * rows.stride + d]);
  }
}

static void write_token(const attn_kv_rows *r, int64_t t, int64_t head, int64_t heads) {
  const token_rows rows = rows_at(r, t, head, heads);
  write_token_rows(&rows);
}

/* A token's row in one head as blocks, by way of floats. */
_Static_assert(CHUNK % ATTN_BLOCK_VALUES == 0, "every chunk but a row's last is whole blocks");
static void write_blocks(const attn_kv_rows *r, int64_t t, int64_t head) {
  float floats[CHUNK];
  for (int64_t first = 0, count; first < r->dim; first += count) {
    count = min64(CHUNK, r->dim - first);
    write_floats(r, t, head, first, count, floats);
    attn_store_row(r->to, r->to_dtype, r->to_at[t] + head * r->to_head + first, floats, count);
  }
}

static void write_head(const attn_kv_rows *r, int64_t head) {
  const int64_t most = r->to_element == 1 ? 1 : STAGE_FLOATS / stage_stride(r);
  for (int64_t t = 0, tokens; t < r->tokens; t += tokens) {
    tokens = round_down(tokens_in_step(r->to_at, t, min64(t + most, r->tokens), 1), VEC_LANES);
    if (tokens > 0)
      write_columns(r, t, tokens, head);
    else
      write_token(r, t, head, tokens = 1);
  }
}

/* Whichever of heads and tokens lie nearer to each other are innermost. */
static void write_rows(const attn_kv_rows *r) {
  const bool as_they_are = !r->turns && r->from.dtype == r->to_dtype && r->from_element == 1 && r->to_element == 1;
  const bool heads_inside = r->tokens == 1 || (r->from_head > 0 && r->from_head < r->from_at[1] - r->from_at[0]);
  if (attn_dtype_of(r->to_dtype).values > 1)
    for (int64_t n = 0; n < r->tokens * r->heads; n++) write_blocks(r, n / r->heads, n % r->heads);
  else if (as_they_are)
    copy_rows(r, heads_inside);
  else if (heads_inside && r->to_element == 1)
    for (int64_t t = 0; t < r->tokens; t++) write_token(r, t, 0, r->heads);
  else
    for (int64_t h = 0; h < r->heads; h++) write_head(r, h);
}

#define ATTN_KV_ROWS_OF(tier) const attn_kv_rows_kernel attn_kv_rows_##tier = {.angles = rope_angles, .write = write_rows};

#endif
