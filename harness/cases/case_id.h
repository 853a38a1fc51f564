/* SPDX-License-Identifier: MIT */
/* The name of a case, as text that is a case again:
 *
 *     dtype:f32/B:1/Hq:8/Hkv:8/Sq:512/Sk:512/D:64/Dv:64/causal:none/threads:1/window:256..0/cache:cold
 *
 * The parts up to threads are always there; then follows every other axis that is not at its default. */
#ifndef BENCH_CASE_ID_H
#define BENCH_CASE_ID_H

#include "cases/case.h"

/* Sets case_id and seed of a case that is complete otherwise. */
void bench_case_name(bench_case *bench, uint64_t run_seed);

/* Appends "/magnitude:10/lse:on": the axes of `place` that are not at their defaults, but for those that `skips` is true
 * of (NULL: none). text has room for BENCH_NAME characters. */
void bench_case_name_axes(const bench_case *bench, bench_axis_place place, bool (*skips)(bench_axis), char *text);

/* One part of an id. */
typedef struct bench_id_part {
  char name[2 * BENCH_WORD], value[2 * BENCH_WORD]; /* "Hq" and "8" */
} bench_id_part;

/* Reads the part at *at and moves *at behind it; false at the end. */
bool bench_id_next(const char **at, bench_id_part *part);

/* The specification that a case id stands for. False with a sentence in error. */
bool bench_spec_from_id(const char *case_id, bench_spec *spec, char *error, size_t error_bytes);

#endif
