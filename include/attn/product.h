/* SPDX-License-Identifier: MIT */
/** @file
 * Dense layers: Y = X W + bias, with W packed once. Multi-head attention (attn_mha_create()) and the layers of attn/nn.h
 * project with them. A program that builds its own layers from libattn can use them as well.
 *
 *     attn_product *w;                                    // W [depth][columns], as y = x W wants it
 *     attn_product_create(&ATTN_STRUCT(attn_product_weights, .depth = 512, .columns = 256, .weight = weight,
 *                                      .stride_depth = 256, .stride_column = 1, .bias = bias), NULL, &w);
 *     attn_product_run(w, &ATTN_STRUCT(attn_product_args, .batch = 1, .rows = 100, .x = x, .x_stride = {.s = 512, .d = 1},
 *                                      .y = y, .y_stride = {.s = 256, .d = 1}), workspace, attn_product_workspace(w, 100));
 *
 * Errors as in attn.h: a status, and a sentence from attn_last_error().
 */
#ifndef ATTN_PRODUCT_H
#define ATTN_PRODUCT_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/** A function that is applied to rows between dense layers. */
typedef enum attn_activation {
  ATTN_RELU = 0,  /**< max(0, x) */
  ATTN_GELU,      /**< x times the normal distribution function, exact (Hendrycks & Gimpel 2016, arXiv:1606.08415) */
  ATTN_SILU,      /**< x / (1 + e^-x) (ibid.), also called swish */
  ATTN_GELU_TANH, /**< x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) / 2: the approximation of GELU (ibid.) */
} attn_activation;

/** Changes `count` elements in place, each for itself. Several threads call it at once. */
typedef void (*attn_row_function)(float *x, int64_t count);

/** The function of the highest tier that this CPU, ATTN_MAX_ISA and options->max_isa allow. options may be NULL. The result
 * is NULL, with the sentence set, if there is no such activation or tier. */
ATTN_API attn_row_function attn_activation_function(attn_activation activation, const attn_options *options);

/** d_x = d_y activation'(x), `count` elements, each for itself; d_x may be d_y or x. */
typedef void (*attn_row_slope_function)(const float *x, const float *d_y, float *d_x, int64_t count);

/** The same for an activation's gradient; at 0 the slope of ATTN_RELU is 0. */
ATTN_API attn_row_slope_function attn_activation_slope(attn_activation activation, const attn_options *options);

/** W packed for this CPU, with its bias. Immutable: any number of threads may run it at once, each with its own
 * workspace. */
typedef struct attn_product attn_product;

/** The matrix W of a product. Everything is copied: nothing here has to outlive attn_product_create(). */
typedef struct attn_product_weights {
  size_t struct_size;    /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t depth;         /**< Rows of W = length of a row of X, >= 1. */
  int64_t columns;       /**< Columns of W = length of a row of Y, >= 1. */
  const void *weight;    /**< W: element (k, n) is at k stride_depth + n stride_column. */
  int64_t stride_depth;  /**< Elements from one row of W to the next: `columns` for [in][out], 1 for PyTorch's [out][in]. */
  int64_t stride_column; /**< Elements from one column of W to the next: 1 for [in][out], `depth` for PyTorch's [out][in]. */
  attn_dtype dtype;      /**< Type of weight: f32, f16, bf16, or i8 with a scale. In the tiers with vectors f16 and bf16 stay
                              2 bytes an element, and i8 1 byte; in product_amx i8 has 6. */
  const float *bias;     /**< [columns], or NULL for none. */
  bool relu;             /**< y = max(y, 0); NaN stays NaN. */
  bool gelu;             /**< y = y times the normal distribution function at y, exact; not together with relu. */
  attn_row_function activate; /**< Applied to finished elements of rows, in parts of any length; not together with these; or
                                 NULL. */
  attn_dtype dtype_x; /**< Type of x in all calls: f32, f16 or bf16. Both bf16, x and W take the CPU's products of bf16
                         where it has them. */
  attn_dtype dtype_y; /**< Type of y in all calls: sums, bias and activation are float32, rounded at last. */
  bool bf16_rows;     /**< With dtype bf16: x is rounded to bf16 before it is multiplied, so that it takes these products
                         though it is given as float32. */
  const float *scale; /**< [columns], with dtype i8: W is weight times the scale of its column. Otherwise NULL. */
  bool int8_weights;  /**< With another dtype: W is rounded to i8 when it is packed. The scale of a column is its largest
                         magnitude / 127, so a weight changes by at most half of that, unless that is below 2^-126;
                         where it is infinite or NaN, the column of Y is NaN. Not with bf16_rows. */
  bool int8_rows;     /**< With weights of i8: each row of x is rounded to i8 before it is multiplied, so that it takes the
                         CPU's products of integers. Its scale is its largest magnitude / 127, so an element changes by at
                         most half of that; below 2^-120 the row is taken for 0; where it is infinite or NaN, the row of Y
                         is NaN. product_avx512vnni takes a depth of at most 65536. */
} attn_product_weights;

/** One call: batch x rows rows of X, and where the rows of Y go. Column c of row (b, s) is at
 *
 *     b stride.b + s stride.s + (c / head_dim) stride.h + (c % head_dim) stride.d
 *
 * so that heads are addressed in place. head_dim = 0 means one head of all columns; stride.h is then not read. Strides are
 * in elements and may have any value. X may lie transposed, as the gradient of W needs it: where x is float32, stride.s = 1
 * with any stride.d is as fast as stride.d = 1. Y must overlap neither itself nor X. */
typedef struct attn_product_args {
  size_t struct_size;    /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t batch;         /**< >= 0 */
  int64_t rows;          /**< Rows of each batch, >= 0. */
  const void *x;         /**< [batch][rows][depth] by x_stride, of dtype_x. */
  attn_strides x_stride; /**< Strides of x. */
  int64_t x_head_dim;    /**< Columns of a head of x; 0 = all. */
  void *y;               /**< [batch][rows][columns] by y_stride, of dtype_y. */
  attn_strides y_stride; /**< Strides of y. */
  int64_t y_head_dim;    /**< Columns of a head of y; 0 = all. */
  bool accumulate;       /**< Chains begin with what stands in y, of f32; not with weights of i8. */
} attn_product_args;

/** Packs W. options may be NULL. options->kernel names the product: "product_avx2", ... (attn_product_name()), or
 * "product_openblas" where the library was built with it. NULL = our own of the highest tier that this CPU and
 * ATTN_MAX_ISA allow, never another library's. product_amx packs bf16 weights into 2 bytes each, others into 6: with these
 * it is slower for few rows, and taken by name only. product_avx512bf16 takes bf16 rows and weights alone, and is taken
 * where its instructions are quicker than those for float32. product_avx512vnni takes int8_rows alone. ATTN_KERNEL is about
 * attention and not read. Where options name a number of threads, these pack, too. On failure *product is NULL. */
ATTN_API attn_status attn_product_create(const attn_product_weights *weights, const attn_options *options,
                                         attn_product **product);

/** Bytes of workspace that a run over this many rows (batch x rows) needs: a multiple of 64, larger where the caches are (by
 * this CPU's class). Fewer rows never need more. */
ATTN_API size_t attn_product_workspace(const attn_product *product, int64_t rows);

/** Computes every row of Y. `workspace` is 64-byte aligned and private to this call. Allocates nothing. Every element is
 * one chain of multiply-adds over depth, times the scale of int8, plus the bias; a chain of integers that exceeds the floats
 * gives an infinity whatever the scale is. So a row's bits depend on that row and W alone, not on the other rows or threads.
 * Exceptions: product_amx and product_avx512bf16 add in orders of their own, the same for every row, and take values, or
 * parts of them, below 2^-126 for 0 (docs/numerics.md), in outputs of bf16 by how y lies; product_avx512vnni adds integers,
 * without rounding; product_openblas adds in an order that depends on the row's place in its sequence, and so do its bits.
 *
 * Returns ATTN_INVALID_ARGUMENT, ATTN_WORKSPACE_TOO_SMALL or ATTN_OK. */
ATTN_API attn_status attn_product_run(const attn_product *product, const attn_product_args *args, void *workspace,
                                      size_t workspace_bytes);

/** Which product was chosen: "product_avx2". */
ATTN_API const char *attn_product_name(const attn_product *product);

/** Gives the product to one more owner, as an embedding whose matrix is also that of the logits: each owner calls
 * attn_product_destroy(), the last of which frees it. Any thread may. Returns its argument; NULL is fine. */
ATTN_API attn_product *attn_product_share(attn_product *product);

/** Gives up one owner's product, and frees it with the last. NULL is fine. */
ATTN_API void attn_product_destroy(attn_product *product);

#ifdef __cplusplus
}
#endif
#endif
