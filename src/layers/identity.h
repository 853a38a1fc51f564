/* SPDX-License-Identifier: MIT */
/* The identity matrix as V. With it the output O equals P, so any kernel yields attention weights.
 *
 * An n x n identity needs only 2 n - 1 elements: zeros with a single 1 in the middle. Element (j, c) is at index n - 1 + c -
 * j, that is, the stride is -1 along the keys and +1 along the columns. Columns from `first` on begin `first` elements
 * later. */
#ifndef ATTN_IDENTITY_H
#define ATTN_IDENTITY_H

#include <assert.h>
#include <string.h>

#include "attn/attn.h"
#include "kernels/common/problem/convert.h"

static const attn_strides attn_identity_strides = {.s = -1, .d = 1};

static inline int64_t attn_identity_elements(int64_t n) { return 2 * n - 1; }

static inline size_t attn_identity_bytes(int64_t n, attn_dtype dtype) {
  return (size_t)attn_elements_bytes(dtype, attn_identity_elements(n));
}

/* Fills attn_identity_bytes() and returns the address of element (0, 0). n >= 1. */
static inline const char *attn_identity_fill(void *elements, int64_t n, attn_dtype dtype) {
  assert(n >= 1);
  memset(elements, 0, attn_identity_bytes(n, dtype));
  attn_store_f32(elements, dtype, n - 1, 1.0f);
  return attn_element_at(elements, dtype, n - 1);
}

#endif
