/* SPDX-License-Identifier: MIT */
#include "llm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Tensors ---- */

/* Begins a group of tensors whose matrices must have one type. What was read for the group before leaves memory. */
static void begin_group(llm_weights *w, const char *prefix) {
  safetensors_release(&w->files);
  while (w->vectors) free(w->vector[--w->vectors]);
  snprintf(w->prefix, sizeof w->prefix, "%s", prefix);
  w->dtype = -1;
}

/* The tensor, which must have this shape; rows = 0 means a vector. NULL if there is none and none is needed. */
static const safetensor *find(const llm_weights *w, const char *name, int64_t rows, int64_t columns, bool needed) {
  char full[SAFETENSORS_MAX_NAME];
  snprintf(full, sizeof full, "%s%s", w->prefix, name);
  if (!needed && !safetensors_find(&w->files, full)) return NULL;
  const safetensor *found = safetensors_require(&w->files, full, rows, columns);
  if (!found) exit(1); /* it has said why */
  return found;
}

/* The elements of a matrix [rows][columns], of w->dtype, where the file has them. */
static const void *read_matrix(llm_weights *w, const char *name, int64_t rows, int64_t columns) {
  const safetensor *found = find(w, name, rows, columns, true);
  if (w->dtype >= 0 && w->dtype != (int)found->dtype)
    errx(1, "tensor %s has another type than those before it; matrices of a layer must have one type", found->name);
  w->dtype = (int)found->dtype;
  return found->data;
}

/* A vector as float32, which stays until the next group begins; NULL if there is none and none is needed. */
static float *read_vector(llm_weights *w, const char *name, int64_t count, bool needed) {
  const safetensor *found = find(w, name, 0, count, needed);
  if (!found) return NULL;
  float *elements = w->vector[w->vectors++] = llm_allocate(count, sizeof *elements);
  const attn_embedding row = ATTN_STRUCT(attn_embedding, .vocabulary = 1, .width = count, .table = found->data,
                                         .dtype = found->dtype); /* any type to float32 */
  llm_must(attn_embed(&row, 1, &(int32_t){0}, elements));
  return elements;
}

/* ---- Layers ---- */

static attn_norm norm_of(llm_weights *w, const char *name, const llm_config *c) {
  float *gain = read_vector(w, name, c->width, true);
  for (int64_t i = 0; c->gemma && i < c->width; i++) gain[i] += 1;
  return (attn_norm){.gain = gain, .epsilon = c->epsilon};
}

static attn_linear linear(llm_weights *w, const char *layer, int64_t out, int64_t in, bool has_bias) {
  char weight[48], bias[48];
  snprintf(weight, sizeof weight, "%s.weight", layer);
  snprintf(bias, sizeof bias, "%s.bias", layer);
  return (attn_linear){
      .weight = read_matrix(w, weight, out, in), .bias = read_vector(w, bias, out, has_bias), .transposed = true};
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
                     .q_norm_gain = read_vector(w, "self_attn.q_norm.weight", c->dim, c->head_norms),
                     .k_norm_gain = read_vector(w, "self_attn.k_norm.weight", c->dim, c->head_norms));
}

static attn_block *create_block(llm_model *m, int64_t layer) {
  const llm_config *c = &m->config;
  llm_weights *w = &m->weights;
  attn_block_config b;
  attn_block *block;
  char prefix[48];
  snprintf(prefix, sizeof prefix, "model.layers.%lld.", (long long)layer);
  begin_group(w, prefix);
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
  b.self_weights.bf16_rows = b.feed_forward.bf16_rows = m->options->bf16_rows && w->dtype == ATTN_BF16;
  b.self_weights.int8_weights = b.feed_forward.int8_weights = m->options->int8_weights != 0;
  b.self_weights.int8_rows = b.feed_forward.int8_rows = m->options->int8_rows != 0;
  llm_must(attn_block_create(&b, &m->threads, &block));
  return block;
}

/* Embeddings, the last norm and the last matrix. Where the first are the last matrix too, it is packed from their memory,
 * and single rows are read from the file. */
static void create_ends(llm_model *m) {
  const llm_config *c = &m->config;
  llm_weights *w = &m->weights;
  begin_group(w, "");
  const void *table = read_matrix(w, "model.embed_tokens.weight", c->vocabulary, c->width);
  const void *head = c->tied ? table : read_matrix(w, "lm_head.weight", c->vocabulary, c->width);
  m->norm = norm_of(w, "model.norm.weight", c);
  m->embedding = ATTN_STRUCT(attn_embedding, .vocabulary = c->vocabulary, .width = c->width, .table = table,
                             .dtype = (attn_dtype)w->dtype, .factor = c->gemma ? sqrtf((float)c->width) : 1);
  const attn_product_weights weights = ATTN_STRUCT(
      attn_product_weights, .depth = c->width, .columns = c->vocabulary, .weight = head, .stride_depth = 1,
      .stride_column = c->width, .dtype = (attn_dtype)w->dtype, .bf16_rows = m->options->bf16_rows && w->dtype == ATTN_BF16,
      .int8_weights = m->options->int8_weights, .int8_rows = m->options->int8_rows);
  llm_must(attn_product_create(&weights, &m->threads, &m->head));
}

void llm_model_open(const char *folder, const llm_options *options, llm_model *m) {
  m->options = options;
  m->threads = ATTN_STRUCT(attn_options, .threads = (int)options->threads);
  llm_config_read(folder, &m->config);
  if (safetensors_read_folder(folder, &m->weights.files) != 0) exit(1); /* it has said why */
  llm_must(attn_rope_create(&m->config.rope, &m->rope));
  for (int64_t layer = 0; layer < m->config.layers; layer++) m->blocks[layer] = create_block(m, layer);
  create_ends(m);
  safetensors_release(&m->weights.files);
}

void llm_model_close(llm_model *m) {
  for (int i = 0; i < 2; i++) attn_kv_cache_destroy(m->cache[i]);
  for (int64_t layer = 0; layer < m->config.layers; layer++) attn_block_destroy(m->blocks[layer]);
  attn_product_destroy(m->head);
  attn_rope_destroy(m->rope);
  free(m->x), free(m->logits), free(m->workspace);
  begin_group(&m->weights, "");
  safetensors_free(&m->weights.files);
}

/* ---- Steps ---- */

void llm_model_begin(llm_model *m, int64_t texts, int64_t capacity, int64_t rows) {
  const llm_config *c = &m->config;
  int64_t layers[2] = {0};
  for (int64_t layer = 0; layer < c->layers; layer++) layers[c->windowed[layer]]++;
  attn_kv_cache_shape shape =
      ATTN_STRUCT(attn_kv_cache_shape, .batch = texts, .capacity = capacity, .heads_q = c->heads, .heads_kv = c->heads_kv,
                  .dim_qk = c->dim, .dim_v = c->dim, .dtype = m->options->kv, .page_tokens = m->options->page_tokens,
                  .float_tokens = true, .rope = m->rope, .scale = c->scale, .softcap = c->softcap);
  m->texts = texts;
  for (int i = 0; i < 2; i++) {
    shape.layers = layers[i], shape.window = i ? c->window : 0;
    if (layers[i]) llm_must(attn_kv_cache_create(&shape, &m->threads, &m->cache[i]));
  }
  m->workspace = aligned_alloc(64, attn_product_workspace(m->head, texts) + 64);
  if (!m->workspace) errx(1, "out of memory: %lld texts", (long long)texts);
  m->x = llm_allocate(rows * c->width, sizeof *m->x);
  m->logits = llm_allocate(texts * c->vocabulary, sizeof *m->logits);
}

/* The logits of the first `rows` rows of x, which are normed in place. */
static void run_head(llm_model *m, int64_t rows) {
  const llm_config *c = &m->config;
  const attn_product_args args =
      ATTN_STRUCT(attn_product_args, .batch = 1, .rows = rows, .x = m->x, .x_stride = {.s = c->width, .d = 1},
                  .y = m->logits, .y_stride = {.s = c->vocabulary, .d = 1});
  llm_must(attn_add_rms_norm(rows, c->width, m->x, NULL, &m->norm, NULL, m->x));
  llm_must(attn_product_run(m->head, &args, m->workspace, attn_product_workspace(m->head, m->texts)));
  for (int64_t i = 0; c->final_softcap > 0 && i < rows * c->vocabulary; i++)
    m->logits[i] = c->final_softcap * tanhf(m->logits[i] / c->final_softcap);
}

void llm_model_step(llm_model *m, int64_t rows, const int32_t *counts, const int32_t *tokens) {
  const int64_t width = m->config.width;
  int64_t last = 0, next[2] = {0}; /* next: layer of a cache */
  for (int i = 0; i < 2; i++)
    if (m->cache[i]) llm_must(attn_kv_cache_begin(m->cache[i], counts));
  llm_must(attn_embed(&m->embedding, rows, tokens, m->x));
  for (int64_t layer = 0; layer < m->config.layers; layer++) {
    const bool windowed = m->config.windowed[layer];
    const attn_block_args args = ATTN_STRUCT(attn_block_args, .x = m->x, .y = m->x);
    llm_must(attn_block_step(m->blocks[layer], m->cache[windowed], next[windowed]++, &args));
  }
  const float *end = m->x; /* the last row of each text moves to the front */
  for (int64_t b = 0; b < m->texts; b++) {
    end += counts[b] * width;
    if (counts[b]) memmove(m->x + last++ * width, end - width, (size_t)width * sizeof *m->x);
  }
  run_head(m, last);
}

void llm_model_reorder(llm_model *m, const int32_t *parents) {
  for (int i = 0; i < 2; i++)
    if (m->cache[i]) llm_must(attn_kv_cache_reorder(m->cache[i], parents));
}
