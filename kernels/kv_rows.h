/* SPDX-License-Identifier: MIT */
/* The contract of a tier's row writer: rows of new tokens, converted, rotated (RoPE) and stored. src/layers/kv_append.c does
 * the rest in portable code: where each token comes from and goes to, checks, threads. */
#ifndef ATTN_KERNELS_KV_ROWS_H
#define ATTN_KERNELS_KV_ROWS_H

#include "attn/kv.h"
#include "kernels/common/problem/convert.h"

enum {
  ROPE_MOST_DIM = 256,      /* rotated elements of a row: rows are rotated in a buffer on the stack */
  KV_ROWS_MOST_TOKENS = 256 /* one call writes no more */
};

/* The frequencies of a rotation, in turns per position. `high` has 22 significant bits, so that its product with a position
 * of at most 31 bits is exact; `rest` is what it lacks. */
typedef struct attn_rope_turns {
  attn_rope_pairing pairing;
  int64_t dim; /* rotated elements: even */
  const double *high, *rest;
  double magnitude; /* a factor of sine and cosine */
} attn_rope_turns;

/* Rows of some tokens: heads x dim elements each. */
typedef struct attn_kv_rows {
  int64_t tokens, heads, dim; /* tokens: KV_ROWS_MOST_TOKENS at most */
  attn_storage from;
  const int64_t *from_at; /* [tokens]: the element that each token begins at */
  int64_t from_head, from_element;
  void *to;
  attn_dtype to_dtype;
  const int64_t *to_at; /* [tokens] */
  int64_t to_head, to_element;
  /* Rotation: [tokens][dim] floats each, as the tier's angles() has written them; NULL = none. */
  const attn_rope_turns *turns;
  const float *cosine, *sine;
} attn_kv_rows;

typedef struct attn_kv_rows_kernel {
  /* For d < turns->dim: rotated[d] = x[d] cosine[d] + x[partner of d] sine[d]. Position: 0..2^31 - 1. */
  void (*angles)(const attn_rope_turns *turns, int64_t position, float *cosine, float *sine);
  void (*write)(const attn_kv_rows *rows);
} attn_kv_rows_kernel;

#endif
