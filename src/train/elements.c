/* SPDX-License-Identifier: MIT */
/* Elements, each for itself: activations and dropout. */
#include <inttypes.h>
#include <string.h>

#include "kernels/common/problem/arithmetic.h"
#include "src/train/tasks.h"

/* ---- Activations ---- */

typedef struct activation_run {
  attn_row_function function;
  attn_row_slope_function grad;
  const float *x, *d_y;
  float *to;
} activation_run;

static attn_status check_activation(attn_activation activation, int64_t count) {
  REQUIRE((unsigned)activation <= ATTN_GELU_TANH, "activation is %d; it must be an attn_activation", (int)activation);
  REQUIRE(count >= 0 && count <= (int64_t)1 << 58, "count is %" PRId64 "; it must be in 0..2^58", count);
  return ATTN_OK;
}

static void activate_part(void *context, int64_t first, int64_t count) {
  const activation_run *r = context;
  if (r->to != r->x) memcpy(r->to + first, r->x + first, (size_t)count * sizeof *r->to);
  r->function(r->to + first, count);
}

attn_status attn_activation_run(attn_activation activation, int64_t count, const float *x, float *y,
                                const attn_options *options) {
  const attn_nn_pointer pointers[] = {{"x", x}, {"y", y}};
  attn_status status = check_activation(activation, count);
  if (status == ATTN_OK && count > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  activation_run r = {.function = attn_activation_function(activation, options), .x = x, .to = y};
  return r.function ? attn_train_parts(options, count, activate_part, &r) : ATTN_INVALID_ARGUMENT;
}

static void grad_part(void *context, int64_t first, int64_t count) {
  const activation_run *r = context;
  r->grad(r->x + first, r->d_y + first, r->to + first, count);
}

attn_status attn_activation_grad(attn_activation activation, int64_t count, const float *x, const float *d_y, float *d_x,
                                 const attn_options *options) {
  const attn_nn_pointer pointers[] = {{"x", x}, {"d_y", d_y}, {"d_x", d_x}};
  attn_status status = check_activation(activation, count);
  if (status == ATTN_OK && count > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  activation_run r = {.grad = attn_activation_slope(activation, options), .x = x, .d_y = d_y, .to = d_x};
  return r.grad ? attn_train_parts(options, count, grad_part, &r) : ATTN_INVALID_ARGUMENT;
}

/* ---- Dropout ---- */

static const attn_struct_layout dropout_layout = ATTN_LAYOUT(attn_dropout, offset);

typedef struct dropout_run {
  const attn_dropout *d;
  attn_drop_row_function drop;
  int64_t rows, width, block; /* block: rows of a task */
  const float *x;
  float *y;
} dropout_run;

static void drop_rows(void *context, int64_t block, int worker) {
  const dropout_run *r = context;
  (void)worker;
  for (int64_t row = block * r->block; row < min64((block + 1) * r->block, r->rows); row++)
    r->drop(r->d, (uint32_t)row, r->width, r->x + row * r->width, r->y + row * r->width);
}

attn_status attn_dropout_rows(const attn_dropout *dropout, int64_t rows, int64_t width, const float *x, float *y,
                              const attn_options *options) {
  attn_dropout d;
  const attn_nn_size sizes[] = {{"rows", rows, 0}, {"width", width, 1}};
  const attn_nn_pointer pointers[] = {{"x", x}, {"y", y}};
  attn_status status = attn_nn_read(&dropout_layout, "dropout", dropout, &d);
  if (status == ATTN_OK) status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK && rows > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(d.probability >= 0 && d.probability < 1, "attn_dropout.probability is %g; it must be at least 0 and below 1",
          (double)d.probability);
  const attn_row_gradients *functions = attn_row_gradients_choose(options);
  if (!functions) return ATTN_INVALID_ARGUMENT;
  dropout_run r = {&d, functions->drop, rows, width, max64(1, TRAIN_BLOCK / width), x, y};
  return attn_train_tasks(options, 8 * rows * width, ceil_div(rows, r.block), drop_rows, &r);
}
