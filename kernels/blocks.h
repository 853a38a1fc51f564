/* SPDX-License-Identifier: MIT */
/* Elements in blocks, as ggml lays them out (https://github.com/ggml-org/ggml): 32 neighbours of a row share a float16
 * factor, their scale. Value and factor are exact in float32: 11 bits times 8. Nothing is aligned to more than a byte. */
#ifndef ATTN_COMMON_BLOCKS_H
#define ATTN_COMMON_BLOCKS_H

#include <stdint.h>

enum { ATTN_BLOCK_VALUES = 32 };

/* Value i is scale * values[i]. */
typedef struct attn_q8_0 {
  uint8_t scale[2]; /* float16, in the CPU's order of bytes */
  int8_t values[ATTN_BLOCK_VALUES];
} attn_q8_0;

/* Value i is scale * (n - 8), where n is the lower half of byte i, or from i = 16 on the upper half of byte i - 16. */
typedef struct attn_q4_0 {
  uint8_t scale[2];
  uint8_t values[ATTN_BLOCK_VALUES / 2];
} attn_q4_0;

#endif
