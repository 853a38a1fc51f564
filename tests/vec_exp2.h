/* SPDX-License-Identifier: MIT */
/* x[i] = vec_exp2(x[i]) of each tier; count is a multiple of 16. */
#ifndef TEST_VEC_EXP2_H
#define TEST_VEC_EXP2_H

#include <stdint.h>

void vec_exp2_array_c(float *x, int64_t count);
void vec_exp2_array_avx2(float *x, int64_t count);
void vec_exp2_array_avx512(float *x, int64_t count);
void vec_exp2_array_neon(float *x, int64_t count);

#endif
