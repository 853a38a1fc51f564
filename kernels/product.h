/* SPDX-License-Identifier: MIT */
/* The contract of a tier's product: one panel of W against some rows of X. src/layers/product.c does the rest in portable
 * code, because it copies every element once where the panel uses it hundreds of times: packing W, gathering X, scattering
 * Y, threads. */
#ifndef ATTN_KERNELS_PRODUCT_H
#define ATTN_KERNELS_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/product.h"

/* out[i][c] = start[i][c] + sum_k x[i][k] panel[k][c] for i < rows, c < columns <= panel_columns; up to panel_columns are
 * written. The sum is one chain of multiply-adds from `start` on, in the order of k. What is said of rows, depth and panel
 * is that of run(); run_few() says its own. */
typedef struct attn_product_block {
  int64_t rows, columns, depth; /* rows: a multiple of tile_rows; depth: at most depth_block */
  const float *x, *start;       /* start may be out */
  const void *panel;            /* float32, [depth][panel_columns]; or steps of the kernel's form */
  float *out;
  int64_t x_stride, start_stride, out_stride; /* floats from row to row; start_stride 0: all rows have the same start */
  bool x_transposed; /* x[i][k] is x[k * x_stride + i]; never true for products that stand on a library */

  /* For kernels with a form. */
  attn_dtype weights; /* type of W before it was packed */
  void *memory;       /* this thread's, memory_bytes() of it */
} attn_product_block;

/* The form that a tier gives to W when it packs it, and to X before it multiplies: in parts, say. */
typedef struct attn_product_form {
  int64_t block_rows; /* rows of one call at most, a multiple of tile_rows: W is read once for these */
  int64_t depth_step; /* W is packed in steps of so many elements of depth, the last filled with 0; divides depth_block */
  int64_t (*step_bytes)(attn_dtype weights);                              /* bytes of one panel's step */
  void (*pack_step)(const float *step, attn_dtype weights, void *packed); /* step: [depth_step][panel_columns] */
  int64_t (*memory_bytes)(int64_t rows, int64_t depth);                   /* for blocks up to this size */
  void (*pack_x)(const attn_product_block *block); /* into its memory; run() then meets this X with several panels */
} attn_product_form;

enum { ATTN_PRODUCT_FEW_ROWS = 8 }; /* most rows of run_few() */

typedef struct attn_product_kernel {
  const char *name, *isa;        /* "product_avx2", "avx2" */
  int64_t tile_rows;             /* rows come in multiples of this; with a form, only the last block's do not */
  int64_t panel_columns;         /* columns of W side by side in a packed panel, [depth][panel_columns] */
  int64_t depth_block;           /* depth of one call at most: its part of the panel stays in L1 */
  const attn_product_form *form; /* NULL: float32 */
  void (*run)(const attn_product_block *block);
  /* Few rows, where tiles would be mostly empty and W comes from memory: 1, 2, 4, 5, 6 or 8 rows of any depth, whose X is
   * not transposed, against `panels` panels in the type of W as it is kept, `panel_bytes` apart. Panel p is written to out +
   * p * panel_columns, and starts from there if start is out. The same bits as run(). NULL: run() takes them all. */
  void (*run_few)(const attn_product_block *block, int64_t panels, int64_t panel_bytes);
  /* Floats of `count` elements of f16 or bf16, a multiple of panel_columns. W of these types is then kept in 2 bytes an
   * element, and a panel is widened once for each block of rows. NULL: it is widened when it is packed. */
  void (*widen)(const void *packed, attn_dtype weights, int64_t count, float *to);
  const attn_row_function *activations; /* index: attn_activation; each element for itself; NULL: the tier's */

  /* For products that stand on a library; 0 and NULL for our own. */
  bool rows_by_place; /* a row's bits depend on its place in its block: blocks then start with each sequence */
  const char *(*unusable)(const char *cap); /* why it may not run below this tier, or NULL */
  int (*most_threads)(void);
  void (*begin_run)(void), (*end_run)(void); /* around all tasks of a run */
} attn_product_kernel;

#endif
