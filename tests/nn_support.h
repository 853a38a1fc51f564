/* SPDX-License-Identifier: MIT */
/* Learnt maps with random weights, for the tests of libattn_nn's layers. */
#ifndef TESTS_NN_SUPPORT_H
#define TESTS_NN_SUPPORT_H

#include "attn/nn.h"
#include "layers/mha_oracle.h"
#include "support.h"

/* Weights of size 1 / sqrt(in), a bias where wanted. Every second seed gives a transposed weight. Freed when the tests
 * end. */
attn_linear nn_random_linear(int64_t in, int64_t out, bool bias, unsigned seed);

/* As the oracle takes it. */
attn_nn_matrix nn_matrix(const attn_linear *linear, int64_t in, int64_t out);

/* x W + b of a field, which is given up. */
attn_nn_field nn_apply(attn_nn_field x, const attn_linear *linear, int64_t out);

/* Multi-head attention, and a whole transformer block, in float64. numerics: of the kernel, or NULL for float32. */
attn_nn_field nn_mha(const attn_mha_problem *problem, const attn_mha_weights *weights, const attn_args *args,
                     const attn_nn_field *x, const attn_nn_field *memory);
attn_nn_field nn_block(const attn_block_config *config, const attn_block_args *args, const attn_numerics *numerics);

/* `count` floats in -1..1; freed when the tests end. */
float *nn_random(int64_t count, unsigned seed);

/* Fails unless the result lies within the limit of the field / beyond 4 times that limit. Gives the field up. */
void nn_passes(attn_nn_field field, const float *got);
void nn_rejected(attn_nn_field field, const float *got);

#endif
