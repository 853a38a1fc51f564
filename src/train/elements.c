/* SPDX-License-Identifier: MIT */
/* Elements, each for itself: activations and dropout. */
#include <inttypes.h>
#include <math.h>

#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/philox.h"
#include "src/train/exponential.h"
#include "src/train/tasks.h"

/* ---- Activations ---- */

typedef struct activation_run {
  attn_row_function function;
  const float *x, *y, *d_y;
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

/* y = x p: the part p of x that an activation lets through. At 0 it is 1/2; where x underflows it is what x / x makes. */
static inline float share(float x, float y) { return x == 0 ? 0.5f : y / x; }

static void grad_relu(void *context, int64_t first, int64_t count) {
  const activation_run *r = context;
  for (int64_t i = first; i < first + count; i++) r->to[i] = r->x[i] <= 0 ? 0 : r->d_y[i];
}

/* Phi(x) + x phi(x); y = x Phi(x). */
static void grad_gelu(void *context, int64_t first, int64_t count) {
  const activation_run *r = context;
  for (int64_t i = first; i < first + count; i++) {
    const float x = r->x[i], density = 0x1.988454p-2f * train_exp(-0.5f * x * x);
    r->to[i] = r->d_y[i] * (share(x, r->y[i]) + x * density);
  }
}

/* The slope of x p, p = sigmoid(z): p + x p (1 - p) z'. With e = e^-|z| nothing cancels. */
static inline float slope_of_gated(float x, float z, float z_slope) {
  const float e = train_exp(z < 0 ? z : -z), rest = 1 / (1 + e);
  return (z < 0 ? e : 1) * rest + x * (e * rest * rest) * z_slope;
}

static void grad_silu(void *context, int64_t first, int64_t count) {
  const activation_run *r = context;
  for (int64_t i = first; i < first + count; i++) r->to[i] = r->d_y[i] * slope_of_gated(r->x[i], r->x[i], 1);
}

/* z = 2 sqrt(2 / pi) (x + 0.044715 x^3). Beyond 100 the slope is 0 or 1, and z' might overflow. */
static void grad_gelu_tanh(void *context, int64_t first, int64_t count) {
  const activation_run *r = context;
  for (int64_t i = first; i < first + count; i++) {
    const float x = r->x[i] > 100 ? 100 : r->x[i] < -100 ? -100 : r->x[i], square = x * x;
    const float z = x * (0x1.988454p+0f + 0x1.2444f6p-4f * square), z_slope = 0x1.988454p+0f + 3 * 0x1.2444f6p-4f * square;
    r->to[i] = r->d_y[i] * slope_of_gated(x, z, z_slope);
  }
}

attn_status attn_activation_grad(attn_activation activation, int64_t count, const float *x, const float *y, const float *d_y,
                                 float *d_x, const attn_options *options) {
  static const attn_train_part grads[] = {
      [ATTN_RELU] = grad_relu, [ATTN_GELU] = grad_gelu, [ATTN_SILU] = grad_silu, [ATTN_GELU_TANH] = grad_gelu_tanh};
  const attn_nn_pointer pointers[] = {{"x", x}, {"y", y}, {"d_y", d_y}, {"d_x", d_x}};
  attn_status status = check_activation(activation, count);
  if (status == ATTN_OK && count > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  activation_run r = {.x = x, .y = y, .d_y = d_y, .to = d_x};
  return attn_train_parts(options, count, grads[activation], &r);
}

/* ---- Dropout ---- */

static const attn_struct_layout dropout_layout = ATTN_LAYOUT(attn_dropout, offset);

typedef struct dropout_run {
  philox_dropout d;
  uint32_t stream;
  int64_t rows, width, block; /* block: rows of a task */
  const float *x;
  float *y;
} dropout_run;

/* The factors of a group of elements. */
static void draw_group(const dropout_run *r, uint32_t row, int64_t group, float factors[PHILOX_GROUP]) {
  uint32_t words[4][PHILOX_CALLS];
  for (uint32_t i = 0; i < PHILOX_CALLS; i++) {
    uint32_t own[4];
    philox_call(&r->d, (uint32_t)group * PHILOX_CALLS + i, row, r->stream, own);
    for (int w = 0; w < 4; w++) words[w][i] = own[w];
  }
  for (int w = 0; w < 4; w++)
    for (int i = 0; i < PHILOX_CALLS; i++) {
      factors[2 * w * PHILOX_CALLS + i] = (words[w][i] & 0xffffu) >= r->d.threshold ? r->d.factor : 0;
      factors[(2 * w + 1) * PHILOX_CALLS + i] = words[w][i] >> 16 >= r->d.threshold ? r->d.factor : 0;
    }
}

static void drop_row(const dropout_run *r, int64_t row) {
  const float *x = r->x + row * r->width;
  float *y = r->y + row * r->width, factors[PHILOX_GROUP];
  for (int64_t first = 0; first < r->width; first += PHILOX_GROUP) {
    draw_group(r, (uint32_t)row, first / PHILOX_GROUP, factors);
    for (int64_t i = 0; i < min64(PHILOX_GROUP, r->width - first); i++)
      y[first + i] = factors[i] > 0 ? x[first + i] * factors[i] : 0;
  }
}

static void drop_rows(void *context, int64_t block, int worker) {
  const dropout_run *r = context;
  (void)worker;
  for (int64_t row = block * r->block; row < min64((block + 1) * r->block, r->rows); row++) drop_row(r, row);
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
  dropout_run r = {
      philox_dropout_of(d.probability, d.seed, d.offset), d.stream, rows, width, max64(1, TRAIN_BLOCK / width), x, y};
  return attn_train_tasks(options, 8 * rows * width, ceil_div(rows, r.block), drop_rows, &r);
}
