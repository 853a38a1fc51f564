/* SPDX-License-Identifier: MIT */
/* Functions between dense layers (attn_activation) and their gradients, on a tier's vectors.
 *
 * GELU, exact: x (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415). erf(t) = t P(t^2) /
 * Q(t^2) for |t| <= 4; beyond, erf is 1 to within a quarter of float32's unit. The absolute error of the fraction is 2.5e-8,
 * and 3.6e-7 when evaluated in float32; absolute errors count, because 1 is added (scripts/make/derive_erf.py).
 *
 * SiLU and the GELU of tanh are x times a sigmoid, because (1 + tanh u) / 2 = sigmoid(2 u).
 *
 * Parameters: vec, the vec_ functions and VEC_LANES of vec_<isa>.h. */
#ifndef ATTN_COMMON_ACTIVATIONS_H
#define ATTN_COMMON_ACTIVATIONS_H

#include <math.h>

#include "kernels/common/problem/unroll.h"
#include "kernels/product.h"

/* The normal distribution function, (1 + erf(x / sqrt 2)) / 2. */
static inline vec vec_normal(vec x) {
  static const float p[] = {0x1.20dd74p+0f, 0x1.8c6100p-3f,  0x1.b30224p-5f,
                            0x1.fcfde0p-9f, 0x1.2a629ep-12f, 0x1.0aa872p-19f};
  static const float q[] = {0x1.000000p+0f, 0x1.027c98p-1f,  0x1.d878e6p-4f,
                            0x1.f24ef4p-7f, 0x1.36c942p-10f, 0x1.39e63cp-15f};
  const vec t = vec_clamp(vec_mul(x, vec_set1(0x1.6a09e6p-1f)), vec_set1(-4.0f), vec_set1(4.0f)); /* NaN stays NaN */
  const vec s = vec_mul(t, t);
  vec numerator = vec_set1(p[5]), denominator = vec_set1(q[5]);
  for (int i = 4; i >= 0; i--) {
    numerator = vec_fma(numerator, s, vec_set1(p[i]));
    denominator = vec_fma(denominator, s, vec_set1(q[i]));
  }
  const vec erf = vec_clamp(vec_div(vec_mul(t, numerator), denominator), vec_set1(-1.0f), vec_set1(1.0f));
  return vec_mul(vec_set1(0.5f), vec_add(vec_set1(1.0f), erf));
}

static inline vec vec_gelu(vec x) { return vec_mul(x, vec_normal(x)); }

/* x / (1 + e^-z) for z of x's sign: e^-|z| cannot overflow. NaN stays NaN. */
static inline vec vec_times_sigmoid(vec x, vec z) {
  const vec t = vec_exp2(vec_mul(vec_abs(z), vec_set1(-0x1.715476p+0f)));
  const vec above = vec_max(vec_zero(), x), below = vec_clamp(x, vec_set1(-INFINITY), vec_zero());
  return vec_div(vec_fma(below, t, above), vec_add(vec_set1(1.0f), t));
}

static inline vec vec_silu(vec x) { return vec_times_sigmoid(x, x); }

/* z = 2 sqrt(2 / pi) (x + 0.044715 x^3) */
static inline vec vec_gelu_tanh(vec x) {
  const vec s = vec_mul(x, x);
  return vec_times_sigmoid(x, vec_mul(x, vec_fma(vec_set1(0x1.2444f6p-4f), s, vec_set1(0x1.988454p+0f))));
}

static inline vec vec_relu(vec x) { return vec_max(vec_zero(), x); }

/* ---- Slopes ---- */

/* Phi(x) + x phi(x). Beyond 16 the density is 0. */
static inline vec vec_gelu_slope(vec x) {
  const vec near = vec_clamp(x, vec_set1(-16.0f), vec_set1(16.0f));
  const vec density = vec_exp2(vec_mul(vec_mul(near, near), vec_set1(-0x1.715476p-1f)));
  return vec_fma(vec_mul(near, vec_set1(0x1.988454p-2f)), density, vec_normal(x));
}

/* The slope of x p, p = sigmoid(z): p + x p (1 - p) z'. With t = e^-|z| nothing cancels: p is 1 / (1 + t) for z above 0, t /
 * (1 + t) below. */
static inline vec vec_gated_slope(vec x, vec z, vec z_slope) {
  const vec t = vec_exp2(vec_mul(vec_abs(z), vec_set1(-0x1.715476p+0f)));
  const vec more = vec_div(vec_set1(1.0f), vec_add(vec_set1(1.0f), t)), less = vec_mul(t, more);
  const vec above = vec_clamp(vec_mul(z, vec_set1(0x1p100f)), vec_zero(), vec_set1(1.0f)); /* 1 where z > 0 */
  const vec p = vec_fma(above, vec_sub(more, less), less);
  return vec_fma(vec_mul(vec_mul(x, z_slope), more), less, p);
}

static inline vec vec_silu_slope(vec x) { return vec_gated_slope(x, x, vec_set1(1.0f)); }

/* Beyond 100 the slope is 0 or 1, and z' might overflow. */
static inline vec vec_gelu_tanh_slope(vec x) {
  const vec near = vec_clamp(x, vec_set1(-100.0f), vec_set1(100.0f)), s = vec_mul(near, near);
  const vec z = vec_mul(near, vec_fma(vec_set1(0x1.2444f6p-4f), s, vec_set1(0x1.988454p+0f)));
  return vec_gated_slope(near, z, vec_fma(vec_set1(3 * 0x1.2444f6p-4f), s, vec_set1(0x1.988454p+0f)));
}

/* ---- Rows ---- */

static ALWAYS_INLINE void change_row(float *x, int64_t count, vec (*function)(vec)) {
  int64_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES) vec_store(x + i, function(vec_load(x + i)));
  if (i < count) vec_store_first(x + i, function(vec_load_first(x + i, count - i)), count - i);
}

static ALWAYS_INLINE void grad_row(const float *x, const float *d_y, float *d_x, int64_t count, vec (*slope)(vec)) {
  int64_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES) vec_store(d_x + i, vec_mul(vec_load(d_y + i), slope(vec_load(x + i))));
  if (i == count) return;
  const vec d = vec_load_first(d_y + i, count - i);
  vec_store_first(d_x + i, vec_mul(d, slope(vec_load_first(x + i, count - i))), count - i);
}

#define ROWS(name)                                                                       \
  static void name##_row(float *x, int64_t count) { change_row(x, count, vec_##name); }  \
  static void name##_grad(const float *x, const float *d_y, float *d_x, int64_t count) { \
    grad_row(x, d_y, d_x, count, vec_##name##_slope);                                    \
  }
ROWS(gelu)
ROWS(silu)
ROWS(gelu_tanh)
#undef ROWS

static void relu_row(float *x, int64_t count) { change_row(x, count, vec_relu); }
static void relu_grad(const float *x, const float *d_y, float *d_x, int64_t count) {
  for (int64_t i = 0; i < count; i++) d_x[i] = x[i] <= 0 ? 0 : d_y[i];
}

static const attn_activation_rows activation_rows[] = {[ATTN_RELU] = {relu_row, relu_grad},
                                                       [ATTN_GELU] = {gelu_row, gelu_grad},
                                                       [ATTN_SILU] = {silu_row, silu_grad},
                                                       [ATTN_GELU_TANH] = {gelu_tanh_row, gelu_tanh_grad}};

#endif
