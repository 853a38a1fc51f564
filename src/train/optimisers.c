/* SPDX-License-Identifier: MIT */
/* How weights begin, and how they change. */
#include <inttypes.h>
#include <math.h>

#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/philox.h"
#include "src/api/float_mode.h"
#include "src/train/tasks.h"

static attn_status check_count(int64_t count) {
  REQUIRE(count >= 0 && count <= (int64_t)1 << 58, "count is %" PRId64 "; it must be in 0..2^58", count);
  return ATTN_OK;
}

/* ---- AdamW ---- */

static const attn_struct_layout adamw_layout = ATTN_LAYOUT(attn_adamw, epsilon);

typedef struct adamw_run {
  float keep, beta1, rest1, beta2, rest2, rate, root, epsilon;
  float *weights, *m, *v;
  const float *grads;
} adamw_run;

static void adamw_part(void *context, int64_t first, int64_t count) {
  const adamw_run r = *(const adamw_run *)context;
  float *restrict weights = r.weights + first, *restrict m = r.m + first, *restrict v = r.v + first;
  const float *restrict grads = r.grads + first;
  for (int64_t i = 0; i < count; i++) {
    m[i] = r.beta1 * m[i] + r.rest1 * grads[i];
    v[i] = r.beta2 * v[i] + r.rest2 * grads[i] * grads[i];
    weights[i] = weights[i] * r.keep - r.rate * m[i] / (sqrtf(v[i]) * r.root + r.epsilon);
  }
}

static attn_status check_share(const char *name, float value) {
  REQUIRE(value >= 0 && value < 1, "%s is %g; it must be at least 0 and below 1", name, (double)value);
  return ATTN_OK;
}

static attn_status check_finite(const char *name, float value) {
  REQUIRE(value >= 0 && isfinite(value), "%s is %g; it must be finite and at least 0", name, (double)value);
  return ATTN_OK;
}

attn_status attn_adamw_step(const attn_adamw *adamw, int64_t step, int64_t count, float *weights, const float *grads,
                            float *m, float *v, const attn_options *options) {
  attn_adamw a;
  const attn_nn_pointer pointers[] = {{"weights", weights}, {"grads", grads}, {"m", m}, {"v", v}};
  attn_status status = attn_nn_read(&adamw_layout, "adamw", adamw, &a);
  if (status == ATTN_OK) status = check_count(count);
  if (status == ATTN_OK) status = check_finite("attn_adamw.rate", a.rate);
  if (status == ATTN_OK) status = check_share("attn_adamw.beta1", a.beta1);
  if (status == ATTN_OK) status = check_share("attn_adamw.beta2", a.beta2);
  if (status == ATTN_OK) status = check_finite("attn_adamw.epsilon", a.epsilon);
  if (status == ATTN_OK) status = check_finite("attn_adamw.decay", a.decay);
  if (status == ATTN_OK && count > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(step >= 1, "step is %" PRId64 "; the first is 1", step);
  const double correct1 = 1 - pow((double)a.beta1, (double)step), correct2 = 1 - pow((double)a.beta2, (double)step);
  adamw_run r = {.keep = (float)(1 - (double)a.rate * (double)a.decay),
                 .beta1 = a.beta1,
                 .rest1 = (float)(1 - (double)a.beta1),
                 .beta2 = a.beta2,
                 .rest2 = (float)(1 - (double)a.beta2),
                 .rate = (float)((double)a.rate / correct1),
                 .root = (float)(1 / sqrt(correct2)),
                 .epsilon = a.epsilon,
                 .weights = weights,
                 .m = m,
                 .v = v,
                 .grads = grads};
  return attn_train_parts(options, count, adamw_part, &r);
}

/* ---- Gradient descent ---- */

static const attn_struct_layout sgd_layout = ATTN_LAYOUT(attn_sgd, momentum);

typedef struct sgd_run {
  attn_sgd sgd;
  float *weights, *momenta;
  const float *grads;
} sgd_run;

static void sgd_part(void *context, int64_t first, int64_t count) {
  const sgd_run *r = context;
  for (int64_t i = first; i < first + count; i++) {
    float g = r->grads[i] + r->sgd.decay * r->weights[i];
    if (r->momenta) g = r->momenta[i] = r->sgd.momentum * r->momenta[i] + g;
    r->weights[i] -= r->sgd.rate * g;
  }
}

attn_status attn_sgd_step(const attn_sgd *sgd, int64_t count, float *weights, const float *grads, float *momenta,
                          const attn_options *options) {
  sgd_run r = {.weights = weights, .momenta = momenta, .grads = grads};
  const attn_nn_pointer pointers[] = {{"weights", weights}, {"grads", grads}};
  attn_status status = attn_nn_read(&sgd_layout, "sgd", sgd, &r.sgd);
  if (status == ATTN_OK) status = check_count(count);
  if (status == ATTN_OK) status = check_finite("attn_sgd.rate", r.sgd.rate);
  if (status == ATTN_OK) status = check_share("attn_sgd.momentum", r.sgd.momentum);
  if (status == ATTN_OK) status = check_finite("attn_sgd.decay", r.sgd.decay);
  if (status == ATTN_OK && count > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(momenta || r.sgd.momentum == 0 || count == 0, "momenta is NULL; momentum %g needs them", (double)r.sgd.momentum);
  return attn_train_parts(options, count, sgd_part, &r);
}

/* ---- Clipping ---- */

typedef struct clip_run {
  float *grads, scale;
  double *sums; /* one for each part: its squares */
  attn_sum_squares_function sum_squares;
} clip_run;

static void square_part(void *context, int64_t first, int64_t count) {
  const clip_run *r = context;
  r->sums[first / TRAIN_BLOCK] = r->sum_squares(r->grads + first, count);
}

static void scale_part(void *context, int64_t first, int64_t count) {
  const clip_run *r = context;
  for (int64_t i = first; i < first + count; i++) r->grads[i] *= r->scale;
}

attn_status attn_clip_grads(int64_t count, float *grads, float most, double *norm, const attn_options *options) {
  attn_status status = check_count(count);
  if (status != ATTN_OK) return status;
  REQUIRE(grads || count == 0, "grads is NULL; it must point to its elements");
  REQUIRE(most > 0, "most is %g; it must be above 0", (double)most);
  const int64_t parts = ceil_div(count, TRAIN_BLOCK);
  const attn_row_gradients *functions = attn_row_gradients_choose(options);
  if (!functions) return ATTN_INVALID_ARGUMENT;
  clip_run r = {.grads = grads,
                .sums = attn_nn_allocate("sums of squares", (size_t)parts * sizeof(double)),
                .sum_squares = functions->sum_squares};
  if (!r.sums) return ATTN_OUT_OF_MEMORY;
  status = attn_train_parts(options, count, square_part, &r);
  double sum = 0;
  for (int64_t i = 0; status == ATTN_OK && i < parts; i++) sum += r.sums[i];
  attn_aligned_free(r.sums);
  const double found = sqrt(sum);
  if (status == ATTN_OK && norm) *norm = found;
  r.scale = (float)((double)most / found);
  const bool clips = status == ATTN_OK && isfinite(found) && found > (double)most;
  return clips ? attn_train_parts(options, count, scale_part, &r) : status;
}

/* ---- Learning rates ---- */

double attn_warmup_rate(double peak, int64_t warmup, int64_t steps, int64_t step) {
  const double turn = 3.14159265358979323846, at = (double)step, rise = (double)(warmup > 1 ? warmup : 1);
  if (step < 1) return 0;
  if (at < rise) return peak * at / rise;
  if (steps <= warmup) return peak * sqrt(rise / at);
  return step >= steps ? 0 : peak * (1 + cos(turn * (at - (double)warmup) / (double)(steps - warmup))) / 2;
}

/* ---- Weights at the beginning ---- */

/* In 0 .. below 1, by 32 bits. */
static double uniform_of(uint32_t word) { return (double)word * 0x1p-32; }

/* Two words make a normal number (Box & Muller 1958). */
static double normal_of(uint32_t a, uint32_t b) {
  return sqrt(-2 * log(1 - uniform_of(a))) * cos(2 * 3.14159265358979323846 * uniform_of(b));
}

attn_status attn_init_weights(attn_init kind, float gain, int64_t in, int64_t out, uint64_t seed, uint32_t stream,
                              float *weights) {
  const attn_nn_size sizes[] = {{"in", in, 0}, {"out", out, 0}};
  const attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  const int64_t count = in * out;
  REQUIRE((unsigned)kind <= ATTN_INIT_KAIMING, "kind is %d; it must be an attn_init", (int)kind);
  REQUIRE(isfinite(gain), "gain is %g; it must be finite", (double)gain);
  REQUIRE(weights || count == 0, "weights is NULL; it must point to its elements");
  const double spread = kind == ATTN_INIT_XAVIER    ? sqrt(6 / (double)(in + out))
                        : kind == ATTN_INIT_KAIMING ? sqrt(2 / (double)in)
                                                    : 1;
  const uint64_t mode = attn_float_mode_enter();
  const philox_dropout key = philox_dropout_of(0, seed, 0);
  uint32_t words[4];
  for (int64_t i = 0; i < count; i++) { /* two elements take a call's four words */
    const uint64_t call = (uint64_t)i / 2;
    if (i % 2 == 0) philox_call(&key, (uint32_t)call, (uint32_t)(call >> 32), stream, words);
    const uint32_t a = words[2 * (i % 2)], b = words[2 * (i % 2) + 1];
    const double drawn = kind == ATTN_INIT_XAVIER ? 2 * uniform_of(a) - 1 : normal_of(a, b);
    weights[i] = (float)((double)gain * spread * drawn);
  }
  attn_float_mode_leave(mode);
  return ATTN_OK;
}
