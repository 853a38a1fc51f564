/* SPDX-License-Identifier: MIT */
/* Self-attention with its projections that learns: one product makes Q, K and V side by side in rows, where attention takes
 * them by strides and leaves their gradients, so that one product each has the gradients of x and of all their weights. */
#include <inttypes.h>

#include "kernels/common/memory/aligned.h"
#include "src/train/tasks.h"

static const attn_struct_layout layout = ATTN_LAYOUT(attn_self_attention, x);

/* The layer, its problem with strides, and the parts of what is kept. */
typedef struct attention_run {
  attn_self_attention l;
  attn_problem problem;
  int64_t rows, columns, heads_width; /* columns: Q, K and V side by side */
  float *qkv, *o, *lse;               /* in `kept` */
  attn_options options;               /* without a kernel's name: forward and backward have different ones */
} attention_run;

static attn_status lay_out_problem(attention_run *r) {
  attn_problem *p = &r->problem;
  REQUIRE(p->operation == ATTN_FORWARD, "attention.operation is %d; it must be ATTN_FORWARD", (int)p->operation);
  REQUIRE(p->seq_q == p->seq_k, "attention.seq_q is %" PRId64 " and seq_k %" PRId64 "; in self-attention they are equal",
          p->seq_q, p->seq_k);
  REQUIRE((p->uses & ~(unsigned)ATTN_USE_LSE) == 0 && p->score == ATTN_SCORE_DOT,
          "attention.uses is %#x and score %d; the layer brings no other arrays, and its score is ATTN_SCORE_DOT",
          (unsigned)p->uses, (int)p->score);
  REQUIRE(p->dtype_q == ATTN_F32 && p->dtype_kv == ATTN_F32 && p->dtype_o == ATTN_F32,
          "attention has dtypes %d, %d and %d; all must be ATTN_F32", (int)p->dtype_q, (int)p->dtype_kv, (int)p->dtype_o);
  const attn_nn_size q[] = {{"attention.batch", p->batch, 0},
                            {"attention.seq_q", p->seq_q, 0},
                            {"attention.heads_q", p->heads_q, 1},
                            {"attention.dim_qk", p->dim_qk, 1}};
  const attn_nn_size v[] = {{"attention.heads_kv", p->heads_kv, 1}, {"attention.dim_v", p->dim_v, 1}};
  attn_status status = attn_nn_check_sizes(q, NN_COUNT(q));
  if (status == ATTN_OK) status = attn_nn_check_sizes(v, NN_COUNT(v));
  if (status != ATTN_OK) return status;
  r->rows = p->batch * p->seq_q;
  r->columns = (p->heads_q + p->heads_kv) * p->dim_qk + p->heads_kv * p->dim_v;
  r->heads_width = p->heads_q * p->dim_v;
  p->uses |= ATTN_USE_LSE;
  p->q_stride = p->k_stride = (attn_strides){.b = p->seq_q * r->columns, .h = p->dim_qk, .s = r->columns, .d = 1};
  p->v_stride = p->q_stride;
  p->v_stride.h = p->dim_v;
  p->o_stride = (attn_strides){.b = p->seq_q * r->heads_width, .h = p->dim_v, .s = r->heads_width, .d = 1};
  return ATTN_OK;
}

static attn_status begin(const attn_self_attention *layer, const attn_options *options, attention_run *r) {
  attn_status status = attn_nn_read(&layout, "layer", layer, &r->l);
  if (status != ATTN_OK) return status;
  REQUIRE(r->l.attention, "attn_self_attention.attention is NULL; it must point to an attn_problem");
  status = attn_struct_read(&attn_problem_layout, r->l.attention, &r->problem);
  if (status == ATTN_OK) status = lay_out_problem(r);
  if (status == ATTN_OK) status = attn_options_read(options, &r->options);
  if (status != ATTN_OK) return status;
  const attn_nn_size sizes[] = {{"attn_self_attention.width", r->l.width, 1}};
  status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  r->options.kernel = NULL;
  r->qkv = r->l.kept;
  if (!r->l.kept) return status;
  r->o = r->qkv + r->rows * r->columns;
  r->lse = r->o + r->rows * r->heads_width;
  return status;
}

int64_t attn_self_attention_kept(const attn_self_attention *layer) {
  attention_run r = {0};
  if (begin(layer, NULL, &r) != ATTN_OK) return -1;
  return r.rows * (r.columns + r.heads_width + r.problem.heads_q);
}

static attn_dense input_of(const attention_run *r) {
  return ATTN_STRUCT(attn_dense, .rows = r->rows, .in = r->l.width, .out = r->columns, .map = r->l.in, .x = r->l.x,
                     .accumulate = r->l.accumulate);
}

static attn_dense output_of(const attention_run *r) {
  return ATTN_STRUCT(attn_dense, .rows = r->rows, .in = r->heads_width, .out = r->l.width, .map = r->l.out, .x = r->o,
                     .accumulate = r->l.accumulate);
}

static attn_args args_of(const attention_run *r) {
  const attn_problem *p = &r->problem;
  return ATTN_STRUCT(attn_args, .q = r->qkv, .k = r->qkv + p->heads_q * p->dim_qk,
                     .v = r->qkv + (p->heads_q + p->heads_kv) * p->dim_qk, .o = r->o, .lse = r->lse, .seed = r->l.seed,
                     .offset = r->l.offset);
}

attn_status attn_self_attention_run(const attn_self_attention *layer, const attn_options *options) {
  attention_run r = {0};
  attn_status status = begin(layer, options, &r);
  if (status != ATTN_OK || r.rows == 0) return status;
  const attn_nn_pointer pointers[] = {
      {"attn_self_attention.x", r.l.x}, {"attn_self_attention.y", r.l.y}, {"attn_self_attention.kept", r.l.kept}};
  status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  attn_dense in = input_of(&r), out = output_of(&r);
  in.y = r.qkv;
  out.y = r.l.y;
  if (status == ATTN_OK) status = attn_dense_run(&in, &r.options);
  const attn_args args = args_of(&r);
  if (status == ATTN_OK) status = attn_nn_run_once(&r.problem, &args, &r.options);
  return status == ATTN_OK ? attn_dense_run(&out, &r.options) : status;
}

/* d_o and d_qkv: the layer's gradients beside what it keeps. */
static attn_status grad(attention_run *r, float *d_o, float *d_qkv) {
  const attn_problem *p = &r->problem;
  attn_dense in = input_of(r), out = output_of(r);
  out.d_y = r->l.d_y;
  out.d_x = d_o;
  out.d_weight = r->l.d_out.weight;
  out.d_bias = r->l.d_out.bias;
  attn_status status = attn_dense_grad(&out, &r->options);
  attn_args args = args_of(r);
  args.d_o = d_o;
  args.d_q = d_qkv;
  args.d_k = d_qkv + p->heads_q * p->dim_qk;
  args.d_v = d_qkv + (p->heads_q + p->heads_kv) * p->dim_qk;
  attn_problem_set_backward(&r->problem);
  if (status == ATTN_OK) status = attn_nn_run_once(&r->problem, &args, &r->options);
  in.d_y = d_qkv;
  in.d_x = r->l.d_x;
  in.d_weight = r->l.d_in.weight;
  in.d_bias = r->l.d_in.bias;
  return status == ATTN_OK ? attn_dense_grad(&in, &r->options) : status;
}

attn_status attn_self_attention_grad(const attn_self_attention *layer, const attn_options *options) {
  attention_run r = {0};
  attn_status status = begin(layer, options, &r);
  if (status != ATTN_OK) return status;
  const attn_nn_pointer pointers[] = {{"attn_self_attention.kept", r.l.kept}, {"attn_self_attention.d_y", r.l.d_y}};
  if (r.rows > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  float *made = attn_nn_allocate("gradients of heads", (size_t)(r.rows * (r.heads_width + r.columns)) * sizeof *made);
  if (!made) return ATTN_OUT_OF_MEMORY;
  status = grad(&r, made, made + r.rows * r.heads_width);
  attn_aligned_free(made);
  return status;
}
