/* SPDX-License-Identifier: MIT */
/* Rows of new tokens in plain C (kernels/kv_rows.h): each element is loaded as a float, rotated with its partner, and
 * stored. kernels/common/memory/kv_rows_tier.h does the same in vectors, bit for bit. */
#include "kernels/kv_rows.h"

#include "kernels/common/memory/quantise.h"
#include "kernels/common/memory/rope_angles.h"
#include "kernels/common/problem/arithmetic.h"

/* Element d of a row that begins at `at`, rotated if the row is. */
static float element(const attn_kv_rows *r, int64_t t, int64_t at, int64_t d) {
  const float x = attn_load_f32(r->from, at + d * r->from_element);
  if (!r->turns || d >= r->turns->dim) return x;
  const int64_t dim = r->turns->dim, half = dim / 2;
  const int64_t partner = r->turns->pairing == ATTN_ROPE_INTERLEAVED ? d ^ 1 : d < half ? d + half : d - half;
  const float y = attn_load_f32(r->from, at + partner * r->from_element);
  return x * r->cosine[t * dim + d] + y * r->sine[t * dim + d];
}

/* The rotated elements are kept until all have been read: rows may be rotated where they are. */
static void write_row(const attn_kv_rows *r, int64_t t, int64_t head) {
  float rotated[ROPE_MOST_DIM];
  const int64_t from = r->from_at[t] + head * r->from_head, to = r->to_at[t] + head * r->to_head;
  const int64_t dim = r->turns ? r->turns->dim : 0;
  for (int64_t d = 0; d < dim; d++) rotated[d] = element(r, t, from, d);
  const int64_t together = attn_dtype_of(r->to_dtype).values;
  for (int64_t d = 0, count; d < r->dim; d += count) {
    float row[ATTN_BLOCK_VALUES];
    count = min64(together, r->dim - d);
    for (int64_t i = d; i < d + count; i++) row[i - d] = i < dim ? rotated[i] : element(r, t, from, i);
    attn_store_row(r->to, r->to_dtype, to + d * r->to_element, row, count);
  }
}

static void write_rows(const attn_kv_rows *r) {
  for (int64_t t = 0; t < r->tokens; t++)
    for (int64_t h = 0; h < r->heads; h++) write_row(r, t, h);
}

const attn_kv_rows_kernel attn_kv_rows_c = {.angles = rope_angles, .write = write_rows};
