/* SPDX-License-Identifier: MIT */
/* Attention weights of any kernel: with the identity matrix as V (identity.h) the output O is P. */
#include <stdlib.h>

#include "kernels/common/memory/aligned.h"
#include "src/layers/identity.h"
#include "src/nn/check.h"

attn_status attn_weights(const attn_problem *problem, const attn_args *args, const attn_options *options, float *weights) {
  attn_problem p;
  attn_args a;
  static const float one = 1.0f;
  attn_status status = attn_nn_read(&attn_problem_layout, "problem", problem, &p);
  if (status == ATTN_OK) status = attn_nn_read(&attn_args_layout, "args", args, &a);
  if (status != ATTN_OK) return status;
  REQUIRE(!(p.uses & ATTN_USE_VARLEN),
          "attn_problem.uses has ATTN_USE_VARLEN; attn_weights takes padded sequences only (ATTN_USE_KV_LEN, _Q_LEN)");
  REQUIRE(!(p.uses & ATTN_USE_PAGES),
          "attn_problem.uses has ATTN_USE_PAGES; attn_weights takes keys that lie at one stride only");
  REQUIRE(!attn_dtype_exists(p.dtype_kv) || attn_dtype_of(p.dtype_kv).values == 1,
          "attn_problem.dtype_kv is %d, a type of blocks; attn_weights takes keys whose elements are stored by themselves",
          (int)p.dtype_kv);
  const attn_nn_size sizes[] = {{"attn_problem.batch", p.batch, 0},
                                {"attn_problem.heads_q", p.heads_q, 1},
                                {"attn_problem.seq_q", p.seq_q, 0},
                                {"attn_problem.seq_k", p.seq_k, 0}};
  status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  p.uses &= ~(uint32_t)ATTN_USE_LSE;
  p.dim_v = p.seq_k > 0 ? p.seq_k : 1;
  p.v_stride = attn_identity_strides;
  p.v_scale_stride = (attn_strides){0};
  p.o_stride = (attn_strides){.b = p.heads_q * p.seq_q * p.dim_v, .h = p.seq_q * p.dim_v, .s = p.dim_v, .d = 1};
  p.dtype_o = ATTN_F32;
  status = attn_problem_validate(&p);
  if (status != ATTN_OK || p.batch == 0 || p.seq_q == 0 || p.seq_k == 0) return status;
  REQUIRE(weights, "weights is NULL; it must point to batch x heads_q x seq_q x seq_k floats");
  void *identity = attn_nn_allocate("the identity as values", attn_identity_bytes(p.seq_k, p.dtype_kv));
  if (!identity) return ATTN_OUT_OF_MEMORY;
  a.v = attn_identity_fill(identity, p.seq_k, p.dtype_kv);
  a.o = weights;
  if (p.uses & ATTN_USE_KV_SCALES) a.v_scale = &one;
  a.lse = NULL;
  status = attn_nn_run_once(&p, &a, options);
  attn_aligned_free(identity);
  return status;
}
