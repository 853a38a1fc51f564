/* SPDX-License-Identifier: MIT */
/* Norms of heads: rows of one head dimension, each by its own root mean square. Q and K are dense in every layer, whatever
 * the order of heads and tokens, so they are rows one behind the other. */
#include "src/layers/head_norm.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/arithmetic.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/choice/dispatch.h"
#include "src/layers/norm_row.h"
#include "src/plan/parallel.h"
#include "src/registry/tier_parts.h"

enum { BLOCK_ROWS = 64, TIMES = 7 /* reads and writes of an element in norm_row() */ };

static attn_status allocate(attn_head_norm *norm) {
  norm->gains = malloc((size_t)norm->dim * 2 * sizeof(float));
  return norm->gains ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for the norms of a layer's heads");
}

attn_status attn_head_norm_create(const attn_mha_weights *weights, int64_t dim, const attn_options *options,
                                  attn_head_norm *norm) {
  *norm = (attn_head_norm){.dim = dim, .epsilon = weights->qk_norm_epsilon};
  if (!weights->qk_norm) return ATTN_OK;
  const char *cap;
  attn_status status = attn_dispatch_cap(options, &cap);
  if (status != ATTN_OK) return status;
  norm->rows = attn_tier_parts_below(cap).kv_rows;
  status = allocate(norm);
  if (status != ATTN_OK) return status;
  const float *const gains[] = {weights->q_norm_gain, weights->k_norm_gain};
  for (int64_t i = 0; i < 2 * dim; i++) norm->gains[i] = gains[i / dim] ? gains[i / dim][i % dim] : 1;
  return ATTN_OK;
}

attn_status attn_head_norm_copy(const attn_head_norm *from, attn_head_norm *norm) {
  *norm = *from;
  if (!from->gains) return ATTN_OK;
  const attn_status status = allocate(norm);
  if (status == ATTN_OK) memcpy(norm->gains, from->gains, (size_t)from->dim * 2 * sizeof(float));
  return status;
}

void attn_head_norm_destroy(attn_head_norm *norm) { free(norm->gains); }

/* One call. */
typedef struct call {
  row_norm norm;
  attn_head_rows rows;
  const attn_kv_rows_kernel *convert;
} call;

/* One row of 16 bits. */
static void norm_rounded(const call *c, int64_t row) {
  float floats[ATTN_HEAD_NORM_DIM];
  const int64_t at = row * c->norm.width, begin = 0;
  attn_kv_rows part = {.tokens = 1, .heads = 1, .dim = c->norm.width, .from_element = 1, .to_element = 1};
  part.from = (attn_storage){c->rows.data, c->rows.dtype}, part.from_at = &at;
  part.to = floats, part.to_dtype = ATTN_F32, part.to_at = &begin;
  c->convert->write(&part);
  norm_row(&c->norm, floats, floats);
  part.from = (attn_storage){floats, ATTN_F32}, part.from_at = &begin;
  part.to = c->rows.data, part.to_dtype = c->rows.dtype, part.to_at = &at;
  c->convert->write(&part);
}

static void run_block(void *context, int64_t block, int worker) {
  const call *c = context;
  (void)worker;
  const uint64_t mode = attn_float_mode_enter();
  for (int64_t row = block * BLOCK_ROWS; row < min64(c->rows.count, (block + 1) * BLOCK_ROWS); row++) {
    float *floats = (float *)c->rows.data + row * c->norm.width;
    if (c->rows.dtype == ATTN_F32)
      norm_row(&c->norm, floats, floats);
    else
      norm_rounded(c, row);
  }
  attn_float_mode_leave(mode);
}

void attn_head_norm_run(const attn_head_norm *norm, bool keys, const attn_head_rows *rows, const attn_options *options) {
  if (!norm->gains) return;
  const float *gain = norm->gains + (keys ? norm->dim : 0);
  call c = {{.width = norm->dim, .rms = true, .gain = gain, .epsilon = norm->epsilon}, *rows, norm->rows};
  attn_options now = *options;
  if (now.threads == 0)
    now.threads = attn_parallel_pays_for_elements(rows->count * norm->dim * TIMES) ? attn_parallel_default_threads() : 1;
  attn_parallel_run(&now, ceil_div(rows->count, BLOCK_ROWS), run_block, &c);
}
