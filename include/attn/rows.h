/* SPDX-License-Identifier: MIT */
/** @file
 * Rows between dense layers: residuals, gates and norms, in the vectors of the tier that the CPU has. The layers of
 * attn/nn.h use it, and so can a program that builds its own.
 *
 *     attn_row_join join = ATTN_STRUCT(attn_row_join, .rows = 100, .width = 512, .x = x, .other = residual,
 *                                      .norm_kind = ATTN_NORM_LAYER, .norm = {.gain = gain, .epsilon = 1e-5f}, .y = y);
 *     if (attn_row_join_run(&join, NULL) != ATTN_OK) puts(attn_last_error());
 *
 * Errors as in attn.h: a status, and a sentence from attn_last_error().
 */
#ifndef ATTN_ROWS_H
#define ATTN_ROWS_H

#include "attn/attn.h"

#ifdef __cplusplus
extern "C" {
#endif

/** The parameters of a norm. */
typedef struct attn_norm {
  const float *gain; /**< [width]; NULL = 1 */
  const float *bias; /**< [width]; NULL = 0 */
  float epsilon;     /**< Added to the variance or mean square; >= 0 and finite (PyTorch: 1e-5). */
} attn_norm;

/** Which norm. */
typedef enum attn_norm_kind {
  ATTN_NORM_NONE = 0, /**< y = s */
  ATTN_NORM_LAYER,    /**< y = gain (s - mean(s)) / sqrt(variance(s) + epsilon) + bias (Ba et al. 2016,
                         https://arxiv.org/abs/1607.06450, eq. 3 and 4); the variance is the mean square, uncorrected. */
  ATTN_NORM_RMS,      /**< y = gain s / sqrt(mean(s^2) + epsilon) + bias (Zhang & Sennrich 2019,
                         https://arxiv.org/abs/1910.07467, eq. 4) */
} attn_norm_kind;

/** How x and other become s. */
typedef enum attn_join_kind {
  ATTN_JOIN_ADD = 0,  /**< s = x + other: a residual connection; s = x without other. */
  ATTN_JOIN_MULTIPLY, /**< s = x times other, element by element: a gate. */
} attn_join_kind;

struct attn_row_join;
/** A tier's way through rows first .. first + count - 1 of a valid join. */
typedef void (*attn_row_join_function)(const struct attn_row_join *join, int64_t first, int64_t count);

/** Rows, all dense [rows][width]; types are f32, bf16 or f16. Arithmetic is float32, and each output is rounded once, from
 * s and not from what sum keeps of it. A norm's sums of squares are float32, too: beyond 2^63 elements overflow them, and
 * their row may become 0. y and sum may be x or other where their types are the same; otherwise no output may overlap
 * another array. */
typedef struct attn_row_join {
  size_t struct_size;              /**< Bytes of this struct; ATTN_STRUCT sets it. */
  int64_t rows;                    /**< >= 0, at most 2^58 elements in all. */
  int64_t width;                   /**< Elements of a row, 1..2^31. */
  attn_join_kind kind;             /**< Addition or multiplication. */
  attn_norm_kind norm_kind;        /**< None, or which. */
  attn_norm norm;                  /**< Its parameters; not read without one. */
  attn_dtype dtype_x;              /**< Type of x. */
  attn_dtype dtype_other;          /**< Type of other. */
  attn_dtype dtype_sum;            /**< Type of sum. */
  attn_dtype dtype_y;              /**< Type of y. */
  const void *x;                   /**< First operand. */
  const void *other;               /**< Second operand; NULL = none, with ATTN_JOIN_ADD alone. */
  void *sum;                       /**< Output: s, as a pre-norm block carries it on; or NULL. */
  void *y;                         /**< Output. */
  attn_row_join_function function; /**< From attn_row_join_choose(), for programs that join often; NULL = the options'. */
  float *scales; /**< Output [rows][3]: mean, its rounding error and scale of a norm, for attn_norm_grad; or NULL. */
} attn_row_join;

/** The function of the highest tier that this CPU, ATTN_MAX_ISA and options->max_isa allow. options may be NULL. The result
 * is NULL, with the sentence set, if there is no such tier. */
ATTN_API attn_row_join_function attn_row_join_choose(const attn_options *options);

/** Computes y and sum. options may be NULL; threads, pool and, without a function, max_isa of them count. Every tier gives
 * the same bits, but for which NaN is written, and a row's depend on that row alone. A NaN makes NaN of its whole row where
 * there is a norm. Allocates nothing. Returns ATTN_OK, ATTN_INVALID_ARGUMENT, or what is wrong with the options. */
ATTN_API attn_status attn_row_join_run(const attn_row_join *join, const attn_options *options);

struct attn_norm_grad;
/** Rows first .. first + count - 1 of a gradient of norms: writes d_s, unless that is NULL; and, unless sums is NULL, the
 * sums of d_y over these rows to sums[0] .. [width - 1], and those of d_y n to the next `width`. */
typedef void (*attn_norm_grad_function)(const struct attn_norm_grad *grad, int64_t first, int64_t count, double *sums);
/** sums[c] = the sum of x[r stride + c] over r = 0 .. rows - 1, in this order, for c < columns. */
typedef void (*attn_sum_rows_function)(const float *x, int64_t stride, int64_t rows, int64_t columns, double *sums);
struct attn_dropout;
/** A row of dropout: y may be x. */
typedef void (*attn_drop_row_function)(const struct attn_dropout *dropout, uint32_t row, int64_t width, const float *x,
                                       float *y);
/** to[i] = e^(x[i] - most) for i < count, most the largest x, which is returned; *sum is their sum. to may be x, or NULL. */
typedef float (*attn_exponentials_function)(const float *x, int64_t count, float *to, double *sum);
/** The sum of x[i]^2 over i < count. */
typedef double (*attn_sum_squares_function)(const float *x, int64_t count);

/** Functions of rows for attn/train.h, in a tier's vectors: arguments have been checked. The library owns the struct; later
 * versions have more fields at its end. */
typedef struct attn_row_gradients {
  attn_norm_grad_function norm;            /**< Norms. */
  attn_sum_rows_function sum_rows;         /**< Biases. */
  attn_drop_row_function drop;             /**< Dropout. */
  attn_exponentials_function exponentials; /**< Cross-entropy. */
  attn_sum_squares_function sum_squares;   /**< Clipping. */
} attn_row_gradients;

/** Those of the highest tier that this CPU, ATTN_MAX_ISA and options->max_isa allow. options may be NULL. The result is
 * NULL, with the sentence set, if there is no such tier. */
ATTN_API const attn_row_gradients *attn_row_gradients_choose(const attn_options *options);

#ifdef __cplusplus
}
#endif
#endif
