/* SPDX-License-Identifier: MIT */
/* Facts of each storage type: dtypes.def as a table. */
#ifndef ATTN_COMMON_DTYPES_H
#define ATTN_COMMON_DTYPES_H

#include "attn/attn.h"

enum {
#define DTYPE(constant, ...) +1
  ATTN_DTYPE_COUNT = 0 /* one for each */
#include "dtypes.def"
  ,
  ATTN_FLOAT_COUNT = 0 /* those for every tensor, which come first */
#include "floats.def"
#undef DTYPE
};

/* For messages. */
#define ATTN_FLOAT_CONSTANTS "ATTN_F32, ATTN_F16 or ATTN_BF16"
#define ATTN_DTYPE_CONSTANTS "ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F8_E4M3, ATTN_F8_E5M2 or ATTN_I8"

typedef struct attn_dtype_info {
  const char *name;
  size_t bytes;
  double roundoff, least, overflow; /* see dtypes.def */
} attn_dtype_info;

static inline attn_dtype_info attn_dtype_of(attn_dtype dtype) {
  static const attn_dtype_info types[] = {
#define DTYPE(constant, name, element, npy, ...) [ATTN_##constant] = {#name, sizeof(element), __VA_ARGS__},
#include "dtypes.def"
#undef DTYPE
  };
  return types[dtype];
}

static inline bool attn_dtype_exists(attn_dtype dtype) { return (unsigned)dtype < ATTN_DTYPE_COUNT; }

/* Whether every tensor may have the type; the others are for K and V. */
static inline bool attn_dtype_is_float(attn_dtype dtype) { return (unsigned)dtype < ATTN_FLOAT_COUNT; }

/* Whether values are integers, of which none is infinite or NaN. */
static inline bool attn_dtype_is_integer(attn_dtype dtype) { return attn_dtype_of(dtype).roundoff == 0; }

/* All that counts bytes of elements goes through these, so that a type may store several elements together. */

/* Bytes of elements that stand one behind the other; a distance may be negative. */
static inline int64_t attn_elements_bytes(attn_dtype dtype, int64_t count) {
  return count * (int64_t)attn_dtype_of(dtype).bytes;
}

/* How many elements so many bytes hold. */
static inline int attn_elements_in(attn_dtype dtype, int bytes) { return bytes / (int)attn_dtype_of(dtype).bytes; }

/* The address of element `index`. */
static inline const char *attn_element_at(const void *data, attn_dtype dtype, int64_t index) {
  return (const char *)data + attn_elements_bytes(dtype, index);
}

/* Data of the type has to be aligned to so many bytes. */
static inline size_t attn_dtype_alignment(attn_dtype dtype) { return attn_dtype_of(dtype).bytes; }

#endif
