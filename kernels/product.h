/* SPDX-License-Identifier: MIT */
/* The contract of a tier's product: one panel of W against some rows of X. src/layers/product.c does the rest in portable
 * code, because it copies every element once where the panel uses it hundreds of times: packing W, gathering X, scattering
 * Y, threads. */
#ifndef ATTN_KERNELS_PRODUCT_H
#define ATTN_KERNELS_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>

#include "attn/product.h"

/* Finished rows of Y in bf16: sums + bias, through a function, rounded to the nearest; values below 2^-126 may become 0. */
typedef struct attn_product_y {
  uint16_t *at;
  int64_t stride;
  const float *bias;          /* or NULL */
  attn_row_function activate; /* a tier's own, which uses no tiles; or NULL */
} attn_product_y;

/* out[i][c] = start[i][c] + sum_k x[i][k] panel[k][c] for i < rows, c < columns <= panel_columns; up to panel_columns are
 * written. The sum is one chain of multiply-adds from `start` on, in the order of k. What is said of rows, depth and panel
 * is that of run(); run_few() says its own. */
typedef struct attn_product_block {
  int64_t rows, columns, depth; /* rows: a multiple of tile_rows, or, without a form, tile_rows or more; depth: at most
                                   depth_block, or the form's extent */
  const void *x;                /* float32, or bf16 for a form that takes it */
  const float *start;           /* may be out */
  const void *panel;            /* float32, [depth][panel_columns]; or steps of the kernel's form */
  float *out;
  int64_t x_stride, start_stride, out_stride; /* elements from row to row; start_stride 0: all rows have the same start */
  bool x_transposed; /* x[i][k] is x[k * x_stride + i]; never true for products that stand on a library */

  attn_dtype weights; /* type that W was rounded to, or came in */

  /* For kernels with a form. */
  attn_dtype x_dtype;
  const attn_product_y *y; /* with x of bf16: where `columns` of each row of Y go; out may then be written or not. Or NULL */
  void *memory;            /* this thread's, memory_bytes() of it */

  const void *next_panel; /* to prefetch while this one is used: the part that comes next, as W is kept; or NULL */
  int64_t next_bytes;
  /* With `finishes`: of the columns, for whole vectors of them; or NULL. Sums are at last multiplied by the one, and then
   * the other is added. */
  const float *scale, *bias;
} attn_product_block;

typedef struct attn_product_extent {
  int64_t rows, depth;
} attn_product_extent;

/* The form that a tier gives to W when it packs it, and to X before it multiplies: in parts, say. */
typedef struct attn_product_form {
  /* Rows of one call at most, a multiple of tile_rows, for X of this type and depth: W is read once for these. And depth of
   * one call at most. */
  attn_product_extent (*extent)(attn_dtype x, int64_t depth);
  int64_t depth_step; /* W is packed in steps of so many elements of depth, the last filled with 0; divides extent().depth */
  bool takes_bf16;    /* rows of bf16 by W of bf16 come as bf16; all others come as float32; one that packs X
                         then stores Y of bf16 */
  bool only_bf16;     /* it takes these alone */
  bool only_int8;     /* it takes weights of i8 with int8_rows alone, in a single depth block, and rounds X, which is
                         float32, when it packs it; run() multiplies sums by their row's scale */
  int64_t (*step_bytes)(attn_dtype weights);                              /* bytes of one panel's step */
  void (*pack_step)(const float *step, attn_dtype weights, void *packed); /* step: [depth_step][panel_columns] */
  int64_t (*memory_bytes)(attn_dtype x, int64_t rows, int64_t depth);     /* for blocks up to this size */
  /* Packs X into its memory; run() then meets this X with several panels. NULL: X comes in rows, to which 0 is added up to
   * a whole step, and in whole tiles. */
  void (*pack_x)(const attn_product_block *block);
} attn_product_form;

/* An activation and its gradient: each element for itself. */
typedef struct attn_activation_rows {
  attn_row_function run;
  attn_row_slope_function grad;
} attn_activation_rows;

enum { ATTN_PRODUCT_FEW_ROWS = 8 }; /* most rows of run_few() */

typedef struct attn_product_kernel {
  const char *name, *isa;        /* "product_avx2", "avx2" */
  int64_t tile_rows;             /* see attn_product_block.rows; where the form packs X, the last block has any number */
  int64_t panel_columns;         /* columns of W side by side in a packed panel, [depth][panel_columns] */
  int64_t depth_block;           /* depth of one call at most: its part of the panel stays in L2; unused with a form */
  const attn_product_form *form; /* NULL: float32 */
  void (*run)(const attn_product_block *block);
  bool finishes; /* run() applies scale and bias */
  /* Few rows, where tiles would be mostly empty and W comes from memory: 1, 2, 4, 5, 6 or 8 rows of any depth, whose X is
   * not transposed, against `panels` panels in the type of W as it is kept, `panel_bytes` apart. Panel p is written to out +
   * p * panel_columns, and starts from there if start is out. The same bits as run(). NULL: run() takes them all. */
  void (*run_few)(const attn_product_block *block, int64_t panels, int64_t panel_bytes);
  /* W of f16, bf16 or i8 is kept in its type, and a panel is widened once for each block of rows. narrow() stores a line of
   * panel_columns floats that are values of this type, in an order of its own; widen() has the floats of `count` elements, a
   * multiple of panel_columns. NULL: W is widened when it is packed. */
  void (*narrow)(const float *line, attn_dtype weights, void *packed);
  void (*widen)(const void *packed, attn_dtype weights, int64_t count, float *to);
  int64_t widened_depth;                   /* in the place of depth_block: what was just widened stays in L1 */
  const attn_activation_rows *activations; /* index: attn_activation; NULL: the tier's */

  /* For products that stand on a library; 0 and NULL for our own. */
  bool rows_by_place; /* a row's bits depend on its place in its block: blocks then start with each sequence */
  const char *(*unusable)(const char *cap); /* why it may not run below this tier, or NULL */
  int (*most_threads)(void);
  void (*begin_run)(void), (*end_run)(void); /* around all tasks of a run */
} attn_product_kernel;

#endif
