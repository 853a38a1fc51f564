/* SPDX-License-Identifier: MIT */
/* Linear maps with random weights, and float64 oracles, for the tests of libattn_nn's layers. */
#ifndef TESTS_NN_SUPPORT_H
#define TESTS_NN_SUPPORT_H

#include "attn/nn.h"
#include "kernels/ref/nn_oracle_f64.h"
#include "tests/support/support.h"

/* Random weights of magnitude 1 / sqrt(in) and, if wanted, a bias. An odd seed gives a transposed weight. Freed at exit. */
attn_linear nn_random_linear(int64_t in, int64_t out, bool bias, unsigned seed);

/* x W + b. Destroys x. */
attn_nn_field nn_apply(attn_nn_field x, const attn_linear *linear, int64_t out);

/* A whole transformer block in float64. numerics: what the kernel declares; NULL means float32. */
attn_nn_field nn_block(const attn_block_config *config, const attn_block_args *args, const attn_numerics *numerics);

/* `count` floats in -1..1, freed at exit. */
float *nn_random(int64_t count, unsigned seed);

/* nn_passes() fails unless the result lies within the field's limit, nn_rejected() unless it lies beyond 4 times the limit.
 * Both destroy the field. */
void nn_passes(attn_nn_field field, const float *got);
void nn_rejected(attn_nn_field field, const float *got);

/* Destroys all fields whose addresses are given. */
#define nn_destroy(...) nn_destroy_all((attn_nn_field *const[]){__VA_ARGS__, NULL})
void nn_destroy_all(attn_nn_field *const *fields);

#endif
