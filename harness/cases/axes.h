/* SPDX-License-Identifier: MIT */
/* Axes: the named properties of a case, their values as text, and grids (every combination of some values).
 *
 * A specification gives every axis one value as text; cases.c turns it into a bench_case. Text is what users type, what
 * presets hold and what a repro line prints, so it is what we keep. */
#ifndef BENCH_AXES_H
#define BENCH_AXES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "attn/attn.h"

enum { BENCH_WORD = 24 }; /* longest value of an axis, its end included */

typedef enum bench_axis {
  AXIS_DTYPE,
  AXIS_BATCH,
  AXIS_HEADS,
  AXIS_HEADS_KV,
  AXIS_HEAD_DIM,
  AXIS_DIM_QK,
  AXIS_DIM_V,
  AXIS_SEQ,
  AXIS_SEQ_Q,
  AXIS_SEQ_K,
  AXIS_CAUSAL,
  AXIS_ALIGN,
  AXIS_OFFSET,
  AXIS_WINDOW,
  AXIS_MASK,
  AXIS_BIAS,
  AXIS_ALIBI,
  AXIS_SOFTCAP,
  AXIS_SCORE,
  AXIS_SCALE,
  AXIS_SINKS,
  AXIS_LENGTHS,
  AXIS_LSE,
  AXIS_LAYOUT,
  AXIS_MAGNITUDE,
  AXIS_VALUES,
  AXIS_CACHE,
  AXIS_LAYER,
  AXIS_WIDTH,
  AXIS_THREADS,
  AXIS_COUNT
} bench_axis;

typedef enum bench_axis_kind { AXIS_IS_INT, AXIS_IS_REAL, AXIS_IS_WORD, AXIS_IS_DTYPE, AXIS_IS_WINDOW } bench_axis_kind;

typedef struct bench_axis_info {
  const char *name;
  const char *fallback; /* value where none is given */
  bench_axis_kind kind;
  int64_t least;            /* INT */
  const char *const *words; /* WORD: all; INT, REAL: words allowed beside numbers, or NULL; ended by NULL */
  const char *help;
} bench_axis_info;

const bench_axis_info *bench_axis_get(bench_axis axis);

/* One value per axis; "" = the fallback. */
typedef struct bench_spec {
  char value[AXIS_COUNT][BENCH_WORD];
} bench_spec;

/* The value of an axis, or its fallback. */
const char *bench_spec_get(const bench_spec *spec, bench_axis axis);

/* The values of one axis. */
typedef struct bench_values {
  char (*value)[BENCH_WORD];
  int count;
} bench_values;

/* Every combination of the values of its axes or, if pick > 0, a selection of `pick` of them that covers pairs of values. */
typedef struct bench_grid {
  char title[96];
  bench_values axes[AXIS_COUNT]; /* count 0 = not given */
  int64_t pick;
  double work; /* pick only: leave out combinations of more multiply-adds; 0 = no limit */
} bench_grid;

/* Sets one axis from "name=values": commas separate; a:b:+s and a:b:*f are ranges of whole numbers with both ends. Values
 * given before are replaced. `seq` replaces seq_q and seq_k, `head_dim` dim_qk and dim_v. False with a sentence in error. */
bool bench_grid_set(bench_grid *grid, const char *assignment, char *error, size_t error_bytes);
void bench_grid_clear(bench_grid *grid);

/* True if `assignment` sets the axis `name`; *values then points behind the "=". */
bool bench_axis_is(const char *assignment, const char *name, const char **values);

/* Reads "256", "256..0", "..64", "none" (keys to the left and right, -1 = open). With one number, right
 * is as left, or 0 where causal. */
bool bench_window_read(const char *text, bool causal, int64_t *left, int64_t *right);

/* Reads "bf16" (all three), "f32+bf16" (Q and O, K/V) or "bf16+bf16+f32" (Q, K/V, O). */
bool bench_dtype_read(const char *text, attn_dtype *q, attn_dtype *kv, attn_dtype *o);
const char *bench_dtype_name(attn_dtype dtype);

#endif
