/* SPDX-License-Identifier: MIT */
/* Gradients of norms, by the tier's function of rows. Tasks are blocks of rows, each with sums of its own for the
 * parameters, which are added in order at last. */
#include <inttypes.h>
#include <math.h>

#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/arithmetic.h"
#include "src/train/tasks.h"

static const attn_struct_layout layout = ATTN_LAYOUT(attn_norm_grad, d_s);

enum { LEAST_ROWS = 32 /* in a block: its sums take an eighth of the memory of its rows */ };

typedef struct norm_run {
  const attn_norm_grad *g;
  const attn_row_gradients *functions;
  int64_t rows, blocks; /* rows: in a block */
  double *sums;         /* [blocks][2][width], or NULL */
} norm_run;

static void run_rows(void *context, int64_t block, int worker) {
  const norm_run *r = context;
  (void)worker;
  const int64_t first = block * r->rows;
  r->functions->norm(r->g, first, min64(r->rows, r->g->rows - first), r->sums ? r->sums + 2 * block * r->g->width : NULL);
}

/* Columns of d_bias, and then those of d_gain. */
static void add_blocks(void *context, int64_t first, int64_t count) {
  const norm_run *r = context;
  const int64_t width = r->g->width;
  for (int64_t i = first; i < first + count; i++) {
    float *to = i < width ? r->g->d_bias : r->g->d_gain;
    if (!to) continue;
    double sum = r->g->accumulate ? (double)to[i % width] : 0;
    for (int64_t block = 0; block < r->blocks; block++) sum += r->sums[2 * block * width + i];
    to[i % width] = (float)sum;
  }
}

static attn_status check(const attn_norm_grad *g) {
  const attn_nn_size sizes[] = {{"attn_norm_grad.rows", g->rows, 0}, {"attn_norm_grad.width", g->width, 1}};
  const attn_nn_pointer pointers[] = {{"attn_norm_grad.s", g->s}, {"attn_norm_grad.d_y", g->d_y}};
  const attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE(g->kind == ATTN_NORM_LAYER || g->kind == ATTN_NORM_RMS,
          "attn_norm_grad.kind is %d; it must be ATTN_NORM_LAYER or ATTN_NORM_RMS", (int)g->kind);
  REQUIRE(g->norm.epsilon >= 0 && isfinite(g->norm.epsilon),
          "attn_norm_grad.norm.epsilon is %g; it must be finite and at least 0", (double)g->norm.epsilon);
  return g->rows > 0 ? attn_nn_check_pointers(pointers, NN_COUNT(pointers)) : ATTN_OK;
}

attn_status attn_norm_grad_run(const attn_norm_grad *grad, const attn_options *options) {
  attn_norm_grad g;
  attn_status status = attn_nn_read(&layout, "grad", grad, &g);
  if (status == ATTN_OK) status = check(&g);
  if (status != ATTN_OK) return status;
  norm_run r = {.g = &g, .functions = attn_row_gradients_choose(options), .rows = max64(LEAST_ROWS, TRAIN_BLOCK / g.width)};
  if (!r.functions) return ATTN_INVALID_ARGUMENT;
  r.blocks = ceil_div(g.rows, r.rows);
  const bool sums = g.d_gain || g.d_bias;
  if (sums) r.sums = attn_nn_allocate("sums of blocks", (size_t)(r.blocks * 2 * g.width) * sizeof *r.sums);
  if (sums && !r.sums) return ATTN_OUT_OF_MEMORY;
  status = attn_train_tasks(options, 4 * g.rows * g.width, r.blocks, run_rows, &r);
  if (status == ATTN_OK && sums) status = attn_train_parts(options, 2 * g.width, add_blocks, &r);
  attn_aligned_free(r.sums);
  return status;
}
