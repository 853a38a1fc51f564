/* SPDX-License-Identifier: MIT */
/* Float64 oracles of layers, composed like the formulas of docs/semantics.md: obvious loops that share no code with what
 * they check. Every value carries the rounding error that float32 arithmetic is expected to have made so far. So the
 * error limit of a block is derived from its own dozen steps; it is no chosen tolerance.
 *
 * `error` is a standard deviation: each rounding counts as an independent error of u = 2^-24 times what is rounded, and is
 * carried through later steps by their derivatives (Higham & Mary 2019, https://doi.org/10.1137/18M1226312, on why sums of
 * n roundings grow like sqrt(n) u). A result passes within ATTN_NN_SIGMAS of them. docs/numerics.md says more. */
#ifndef ATTN_NN_ORACLE_F64_H
#define ATTN_NN_ORACLE_F64_H

#include "attn/attn.h"
#include "attn/nn.h"

enum { ATTN_NN_SIGMAS = 4 };

/* rows x width numbers, each with its error. */
typedef struct attn_nn_field {
  int64_t rows, width;
  double *value, *error;
} attn_nn_field;

/* All zeros. Where memory is short, ends the program with a sentence and exit code 5. Oracles only run in tests and in the
 * check of the harness, whose journal holds every case before this one. */
attn_nn_field attn_nn_field_create(int64_t rows, int64_t width);
attn_nn_field attn_nn_field_of(const float *data, int64_t rows, int64_t width); /* exact */
void attn_nn_field_destroy(attn_nn_field *field);

/* How far a value with this error may be missed. */
static inline double attn_nn_limit(double error) { return ATTN_NN_SIGMAS * error + 0x1p-126; }

/* The largest |got - value| / limit of the field. Up to 1 passes; NaN counts as infinite. */
double attn_nn_field_worst(const attn_nn_field *field, const float *got);

/* Adds the error of rounding to f32, bf16 or f16: values stay. */
void attn_nn_oracle_round(attn_nn_field *x, attn_dtype dtype);

attn_nn_field attn_nn_oracle_linear(const attn_nn_field *x, const attn_linear *linear, int64_t out);
attn_nn_field attn_nn_oracle_product(const attn_nn_field *x, const attn_product_weights *weights); /* no activation */
attn_nn_field attn_nn_oracle_relu(const attn_nn_field *x);
attn_nn_field attn_nn_oracle_activation(const attn_nn_field *x, attn_activation activation);
attn_nn_field attn_nn_oracle_add(const attn_nn_field *a, const attn_nn_field *b);
attn_nn_field attn_nn_oracle_multiply(const attn_nn_field *a, const attn_nn_field *b); /* each element for itself */
attn_nn_field attn_nn_oracle_layer_norm(const attn_nn_field *x, const attn_norm *norm);
attn_nn_field attn_nn_oracle_rms_norm(const attn_nn_field *x, const attn_norm *norm);
attn_nn_field attn_nn_oracle_feed_forward(const attn_nn_field *x, const attn_feed_forward_config *config);

/* Sine and cosine by position, from the formula. */
attn_nn_field attn_nn_oracle_positions(int64_t first, int64_t rows, int64_t width);

/* Any attention, with float32 tensors. The rows of q, k and v hold one sequence after the other, or with VARLEN all tokens;
 * heads stand side by side. */
typedef struct attn_nn_attention {
  attn_problem problem;   /* strides of q, k, v and scores are not read; dtype_kv says how a kernel rounds weights */
  const attn_args *args;  /* lengths, masks and the like; NULL: none */
  attn_numerics numerics; /* errors of exp, of rounded weights and of rounded inputs that the kernel declares */
  const int64_t *row;     /* which queries of the only sequence q holds, `rows` of them; NULL: all */
  int64_t rows;
  const attn_nn_field *scores; /* for PRECOMPUTED: [batch][heads_q][queries] rows of at least seq_k */
  attn_nn_field *p, *lse;      /* created where not NULL: [queries][heads_q] rows of seq_k, and [queries] rows of heads_q */
} attn_nn_attention;

/* [queries][heads_q dim_v]. PRECOMPUTED reads neither q nor k. */
attn_nn_field attn_nn_oracle_attention(const attn_nn_attention *attention, const attn_nn_field *q, const attn_nn_field *k,
                                       const attn_nn_field *v);

/* Multi-head attention. */
typedef struct attn_nn_mha {
  const attn_mha_problem *problem; /* strides are not read */
  const attn_mha_weights *weights;
  attn_nn_attention attention; /* its problem is not read */
  attn_nn_field *kept; /* [2]: keys and values, for further calls with this memory; empty before the first. NULL: not kept */
} attn_nn_mha;

/* y for the rows of x, which are those that `attention` names. memory: all rows; NULL: x, or `kept`. */
attn_nn_field attn_nn_oracle_mha(const attn_nn_mha *mha, const attn_nn_field *x, const attn_nn_field *memory);

#endif
