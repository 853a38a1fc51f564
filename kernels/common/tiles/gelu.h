/* SPDX-License-Identifier: MIT */
/* GELU, exact: x (1 + erf(x / sqrt 2)) / 2 (Hendrycks & Gimpel 2016, https://arxiv.org/abs/1606.08415), on a tier's vectors.
 *
 * erf(t) = t P(t^2) / Q(t^2) for |t| <= 4; beyond, erf is 1 to within a quarter of float32's unit. The absolute error of the
 * fraction is 2.5e-8, and 3.6e-7 when evaluated in float32; absolute errors count, because 1 is added
 * (scripts/make/derive_erf.py).
 *
 * Parameters: vec, the vec_ functions and VEC_LANES of vec_<isa>.h. */
#ifndef ATTN_COMMON_GELU_H
#define ATTN_COMMON_GELU_H

static inline vec vec_gelu(vec x) {
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
  const vec erf = vec_div(vec_mul(t, numerator), denominator);
  return vec_mul(vec_mul(vec_set1(0.5f), x), vec_add(vec_set1(1.0f), erf));
}

static void gelu_row(float *x, int64_t count) {
  int64_t i = 0;
  for (; i + VEC_LANES <= count; i += VEC_LANES) vec_store(x + i, vec_gelu(vec_load(x + i)));
  if (i < count) vec_store_first(x + i, vec_gelu(vec_load_first(x + i, count - i)), count - i);
}

#endif
