/* SPDX-License-Identifier: MIT */
/* The tile unit: eight tiles of 16 rows of 64 bytes, all in use (Intel SDM vol. 1, ch. 18). */
#ifndef ATTN_TILES_AMX_H
#define ATTN_TILES_AMX_H

#include <immintrin.h>
#include <stdint.h>

/* LDTILECFG's memory layout. */
typedef struct tile_config {
  uint8_t palette, start_row, reserved[14];
  uint16_t row_bytes[16];
  uint8_t rows[16];
} tile_config;

/* In static storage: gcc's _tile_loadconfig says that it reads 8 bytes of its argument, so what it loads from an automatic
 * object may never have been stored there (gcc 12: a general protection fault). */
static const tile_config eight_tiles = {
    .palette = 1,
    .row_bytes = {64, 64, 64, 64, 64, 64, 64, 64},
    .rows = {16, 16, 16, 16, 16, 16, 16, 16},
};

/* Before tiles are loaded from memory that was just written: gcc's _tile_loadd does not say that it reads memory, so the
 * stores could come after it. */
static inline void tiles_see_stores(void) { __asm__ volatile("" : : : "memory"); }

#endif
