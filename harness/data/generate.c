/* SPDX-License-Identifier: MIT */
/* Counter-based random values, and rounding to the storage types. */
#include "data/generate.h"

#include <math.h>
#include <string.h>

#include "cases/case.h"
#include "kernels/ref/oracle_f64.h"

/* Value `index` of the generator that begins at value `stream` of the one that begins at the seed. */
uint64_t bench_value_bits(uint64_t seed, bench_stream stream, uint64_t index) {
  uint64_t state = seed + BENCH_GOLDEN * (uint64_t)stream;
  state = bench_random(&state) + BENCH_GOLDEN * index;
  return bench_random(&state);
}

int64_t bench_value_below(uint64_t seed, bench_stream stream, uint64_t index, int64_t count) {
  return (int64_t)(bench_value_bits(seed, stream, index) % (uint64_t)count);
}

double bench_value_uniform(uint64_t seed, bench_stream stream, uint64_t index) {
  return (double)(bench_value_bits(seed, stream, index) >> 11) * 0x1p-53;
}

double bench_value_normal(uint64_t seed, bench_stream stream, uint64_t index) {
  uint64_t bits = bench_value_bits(seed, stream, index);
  float radius_uniform = ((float)(bits >> 40) + 0.5f) * 0x1p-24f; /* in (0, 1): its logarithm is finite */
  float turn = (float)(bits & 0xffffff) * 0x1p-24f;
  return (double)(sqrtf(-2.0f * logf(radius_uniform)) * cosf(6.2831853f * turn));
}

static uint32_t float_bits(float x) {
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  return bits;
}

static uint16_t half_from_float(float x) {
  uint32_t bits = float_bits(x), magnitude = bits & 0x7fffffff, sign = (bits >> 16) & 0x8000;
  if (magnitude > 0x7f800000) return (uint16_t)(sign | 0x7e00);  /* NaN */
  if (magnitude >= 0x477ff000) return (uint16_t)(sign | 0x7c00); /* 65520 and more round to infinity */
  if (magnitude < 0x38800000) /* below 2^-14: adding 1/2 rounds to multiples of 2^-24, the step of denormal halves */
    return (uint16_t)(sign | (float_bits(fabsf(x) + 0.5f) - 0x3f000000));
  uint32_t rounded = magnitude + 0xfff + ((magnitude >> 13) & 1);
  return (uint16_t)(sign | ((rounded - 0x38000000) >> 13));
}

static uint16_t bfloat_from_float(float x) {
  uint32_t bits = float_bits(x);
  if ((bits & 0x7fffffff) > 0x7f800000) return (uint16_t)((bits >> 16) | 0x40);
  return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* A value is `count` units of the last place of its exponent, the largest one's if it is beyond; rint() takes ties to even.
 */
static uint8_t byte_from_float(float x, attn_dtype dtype) {
  const int places = dtype == ATTN_F8_E4M3 ? 3 : 2, bias = dtype == ATTN_F8_E4M3 ? 7 : 15;
  const double size = fmin(fabs((double)x), dtype == ATTN_F8_E4M3 ? 448 : 57344);
  const int sign = signbit(x) ? 0x80 : 0;
  if (isnan(x)) return (uint8_t)(sign | (dtype == ATTN_F8_E4M3 ? 0x7f : 0x7e));
  const int exponent = size < ldexp(1, 1 - bias) ? 1 - bias : ilogb(size);
  const int count = (int)rint(ldexp(size, places - exponent)) - (1 << places); /* beyond the first value of this exponent */
  return (uint8_t)(sign | (((exponent + bias) << places) + count));
}

static int8_t integer_from_float(float x) { return (int8_t)(isnan(x) ? 0 : rint(fmax(-128, fmin((double)x, 127)))); }

void bench_store(void *data, attn_dtype dtype, int64_t index, double value) {
  float x = (float)value;
  switch (dtype) {
    case ATTN_F32: ((float *)data)[index] = x; break;
    case ATTN_F16: ((uint16_t *)data)[index] = half_from_float(x); break;
    case ATTN_BF16: ((uint16_t *)data)[index] = bfloat_from_float(x); break;
    case ATTN_F8_E4M3:
    case ATTN_F8_E5M2: ((uint8_t *)data)[index] = byte_from_float(x, dtype); break;
    case ATTN_I8: ((int8_t *)data)[index] = integer_from_float(x); break;
    case ATTN_Q8_0:
    case ATTN_Q4_0: break; /* bench_store_row() alone */
  }
}

/* A block: the value that is farthest from 0 becomes the lowest integer, so that all of them occur, and factors of both
 * signs. */
static void store_block(uint8_t *block, attn_dtype dtype, const double *values, int64_t count) {
  enum { VALUES = 32 };
  const int least = dtype == ATTN_Q8_0 ? -128 : -8;
  double largest = 0;
  for (int64_t i = 0; i < count; i++)
    if (isnan(values[i]) || fabs(values[i]) > fabs(largest)) largest = values[i];
  const uint16_t half = half_from_float((float)(largest / least));
  const double scale = attn_oracle_load(&half, ATTN_F16, 0);
  memcpy(block, &half, sizeof half);
  for (int64_t i = 0; i < VALUES; i++) {
    const double x = i < count && scale != 0 ? rint(values[i] / scale) : 0;
    const int nearest = isfinite(x) ? (int)fmin(fmax(x, least), -least - 1) : -1, n = i < count ? nearest : -least - 1;
    uint8_t *byte = block + sizeof half + (dtype == ATTN_Q8_0 ? i : i % (VALUES / 2));
    if (dtype == ATTN_Q8_0)
      *byte = (uint8_t)n;
    else
      *byte = (uint8_t)(i < VALUES / 2 ? n + 8 : *byte | (n + 8) << 4);
  }
}

void bench_store_row(void *data, attn_dtype dtype, int64_t index, const double *values, int64_t count) {
  const int64_t together = attn_dtype_of(dtype).values;
  uint8_t *block = (uint8_t *)data + attn_elements_bytes(dtype, index);
  for (int64_t i = 0; together == 1 && i < count; i++) bench_store(data, dtype, index + i, values[i]);
  for (int64_t i = 0; together > 1 && i < count; i += together, block += attn_elements_bytes(dtype, together))
    store_block(block, dtype, values + i, count - i < together ? count - i : together);
}
