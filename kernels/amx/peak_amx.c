/* SPDX-License-Identifier: MIT */
/* Peak loop of the amx tier: tdpbf16ps into four tiles of 16 x 16 floats, each adding a 16 x 32 by 32 x 16 product of bf16.
 * Tiles hold zeros: bf16 denormals cannot slow it down. */
#include "kernels/peak.h"

#include <stddef.h>

#include "tiles_amx.h"

enum { TILES = 4, TILE_ROWS = 16, DEPTH = 32, COLUMNS = 16 };

static void tile_loop(int64_t iterations) {
  _tile_loadconfig(&eight_tiles);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  _tile_zero(4);
  _tile_zero(5);
  for (int64_t i = 0; i < iterations; i++) {
    _tile_dpbf16ps(0, 4, 5);
    _tile_dpbf16ps(1, 4, 5);
    _tile_dpbf16ps(2, 4, 5);
    _tile_dpbf16ps(3, 4, 5);
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
