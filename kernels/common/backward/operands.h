/* SPDX-License-Identifier: MIT */
/* flash_backward: what a step's products read. float_operands.h and pair_operands.h fill it.
 *
 * Parameters: those of layout.h. */
#ifndef ATTN_COMMON_BACKWARD_OPERANDS_H
#define ATTN_COMMON_BACKWARD_OPERANDS_H

#include "layout.h"

/* Rows of floats, of which tiles may read whole ones: the last tile's are copied where they end within it. */
typedef struct tile_source {
  float_rows rows;
  float_rows last; /* the tile that has fewer than TILE_ROWS rows */
  int64_t last_row;
} tile_source;

static ALWAYS_INLINE float_rows tile_of(const tile_source *from, int64_t tile_row) {
  return tile_row == from->last_row ? from->last
                                    : (float_rows){from->rows.at + tile_row * from->rows.stride, from->rows.stride};
}

/* Rows that products read: along a row, as the left operand, and column by column, `down` its rows. */
typedef struct step_operand {
  tile_source along;
  float_rows down;
} step_operand;

/* Memory of a step_operand: BACKWARD_ROWS rows of `floats` floats, and for pairs of rows half as many. */
typedef struct operand_memory {
  float *along, *down;
  int64_t floats;
} operand_memory;

/* Queries [row, row + rows) of a head and keys [key, key + keys). */
typedef struct backward_step {
  row_block block; /* the rows as scores.h sees them */
  int64_t key, keys;
  step_operand q, d_o;
  float_rows k; /* down its rows; row 0 is the block's first key */
  const float *k_panels, *v_panels, *minus_lse, *minus_delta;
  float *p, *d_s, *slope;                 /* [SCORE_ROWS][SCORE_STRIDE]; slope: of the softcap */
  float_rows p_down, d_s_down, d_s_along; /* P and dS as products read them */
  attn_key_range seen[BACKWARD_TILES];    /* keys of the block, counted from its first, that each tile of rows sees */
  attn_key_range row_tiles[BACKWARD_KEYS / TILE_ROWS]; /* tiles of rows, from the first to behind the last, that see some of
                                                          TILE_ROWS keys */
  philox_dropout dropout;
  float *kept; /* [TILE_ROWS][KEPT_STRIDE]: its factors of a tile, from the block's first key on; NULL: no dropout */
} backward_step;

/* Where P and dS of a tile of rows stand as floats. */
static ALWAYS_INLINE int64_t scores_of_tile(int64_t tile_row) {
  return (int)SCORE_ROWS == (int)TILE_ROWS ? 0 : tile_row * SCORE_STRIDE;
}

static bool all_live(const float *minus_lse, int64_t rows) {
  for (int64_t i = 0; i < rows; i++)
    if (minus_lse[i] == -INFINITY) return false;
  return true;
}

#endif
