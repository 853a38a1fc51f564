/* Attention weights, from any kernel as it is: with the unit vectors as values, O is P.
 *
 * The identity matrix costs 2 seq_k - 1 elements: element (j, d) stands at seq_k - 1 + d - j of an array that holds a single
 * 1 in its middle, which strides of -1 and +1 say. */
#include <inttypes.h>
#include <stdlib.h>

#include "check.h"

static void *unit_vectors(int64_t count, attn_dtype dtype) {
  const uint16_t one[] = {[ATTN_F16] = 0x3c00, [ATTN_BF16] = 0x3f80};
  const size_t elements = (size_t)(2 * count - 1);
  void *memory = attn_nn_allocate("the unit vectors", elements * (dtype == ATTN_F32 ? sizeof(float) : sizeof(uint16_t)));
  if (!memory) return NULL;
  for (size_t i = 0; i < elements; i++) {
    const bool middle = i == (size_t)(count - 1);
    if (dtype == ATTN_F32)
      ((float *)memory)[i] = middle ? 1.0f : 0.0f;
    else
      ((uint16_t *)memory)[i] = middle ? one[dtype] : 0;
  }
  return memory;
}

attn_status attn_weights(const attn_problem *problem, const attn_args *args, const attn_options *options, float *weights) {
  NN_REQUIRE(problem, "problem is NULL; it must point to an attn_problem made by attn_problem_init");
  NN_REQUIRE(args, "args is NULL; it must point to an attn_args");
  attn_problem p = *problem;
  NN_REQUIRE(!(p.uses & ATTN_USE_VARLEN),
             "attn_problem.uses has ATTN_USE_VARLEN; attn_weights takes padded sequences only (ATTN_USE_KV_LEN, _Q_LEN)");
  const attn_nn_size sizes[] = {{"attn_problem.batch", p.batch, 0},
                                {"attn_problem.heads_q", p.heads_q, 1},
                                {"attn_problem.seq_q", p.seq_q, 0},
                                {"attn_problem.seq_k", p.seq_k, 0}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  p.uses &= ~(uint32_t)ATTN_USE_LSE;
  p.dim_v = p.seq_k > 0 ? p.seq_k : 1;
  p.v_stride = (attn_strides){.s = -1, .d = 1};
  p.o_stride = (attn_strides){.b = p.heads_q * p.seq_q * p.dim_v, .h = p.seq_q * p.dim_v, .s = p.dim_v, .d = 1};
  p.dtype_o = ATTN_F32;
  status = attn_problem_validate(&p);
  if (status != ATTN_OK || p.batch == 0 || p.seq_q == 0 || p.seq_k == 0) return status;
  NN_REQUIRE(weights, "weights is NULL; it must point to batch x heads_q x seq_q x seq_k floats");
  char *units = unit_vectors(p.seq_k, p.dtype_kv);
  if (!units) return ATTN_OUT_OF_MEMORY;
  attn_args a = *args;
  a.v = units + (size_t)(p.seq_k - 1) * (p.dtype_kv == ATTN_F32 ? sizeof(float) : sizeof(uint16_t));
  a.o = weights;
  a.lse = NULL;
  status = attn_nn_run_once(&p, &a, options);
  free(units);
  return status;
}
