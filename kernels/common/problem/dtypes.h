/* SPDX-License-Identifier: MIT */
/* Facts of each storage type: dtypes.def as a table. */
#ifndef ATTN_COMMON_DTYPES_H
#define ATTN_COMMON_DTYPES_H

#include "attn/attn.h"
#include "kernels/blocks.h"

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
#define ATTN_DTYPE_CONSTANTS "ATTN_F32, ATTN_F16, ATTN_BF16, ATTN_F8_E4M3, ATTN_F8_E5M2, ATTN_I8, ATTN_Q8_0 or ATTN_Q4_0"

typedef struct attn_dtype_info {
  const char *name;
  size_t bytes, alignment; /* an element has so many bytes, or the block that it is in, */
  int values;              /* and so many elements of a row: a power of two */
  int values_log2;
  double roundoff, least, overflow; /* see dtypes.def */
} attn_dtype_info;

static inline attn_dtype_info attn_dtype_of(attn_dtype dtype) {
  static const attn_dtype_info types[] = {
#define DTYPE(constant, name, element, ...) BLOCK_DTYPE(constant, name, element, 1, __VA_ARGS__)
#define BLOCK_DTYPE(constant, name, element, values, npy, ...) \
  [ATTN_##constant] = {#name, sizeof(element), _Alignof(element), values, __builtin_ctz(values), __VA_ARGS__},
#include "dtypes.def"
#undef DTYPE
#undef BLOCK_DTYPE
  };
  return types[dtype];
}

static inline bool attn_dtype_exists(attn_dtype dtype) { return (unsigned)dtype < ATTN_DTYPE_COUNT; }

/* Whether every tensor may have the type; the others are for K and V. */
static inline bool attn_dtype_is_float(attn_dtype dtype) { return (unsigned)dtype < ATTN_FLOAT_COUNT; }

/* Whether values are integers, of which none is infinite or NaN. */
static inline bool attn_dtype_is_integer(attn_dtype dtype) { return attn_dtype_of(dtype).roundoff == 0; }

/* Whether attn_kv_append can make a factor for each row of the type. Blocks have factors of their own. */
static inline bool attn_makes_factors(attn_dtype dtype) {
  return !attn_dtype_is_float(dtype) && attn_dtype_of(dtype).values == 1;
}

/* All that counts bytes of elements goes through these, because a type may store several elements together: a block, of
 * which a row has whole ones. */

/* Bytes of elements that stand one behind the other; a distance may be negative, and is of whole blocks. */
static inline int64_t attn_elements_bytes(attn_dtype dtype, int64_t count) {
  const attn_dtype_info type = attn_dtype_of(dtype);
  return ((count + type.values - 1) >> type.values_log2) * (int64_t)type.bytes;
}

/* How many elements so many bytes hold, rounded up to whole blocks. */
static inline int attn_elements_in(attn_dtype dtype, int bytes) {
  const attn_dtype_info type = attn_dtype_of(dtype);
  return (bytes + (int)type.bytes - 1) / (int)type.bytes << type.values_log2;
}

/* The address of element `index`, or of the block that it is in. */
static inline const char *attn_element_at(const void *data, attn_dtype dtype, int64_t index) {
  const attn_dtype_info type = attn_dtype_of(dtype);
  return (const char *)data + (index >> type.values_log2) * (int64_t)type.bytes;
}

/* Data of the type has to be aligned to so many bytes. */
static inline size_t attn_dtype_alignment(attn_dtype dtype) { return attn_dtype_of(dtype).alignment; }

/* Elements that a row of `count` takes up, and so the least distance of rows; count itself where that has no room. */
static inline int64_t attn_row_elements(attn_dtype dtype, int64_t count) {
  const int64_t others = attn_dtype_of(dtype).values - 1;
  return count > INT64_MAX - others ? count : (count + others) & ~others;
}

#endif
