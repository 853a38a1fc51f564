/* SPDX-License-Identifier: MIT */
/* Rows as a KV cache holds them: what attn_kv_append writes (docs/semantics.md, "Writing a KV cache"), in plain loops that
 * share no code with it, and how far that may be from the row (docs/numerics.md, "Quantised rows"). Rows are finite. */
#ifndef BENCH_CACHED_H
#define BENCH_CACHED_H

#include <stdbool.h>

#include "attn/attn.h"

/* How a cache holds a row. */
typedef struct bench_cached {
  attn_dtype dtype;
  bool made;    /* the row's factor is made of its largest value; else it is given */
  float factor; /* a given one, 1 where there is none */
} bench_cached;

/* The factor of a row of float32 numbers. */
float bench_cached_factor(const bench_cached *how, const double *row, int64_t count);

/* Stores float32 numbers, `step` elements apart from `index` on, each times 1 / `factor`. Blocks are those that ggml's
 * quantisers make: `count` numbers fill them from `index` on, and zeros what is left of the last one. */
void bench_cached_store(void *data, attn_dtype dtype, int64_t index, int64_t step, const double *row, int64_t count,
                        float factor);

/* How far attention may read from row[i], if the number that was stored is known to be within off[i] of it; off == NULL:
 * exactly that. off may be bounds. */
void bench_cached_bounds(const bench_cached *how, const double *row, const double *off, int64_t count, double *bounds);

#endif
