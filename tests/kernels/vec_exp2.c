/* SPDX-License-Identifier: MIT */
/* vec_exp2 of one tier as a plain function, compiled with the flags of that tier. VEC_HEADER is the header of the tier. */
#include VEC_HEADER

#include "tests/kernels/vec_exp2.h"

void vec_exp2_array(float *x, int64_t count) {
  for (int64_t i = 0; i < count; i += VEC_LANES) vec_store(x + i, vec_exp2(vec_load(x + i)));
}
