/* SPDX-License-Identifier: MIT */
/* Shapes of flash_amx's tiles and of what stands in memory, in the order in which the tile unit walks through it. All values
 * are bfloat16 but for the sums; dimensions are zero up to a multiple of 32.
 *
 *   left   K    rows in place, or [key / 32][part][dim / 32][32 keys][32 dims]
 *          V^T  [key / 64][dim / 32][part][key / 32][32 dims][32 keys]
 *   right  Q^T  [part][dim / 32][16 pairs of dims][32 queries][2]
 *          P^T  [part][key / 32][16 pairs of keys][32 queries][2]
 *   sums   S^T  [key / 32][32 keys][32 queries]
 *          O^T  [dim / 32][32 dims][32 queries] */
#ifndef ATTN_SHAPE_AMX_H
#define ATTN_SHAPE_AMX_H

#include "kernels/avx512/vec_avx512.h"

#include "kernels/common/tiles/cold_lines.h"
#include "kernels/common/tiles/two_phase.h"
#include "parts_amx.h"
#include "tiles_amx.h"

enum {
  HALF = 16,         /* rows, and columns, of a tile; queries of a vector */
  DEPTH = 32,        /* values that one tile product sums over */
  TILE_QUERIES = 32, /* queries worked on together: two tiles */
  KEY_BLOCK = 64,    /* keys of S that exist at a time */
  GROUPS = KEY_BLOCK / 32,
  STEP = 32 * 32, /* values of two tiles, which one step of a product takes from each side */
  SUMS = 32 * 32, /* floats of four tiles of sums */
  SCORES = GROUPS * SUMS
};

static int64_t depth_of(int64_t dim) { return ceil_div(dim, DEPTH); }
static int64_t blocks_of(int64_t keys) { return ceil_div(keys, KEY_BLOCK); }

/* bfloat16 values of K or V of one block of keys. */
static int64_t block_values(int64_t dim) { return PARTS * KEY_BLOCK * DEPTH * depth_of(dim); }

#endif
