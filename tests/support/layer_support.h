/* SPDX-License-Identifier: MIT */
/* Cases by their ids, and one benchmark layer with its memory: for the tests that run layers as benchmark cases. */
#ifndef TESTS_LAYER_SUPPORT_H
#define TESTS_LAYER_SUPPORT_H

#include "cases/cases.h"
#include "layers/layer.h"
#include "tests/support/support.h"
#include "timing/setup.h"

/* The case that an id names. valid_case() fails the test if the case is invalid. */
bench_case case_of(const char *id);
bench_case valid_case(const char *id);

/* Random cases of a grid of the preset conformance, each of at most `work` multiply-adds: `pick` of them, or a quarter where
 * few are wanted. bench_cases_clear() frees them. */
bench_case_list conformance_cases(int grid, int64_t pick, double work, uint64_t seed);

typedef struct layer_one {
  bench_case bench;
  bench_layer *layer;
  bench_layer_trial *trial; /* at first the trial of the automatic choice */
  const attn_kernel_info *kernel;
  void *workspace;
  size_t bytes;
} layer_one;

/* Opens the case "layer:<kind>/<shape>" and makes its layer. close_layer() frees it with its current trial. */
void open_layer(layer_one *one, const char *kind, const char *shape);
void close_layer(layer_one *one);

/* The verdict on the current trial. */
bench_verdict check_layer(const layer_one *one);

/* Replaces the trial by that of another kernel, or by the deliberately wrong layer of its kind. False if the kernel refuses
 * the layer. */
bool remake_layer(layer_one *one, const attn_kernel_info *kernel, bool wrong);

#endif
