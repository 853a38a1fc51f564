#ifndef ATTN_NN_ACTIVATION_H
#define ATTN_NN_ACTIVATION_H

#include <stdint.h>

/* x <- x times the normal distribution function at x. */
void attn_nn_gelu(float *x, int64_t count);

#endif
