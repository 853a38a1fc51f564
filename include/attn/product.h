/* SPDX-License-Identifier: MIT */
/* Dense layers: Y = X W + bias, with W packed once. What multi-head attention (attn_mha_create) and the layers of attn/nn.h
 * project with; a program that builds its own layers from libattn can use it as well.
 *
 *     attn_product *w;                                    // W [depth][columns], as y = x W wants it
 *     attn_product_create(&(attn_product_weights){.depth = 512, .columns = 256, .weight = weight, .stride_depth = 256,
 *                                                 .stride_column = 1, .bias = bias}, NULL, &w);
 *     attn_product_run(w, &(attn_product_args){.batch = 1, .rows = 100, .x = x, .x_stride = {.s = 512, .d = 1}, .y = y,
 *                                              .y_stride = {.s = 256, .d = 1}}, workspace, attn_product_workspace(w, 100));
 *
 * Errors as in attn.h: a status, and a sentence from attn_last_error().
 */
#ifndef ATTN_PRODUCT_H
#define ATTN_PRODUCT_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/* W packed for this CPU, with its bias. Immutable: any number of threads may run it at once, each with its own workspace. */
typedef struct attn_product attn_product;

/* What W is. Everything is copied: nothing here need outlive attn_product_create. */
typedef struct attn_product_weights {
  int64_t depth, columns;              /* W is depth x columns; both >= 1 */
  const void *weight;                  /* element (k, n) at k stride_depth + n stride_column */
  int64_t stride_depth, stride_column; /* any values: {columns, 1} for [in][out], {1, depth} for PyTorch's [out][in] */
  attn_dtype dtype;                    /* of weight; f16 and bf16 are widened to float32 when packed */
  const float *bias;                   /* [columns], or NULL for none */
  bool relu;                           /* y = max(y, 0), NaN stays NaN */
  bool gelu;                           /* y = y times the normal distribution function at y, exact; not with relu */
} attn_product_weights;

/* One call: batch x rows rows of X, and where the rows of Y go. Column c of row (b, s) is at
 *
 *     b stride.b + s stride.s + (c / head_dim) stride.h + (c % head_dim) stride.d
 *
 * so that heads are addressed in place; head_dim = 0 means one head of all columns, and stride.h is not read. Strides in elements,
 * any values; Y must neither overlap itself nor X. */
typedef struct attn_product_args {
  int64_t batch, rows; /* >= 0 */
  const float *x;
  attn_strides x_stride;
  int64_t x_head_dim;
  float *y;
  attn_strides y_stride;
  int64_t y_head_dim;
} attn_product_args;

/* options may be NULL. options->kernel names the product: "product_avx2", ... (attn_product_name), or "product_openblas" where the
 * library was built with it; NULL = our own of the highest tier that this CPU and ATTN_MAX_ISA allow, never a library's. ATTN_KERNEL is
 * about attention and not read. On failure *product is NULL. */
ATTN_API attn_status attn_product_create(const attn_product_weights *weights, const attn_options *options,
                                         attn_product **product);

/* Bytes of workspace that a run over so many rows (batch x rows) needs; a multiple of 64. Never more for fewer rows. */
ATTN_API size_t attn_product_workspace(const attn_product *product, int64_t rows);

/* Computes every row of Y. `workspace` is 64-byte aligned and private to this call. Allocates nothing. Every element is one chain of
 * multiply-adds over depth, then the bias: a row's bits depend on that row and W alone, not on the other rows or threads; of
 * product_openblas, which sums as it likes, also on the row's place in its sequence. */
ATTN_API attn_status attn_product_run(const attn_product *product, const attn_product_args *args, void *workspace,
                                      size_t workspace_bytes);

/* Which product was chosen: "product_avx2". */
ATTN_API const char *attn_product_name(const attn_product *product);

ATTN_API void attn_product_destroy(attn_product *product); /* NULL is fine */

#ifdef __cplusplus
}
#endif
#endif
