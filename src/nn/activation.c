/* GELU, exact: x (1 + erf(x / sqrt 2)) / 2.
 *
 * erf is an odd rational function, so that the compiler can take several elements at once; libm's call per element costs more than
 * a tenth of a feed-forward layer. */
#include "activation.h"

/* scripts/derive_erf.py: erf(t) = t P(t^2) / Q(t^2) for |t| <= 4, to 2.5e-8; in float32 to 3.6e-7 absolutely. */
static const float p[] = {0x1.20dd74p+0f, 0x1.8c6100p-3f, 0x1.b30224p-5f, 0x1.fcfde0p-9f, 0x1.2a629ep-12f, 0x1.0aa872p-19f};
static const float q[] = {0x1.000000p+0f, 0x1.027c98p-1f, 0x1.d878e6p-4f, 0x1.f24ef4p-7f, 0x1.36c942p-10f, 0x1.39e63cp-15f};

static float horner(const float *c, float s) { return ((((c[5] * s + c[4]) * s + c[3]) * s + c[2]) * s + c[1]) * s + c[0]; }

void attn_nn_gelu(float *x, int64_t count) {
  const float half_root = 0x1.6a09e6p-1f, limit = 4;
  for (int64_t i = 0; i < count; i++) {
    float t = x[i] * half_root;
    t = t > limit ? limit : t; /* NaN stays: neither comparison holds */
    t = t < -limit ? -limit : t;
    const float s = t * t;
    x[i] = 0.5f * x[i] * (1 + t * horner(p, s) / horner(q, s));
  }
}
