/* SPDX-License-Identifier: MIT */
#include "tests/support/nn_support.h"

#include <math.h>
#include <stdlib.h>

/* The arrays that nn_random() returned, to be freed at exit. */
struct kept {
  struct kept *next;
  float *values;
};
static struct kept *all;

static void free_all(void) {
  while (all) {
    struct kept *first = all;
    all = first->next;
    free(first->values);
    free(first);
  }
}

float *nn_random(int64_t count, unsigned seed) {
  float *values = test_allocate((size_t)(count + 1) * sizeof *values);
  struct kept *kept = test_allocate(sizeof *kept);
  if (!all) atexit(free_all);
  *kept = (struct kept){all, values};
  all = kept;
  test_fill(values, (size_t)count, seed);
  return values;
}

attn_linear nn_random_linear(int64_t in, int64_t out, bool bias, unsigned seed) {
  float *weight = nn_random(in * out, 3 * seed + 1000);
  for (int64_t i = 0; i < in * out; i++) weight[i] /= sqrtf((float)in);
  return (attn_linear){.weight = weight, .bias = bias ? nn_random(out, 3 * seed + 1001) : NULL, .transposed = seed % 2};
}

attn_nn_field nn_apply(attn_nn_field x, const attn_linear *linear, int64_t out) {
  const attn_nn_field y = attn_nn_oracle_linear(&x, linear, out);
  attn_nn_field_destroy(&x);
  return y;
}

void nn_destroy_all(attn_nn_field *const *fields) {
  for (; *fields; fields++) attn_nn_field_destroy(*fields);
}

void nn_passes(attn_nn_field field, const float *got) {
  const double worst = attn_nn_field_worst(&field, got);
  if (!(worst <= 1)) fail_msg("%.3g times the limit", worst);
  attn_nn_field_destroy(&field);
}

void nn_rejected(attn_nn_field field, const float *got) {
  const double worst = attn_nn_field_worst(&field, got);
  if (!(worst > 4)) fail_msg("a wrong formula passes: %.3g times the limit", worst);
  attn_nn_field_destroy(&field);
}
