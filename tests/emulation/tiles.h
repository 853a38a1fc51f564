/* SPDX-License-Identifier: MIT */
/* The tile unit (AMX), element by element: eight tiles of 16 x 64 bytes per thread, as kernels/amx configures them.
 *
 * TDPBF16PS follows vol. 2 of Intel's SDM and was compared with an Emerald Rapids bit by bit: the products at even and at
 * odd places have separate sums, which begin at 0 and are then added to the tile. Denormals count as 0 in inputs and
 * results. */
#ifndef ATTN_EMULATED_TILES_H
#define ATTN_EMULATED_TILES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

enum { EMULATED_TILES = 8, EMULATED_ROWS = 16, EMULATED_PAIRS = 16 };

static __thread uint32_t emulated_tile[EMULATED_TILES][EMULATED_ROWS][EMULATED_PAIRS] __attribute__((unused));

static inline float emulated_flush(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }

static inline float emulated_float(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return emulated_flush(x);
}

static inline void emulated_tile_dpbf16ps(int c, int a, int b) {
  for (int m = 0; m < EMULATED_ROWS; m++)
    for (int n = 0; n < EMULATED_ROWS; n++) {
      float even = 0, odd = 0, sum = emulated_float(emulated_tile[c][m][n]);
      for (int k = 0; k < EMULATED_PAIRS; k++) {
        const uint32_t x = emulated_tile[a][m][k], y = emulated_tile[b][k][n];
        even = emulated_flush(fmaf(emulated_float(x << 16), emulated_float(y << 16), even));
        odd = emulated_flush(fmaf(emulated_float(x & 0xffff0000u), emulated_float(y & 0xffff0000u), odd));
      }
      sum = emulated_flush(sum + emulated_flush(even + odd));
      memcpy(&emulated_tile[c][m][n], &sum, sizeof sum);
    }
}

static inline void emulated_tile_loadd(int t, const void *from, long stride) {
  for (int row = 0; row < EMULATED_ROWS; row++)
    memcpy(emulated_tile[t][row], (const char *)from + row * stride, sizeof emulated_tile[t][row]);
}
static inline void emulated_tile_stored(int t, void *to, long stride) {
  for (int row = 0; row < EMULATED_ROWS; row++)
    memcpy((char *)to + row * stride, emulated_tile[t][row], sizeof emulated_tile[t][row]);
}
static inline void emulated_tile_zero(int t) { memset(emulated_tile[t], 0, sizeof emulated_tile[t]); }
static inline void emulated_tile_loadconfig(const void *config) { (void)config; }
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
