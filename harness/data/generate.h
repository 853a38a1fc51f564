/* SPDX-License-Identifier: MIT */
/* Generated data: every value is a pure function of (seed, stream, index), so that neither layout nor order of filling
 * changes it. The generator is SplitMix64 (Steele, Lea & Flood 2014) used as a counter-based hash. */
#ifndef BENCH_GENERATE_H
#define BENCH_GENERATE_H

#include "kernels/common/problem/dtypes.h"

/* One per tensor, and one for the rows that the check draws. Appending is free; reordering changes all data. */
typedef enum bench_stream {
  BENCH_STREAM_Q,
  BENCH_STREAM_K,
  BENCH_STREAM_V,
  BENCH_STREAM_BIAS,
  BENCH_STREAM_MASK,
  BENCH_STREAM_SCORES,
  BENCH_STREAM_SCORE_WEIGHT,
  BENCH_STREAM_KV_LEN,
  BENCH_STREAM_Q_LEN,
  BENCH_STREAM_ROW_LEN,
  BENCH_STREAM_SINKS,
  BENCH_STREAM_CHECKED_ROWS,
  BENCH_STREAM_ORDER,
  BENCH_STREAM_STRUCTURE,
  BENCH_STREAM_BIAS_MASK,
  BENCH_STREAM_LAYER,
  BENCH_STREAM_PLACES,
  BENCH_STREAM_PAGES,
  BENCH_STREAM_K_SCALE,
  BENCH_STREAM_V_SCALE,
  BENCH_STREAM_KEY_BLOCKS,
  BENCH_STREAM_D_O,
  BENCH_STREAM_D_LSE,
} bench_stream;

/* 64 uniform bits. */
uint64_t bench_value_bits(uint64_t seed, bench_stream stream, uint64_t index);

/* 0 .. count - 1; count >= 1. The bias of the modulus is below count / 2^64. */
int64_t bench_value_below(uint64_t seed, bench_stream stream, uint64_t index, int64_t count);

/* [0, 1), and normal with mean 0 and variance 1 (Box-Muller; at most 5.9 standard deviations away). */
double bench_value_uniform(uint64_t seed, bench_stream stream, uint64_t index);
double bench_value_normal(uint64_t seed, bench_stream stream, uint64_t index);

/* data[index] = value, rounded to nearest even of the type. */
void bench_store(void *data, attn_dtype dtype, int64_t index, double value);

/* The same for a row of `count` values from `index` on, whose types may be those of blocks. What a row leaves of its last
 * block holds the largest number. */
void bench_store_row(void *data, attn_dtype dtype, int64_t index, const double *values, int64_t count);

#endif
