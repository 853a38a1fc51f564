/* SPDX-License-Identifier: MIT */
/* A tier's attn_rows_kernel (kernels/rows.h) made from its vectors: joins, and gradients. No operation is fused, so that all
 * tiers give the same bits.
 *
 * s, a row's sum or product, is kept as floats wherever there is room: in the outputs, or in a buffer. Where there is none,
 * it is made anew, a chunk at a time, in each pass over the row. Outputs of 16 bits are written in the last pass.
 *
 * The mean is subtracted before squares are summed, because sum(s^2) - n mean^2 would cancel for rows far from 0. The
 * centred row has a mean too: the rounding error of the first one, which is subtracted as well. Sums run in SUM_LANES
 * independent chains, which keeps the rounding error of a chain small.
 *
 * Parameters: the tier's vec_<isa>.h. ATTN_ROWS_OF(isa) defines the tier's attn_rows_<isa>. */
#ifndef ATTN_COMMON_ROWS_TIER_H
#define ATTN_COMMON_ROWS_TIER_H

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "attn/train.h"
#include "dropout.h"
#include "exponential.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/rows.h"
#include "lanes.h"

enum {
  CHUNK = 4096, /* floats of a row that are kept beside the outputs: 16 KiB of the stack */
  SUM_LANES = 32,
  SUM_VECS = SUM_LANES / VEC_LANES
};
_Static_assert(CHUNK % SUM_LANES == 0, "lanes must not depend on where chunks begin");

/* ---- s ---- */

static ALWAYS_INLINE void widen(const attn_row_join *j, int64_t at, int64_t count, float *to, const attn_dtype x) {
  int64_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES) vec_store(to + i, load_lanes(j->x, at + i, x));
  for (; i < count; i++) to[i] = attn_load_f32((attn_storage){j->x, x}, at + i);
}

static ALWAYS_INLINE void combine(const attn_row_join *j, int64_t at, int64_t count, float *to, const attn_dtype x,
                                  const attn_dtype other) {
  const bool adds = j->kind == ATTN_JOIN_ADD;
  int64_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES) {
    const vec a = load_lanes(j->x, at + i, x), b = load_lanes(j->other, at + i, other);
    vec_store(to + i, adds ? vec_add(a, b) : vec_mul(a, b));
  }
  for (; i < count; i++) {
    const float a = attn_load_f32((attn_storage){j->x, x}, at + i);
    const float b = attn_load_f32((attn_storage){j->other, other}, at + i);
    to[i] = adds ? a + b : a * b;
  }
}

static ALWAYS_INLINE void combine_with(const attn_row_join *j, int64_t at, int64_t count, float *to, const attn_dtype x) {
  if (!j->other) {
    widen(j, at, count, to, x);
    return;
  }
  switch (j->dtype_other) {
#define DTYPE(constant, ...)                       \
  case ATTN_##constant:                            \
    combine(j, at, count, to, x, ATTN_##constant); \
    break;
#include "kernels/common/problem/floats.def"
#undef DTYPE
    default: break;
  }
}

/* to[i] = s of element at + i. `to` may be where an operand of float32 has these elements. */
static NO_INLINE void make_values(const attn_row_join *j, int64_t at, int64_t count, float *to) {
  switch (j->dtype_x) {
#define DTYPE(constant, ...)                         \
  case ATTN_##constant:                              \
    combine_with(j, at, count, to, ATTN_##constant); \
    break;
#include "kernels/common/problem/floats.def"
#undef DTYPE
    default: break;
  }
}

/* s of one row. */
typedef struct row_values {
  const attn_row_join *join;
  int64_t at;         /* element that the row begins at */
  const float *whole; /* all of it; NULL: chunks are made in the buffer */
  float *buffer;
} row_values;

/* An output's row, if it is float32; or NULL. */
static float *float_row(void *output, attn_dtype dtype, int64_t at) {
  return output && dtype == ATTN_F32 ? (float *)output + at : NULL;
}

static row_values start_row(const attn_row_join *j, int64_t row, float *buffer) {
  const int64_t at = row * j->width;
  row_values r = {j, at, NULL, buffer};
  float *room = float_row(j->sum, j->dtype_sum, at);
  if (!room && j->dtype_x == ATTN_F32 && !j->other) {
    r.whole = (const float *)j->x + at;
    return r;
  }
  if (!room) room = float_row(j->y, j->dtype_y, at);
  if (!room && j->width <= CHUNK) room = buffer;
  if (room) make_values(j, at, j->width, room);
  r.whole = room;
  return r;
}

static const float *values_at(const row_values *r, int64_t first, int64_t count) {
  if (r->whole) return r->whole + first;
  make_values(r->join, r->at + first, count, r->buffer);
  return r->buffer;
}

/* ---- Norms ---- */

/* Sums of s - shift and of its square: in lanes, and of the elements behind the last whole set of lanes. */
typedef struct row_sums {
  vec sum[SUM_VECS], squares[SUM_VECS];
  double rest_sum, rest_squares;
} row_sums;

static ALWAYS_INLINE void add_values(row_sums *sums, const float *x, int64_t count, float shift) {
  row_sums s = *sums;
  int64_t i = 0;
  for (; i + SUM_LANES <= count; i += SUM_LANES) {
    UNROLL
    for (int v = 0; v < SUM_VECS; v++) {
      const vec centred = vec_sub(vec_load(x + i + v * VEC_LANES), vec_set1(shift));
      s.sum[v] = vec_add(s.sum[v], centred);
      s.squares[v] = vec_add(s.squares[v], vec_mul(centred, centred));
    }
  }
  for (; i < count; i++) {
    const double centred = (double)x[i] - (double)shift;
    s.rest_sum += centred;
    s.rest_squares += centred * centred;
  }
  *sums = s;
}

/* Always the same tree: halves, quarters, ... */
static double add_lanes(const vec *lanes, double rest) {
  float floats[SUM_LANES];
  double sums[SUM_LANES];
  for (int v = 0; v < SUM_VECS; v++) vec_store(floats + v * VEC_LANES, lanes[v]);
  for (int i = 0; i < SUM_LANES; i++) sums[i] = (double)floats[i];
  UNROLL
  for (int half = SUM_LANES / 2; half > 0; half /= 2)
    for (int i = 0; i < half; i++) sums[i] += sums[i + half];
  return sums[0] + rest;
}

/* sum of (s - shift) and of its square */
static NO_INLINE void sums_about(const row_values *r, float shift, double *sum, double *squares) {
  row_sums s;
  for (int v = 0; v < SUM_VECS; v++) s.sum[v] = s.squares[v] = vec_zero();
  s.rest_sum = s.rest_squares = 0;
  for (int64_t first = 0, count; first < r->join->width; first += count) {
    count = min64(CHUNK, r->join->width - first);
    add_values(&s, values_at(r, first, count), count, shift);
  }
  *sum = add_lanes(s.sum, s.rest_sum);
  *squares = add_lanes(s.squares, s.rest_squares);
}

/* y = ((s - mean - missed) scale) gain + bias */
typedef struct row_scale {
  float mean, missed, scale;
  const float *gain, *bias; /* or NULL */
} row_scale;

static row_scale find_scale(const row_values *r) {
  const attn_row_join *j = r->join;
  const double width = (double)j->width;
  double sum, squares, rest = 0;
  float mean = 0;
  sums_about(r, 0, &sum, &squares);
  if (j->norm_kind == ATTN_NORM_LAYER) {
    mean = (float)(sum / width);
    sums_about(r, mean, &sum, &squares);
    rest = sum / width; /* rounding error of the float mean */
  }
  const double variance = squares / width - rest * rest;
  const double scale = 1 / sqrt((variance < 0 ? 0 : variance) + (double)j->norm.epsilon); /* NaN stays NaN */
  return (row_scale){mean, (float)rest, (float)scale, j->norm.gain, j->norm.bias};
}

/* ---- Outputs ---- */

static ALWAYS_INLINE void write_normed(void *to, int64_t at, const float *x, int64_t first, int64_t count,
                                       const row_scale *s, const attn_dtype dtype) {
  const vec mean = vec_set1(s->mean), missed = vec_set1(s->missed), scale = vec_set1(s->scale);
  int64_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES) {
    vec y = vec_mul(vec_sub(vec_sub(vec_load(x + i), mean), missed), scale);
    if (s->gain) y = vec_mul(y, vec_load(s->gain + first + i));
    if (s->bias) y = vec_add(y, vec_load(s->bias + first + i));
    store_lanes(to, at + i, dtype, y);
  }
  for (; i < count; i++) {
    float y = (x[i] - s->mean - s->missed) * s->scale;
    if (s->gain) y *= s->gain[first + i];
    if (s->bias) y += s->bias[first + i];
    attn_store_f32(to, dtype, at + i, y);
  }
}

static ALWAYS_INLINE void write_plain(void *to, int64_t at, const float *x, int64_t count, const attn_dtype dtype) {
  int64_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES) store_lanes(to, at + i, dtype, vec_load(x + i));
  for (; i < count; i++) attn_store_f32(to, dtype, at + i, x[i]);
}

/* Elements at .. of an output, which are `first` .. of its row; scale NULL: as they are. */
static NO_INLINE void write_values(void *to, attn_dtype dtype, int64_t at, const float *x, int64_t first, int64_t count,
                                   const row_scale *scale) {
  switch (dtype) {
#define DTYPE(constant, ...)                                         \
  case ATTN_##constant:                                              \
    if (scale)                                                       \
      write_normed(to, at, x, first, count, scale, ATTN_##constant); \
    else                                                             \
      write_plain(to, at, x, count, ATTN_##constant);                \
    break;
#include "kernels/common/problem/floats.def"
#undef DTYPE
    default: break;
  }
}

static void join_row(const attn_row_join *j, int64_t row, float *buffer) {
  const row_values r = start_row(j, row, buffer);
  const bool norms = j->norm_kind != ATTN_NORM_NONE;
  const row_scale scale = norms ? find_scale(&r) : (row_scale){0};
  if (norms && j->scales)
    memcpy(j->scales + 3 * row, (const float[]){scale.mean, scale.missed, scale.scale}, 3 * sizeof(float));
  const bool has_sum = !j->sum || (r.whole && r.whole == float_row(j->sum, j->dtype_sum, r.at));
  const bool has_y = !norms && r.whole && r.whole == float_row(j->y, j->dtype_y, r.at);
  for (int64_t first = 0, count; first < j->width; first += count) {
    count = min64(CHUNK, j->width - first);
    const float *x = values_at(&r, first, count);
    if (!has_sum) write_values(j->sum, j->dtype_sum, r.at + first, x, first, count, NULL);
    if (!has_y) write_values(j->y, j->dtype_y, r.at + first, x, first, count, norms ? &scale : NULL);
  }
}

static void join_rows(const attn_row_join *j, int64_t first, int64_t count) {
  float buffer[CHUNK];
  for (int64_t row = first; row < first + count; row++) join_row(j, row, buffer);
}

/* ---- Gradients ---- */

/* A row of a norm: n of its elements, and g = gain d_y. */
typedef struct norm_row {
  const float *s, *d_y, *gain; /* gain: or NULL */
  row_scale scale;
} norm_row;

static ALWAYS_INLINE float norm_at(const norm_row *r, int64_t i) {
  return (r->s[i] - r->scale.mean - r->scale.missed) * r->scale.scale;
}

static ALWAYS_INLINE float grad_at(const norm_row *r, int64_t i) { return r->gain ? r->gain[i] * r->d_y[i] : r->d_y[i]; }

static ALWAYS_INLINE vec norms_at(const norm_row *r, int64_t i) {
  const vec centred = vec_sub(vec_sub(vec_load(r->s + i), vec_set1(r->scale.mean)), vec_set1(r->scale.missed));
  return vec_mul(centred, vec_set1(r->scale.scale));
}

static ALWAYS_INLINE vec grads_at(const norm_row *r, int64_t i) {
  return r->gain ? vec_mul(vec_load(r->gain + i), vec_load(r->d_y + i)) : vec_load(r->d_y + i);
}

/* The sums of g and of g n. */
static NO_INLINE void project(const norm_row *r, int64_t width, double *sum, double *product) {
  vec sums[SUM_VECS], products[SUM_VECS];
  double rest = 0, rest_product = 0;
  for (int v = 0; v < SUM_VECS; v++) sums[v] = products[v] = vec_zero();
  int64_t i = 0;
  for (; i + SUM_LANES <= width; i += SUM_LANES) {
    UNROLL
    for (int v = 0; v < SUM_VECS; v++) {
      const vec g = grads_at(r, i + v * VEC_LANES);
      sums[v] = vec_add(sums[v], g);
      products[v] = vec_add(products[v], vec_mul(g, norms_at(r, i + v * VEC_LANES)));
    }
  }
  for (; i < width; i++) {
    rest += (double)grad_at(r, i);
    rest_product += (double)(grad_at(r, i) * norm_at(r, i));
  }
  *sum = add_lanes(sums, rest);
  *product = add_lanes(products, rest_product);
}

/* d_s = scale (g - means[0] - n means[1]) + d_sum */
static NO_INLINE void write_grad(const norm_row *r, int64_t width, const float means[2], const float *d_sum, float *d_s) {
  const vec mean = vec_set1(means[0]), slope = vec_set1(means[1]), scale = vec_set1(r->scale.scale);
  int64_t i = 0;
  for (; i + VEC_LANES <= width; i += VEC_LANES) {
    const vec made = vec_mul(scale, vec_sub(vec_sub(grads_at(r, i), mean), vec_mul(norms_at(r, i), slope)));
    vec_store(d_s + i, d_sum ? vec_add(made, vec_load(d_sum + i)) : made);
  }
  for (; i < width; i++) {
    const float made = r->scale.scale * ((grad_at(r, i) - means[0]) - norm_at(r, i) * means[1]);
    d_s[i] = d_sum ? made + d_sum[i] : made;
  }
}

static NO_INLINE void add_to_sums(const norm_row *r, int64_t width, double *restrict sums) {
  for (int64_t i = 0; i < width; i++) sums[i] += (double)r->d_y[i];
  for (int64_t i = 0; i < width; i++) sums[width + i] += (double)(r->d_y[i] * norm_at(r, i));
}

/* Those of the join, or anew. */
static row_scale scale_of_row(const attn_norm_grad *a, const attn_row_join *join, int64_t row) {
  const float *found = a->scales ? a->scales + 3 * row : NULL;
  if (found) return (row_scale){found[0], found[1], found[2], a->norm.gain, a->norm.bias};
  const row_values values = start_row(join, row, NULL);
  return find_scale(&values);
}

static void grad_norm(const attn_norm_grad *a, int64_t first, int64_t count, double *sums) {
  const int64_t width = a->width;
  const attn_row_join join = {.width = width, .norm_kind = a->kind, .norm = a->norm, .x = a->s};
  if (sums) memset(sums, 0, 2 * (size_t)width * sizeof *sums);
  for (int64_t row = first; row < first + count; row++) {
    const int64_t at = row * width;
    const norm_row r = {a->s + at, a->d_y + at, a->norm.gain, scale_of_row(a, &join, row)};
    if (sums) add_to_sums(&r, width, sums);
    if (!a->d_s) continue;
    double sum, product;
    project(&r, width, &sum, &product);
    const float means[2] = {a->kind == ATTN_NORM_LAYER ? (float)(sum / (double)width) : 0, (float)(product / (double)width)};
    write_grad(&r, width, means, a->d_sum ? a->d_sum + at : NULL, a->d_s + at);
  }
}

static void sum_rows(const float *x, int64_t stride, int64_t rows, int64_t columns, double *restrict sums) {
  memset(sums, 0, (size_t)columns * sizeof *sums);
  for (int64_t r = 0; r < rows; r++)
    for (int64_t c = 0; c < columns; c++) sums[c] += (double)x[r * stride + c];
}

static void drop_row(const attn_dropout *dropout, uint32_t row, int64_t width, const float *x, float *y) {
  const philox_dropout d = philox_dropout_of(dropout->probability, dropout->seed, dropout->offset);
  float factors[PHILOX_GROUP];
  for (int64_t first = 0; first < width; first += PHILOX_GROUP) {
    const int64_t count = min64(PHILOX_GROUP, width - first);
    philox_factors(&d, dropout->stream, row, first, first + count, factors);
    for (int64_t i = 0; i < count; i++) y[first + i] = factors[i] > 0 ? x[first + i] * factors[i] : 0;
  }
}

static float largest(const float *x, int64_t count) {
  vec lanes = vec_set1(-INFINITY);
  int64_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES) lanes = vec_max(vec_load(x + i), lanes);
  float most = vec_reduce_max(lanes);
  for (; i < count; i++) most = x[i] > most ? x[i] : most;
  return most;
}

static NO_INLINE double sum_of(const float *x, int64_t count) {
  vec sums[SUM_VECS];
  double rest = 0;
  for (int v = 0; v < SUM_VECS; v++) sums[v] = vec_zero();
  int64_t i = 0;
  for (; i + SUM_LANES <= count; i += SUM_LANES)
    for (int v = 0; v < SUM_VECS; v++) sums[v] = vec_add(sums[v], vec_load(x + i + v * VEC_LANES));
  for (; i < count; i++) rest += (double)x[i];
  return add_lanes(sums, rest);
}

static float exponentials(const float *x, int64_t count, float *to, double *sum) {
  enum { MOST = 256 };
  float chunk[MOST]; /* `to` may be x, and then compilers make no vectors */
  const float most = largest(x, count);
  *sum = 0;
  for (int64_t first = 0; first < count; first += MOST) {
    const int64_t n = min64(MOST, count - first);
    for (int64_t i = 0; i < n; i++) chunk[i] = negative_exp(x[first + i] - most);
    *sum += sum_of(chunk, n);
    if (to) memcpy(to + first, chunk, (size_t)n * sizeof *to);
  }
  return most;
}

/* In 16 chains, which are added in order. */
static double sum_squares(const float *x, int64_t count) {
  enum { SQUARE_CHAINS = 16 };
  double chains[SQUARE_CHAINS] = {0}, sum = 0;
  int64_t i = 0;
  for (; i + SQUARE_CHAINS <= count; i += SQUARE_CHAINS)
    for (int c = 0; c < SQUARE_CHAINS; c++) chains[c] += (double)x[i + c] * (double)x[i + c];
  for (int c = 0; i + c < count; c++) chains[c] += (double)x[i + c] * (double)x[i + c];
  for (int c = 0; c < SQUARE_CHAINS; c++) sum += chains[c];
  return sum;
}

#define ATTN_ROWS_OF(tier)                                      \
  const attn_rows_kernel attn_rows_##tier = {.join = join_rows, \
                                             .gradients = {grad_norm, sum_rows, drop_row, exponentials, sum_squares}};

#endif
