/* SPDX-License-Identifier: MIT */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "llm.h"

static bool done(attn_status status) { return status == ATTN_OK || llm_fail(NULL); }

/* ---- Weights ---- */

static attn_norm norm_of(llm_weights *w, const char *name, const llm_config *c) {
  float *gain = llm_weights_vector(w, name, c->width, true);
  for (int64_t i = 0; gain && c->gemma && i < c->width; i++) gain[i] += 1;
  return (attn_norm){.gain = gain, .epsilon = c->epsilon};
}

static attn_linear linear(llm_weights *w, const char *layer, int64_t out, int64_t in, bool has_bias) {
  char weight[48], bias[48];
  snprintf(weight, sizeof weight, "%s.weight", layer);
  snprintf(bias, sizeof bias, "%s.bias", layer);
  return (attn_linear){.weight = llm_weights_matrix(w, weight, out, in),
                       .bias = llm_weights_vector(w, bias, out, has_bias),
                       .transposed = true};
}

static attn_mha_weights attention_weights(llm_weights *w, const llm_config *c) {
  const int64_t width_q = c->heads * c->dim, width_kv = c->heads_kv * c->dim;
  const attn_linear q = linear(w, "self_attn.q_proj", width_q, c->width, c->qkv_biases),
                    k = linear(w, "self_attn.k_proj", width_kv, c->width, c->qkv_biases),
                    v = linear(w, "self_attn.v_proj", width_kv, c->width, c->qkv_biases),
                    o = linear(w, "self_attn.o_proj", c->width, width_q, c->output_bias);
  return ATTN_STRUCT(attn_mha_weights, .layout = ATTN_OUT_IN, .w_q = q.weight, .w_k = k.weight, .w_v = v.weight,
                     .w_o = o.weight, .b_q = q.bias, .b_k = k.bias, .b_v = v.bias, .b_o = o.bias, .qk_norm = c->head_norms,
                     .qk_norm_epsilon = c->epsilon,
                     .q_norm_gain = c->head_norms ? llm_weights_vector(w, "self_attn.q_norm.weight", c->dim, true) : NULL,
                     .k_norm_gain = c->head_norms ? llm_weights_vector(w, "self_attn.k_norm.weight", c->dim, true) : NULL);
}

static bool create_block(llm_model *m, int64_t layer) {
  const llm_config *c = &m->config;
  llm_weights *w = &m->weights;
  attn_block_config b;
  char prefix[48];
  snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
  llm_weights_begin(w, prefix);
  attn_encoder_block_init(&b, 1, c->heads, 1, c->width, c->hidden);
  attn_problem_init(&b.self.attention, 1, c->heads, c->heads_kv, 1, 1, c->dim, c->dim); /* the caches say the rest */
  b.pre_norm = b.rms_norm = true;
  b.self_norm = norm_of(w, "input_layernorm.weight", c);
  b.self_weights = attention_weights(w, c);
  b.post_norms = c->gemma;
  b.feed_forward_norm = norm_of(w, c->gemma ? "pre_feedforward_layernorm.weight" : "post_attention_layernorm.weight", c);
  if (c->gemma) b.self_post_norm = norm_of(w, "post_attention_layernorm.weight", c);
  if (c->gemma) b.feed_forward_post_norm = norm_of(w, "post_feedforward_layernorm.weight", c);
  b.feed_forward.activation = c->activation;
  b.feed_forward.gate = linear(w, "mlp.gate_proj", c->hidden, c->width, c->network_biases);
  b.feed_forward.first = linear(w, "mlp.up_proj", c->hidden, c->width, c->network_biases);
  b.feed_forward.second = linear(w, "mlp.down_proj", c->width, c->hidden, c->network_biases);
  b.self_weights.dtype = b.feed_forward.dtype = (attn_dtype)w->dtype;
  b.self_weights.bf16_rows = b.feed_forward.bf16_rows = m->bf16_rows && w->dtype == ATTN_BF16;
  b.self_weights.int8_weights = b.feed_forward.int8_weights = m->int8_weights;
  return !w->failed && done(attn_block_create(&b, &m->options, &m->blocks[layer]));
}

/* Embeddings, the last norm and the last matrix. Where the first are the last matrix too, it is packed from their memory,
 * and single rows are read from the file. */
static bool create_ends(llm_model *m) {
  const llm_config *c = &m->config;
  llm_weights *w = &m->weights;
  llm_weights_begin(w, "");
  const void *table = llm_weights_matrix(w, "model.embed_tokens.weight", c->vocabulary, c->width);
  const void *head = c->tied ? table : llm_weights_matrix(w, "lm_head.weight", c->vocabulary, c->width);
  m->norm = norm_of(w, "model.norm.weight", c);
  if (w->failed) return false;
  m->embedding = ATTN_STRUCT(attn_embedding, .vocabulary = c->vocabulary, .width = c->width, .table = table,
                             .dtype = (attn_dtype)w->dtype, .factor = c->gemma ? sqrtf((float)c->width) : 1);
  const attn_product_weights weights =
      ATTN_STRUCT(attn_product_weights, .depth = c->width, .columns = c->vocabulary, .weight = head, .stride_depth = 1,
                  .stride_column = c->width, .dtype = (attn_dtype)w->dtype,
                  .bf16_rows = m->bf16_rows && w->dtype == ATTN_BF16, .int8_weights = m->int8_weights);
  return done(attn_product_create(&weights, &m->options, &m->head));
}

bool llm_model_open(const char *folder, llm_model *m) {
  if (!llm_config_read(folder, &m->config) || !llm_weights_open(folder, &m->weights)) return false;
  if (!done(attn_rope_create(&m->config.rope, &m->rope)) || !create_ends(m)) return false;
  for (int64_t layer = 0; layer < m->config.layers; layer++)
    if (!create_block(m, layer)) return false;
  llm_weights_begin(&m->weights, "");
  return true;
}

void llm_model_close(llm_model *m) {
  for (int i = 0; i < 2; i++) attn_kv_cache_destroy(m->cache[i]);
  for (int layer = 0; layer < LLM_MOST_LAYERS; layer++) attn_block_destroy(m->blocks[layer]);
  attn_product_destroy(m->head);
  attn_rope_destroy(m->rope);
  free(m->x), free(m->logits), free(m->workspace);
  llm_weights_close(&m->weights);
}

/* ---- Steps ---- */

bool llm_model_begin(llm_model *m, const attn_kv_cache_shape *shape, int64_t rows) {
  const llm_config *c = &m->config;
  int64_t layers[2] = {0};
  for (int64_t layer = 0; layer < c->layers; layer++) layers[c->windowed[layer]]++;
  for (int i = 0; i < 2; i++) {
    attn_kv_cache_shape own = *shape;
    own.heads_q = c->heads, own.heads_kv = c->heads_kv, own.dim_qk = own.dim_v = c->dim, own.layers = layers[i];
    own.window = i ? c->window : 0, own.scale = c->scale, own.softcap = c->softcap, own.rope = m->rope;
    own.float_tokens = true;
    if (layers[i] && !done(attn_kv_cache_create(&own, &m->options, &m->cache[i]))) return false;
  }
  m->texts = shape->batch;
  m->workspace_bytes = attn_product_workspace(m->head, m->texts);
  m->workspace = aligned_alloc(64, m->workspace_bytes + 64);
  m->x = malloc((size_t)(rows * c->width) * sizeof *m->x);
  m->logits = malloc((size_t)(m->texts * c->vocabulary) * sizeof *m->logits);
  return (m->workspace && m->x && m->logits) || llm_fail("out of memory: %lld texts", (long long)m->texts);
}

/* The logits of the first `rows` rows of x, which are normed in place. */
static bool run_head(llm_model *m, int64_t rows) {
  const llm_config *c = &m->config;
  const attn_product_args args =
      ATTN_STRUCT(attn_product_args, .batch = 1, .rows = rows, .x = m->x, .x_stride = {.s = c->width, .d = 1},
                  .y = m->logits, .y_stride = {.s = c->vocabulary, .d = 1});
  if (!done(attn_add_rms_norm(rows, c->width, m->x, NULL, &m->norm, NULL, m->x)) ||
      !done(attn_product_run(m->head, &args, m->workspace, m->workspace_bytes)))
    return false;
  for (int64_t i = 0; c->final_softcap > 0 && i < rows * c->vocabulary; i++)
    m->logits[i] = c->final_softcap * tanhf(m->logits[i] / c->final_softcap);
  return true;
}

bool llm_model_step(llm_model *m, const int32_t *counts, const int32_t *tokens) {
  const int64_t width = m->config.width;
  int64_t rows = 0, last = 0, next[2] = {0}; /* next: layer of a cache */
  for (int64_t b = 0; b < m->texts; b++) rows += counts[b];
  for (int i = 0; i < 2; i++)
    if (m->cache[i] && !done(attn_kv_cache_begin(m->cache[i], counts))) return false;
  if (!done(attn_embed(&m->embedding, rows, tokens, m->x))) return false;
  for (int64_t layer = 0; layer < m->config.layers; layer++) {
    const bool windowed = m->config.windowed[layer];
    const attn_block_args args = ATTN_STRUCT(attn_block_args, .x = m->x, .y = m->x);
    if (!done(attn_block_step(m->blocks[layer], m->cache[windowed], next[windowed]++, &args))) return false;
  }
  const float *end = m->x; /* the last row of each text moves to the front */
  for (int64_t b = 0; b < m->texts; b++) {
    end += counts[b] * width;
    if (counts[b]) memmove(m->x + last++ * width, end - width, (size_t)width * sizeof *m->x);
  }
  return run_head(m, last);
}

bool llm_model_reorder(llm_model *m, const int32_t *parents) {
  for (int i = 0; i < 2; i++)
    if (m->cache[i] && !done(attn_kv_cache_reorder(m->cache[i], parents))) return false;
  return true;
}
