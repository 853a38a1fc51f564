/* SPDX-License-Identifier: MIT */
/* Factors, blocks and their errors. Float arithmetic stands in steps of its own, which no compiler may fuse. */
#include "data/cached.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "data/generate.h"
#include "kernels/ref/oracle_f64.h"

static const double U = 0x1p-24, U_HALF = 0x1p-11; /* roundings of float32 and float16 */
static const double STEP_HALF = 0x1p-25;           /* half the smallest number of float16 */
enum { LEAST_OF_Q8 = -127, MOST_OF_Q4 = 7, LEAST_OF_Q4 = -8 };

/* ---- Storing ---- */

static float largest_of_type(attn_dtype dtype) {
  float room = 0;
  bench_store(&room, dtype, 0, INFINITY);
  return (float)attn_oracle_load(&room, dtype, 0);
}

static double farthest(const double *row, int64_t count) {
  double most = 0;
  for (int64_t i = 0; i < count; i++)
    if (fabs(row[i]) > fabs(most)) most = row[i]; /* the first of two */
  return most;
}

float bench_cached_factor(const bench_cached *how, const double *row, int64_t count) {
  if (!how->made) return how->factor;
  const float factor = (float)fabs(farthest(row, count)) / largest_of_type(how->dtype);
  return factor < FLT_MIN ? 0 : factor;
}

static float reciprocal(float x) { return x == 0 ? 0 : 1 / x; }

/* ggml-quants.c: quantize_row_q8_0_ref() and quantize_row_q4_0_ref(). */
static void store_block(uint8_t *block, attn_dtype dtype, const double x[ATTN_BLOCK_VALUES]) {
  enum { HALF = ATTN_BLOCK_VALUES / 2 };
  const float most = (float)farthest(x, ATTN_BLOCK_VALUES);
  const float scale = dtype == ATTN_Q8_0 ? fabsf(most) / -LEAST_OF_Q8 : most / LEAST_OF_Q4, inverse = reciprocal(scale);
  uint16_t half;
  bench_store(&half, ATTN_F16, 0, (double)scale);
  memcpy(block, &half, sizeof half);
  block += sizeof half;
  for (int i = 0; i < ATTN_BLOCK_VALUES; i++) {
    const float steps = (float)x[i] * inverse;
    const float moved = steps + (0.5f - LEAST_OF_Q4);
    const int n = moved < MOST_OF_Q4 - LEAST_OF_Q4 ? (int)moved : MOST_OF_Q4 - LEAST_OF_Q4;
    if (dtype == ATTN_Q8_0)
      block[i] = (uint8_t)(int8_t)roundf(steps);
    else
      block[i % HALF] = (uint8_t)(i < HALF ? n : block[i % HALF] | n << 4);
  }
}

void bench_cached_store(void *data, attn_dtype dtype, int64_t index, int64_t step, const double *row, int64_t count,
                        float factor) {
  const float inverse = reciprocal(factor);
  const int64_t together = attn_dtype_of(dtype).values;
  for (int64_t first = 0; first < count; first += together) {
    double x[ATTN_BLOCK_VALUES] = {0};
    for (int64_t i = 0; i < together && first + i < count; i++) x[i] = (double)((float)row[first + i] * inverse);
    if (together == 1)
      bench_store(data, dtype, index + first * step, x[0]);
    else
      store_block((uint8_t *)data + attn_elements_bytes(dtype, index + first), dtype, x);
  }
}

/* ---- Errors ---- */

/* The largest size that a number of the row can have, and the one that it has at least; and which signs the number of the
 * largest size may have: [0] above 0, [1] below. */
typedef struct reach {
  double most, sure;
  bool of_sign[2];
} reach;

static double off_at(const double *off, int64_t i) { return off ? off[i] : 0; }

static reach reach_of(const double *row, const double *off, int64_t count) {
  reach r = {0};
  for (int64_t i = 0; i < count; i++) {
    r.most = fmax(r.most, fabs(row[i]) + off_at(off, i));
    r.sure = fmax(r.sure, fabs(row[i]) - off_at(off, i));
  }
  for (int64_t i = 0; i < count; i++) r.of_sign[signbit(row[i]) != 0] |= fabs(row[i]) + off_at(off, i) >= r.sure;
  return r;
}

/* Sizes are those before a factor divides them. */
static void bound_block(const bench_cached *how, const double *row, const double *off, int64_t count, double *bounds) {
  const reach r = reach_of(row, off, count);
  const double parts = how->dtype == ATTN_Q8_0 ? -LEAST_OF_Q8 : -LEAST_OF_Q4, step = r.most / parts * (1 + U);
  const double least_step = r.sure / parts, half = STEP_HALF * fabs((double)how->factor);
  const double of_scale = fmin(1, fmax(U_HALF, half / least_step));
  for (int64_t i = 0; i < count; i++) {
    const double size = fabs(row[i]) + off_at(off, i);
    const bool clamped = how->dtype == ATTN_Q4_0 && r.of_sign[!signbit(row[i])];
    const double rounded = clamped ? fmax(step / 2, size - MOST_OF_Q4 * least_step) : step / 2;
    bounds[i] = off_at(off, i) + rounded + U * (8 * size + 34 * step) + of_scale * (size + step);
  }
}

/* Types that store each number by itself. */
static void bound_numbers(const bench_cached *how, const double *row, const double *off, int64_t count, double *bounds) {
  const reach r = reach_of(row, off, count);
  const attn_dtype_info type = attn_dtype_of(how->dtype);
  const double largest = (double)largest_of_type(how->dtype);
  const double factor = how->made ? r.most / largest * (1 + U) : fabs((double)how->factor);
  const bool vanishes = how->made && r.sure / largest < FLT_MIN;
  const bool kept = how->dtype == ATTN_F32 && !how->made && how->factor == 1;
  for (int64_t i = 0; i < count; i++) {
    const double size = fabs(row[i]) + off_at(off, i);
    double error = fmax(type.roundoff / (1 + type.roundoff) * size, factor * type.least / 2) + 4 * U * size;
    if (!how->made) error = fmax(error, size - factor * largest);
    bounds[i] = off_at(off, i) + (kept ? 0 : vanishes ? fmax(error, size) : error);
  }
}

void bench_cached_bounds(const bench_cached *how, const double *row, const double *off, int64_t count, double *bounds) {
  const int64_t together = attn_dtype_of(how->dtype).values;
  if (together == 1) bound_numbers(how, row, off, count, bounds);
  for (int64_t i = 0; together > 1 && i < count; i += together)
    bound_block(how, row + i, off ? off + i : NULL, count - i < together ? count - i : together, bounds + i);
}
