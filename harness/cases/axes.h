/* SPDX-License-Identifier: MIT */
/* Axes: the named properties of a case, and their values as text.
 *
 * A specification gives every axis one value as text; case.c turns it into a bench_case. Users type text, presets
 * hold text and a repro line prints text, so a specification keeps text. axes.def has one line per axis. */
#ifndef BENCH_AXES_H
#define BENCH_AXES_H

#include "attn/attn.h"

enum { BENCH_WORD = 24 }; /* longest value of an axis, its end included */

typedef enum bench_axis {
#define AXIS(constant, ...) AXIS_##constant,
#include "cases/axes.def"
  AXIS_COUNT
} bench_axis;

typedef enum bench_axis_kind { AXIS_IS_INT, AXIS_IS_REAL, AXIS_IS_WORD, AXIS_IS_DTYPE, AXIS_IS_WINDOW } bench_axis_kind;

/* Where an axis stands in the case id: axes.def explains the places. */
typedef enum bench_axis_place { AXIS_IN_HEAD, AXIS_IN_DATA, AXIS_IN_RUN, AXIS_IN_NONE } bench_axis_place;

typedef struct bench_axis_info {
  const char *name;
  const char *fallback; /* value where none is given */
  bench_axis_kind kind;
  bench_axis_place place;
  int64_t least, most;      /* INT, WINDOW */
  const char *const *words; /* WORD: all; other kinds: words allowed beside numbers, or NULL; ended by NULL */
  const char *help;
} bench_axis_info;

const bench_axis_info *bench_axis_get(bench_axis axis);

/* NULL if `text` is a value of the axis, or else what it should be. A number must fit the type that the library has for
 * it. */
const char *bench_axis_wants(const bench_axis_info *axis, const char *text);

/* One value per axis; "" = the fallback. */
typedef struct bench_spec {
  char value[AXIS_COUNT][BENCH_WORD];
} bench_spec;

/* The value of an axis, or its fallback; and that value read as a number (0 if it is a word). */
const char *bench_spec_get(const bench_spec *spec, bench_axis axis);
int64_t bench_spec_int(const bench_spec *spec, bench_axis axis);
double bench_spec_real(const bench_spec *spec, bench_axis axis);

/* The place of the value among the words of the axis; 0 if it is none of them. */
int bench_spec_index(const bench_spec *spec, bench_axis axis);

bool bench_spec_is(const bench_spec *spec, bench_axis axis, const char *word);
void bench_spec_set(bench_spec *spec, bench_axis axis, const char *value);

/* Keys to the left and right of a query's position; -1 = open. */
typedef struct bench_window {
  int64_t left, right;
} bench_window;

/* Reads "256", "256..0", "..64", "none". With one number, right is as left, or 0 where causal. */
bool bench_window_read(const char *text, bool causal, bench_window *window);

/* Reads "bf16" (all three), "f32+bf16" (Q and O, K/V) or "bf16+bf16+f32" (Q, K/V, O). */
bool bench_dtype_read(const char *text, attn_dtype *q, attn_dtype *kv, attn_dtype *o);
const char *bench_dtype_name(attn_dtype dtype);

#endif
