/* SPDX-License-Identifier: MIT */
/* Strides that a caller might use, common and rare. */
#include "cases/case.h"

#include <math.h>
#include <string.h>

typedef attn_strides (*layout_fn)(int64_t heads, int64_t seq, int64_t dim);

static attn_strides dense(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = heads * seq * dim, .h = seq * dim, .s = dim, .d = 1};
}

/* Gaps after every row, head and batch; odd numbers, so that nothing stays aligned. */
static attn_strides strided(int64_t heads, int64_t seq, int64_t dim) {
  const int64_t s = dim + 5, h = seq * s + 7;
  return (attn_strides){.b = heads * h + 11, .h = h, .s = s, .d = 1};
}

/* A gap after every element. */
static attn_strides spread(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = heads * seq * dim * 2, .h = seq * dim * 2, .s = dim * 2, .d = 2};
}

/* [batch][heads][dim][seq] */
static attn_strides transposed(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = heads * seq * dim, .h = seq * dim, .s = 1, .d = seq};
}

/* Heads, rows and elements run backwards through memory. */
static attn_strides reversed(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = heads * seq * dim, .h = -seq * dim, .s = -dim, .d = -1};
}

static void apply(attn_problem *p, layout_fn strides) {
  p->q_stride = strides(p->heads_q, p->seq_q, p->dim_qk);
  p->k_stride = strides(p->heads_kv, p->seq_k, p->dim_qk);
  p->v_stride = strides(p->heads_kv, p->seq_k, p->dim_v);
  p->o_stride = strides(p->heads_q, p->seq_q, p->dim_v);
}

/* One query tensor for all heads, one K for all KV heads and the whole batch, one V for the whole batch. */
static void broadcast(attn_problem *p) {
  apply(p, dense);
  p->q_stride.h = 0;
  p->k_stride.h = 0;
  p->k_stride.b = 0;
  p->v_stride.b = 0;
}

/* True if no stride of any layout can overflow: all stay far below 2^63 then. Strides count heads, rows and columns of an
 * empty batch, too. */
static bool is_addressable(const attn_problem *p) {
  const double rows = fmax((double)p->heads_q * (double)p->seq_q, (double)p->heads_kv * (double)p->seq_k);
  return fmax((double)p->batch, 1) * rows * fmax((double)p->dim_qk, (double)p->dim_v) <= 0x1p56;
}

bool bench_layout_apply(attn_problem *problem, const char *layout) {
  static const struct {
    const char *name;
    layout_fn strides;
  } layouts[] = {
      {"bhsd", dense}, {"strided", strided}, {"spread", spread}, {"transposed", transposed}, {"reversed", reversed}};
  if (!is_addressable(problem)) return false;
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
    if (!strcmp(layout, layouts[i].name)) apply(problem, layouts[i].strides);
  if (!strcmp(layout, "bshd")) attn_problem_set_bshd(problem);
  if (!strcmp(layout, "broadcast")) broadcast(problem);
  if (!strcmp(layout, "packed"))
    attn_problem_set_varlen(problem, problem->batch * problem->seq_q, problem->batch * problem->seq_k);
  return true;
}
