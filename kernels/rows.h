/* SPDX-License-Identifier: MIT */
/* The contract of a tier's functions of rows between dense layers (include/attn/rows.h). src/layers/rows.c does the rest in
 * portable code: checks and threads. */
#ifndef ATTN_KERNELS_ROWS_H
#define ATTN_KERNELS_ROWS_H

#include "attn/rows.h"

typedef struct attn_rows_kernel {
  attn_row_join_function join;
  attn_row_gradients gradients;
} attn_rows_kernel;

#endif
