/* SPDX-License-Identifier: MIT */
/* Peak loop of the amx tier: tdpbf16ps into four tiles of 16 x 16 floats, each adding a 16 x 32 by 32 x 16 product of bf16.
 * The unit's rate depends on its data: it is quicker with zeros than with the random numbers of this loop, which are like
 * inputs. */
#include "kernels/peak.h"

#include <stddef.h>
#include <string.h>

#include "tiles_amx.h"

enum { TILES = 4, TILE_ROWS = 16, DEPTH = 32, COLUMNS = 16, FACTORS = 4, REPEAT = 64 /* then sums start anew from 0 */ };

/* bf16 numbers from -0.5 to 0.5. */
static void fill_factors(uint16_t factor[FACTORS][TILE_ROWS * DEPTH]) {
  uint64_t state = 1;
  for (int i = 0; i < FACTORS * TILE_ROWS * DEPTH; i++) {
    state = state * 6364136223846793005u + 1442695040888963407u; /* Knuth, MMIX */
    const float value = (float)(state >> 40) * 0x1p-24f - 0.5f;
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    factor[i / (TILE_ROWS * DEPTH)][i % (TILE_ROWS * DEPTH)] = (uint16_t)(bits >> 16);
  }
}

static void tile_loop(int64_t iterations) {
  uint16_t factor[FACTORS][TILE_ROWS * DEPTH];
  fill_factors(factor);
  _tile_loadconfig(&eight_tiles);
  tiles_see_stores();
  _tile_loadd(4, factor[0], DEPTH * sizeof **factor);
  _tile_loadd(5, factor[1], DEPTH * sizeof **factor);
  _tile_loadd(6, factor[2], DEPTH * sizeof **factor);
  _tile_loadd(7, factor[3], DEPTH * sizeof **factor);
  for (int64_t i = 0; i < iterations; i++) {
    if (i % REPEAT == 0) {
      _tile_zero(0);
      _tile_zero(1);
      _tile_zero(2);
      _tile_zero(3);
    }
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  }
  _tile_release();
}

const attn_peak_loop attn_peak_amx[] = {
    {.isa = "amx",
     .dtype = "bf16",
     .what = "tdpbf16ps, 16x32 by 32x16",
     .flops = 2.0 * TILES * TILE_ROWS * DEPTH * COLUMNS,
     .f32_share = 1.0 / 3, /* flash_amx_x3 */
     .run = tile_loop},
    {.isa = NULL},
};
