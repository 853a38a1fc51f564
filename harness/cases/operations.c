/* SPDX-License-Identifier: MIT */
/* The floating-point operations of each operation. */
#include "cases/case.h"

static double flops_of_scores(const attn_problem *p, double pairs) {
  switch (p->score) {
    case ATTN_SCORE_PRECOMPUTED: return 0;
    case ATTN_SCORE_ADDITIVE:
    case ATTN_SCORE_GAUSSIAN: return pairs * 3 * (double)p->dim_qk;
    default: return pairs * 2 * (double)p->dim_qk;
  }
}

static double forward(const attn_problem *p, double pairs) {
  return flops_of_scores(p, pairs) + pairs * 2 * (double)p->dim_v;
}

/* Five products: S again, dP and dV by dim_v, dQ and dK. Of other scores, dQ and dK are sums as S is. */
static double backward(const attn_problem *p, double pairs) {
  return 3 * flops_of_scores(p, pairs) + pairs * 4 * (double)p->dim_v;
}

bench_operation_flops *const bench_operations[] = {[ATTN_FORWARD] = forward, [ATTN_BACKWARD] = backward};
