/* SPDX-License-Identifier: MIT */
/* The float64 oracle of transformer blocks: it applies the oracles of the steps in the order of the formulas. */
#include "tests/support/nn_support.h"

typedef enum step { SELF, CROSS, FEED_FORWARD } step;

/* One call of a block. */
typedef struct block_call {
  const attn_block_config *config;
  const attn_block_args *args;
  attn_numerics numerics;
} block_call;

static attn_nn_field sublayer(const block_call *b, step which, const attn_nn_field *x) {
  const attn_block_config *c = b->config;
  if (which == FEED_FORWARD) return attn_nn_oracle_feed_forward(x, &c->feed_forward);
  attn_nn_mha mha = {&c->self, &c->self_weights, {.args = b->args->self, .numerics = b->numerics}, NULL};
  if (which == SELF) return attn_nn_oracle_mha(&mha, x, NULL);
  mha.problem = &c->cross;
  mha.weights = &c->cross_weights;
  mha.attention.args = b->args->cross;
  const attn_problem *p = &c->cross.attention;
  attn_nn_field memory = attn_nn_field_of(b->args->memory, p->batch * p->seq_k, c->cross.width_memory);
  const attn_nn_field y = attn_nn_oracle_mha(&mha, x, &memory);
  attn_nn_field_destroy(&memory);
  return y;
}

static attn_nn_field normed(const block_call *b, const attn_nn_field *x, const attn_norm *norm) {
  return b->config->rms_norm ? attn_nn_oracle_rms_norm(x, norm) : attn_nn_oracle_layer_norm(x, norm);
}

/* x <- norm(x + sublayer(x)), or x + sublayer(norm(x)), or x + post_norm(sublayer(norm(x))). */
static attn_nn_field apply(const block_call *b, step which, const attn_norm *norm, const attn_norm *post_norm,
                           attn_nn_field x) {
  attn_nn_field in = b->config->pre_norm ? normed(b, &x, norm) : x;
  attn_nn_field out = sublayer(b, which, &in);
  if (b->config->post_norms) {
    attn_nn_field given = out;
    out = normed(b, &given, post_norm);
    attn_nn_field_destroy(&given);
  }
  attn_nn_field sum = attn_nn_oracle_add(&out, &x);
  attn_nn_field_destroy(&out);
  attn_nn_field_destroy(&x);
  if (b->config->pre_norm) {
    attn_nn_field_destroy(&in);
    return sum;
  }
  attn_nn_field y = normed(b, &sum, norm);
  attn_nn_field_destroy(&sum);
  return y;
}

attn_nn_field nn_block(const attn_block_config *c, const attn_block_args *args, const attn_numerics *numerics) {
  const block_call b = {c, args, numerics ? *numerics : (attn_numerics){0}};
  const attn_problem *p = &c->self.attention;
  attn_nn_field x = attn_nn_field_of(args->x, p->batch * p->seq_q, c->self.width);
  x = apply(&b, SELF, &c->self_norm, &c->self_post_norm, x);
  if (c->has_cross) x = apply(&b, CROSS, &c->cross_norm, &c->cross_post_norm, x);
  return apply(&b, FEED_FORWARD, &c->feed_forward_norm, &c->feed_forward_post_norm, x);
}
