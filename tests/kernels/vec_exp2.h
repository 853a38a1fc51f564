/* SPDX-License-Identifier: MIT */
/* x[i] = vec_exp2(x[i]) of one tier; count is a multiple of 16. */
#ifndef TEST_VEC_EXP2_H
#define TEST_VEC_EXP2_H

#include <stdint.h>

void vec_exp2_array(float *x, int64_t count);

#endif
