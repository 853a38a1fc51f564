/* SPDX-License-Identifier: MIT */
/* Multi-head attention in float64, and by how much a float32 layer may miss it (docs/numerics.md, "Layers"). Shares no
 * code with the layer: projections are loops over float64, attention is the oracle of kernels/ref. */
#ifndef BENCH_MHA_ORACLE_H
#define BENCH_MHA_ORACLE_H

#include "attn/attn.h"
#include "src/nn/ref/nn_oracle_f64.h"

typedef struct mha_oracle mha_oracle;

/* Keeps the pointers of args->attention, which must outlive it, and copies all else. NULL if memory is short. */
mha_oracle *mha_oracle_create(const attn_mha_problem *problem, const attn_mha_weights *weights, const attn_mha_args *args);
void mha_oracle_destroy(mha_oracle *oracle);

/* One row of the layer and its limits. */
typedef struct mha_oracle_row {
  double *y, *limit; /* [width_out]: y, and the largest error it may have */
  double *p;         /* [heads_q][seq_k]: attention weights; NULL = not wanted */
  double *p_limit;   /* [heads_q][seq_k], with p */
  double *lse;       /* [heads_q]; NULL = not wanted */
  double *lse_limit; /* [heads_q], with lse */
} mha_oracle_row;

/* Fills in row i of batch b for an attention kernel of the given numerics. zero_mean: the inputs and weights are
 * generated, so that errors average out, and the sharp limit holds where it is lower. The keys and values of a batch are
 * projected once, so visit the rows of a batch together. */
void mha_oracle_compute(mha_oracle *oracle, int64_t b, int64_t i, const attn_numerics *numerics, bool zero_mean,
                        const mha_oracle_row *row);

/* A layer inside others: its inputs are fields, which have errors of their own. */
typedef struct mha_oracle_call {
  const attn_mha_problem *problem;
  const attn_mha_weights *weights;
  const attn_args *args; /* lengths and the like; NULL: none. No VARLEN */
  attn_numerics numerics;
} mha_oracle_call;

/* All rows for x [batch * seq_q] and memory [batch * seq_k], NULL for self-attention. Aborts without memory, as all of
 * nn_oracle_f64.h. */
attn_nn_field mha_oracle_field(const mha_oracle_call *call, const attn_nn_field *x, const attn_nn_field *memory);

#endif
