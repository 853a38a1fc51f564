/* SPDX-License-Identifier: MIT */
/* vec_exp2 of one tier behind a plain function, compiled with that tier's flags; VEC_HEADER names the tier's header. */
#include VEC_HEADER

#include "vec_exp2.h"

void vec_exp2_array(float *x, int64_t count) {
  for (int64_t i = 0; i < count; i += VEC_LANES) vec_store(x + i, vec_exp2(vec_load(x + i)));
}
