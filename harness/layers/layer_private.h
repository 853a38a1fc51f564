/* SPDX-License-Identifier: MIT */
/* What layer.c allocates, layer_trial.c runs and layer_check.c compares with the rows of layer_expect.c. */
#ifndef BENCH_LAYER_PRIVATE_H
#define BENCH_LAYER_PRIVATE_H

#include "layers/layer_functions.h"

enum { BENCH_LAYER_GUARD = 64 /* floats before and behind y */ };

struct bench_layer {
  bench_layer_data data;
  bench_layer_rows rows; /* to check */
  int64_t *row_memory;
  float *y_memory; /* [guard][y][guard] */
  int64_t y_floats;
};

/* Makes a trial with these options. */
attn_status bench_layer_make_trial(bench_layer *layer, const attn_options *options, bool wrong, bench_layer_trial **result);

/* Fills in the expected rows and their limits. False if memory is short. */
bool bench_layer_expect(bench_layer *layer, const attn_numerics *numerics);

#endif
