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

static inline size_t attn_identity_elements(int64_t n) { return (size_t)(2 * n - 1); }

/* Fills attn_identity_elements(n) elements and returns the address of element (0, 0). n >= 1. */
static inline const char *attn_identity_fill(void *elements, int64_t n, attn_dtype dtype) {
  assert(n >= 1);
  memset(elements, 0, attn_identity_elements(n) * attn_dtype_bytes(dtype));
  attn_store_f32(elements, dtype, n - 1, 1.0f);
  return (const char *)elements + (size_t)(n - 1) * attn_dtype_bytes(dtype);
}

#endif
