/* SPDX-License-Identifier: MIT */
/* Calls from programs that XLA has compiled, without Python: libattn/jax.py makes a `compiled` of each when it is traced,
 * and XLA hands it to attn_python_xla() with the arrays. Needs nothing of Python. */
#ifndef LIBATTN_XLA_H
#define LIBATTN_XLA_H

#include "plans.h"

enum { MOST_OPERANDS = 24 };

/* A field of attn_args: its place in there. */
typedef uint16_t args_place;

/* All of a call but its arrays. It has no addresses, as XLA may keep programs in files. */
typedef struct compiled {
  request wanted; /* without the addresses of these names: */
  char kernel[64], max_isa[32];
  uint64_t seed, offset; /* unless they are operands */
  bool longest[2];       /* the longest sequence of queries, of keys, is looked for */
  int32_t operands, results;
  args_place operand[MOST_OPERANDS], result[MOST_OPERANDS];
} compiled;

/* An XLA_FFI_Handler. Its attribute `call` is a compiled, as int64; operands and results are dense. */
typedef struct xla_error xla_error;
typedef struct xla_frame xla_frame;
__attribute__((visibility("default"))) xla_error *attn_python_xla(const xla_frame *frame);

#endif
