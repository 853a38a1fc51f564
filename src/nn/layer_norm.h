/* SPDX-License-Identifier: MIT */
/* Add & norm without checks, for blocks, which have checked when they were created. */
#ifndef ATTN_NN_LAYER_NORM_H
#define ATTN_NN_LAYER_NORM_H

#include "check.h"

/* As attn_add_layer_norm, but the arguments must be valid. */
void attn_nn_add_layer_norm(int64_t rows, int64_t width, const float *x, const float *residual, const attn_norm *norm,
                            float *sum, float *y);

attn_status attn_nn_check_norm(const attn_norm *norm);

#endif
