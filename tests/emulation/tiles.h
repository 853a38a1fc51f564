/* SPDX-License-Identifier: MIT */
/* The tile unit (AMX): eight tiles of 16 x 64 bytes per thread, as kernels/amx configures them.
 *
 * TDPBF16PS follows vol. 2 of Intel's SDM and was compared with an Emerald Rapids bit by bit: the products at even and at
 * odd places have separate sums, which begin at 0 and are then added to the tile. Denormals count as 0 in inputs and
 * results. */
#ifndef ATTN_EMULATED_TILES_H
#define ATTN_EMULATED_TILES_H

#include <stdint.h>
#include <string.h>

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_PAIRS = 16 };

static __thread uint32_t emulated_tile[EMULATED_TILES][EMULATED_ROWS][EMULATED_PAIRS] __attribute__((unused));
static __thread uint8_t emulated_rows[EMULATED_TILES] __attribute__((unused)); /* LDTILECFG says it */

/* Denormals become 0 with their sign. */
static inline __m256 emulated_flush(__m256 x) {
  const __m256 sign = _mm256_set1_ps(-0.0f), tiny = _mm256_set1_ps(0x1p-126f);
  return _mm256_blendv_ps(x, _mm256_and_ps(x, sign), _mm256_cmp_ps(_mm256_andnot_ps(sign, x), tiny, _CMP_LT_OQ));
}

/* The even or odd values of pairs, as floats. */
static inline __m256 emulated_values(__m256i pairs, int odd) {
  const __m256i bits = odd ? _mm256_and_si256(pairs, _mm256_set1_epi32((int)0xffff0000)) : _mm256_slli_epi32(pairs, 16);
  return emulated_flush(_mm256_castsi256_ps(bits));
}

/* Eight columns at a time. */
static inline void emulated_tile_dpbf16ps(int c, int a, int b) {
  for (int n = 0; n < EMULATED_PAIRS; n += 8) {
    __m256 y[EMULATED_PAIRS][2];
    for (int k = 0; k < EMULATED_PAIRS; k++)
      for (int odd = 0; odd < 2; odd++)
        y[k][odd] = emulated_values(_mm256_loadu_si256((const __m256i *)(const void *)&emulated_tile[b][k][n]), odd);
    for (int m = 0; m < emulated_rows[c]; m++) {
      __m256 sum[2] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
      for (int k = 0; k < EMULATED_PAIRS; k++)
        for (int odd = 0; odd < 2; odd++) {
          const __m256 x = emulated_values(_mm256_set1_epi32((int)emulated_tile[a][m][k]), odd);
          sum[odd] = emulated_flush(_mm256_fmadd_ps(x, y[k][odd], sum[odd]));
        }
      float *to = (float *)(void *)&emulated_tile[c][m][n];
      const __m256 before = emulated_flush(_mm256_loadu_ps(to)), both = emulated_flush(_mm256_add_ps(sum[0], sum[1]));
      _mm256_storeu_ps(to, emulated_flush(_mm256_add_ps(before, both)));
    }
  }
}

static inline void emulated_tile_loadd(int t, const void *from, long stride) {
  for (int row = 0; row < emulated_rows[t]; row++)
    memcpy(emulated_tile[t][row], (const char *)from + row * stride, sizeof emulated_tile[t][row]);
}
static inline void emulated_tile_stored(int t, void *to, long stride) {
  for (int row = 0; row < emulated_rows[t]; row++)
    memcpy((char *)to + row * stride, emulated_tile[t][row], sizeof emulated_tile[t][row]);
}
static inline void emulated_tile_zero(int t) { memset(emulated_tile[t], 0, sizeof emulated_tile[t]); }
/* Byte 48 of LDTILECFG's memory on: rows. */
static inline void emulated_tile_loadconfig(const void *config) {
  memset(emulated_tile, 0, sizeof emulated_tile);
  memcpy(emulated_rows, (const char *)config + 48, sizeof emulated_rows);
}
static inline void emulated_tile_release(void) { memset(emulated_tile, 0xff, sizeof emulated_tile); } /* NaN */

#undef _tile_dpbf16ps
#undef _tile_loadconfig
#undef _tile_loadd
#undef _tile_release
#undef _tile_stored
#undef _tile_stream_loadd
#undef _tile_zero
#define _tile_dpbf16ps     emulated_tile_dpbf16ps
#define _tile_loadconfig   emulated_tile_loadconfig
#define _tile_loadd        emulated_tile_loadd
#define _tile_release      emulated_tile_release
#define _tile_stored       emulated_tile_stored
#define _tile_stream_loadd emulated_tile_loadd
#define _tile_zero         emulated_tile_zero

#endif
