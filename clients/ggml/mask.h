/* SPDX-License-Identifier: MIT */
/* ggml's masks: float16 numbers that are added to the scores, each times the slope of its head. Most have 0 and -inf alone,
 * and those of one sequence allow the first keys of each row. libattn is quicker if it knows that. */
#ifndef LIBATTN_GGML_MASK_H
#define LIBATTN_GGML_MASK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Rows of keys, one behind the other. */
typedef struct mask {
  const uint16_t *numbers; /* [sequences][heads][rows][keys] */
  int64_t sequences, heads, rows, keys;
} mask;

typedef enum mask_kind {
  MASK_LENGTHS, /* each row sees its first keys, and nothing is added */
  MASK_BITS,    /* nothing is added */
  MASK_BIAS
} mask_kind;

/* Reads the mask. lengths[sequences][rows]: how many keys a row of any head has up to the last one that it sees. */
mask_kind mask_read(const mask *m, int32_t *lengths);

/* 1 where a key is seen: [sequences][heads][rows][keys]. */
void mask_write_bits(const mask *m, uint8_t *bits);

/* The numbers times slopes: [sequences][all_heads][rows][keys]; without slopes [sequences][heads][rows][keys]. */
void mask_write_bias(const mask *m, const float *slopes, int64_t all_heads, float *bias);

/* ALiBi's slopes as ggml defines them by max_bias. */
void mask_slopes(float max_bias, int64_t heads, float *slopes);

#endif
