/* SPDX-License-Identifier: MIT */
/* The float64 oracle of transformer blocks: it applies the oracles of the steps in the order of the formulas. */
#include "tests/support/nn_support.h"

static attn_nn_field feed_forward(const attn_feed_forward_config *c, const attn_nn_field *x) {
  const attn_nn_matrix first = nn_matrix(&c->first, c->width, c->hidden),
                       second = nn_matrix(&c->second, c->hidden, c->width);
  attn_nn_field inner = attn_nn_oracle_linear(x, &first, c->hidden);
  attn_nn_field active = c->activation == ATTN_RELU ? attn_nn_oracle_relu(&inner) : attn_nn_oracle_gelu(&inner);
  attn_nn_field y = attn_nn_oracle_linear(&active, &second, c->width);
  attn_nn_field_destroy(&inner);
  attn_nn_field_destroy(&active);
  return y;
}

attn_nn_field nn_mha(const attn_mha_problem *problem, const attn_mha_weights *weights, const attn_args *args,
                     const attn_nn_field *x, const attn_nn_field *memory) {
  const mha_oracle_call call = {.problem = problem, .weights = weights, .args = args};
  return mha_oracle_field(&call, x, memory);
}

/* ---- Blocks ---- */

typedef enum step { SELF, CROSS, FEED_FORWARD } step;

/* One call of a block. */
typedef struct block_call {
  const attn_block_config *config;
  const attn_block_args *args;
  attn_numerics numerics;
} block_call;

static attn_nn_field self_attention(const block_call *b, const attn_nn_field *x) {
  const mha_oracle_call call = {&b->config->self, &b->config->self_weights, b->args->self, b->numerics};
  return mha_oracle_field(&call, x, NULL);
}

static attn_nn_field cross_attention(const block_call *b, const attn_nn_field *x) {
  const attn_mha_problem *cross = &b->config->cross;
  const mha_oracle_call call = {cross, &b->config->cross_weights, b->args->cross, b->numerics};
  const attn_problem *p = &cross->attention;
  attn_nn_field memory = attn_nn_field_of(b->args->memory, p->batch * p->seq_k, cross->width_memory);
  attn_nn_field y = mha_oracle_field(&call, x, &memory);
  attn_nn_field_destroy(&memory);
  return y;
}

static attn_nn_field sublayer(const block_call *b, step which, const attn_nn_field *x) {
  if (which == FEED_FORWARD) return feed_forward(&b->config->feed_forward, x);
  return which == SELF ? self_attention(b, x) : cross_attention(b, x);
}

/* x <- norm(x + sublayer(x)), or x + sublayer(norm(x)). */
static attn_nn_field apply(const block_call *b, step which, const attn_norm *norm, attn_nn_field x) {
  attn_nn_field in = b->config->pre_norm ? attn_nn_oracle_layer_norm(&x, norm) : x;
  attn_nn_field out = sublayer(b, which, &in);
  attn_nn_field sum = attn_nn_oracle_add(&out, &x);
  attn_nn_field_destroy(&out);
  attn_nn_field_destroy(&x);
  if (b->config->pre_norm) {
    attn_nn_field_destroy(&in);
    return sum;
  }
  attn_nn_field y = attn_nn_oracle_layer_norm(&sum, norm);
  attn_nn_field_destroy(&sum);
  return y;
}

attn_nn_field nn_block(const attn_block_config *c, const attn_block_args *args, const attn_numerics *numerics) {
  const block_call b = {c, args, numerics ? *numerics : (attn_numerics){0}};
  const attn_problem *p = &c->self.attention;
  attn_nn_field x = attn_nn_field_of(args->x, p->batch * p->seq_q, c->self.width);
  x = apply(&b, SELF, &c->self_norm, x);
  if (c->has_cross) x = apply(&b, CROSS, &c->cross_norm, x);
  return apply(&b, FEED_FORWARD, &c->feed_forward_norm, x);
}
