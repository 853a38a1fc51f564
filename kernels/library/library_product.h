/* SPDX-License-Identifier: MIT */
/* A matrix product as a library computes it. */
#ifndef ATTN_LIBRARY_PRODUCT_H
#define ATTN_LIBRARY_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

/* c = a b, or c + a b: float matrices by rows, c[rows][columns], a[rows][depth] or, transposed, [depth][rows],
 * b[depth][columns] or, transposed, [columns][depth]; strides are elements from one row to the next, at least a row long.
 * Without `accumulate` the previous content of c does not matter. All sizes >= 1. */
typedef struct library_product {
  int64_t rows, columns, depth;
  const float *a, *b;
  float *c;
  int64_t a_stride, b_stride, c_stride;
  bool a_transposed, b_transposed, accumulate;
} library_product;

typedef void (*library_product_fn)(const library_product *product);

#endif
