/* SPDX-License-Identifier: MIT */
/* The identity as V, of which O is P itself: how attention weights are had from any kernel as it is.
 *
 * n x n of it cost 2 n - 1 elements: element (j, c) stands at n - 1 + c - j of an array with a single 1 in its middle, which strides of -1
 * along the keys and +1 along the columns say. Reading from `first` elements later gives the columns from `first` on. */
#ifndef ATTN_IDENTITY_H
#define ATTN_IDENTITY_H

#include <assert.h>
#include <string.h>

#include "attn/attn.h"
#include "kernels/common/convert.h"

static const attn_strides attn_identity_strides = {.s = -1, .d = 1};

static inline size_t attn_identity_elements(int64_t n) { return (size_t)(2 * n - 1); }

/* Fills attn_identity_elements(n) elements in; returns where element (0, 0) is. n >= 1. */
static inline const char *attn_identity_fill(void *elements, int64_t n, attn_dtype dtype) {
  assert(n >= 1);
  memset(elements, 0, attn_identity_elements(n) * attn_dtype_bytes(dtype));
  attn_store_f32(elements, dtype, n - 1, 1.0f);
  return (const char *)elements + (size_t)(n - 1) * attn_dtype_bytes(dtype);
}

#endif
