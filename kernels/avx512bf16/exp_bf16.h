/* SPDX-License-Identifier: MIT */
/* Exponentials for a P of bf16 values; flash_avx512bf16 and flash_amx share them.
 *
 * 2^f for f in [0, 1) is taken from a line through each 32nd, with a relative error below 2.95e-5: the level at its start
 * and the slope (scripts/make/derive_exp2.py). Tables instead of a polynomial, because multiply-adds are what these kernels
 * run out of: beside tile products only one port makes them, and the other one looks up; elsewhere they share their two
 * pipes with VDPBF16PS, and nearly everything else is free. Levels include half a unit of bfloat16's last place, so that
 * cutting the low word off rounds to nearest. */
#ifndef ATTN_EXP_BF16_H
#define ATTN_EXP_BF16_H

#include "kernels/avx512/vec_avx512.h"
#include "kernels/common/problem/unroll.h"

static const float exp_tables[64] = {
    /* levels */
    0x1.00fe14p+0f, 0x1.069916p+0f, 0x1.0c5386p+0f, 0x1.122e10p+0f, 0x1.18296cp+0f, 0x1.1e464ep+0f, 0x1.248576p+0f,
    0x1.2ae7a2p+0f, 0x1.316d98p+0f, 0x1.38181ep+0f, 0x1.3ee802p+0f, 0x1.45de16p+0f, 0x1.4cfb30p+0f, 0x1.54402ap+0f,
    0x1.5bade4p+0f, 0x1.634542p+0f, 0x1.6b072ep+0f, 0x1.72f498p+0f, 0x1.7b0e70p+0f, 0x1.8355b4p+0f, 0x1.8bcb5ep+0f,
    0x1.947074p+0f, 0x1.9d4600p+0f, 0x1.a64d12p+0f, 0x1.af86bep+0f, 0x1.b8f422p+0f, 0x1.c2965ep+0f, 0x1.cc6e9ap+0f,
    0x1.d67e08p+0f, 0x1.e0c5dap+0f, 0x1.eb474cp+0f, 0x1.f603a2p+0f,
    /* slopes */
    0x1.66c09ap-1f, 0x1.6e9ba6p-1f, 0x1.76a2bcp-1f, 0x1.7ed6d2p-1f, 0x1.8738e4p-1f, 0x1.8fc9f4p-1f, 0x1.988b0ap-1f,
    0x1.a17d32p-1f, 0x1.aaa180p-1f, 0x1.b3f90ep-1f, 0x1.bd84fap-1f, 0x1.c74668p-1f, 0x1.d13e88p-1f, 0x1.db6e88p-1f,
    0x1.e5d7a6p-1f, 0x1.f07b1ep-1f, 0x1.fb5a3ap-1f, 0x1.033b24p+0f, 0x1.08e84ep+0f, 0x1.0eb54ap+0f, 0x1.14a2cap+0f,
    0x1.1ab184p+0f, 0x1.20e234p+0f, 0x1.273596p+0f, 0x1.2dac70p+0f, 0x1.344784p+0f, 0x1.3b07a2p+0f, 0x1.41ed96p+0f,
    0x1.48fa34p+0f, 0x1.502e58p+0f, 0x1.578adep+0f, 0x1.5f10a6p+0f};

typedef struct exp_lines {
  vec level[2], slope[2];
} exp_lines;

/* From exp_tables. */
static ALWAYS_INLINE exp_lines load_exp_lines(const float *tables) {
  return (exp_lines){{vec_load(tables), vec_load(tables + 16)}, {vec_load(tables + 32), vec_load(tables + 48)}};
}

/* 2^(t - floor(t)), not yet cut. Adding 1.5 2^18 leaves the number of the 32nd in the lowest bits. */
static ALWAYS_INLINE vec exp_fraction(const exp_lines *lines, vec t) {
  const vec above = _mm512_reduce_ps(t, 0x59); /* t - floor(32 t) / 32, no exceptions */
  const __m512i i =
      _mm512_castps_si512(_mm512_add_round_ps(t, vec_set1(0x1.8p18f), _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC));
  return vec_fma(_mm512_permutex2var_ps(lines->slope[0], i, lines->slope[1]), above,
                 _mm512_permutex2var_ps(lines->level[0], i, lines->level[1]));
}

#endif
