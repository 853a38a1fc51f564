/* SPDX-License-Identifier: MIT */
/* The vectors of the neon tier: 4 floats in a register, 32 registers. The names are those of vec_avx512.h. */
#ifndef ATTN_VEC_NEON_H
#define ATTN_VEC_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#include "kernels/common/problem/unroll.h"

typedef float32x4_t vec;

/* 8 rows x 3 vectors keep 24 sums in registers, with 3 for the streamed operand and 4 that hold factors: the most that fit
 * 32, at 8 loads per 24 multiply-adds. decode, whose tiles have 4 rows, asks for 4 vectors. */
#ifndef NEON_TILE_VECS
#define NEON_TILE_VECS 3
#endif
enum { VEC_LANES = 4, TILE_ROWS = 8, TILE_VECS = NEON_TILE_VECS };

static inline vec vec_zero(void) { return vdupq_n_f32(0.0f); }
static inline vec vec_set1(float x) { return vdupq_n_f32(x); }
static inline vec vec_load(const float *p) { return vld1q_f32(p); }
static inline void vec_store(float *p, vec x) { vst1q_f32(p, x); }
static inline vec vec_fma(vec a, vec b, vec c) { return vfmaq_f32(c, a, b); }
static inline vec vec_mul(vec a, vec b) { return vmulq_f32(a, b); }
static inline vec vec_add(vec a, vec b) { return vaddq_f32(a, b); }
static inline vec vec_sub(vec a, vec b) { return vsubq_f32(a, b); }
static inline vec vec_div(vec a, vec b) { return vdivq_f32(a, b); }
static inline vec vec_abs(vec x) { return vabsq_f32(x); }
static inline vec vec_lane_numbers(void) { return (vec){0, 1, 2, 3}; }
/* b where a is NaN; b never is. */
static inline vec vec_max(vec a, vec b) { return vmaxnmq_f32(a, b); }
/* x between low and high; NaN stays NaN. */
static inline vec vec_clamp(vec x, vec low, vec high) { return vminq_f32(vmaxq_f32(x, low), high); }

/* ---- The hot tile ----
 *
 * Loads and multiply-adds stand in the order written, as statements of assembly: left to themselves, compilers hoist loads
 * until the sums no longer fit the registers, or turn factors into broadcasts, which take a slot of the units that
 * multiply. */
typedef float32x4_t any_vec __attribute__((may_alias, aligned(4)));

static ALWAYS_INLINE vec load_here(const float *p) {
  vec x;
  __asm__ volatile("ldr %q0, %1" : "=w"(x) : "m"(*(const any_vec *)(const void *)p));
  return x;
}

#define FMA_LANE(sum, x, factors, lane) \
  __asm__ volatile("fmla %0.4s, %1.4s, %2.s[" #lane "]" : "+w"(sum) : "w"(x), "w"(factors))

/* One factor for all lanes, and its multiply-add. The factor is element 0 of a register: a broadcasting load would take a
 * slot of the units that multiply. */
typedef vec vec_factor;
static ALWAYS_INLINE vec_factor vec_factor_at(const float *p) {
  vec x;
  __asm__ volatile("ldr %s0, %1" : "=w"(x) : "m"(*p));
  return x;
}
static ALWAYS_INLINE vec vec_fma_factor(vec_factor a, vec b, vec c) {
  FMA_LANE(c, b, a, 0);
  return c;
}

/* sum[i][v] += factors[i][lane] b[v] for four rows. */
#define FOUR_ROWS(sum, factors, lane, b)                                                \
  do {                                                                                  \
    vec row[TILE_VECS];                                                                 \
    UNROLL                                                                              \
    for (int v = 0; v < vecs; v++) row[v] = load_here((b) + v * 4);                     \
    UNROLL                                                                              \
    for (int i = 0; i < 4; i++) {                                                       \
      UNROLL                                                                            \
      for (int v = 0; v < vecs; v++) FMA_LANE((sum)[i][v], row[v], (factors)[i], lane); \
    }                                                                                   \
  } while (0)

/* Steps k = 0..3 of product() in tiles.h. The rows in two halves, so that registers hold 24 sums, 4 rows of factors and 3
 * vectors of b. */
#define PRODUCT_STEPS 4
static ALWAYS_INLINE void product_steps(vec sum[][TILE_VECS], const float *a, int64_t a_stride, const float *b,
                                        int64_t b_stride, const int vecs) {
  UNROLL
  for (int half = 0; half < TILE_ROWS; half += 4) {
    vec factors[4];
    UNROLL
    for (int i = 0; i < 4; i++) factors[i] = load_here(a + (half + i) * a_stride);
    FOUR_ROWS(sum + half, factors, 0, b);
    FOUR_ROWS(sum + half, factors, 1, b + b_stride);
    FOUR_ROWS(sum + half, factors, 2, b + 2 * b_stride);
    FOUR_ROWS(sum + half, factors, 3, b + 3 * b_stride);
  }
}

static inline float vec_reduce_max(vec x) { return vmaxnmvq_f32(x); }
/* Always the same tree: neighbours, then pairs. */
static inline float vec_reduce_add(vec x) { return vaddvq_f32(x); }

/* The first n lanes, 0 <= n <= 4; nothing is read or written beyond them. Loaded lanes beyond n are 0. */
static inline vec vec_load_first(const float *p, int64_t n) {
  float lanes[4] = {0};
  for (int64_t i = 0; i < 4 && i < n; i++) lanes[i] = p[i];
  return vld1q_f32(lanes);
}
static inline void vec_store_first(float *p, vec x, int64_t n) {
  if (n == 4) {
    vst1q_f32(p, x);
    return;
  }
  float lanes[4];
  vst1q_f32(lanes, x);
  for (int64_t i = 0; i < 3 && i < n; i++) p[i] = lanes[i];
}

/* 4 float16 or bfloat16 values as floats. */
static inline vec vec_load_f16(const uint16_t *p) { return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p))); }
static inline vec vec_load_bf16(const uint16_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(p), 16)); }

/* 4 values of 8 bits as floats, by the float16 that holds each. e5m2 is its upper half. e4m3 has one bit of exponent less,
 * and its bias is smaller by 8; its NaN is the number above its largest one. */
static inline int8x8_t load_4_bytes(const void *p) {
  uint32_t bytes;
  memcpy(&bytes, p, sizeof bytes);
  return vreinterpret_s8_u32(vdup_n_u32(bytes));
}
static inline vec vec_load_e5m2(const uint8_t *p) {
  return vcvt_f32_f16(vreinterpret_f16_s16(vshl_n_s16(vget_low_s16(vmovl_s8(load_4_bytes(p))), 8)));
}
static inline vec vec_load_e4m3(const uint8_t *p) {
  const uint16x4_t moved = vreinterpret_u16_s16(vshl_n_s16(vget_low_s16(vmovl_s8(load_4_bytes(p))), 7));
  const uint16x4_t halves = vand_u16(moved, vdup_n_u16(0xbf80)), nan = vdup_n_u16(0x3f80);
  const uint16x4_t is_nan = vceq_u16(vand_u16(halves, nan), nan);
  return vmulq_n_f32(vcvt_f32_f16(vreinterpret_f16_u16(vorr_u16(halves, is_nan))), 0x1p8f);
}

/* 4 integers of 8 bits as floats. */
static inline vec vec_load_i8(const int8_t *p) { return vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(load_4_bytes(p))))); }

/* The float16 at p, which need not be aligned, in all lanes. */
static inline vec vec_spread_f16(const uint8_t *p) {
  uint16_t half;
  memcpy(&half, p, sizeof half);
  return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
}

/* scale * (n - 8), where n is 4 bits of each of 4 bytes from bit `shift` on, 0 or 4. */
static inline vec vec_load_nibbles(const uint8_t *p, int shift, vec scale) {
  const uint8x8_t bytes = vshl_u8(vreinterpret_u8_s8(load_4_bytes(p)), vdup_n_s8((int8_t)-shift));
  const int8x8_t n = vsub_s8(vreinterpret_s8_u8(vand_u8(bytes, vdup_n_u8(15))), vdup_n_s8(8));
  return vmulq_f32(scale, vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(n)))));
}

/* 4 floats as float16 values, rounded to nearest. */
static inline void vec_store_f16(uint16_t *p, vec x) { vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(x))); }

static inline vec vec_lowest(void) { return vdupq_n_f32(-__builtin_inff()); }

/* x where begin <= lane < end, -inf elsewhere; x[0] is in lane `lane`. */
static inline vec vec_select_range(vec x, int64_t lane, int64_t begin, int64_t end) {
  const int32x4_t first = {0, 1, 2, 3}, lanes = vaddq_s32(first, vdupq_n_s32((int32_t)lane));
  const uint32x4_t keep =
      vandq_u32(vcgeq_s32(lanes, vdupq_n_s32((int32_t)begin)), vcltq_s32(lanes, vdupq_n_s32((int32_t)end)));
  return vbslq_f32(keep, x, vec_lowest());
}

/* x where the byte is not 0, -inf elsewhere; of the first n lanes, -inf beyond. Reads n bytes. */
static inline vec vec_select_bytes(vec x, const uint8_t *bytes, int64_t n) {
  uint32_t loaded = 0;
  if (n == 4)
    memcpy(&loaded, bytes, 4);
  else
    for (int64_t i = 0; i < n; i++) loaded |= (uint32_t)bytes[i] << 8 * i;
  const uint32x4_t wide = vmovl_u16(vget_low_u16(vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(loaded)))));
  return vbslq_f32(vtstq_u32(wide, wide), x, vec_lowest());
}

/* x, but -inf wherever bias is -inf, even if x is NaN. */
static inline vec vec_unless_masked(vec x, vec bias) { return vbslq_f32(vceqq_f32(bias, vec_lowest()), bias, x); }

/* x + bias, but -inf wherever bias is -inf, even if x is NaN. */
static inline vec vec_add_bias(vec x, vec bias) { return vec_unless_masked(vaddq_f32(x, bias), bias); }

/* x, but 0 wherever p is 0, even if x is NaN. */
static inline vec vec_unless_zero(vec x, vec p) { return vbslq_f32(vceqzq_f32(p), vdupq_n_f32(0.0f), x); }

/* Integers of 64 bits and their halves: kernels/common/memory/dropout.h. */
typedef uint64_t vec_longs __attribute__((vector_size(VEC_LANES * sizeof(float))));
static inline vec_longs vec_multiply_halves(vec_longs x, uint32_t factor) {
  return (vec_longs)vmull_n_u32(vmovn_u64((uint64x2_t)x), factor);
}
static inline vec_longs vec_upper_halves(vec_longs x) { return x >> 32; }
static inline vec_longs vec_join_halves(vec_longs lower, vec_longs upper) { return (lower & UINT32_MAX) | upper << 32; }

static inline int vec_any_above(vec x, float limit) { return vmaxnmvq_f32(x) > limit; } /* NaN: only if all lanes are */
static inline int vec_any_nan(vec x) { return __builtin_isnan(vmaxvq_f32(x)); }

/* A multiply-add here overwrites its addend, so a constant addend must be copied each time. Loading it anew takes a load
 * slot, of which there are plenty, where a register copy would take a slot of the units that multiply: the compiler must not
 * know that it is the same constant. */
static const float exp2_coefficients[5][4] = {
#define FOUR_TIMES(x) \
  { x, x, x, x }
    FOUR_TIMES(0x1.3ce8aep-7f), FOUR_TIMES(0x1.c6b6d8p-5f), FOUR_TIMES(0x1.ebf9c2p-3f),
    FOUR_TIMES(0x1.62e42ap-1f), FOUR_TIMES(1.0f),
#undef FOUR_TIMES
};
/* 2^t for t <= 127; relative error below 1.6e-7 (scripts/make/derive_exp2.py, tests/kernels/exp_every_float.c) down to t =
 * -126; below, an error of at most 2^-126 (the bound's n 2^-126 term), and 0 from -127 on and for -inf; NaN stays NaN. As in
 * vec_avx2.h, where the factor of the last product is explained. */
static inline vec vec_exp2(vec t) {
  const float(*c)[4] = exp2_coefficients;
  const vec magic = vec_set1(0x1.8p23f + 127);
  vec clamped = vmaxq_f32(t, vec_set1(-127.0f)); /* keeps NaN */
  vec shifted = vec_add(clamped, magic);
  vec f = vec_sub(clamped, vec_sub(shifted, magic));
  vec p = vec_fma(f, vec_set1(0x1.5bda58p-10f), load_here(c[0]));
  p = vec_fma(p, f, load_here(c[1]));
  p = vec_fma(p, f, load_here(c[2]));
  p = vec_fma(p, f, load_here(c[3]));
  p = vec_fma(p, f, load_here(c[4]));
  return vec_mul(p, vreinterpretq_f32_s32(vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23)));
}

/* Lane i of the result is the sum of x[i]'s lanes: a tree of additions that transposes on its way. */
static ALWAYS_INLINE vec vec_sum_each(const vec x[4]) { return vpaddq_f32(vpaddq_f32(x[0], x[1]), vpaddq_f32(x[2], x[3])); }

/* r[i] lane j <-> r[j] lane i. */
static ALWAYS_INLINE void vec_transpose(vec r[4]) {
  const float32x4x2_t low = vtrnq_f32(r[0], r[1]), high = vtrnq_f32(r[2], r[3]);
  r[0] = vcombine_f32(vget_low_f32(low.val[0]), vget_low_f32(high.val[0]));
  r[1] = vcombine_f32(vget_low_f32(low.val[1]), vget_low_f32(high.val[1]));
  r[2] = vcombine_f32(vget_high_f32(low.val[0]), vget_high_f32(high.val[0]));
  r[3] = vcombine_f32(vget_high_f32(low.val[1]), vget_high_f32(high.val[1]));
}

#endif
