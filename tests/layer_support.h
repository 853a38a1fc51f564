/* SPDX-License-Identifier: MIT */
/* Cases by their ids, and one benchmark layer with its memory, for the tests of layers as cases. */
#ifndef TESTS_LAYER_SUPPORT_H
#define TESTS_LAYER_SUPPORT_H

#include "cases/cases.h"
#include "layers/layer_functions.h"
#include "support.h"
#include "timing/setup.h"

/* The case of an id; valid_case fails unless it is a valid problem. */
bench_case case_of(const char *id);
bench_case valid_case(const char *id);

typedef struct layer_one {
  bench_case bench;
  bench_layer *layer;
  bench_layer_trial *trial; /* of the automatic choice */
  const attn_kernel_info *kernel;
  void *workspace;
  size_t bytes;
} layer_one;

/* Opens "layer:<kind>/<shape>" and makes it. close_layer frees the trial, whichever it has become. */
void open_layer(layer_one *one, const char *kind, const char *shape);
void close_layer(layer_one *one);

/* The verdict on its trial. */
bench_verdict check_layer(const layer_one *one);

/* The trial gives way to that of another kernel, or to the wrong one of its kind; false if the kernel does not take the
 * layer. */
bool remake_layer(layer_one *one, const attn_kernel_info *kernel, bool wrong);

#endif
