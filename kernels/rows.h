/* SPDX-License-Identifier: MIT */
/* The contract of a tier's functions of rows between dense layers (include/attn/rows.h). src/layers/rows.c does the rest in
 * portable code: checks and threads. */
#ifndef ATTN_KERNELS_ROWS_H
#define ATTN_KERNELS_ROWS_H

#include "attn/rows.h"

typedef struct attn_rows_kernel {
  /* Rows [first, first + count) of a valid join. */
  void (*join)(const attn_row_join *join, int64_t first, int64_t count);
} attn_rows_kernel;

#endif
