/* SPDX-License-Identifier: MIT */
/* Float64 oracles of libattn_nn, composed like the formulas of docs/semantics.md: obvious loops that share no code with
 * what they check. Every value carries the rounding error that float32 arithmetic is expected to have made so far. So the
 * error limit of a block is derived from its own dozen steps; it is no chosen tolerance.
 *
 * `error` is a standard deviation: each rounding counts as an independent error of u = 2^-24 times what is rounded, and is
 * carried through later steps by their derivatives (Higham & Mary 2019, https://doi.org/10.1137/18M1226312, on why sums of
 * n roundings grow like sqrt(n) u). A result passes within ATTN_NN_SIGMAS of them. docs/numerics.md says more. */
#ifndef ATTN_NN_ORACLE_F64_H
#define ATTN_NN_ORACLE_F64_H

#include "attn/attn.h"
#include "attn/nn.h"

enum { ATTN_NN_SIGMAS = 8 };

/* rows x width numbers, each with its error. */
typedef struct attn_nn_field {
  int64_t rows, width;
  double *value, *error;
} attn_nn_field;

/* Ends the program with a sentence and exit code 5. Oracles only run in tests and in the check of the harness, whose journal
 * holds every case before this one. */
_Noreturn void attn_nn_oracle_out_of_memory(void);

/* All zeros. Ends the program where memory is short. */
attn_nn_field attn_nn_field_create(int64_t rows, int64_t width);
attn_nn_field attn_nn_field_of(const float *data, int64_t rows, int64_t width); /* exact */
void attn_nn_field_destroy(attn_nn_field *field);

/* The largest |got - value| / (SIGMAS error + 2^-126) of the field. Up to 1 passes; NaN counts as infinite. */
double attn_nn_field_worst(const attn_nn_field *field, const float *got);

/* x W + b; w[in][out] by its strides, b NULL = 0. */
typedef struct attn_nn_matrix {
  const float *w;
  int64_t in_stride, out_stride;
  const float *b;
} attn_nn_matrix;
attn_nn_field attn_nn_oracle_linear(const attn_nn_field *x, const attn_nn_matrix *matrix, int64_t out);

attn_nn_field attn_nn_oracle_relu(const attn_nn_field *x);
attn_nn_field attn_nn_oracle_gelu(const attn_nn_field *x);
attn_nn_field attn_nn_oracle_add(const attn_nn_field *a, const attn_nn_field *b);
attn_nn_field attn_nn_oracle_layer_norm(const attn_nn_field *x, const attn_norm *norm);

/* Attention without its tensors. The rows of q, k and v hold one sequence after the other, with heads side by side. */
typedef struct attn_nn_attention {
  int64_t batch, heads_q, heads_kv, seq_q, seq_k;
  bool causal; /* aligned bottom-right where `bottom_right` */
  bool bottom_right;
  const int32_t *kv_len;       /* [batch] or NULL */
  attn_score score;            /* DOT, ADDITIVE, GAUSSIAN; PRECOMPUTED reads `scores` */
  float scale;                 /* DOT only */
  const float *weight;         /* of ADDITIVE and GAUSSIAN: [dim] */
  const attn_nn_field *scores; /* [batch * heads_q * seq_q][at least seq_k] */
  attn_numerics numerics;      /* what the kernel declares of its exp */
} attn_nn_attention;
attn_nn_field attn_nn_oracle_attention(const attn_nn_attention *attention, const attn_nn_field *q, const attn_nn_field *k,
                                       const attn_nn_field *v);

/* Sine and cosine by position, from the formula. */
attn_nn_field attn_nn_oracle_positions(int64_t first, int64_t rows, int64_t width);

#endif
