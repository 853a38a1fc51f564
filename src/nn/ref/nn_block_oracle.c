/* SPDX-License-Identifier: MIT */
/* Oracles of multi-head attention and of transformer blocks: the oracles of their steps, in the order of the formulas. */
#include <stdlib.h>

#include "src/nn/ref/nn_oracle_f64.h"

/* The columns from `first` on of a dense weight with `all` columns, in either layout. */
static attn_nn_field project(const attn_nn_field *x, const attn_mha_weights *w, const void *weight, const float *bias,
                             int64_t first, int64_t columns, int64_t all) {
  if (w->dtype != ATTN_F32) abort();
  const bool in_out = w->layout == ATTN_IN_OUT;
  const attn_nn_matrix matrix = {.w = (const float *)weight + (in_out ? first : first * x->width),
                                 .in_stride = in_out ? all : 1,
                                 .out_stride = in_out ? 1 : x->width,
                                 .b = bias ? bias + first : NULL};
  return attn_nn_oracle_linear(x, &matrix, columns);
}

static attn_nn_attention attention_of(const attn_problem *p, const attn_args *args, const attn_numerics *numerics) {
  const bool causal = p->window_right == 0;
  if ((p->uses & ~(uint32_t)ATTN_USE_KV_LEN) || p->score != ATTN_SCORE_DOT || p->softcap != 0 || p->window_left >= 0 ||
      p->window_right > 0 || p->align == ATTN_ALIGN_OFFSET)
    abort();
  return (attn_nn_attention){.batch = p->batch,
                             .heads_q = p->heads_q,
                             .heads_kv = p->heads_kv,
                             .seq_q = p->seq_q,
                             .seq_k = p->seq_k,
                             .causal = causal,
                             .bottom_right = p->align == ATTN_ALIGN_BOTTOM_RIGHT,
                             .kv_len = p->uses & ATTN_USE_KV_LEN ? args->kv_len : NULL,
                             .scale = p->scale,
                             .numerics = numerics ? *numerics : (attn_numerics){0}};
}

attn_nn_field attn_nn_oracle_mha(const attn_mha_problem *problem, const attn_mha_weights *w, const attn_args *args,
                                 const attn_numerics *numerics, const attn_nn_field *x, const attn_nn_field *memory) {
  const attn_problem *p = &problem->attention;
  const int64_t q = p->heads_q * p->dim_qk, k = p->heads_kv * p->dim_qk, v = p->heads_kv * p->dim_v;
  const bool packed = w->w_qkv != NULL;
  const int64_t all = q + k + v;
  if (!memory) memory = x;
  attn_nn_field fq = project(x, w, packed ? w->w_qkv : w->w_q, packed ? w->b_qkv : w->b_q, 0, q, packed ? all : q);
  attn_nn_field fk =
      project(memory, w, packed ? w->w_qkv : w->w_k, packed ? w->b_qkv : w->b_k, packed ? q : 0, k, packed ? all : k);
  attn_nn_field fv =
      project(memory, w, packed ? w->w_qkv : w->w_v, packed ? w->b_qkv : w->b_v, packed ? q + k : 0, v, packed ? all : v);
  const attn_nn_attention attention = attention_of(p, args, numerics);
  attn_nn_field o = attn_nn_oracle_attention(&attention, &fq, &fk, &fv);
  attn_nn_field y = project(&o, w, w->w_o, w->b_o, 0, problem->width_out, problem->width_out);
  attn_nn_field *used[] = {&fq, &fk, &fv, &o};
  for (int i = 0; i < 4; i++) attn_nn_field_destroy(used[i]);
  return y;
}

static attn_nn_matrix matrix_of(const attn_linear *linear, int64_t in, int64_t out) {
  return (attn_nn_matrix){.w = linear->weight,
                          .in_stride = linear->transposed ? 1 : out,
                          .out_stride = linear->transposed ? in : 1,
                          .b = linear->bias};
}

static attn_nn_field feed_forward(const attn_feed_forward_config *c, const attn_nn_field *x) {
  const attn_nn_matrix first = matrix_of(&c->first, c->width, c->hidden),
                       second = matrix_of(&c->second, c->hidden, c->width);
  attn_nn_field inner = attn_nn_oracle_linear(x, &first, c->hidden);
  attn_nn_field active = c->activation == ATTN_RELU ? attn_nn_oracle_relu(&inner) : attn_nn_oracle_gelu(&inner);
  attn_nn_field y = attn_nn_oracle_linear(&active, &second, c->width);
  attn_nn_field_destroy(&inner);
  attn_nn_field_destroy(&active);
  return y;
}

typedef enum step { SELF, CROSS, FEED_FORWARD } step;

static attn_nn_field sublayer(const attn_block_config *c, const attn_block_args *args, const attn_numerics *numerics,
                              step which, const attn_nn_field *x) {
  if (which == FEED_FORWARD) return feed_forward(&c->feed_forward, x);
  if (which == SELF) return attn_nn_oracle_mha(&c->self, &c->self_weights, &args->self, numerics, x, NULL);
  const attn_problem *p = &c->cross.attention;
  attn_nn_field memory = attn_nn_field_of(args->memory, p->batch * p->seq_k, c->cross.width_memory);
  attn_nn_field y = attn_nn_oracle_mha(&c->cross, &c->cross_weights, &args->cross, numerics, x, &memory);
  attn_nn_field_destroy(&memory);
  return y;
}

/* x <- norm(x + sublayer(x)), or x + sublayer(norm(x)). */
static attn_nn_field apply(const attn_block_config *c, const attn_block_args *args, const attn_numerics *numerics,
                           step which, const attn_norm *norm, attn_nn_field x) {
  attn_nn_field in = c->pre_norm ? attn_nn_oracle_layer_norm(&x, norm) : x;
  attn_nn_field out = sublayer(c, args, numerics, which, &in);
  attn_nn_field sum = attn_nn_oracle_add(&out, &x);
  attn_nn_field_destroy(&out);
  attn_nn_field_destroy(&x);
  if (c->pre_norm) {
    attn_nn_field_destroy(&in);
    return sum;
  }
  attn_nn_field y = attn_nn_oracle_layer_norm(&sum, norm);
  attn_nn_field_destroy(&sum);
  return y;
}

attn_nn_field attn_nn_oracle_block(const attn_block_config *c, const attn_block_args *args, const attn_numerics *numerics) {
  const attn_problem *p = &c->self.attention;
  attn_nn_field x = attn_nn_field_of(args->x, p->batch * p->seq_q, c->self.width);
  x = apply(c, args, numerics, SELF, &c->self_norm, x);
  if (c->has_cross) x = apply(c, args, numerics, CROSS, &c->cross_norm, x);
  return apply(c, args, numerics, FEED_FORWARD, &c->feed_forward_norm, x);
}
