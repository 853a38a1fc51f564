/* SPDX-License-Identifier: MIT */
/* The encoder, built from libattn_nn: embedding, blocks, pooling (encoder.h). */
#define _POSIX_C_SOURCE 200809L
#include "encoder.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static const float epsilon = 1e-12f;

/* ---- Sentences ---- */

static int64_t first_row(const sentences *s, int64_t sentence) {
  return s->padded ? sentence * s->longest : s->starts[sentence];
}

int64_t row_count(const sentences *s) { return first_row(s, s->count); }

static int add_sentence(sentences *s, char *line) {
  int32_t start = s->count ? s->starts[s->count] : 0, length = 0;
  int32_t *ids = realloc(s->ids, (size_t)(start + POSITIONS) * sizeof *ids);
  int32_t *starts = realloc(s->starts, (size_t)(s->count + 2) * sizeof *starts);
  int32_t *lengths = realloc(s->lengths, (size_t)(s->count + 1) * sizeof *lengths);
  if (ids) s->ids = ids;
  if (starts) s->starts = starts;
  if (lengths) s->lengths = lengths;
  if (!ids || !starts || !lengths) return fputs("out of memory\n", stderr), -1;
  for (char *at = line, *next; length < POSITIONS; at = next) {
    const long id = strtol(at, &next, 10);
    if (next == at) break;
    if (id < 0 || id >= VOCABULARY) return fprintf(stderr, "token %ld is not in 0..%d\n", id, VOCABULARY - 1), -1;
    ids[start + length++] = (int32_t)id;
  }
  if (length == 0) return 0; /* an empty line */
  starts[s->count] = start;
  lengths[s->count++] = length;
  starts[s->count] = start + length;
  if (length > s->longest) s->longest = length;
  return 0;
}

int read_sentences(const char *path, sentences *s) {
  static char line[16 * POSITIONS];
  FILE *file = fopen(path, "r");
  if (!file) return perror(path), -1;
  int result = 0;
  while (result == 0 && fgets(line, sizeof line, file)) result = add_sentence(s, line);
  fclose(file);
  if (result == 0 && s->count == 0) return fprintf(stderr, "%s: no sentence\n", path), -1;
  return result;
}

void free_sentences(sentences *s) { free(s->ids), free(s->starts), free(s->lengths); }

/* ---- The model ---- */

/* A tensor of layer `layer`. If it is missing: NULL and a message; attn_block_create then refuses the NULL. */
static const float *layer_tensor(const model *m, int layer, const char *name, int64_t rows, int64_t columns) {
  char full[128];
  snprintf(full, sizeof full, "encoder.layer.%d.%s", layer, name);
  return safetensors_get(m->file, full, rows, columns);
}

static attn_norm layer_norm(const model *m, int layer, const char *part) {
  char names[2][96];
  snprintf(names[0], sizeof names[0], "%s.LayerNorm.weight", part);
  snprintf(names[1], sizeof names[1], "%s.LayerNorm.bias", part);
  return (attn_norm){layer_tensor(m, layer, names[0], 0, WIDTH), layer_tensor(m, layer, names[1], 0, WIDTH), epsilon};
}

/* The block of one layer for this batch. Each run gets the starts of sentences (packed) or their lengths (padded). */
static attn_status create_block(model *m, int layer, const attn_options *options) {
  attn_block_config c;
  attn_encoder_block_init(&c, m->input->count, HEADS, m->input->longest, WIDTH, HIDDEN);
  if (m->input->padded)
    c.self.attention.uses |= ATTN_USE_KV_LEN;
  else
    attn_problem_set_varlen(&c.self.attention, row_count(m->input), row_count(m->input));
  c.self_weights = ATTN_STRUCT(attn_mha_weights, .layout = ATTN_OUT_IN,
                               .w_q = layer_tensor(m, layer, "attention.self.query.weight", WIDTH, WIDTH),
                               .w_k = layer_tensor(m, layer, "attention.self.key.weight", WIDTH, WIDTH),
                               .w_v = layer_tensor(m, layer, "attention.self.value.weight", WIDTH, WIDTH),
                               .w_o = layer_tensor(m, layer, "attention.output.dense.weight", WIDTH, WIDTH),
                               .b_q = layer_tensor(m, layer, "attention.self.query.bias", 0, WIDTH),
                               .b_k = layer_tensor(m, layer, "attention.self.key.bias", 0, WIDTH),
                               .b_v = layer_tensor(m, layer, "attention.self.value.bias", 0, WIDTH),
                               .b_o = layer_tensor(m, layer, "attention.output.dense.bias", 0, WIDTH));
  c.self_norm = layer_norm(m, layer, "attention.output");
  c.feed_forward.activation = ATTN_GELU;
  c.feed_forward.first = (attn_linear){.weight = layer_tensor(m, layer, "intermediate.dense.weight", HIDDEN, WIDTH),
                                       .bias = layer_tensor(m, layer, "intermediate.dense.bias", 0, HIDDEN),
                                       .transposed = true};
  c.feed_forward.second = (attn_linear){.weight = layer_tensor(m, layer, "output.dense.weight", WIDTH, HIDDEN),
                                        .bias = layer_tensor(m, layer, "output.dense.bias", 0, WIDTH),
                                        .transposed = true};
  c.feed_forward_norm = layer_norm(m, layer, "output");
  return attn_block_create(&c, options, &m->blocks[layer]);
}

void destroy_model(model *m) {
  for (int layer = 0; layer < LAYERS; layer++) attn_block_destroy(m->blocks[layer]);
  free(m->workspace), free(m->x), free(m->embeddings);
}

attn_status create_model(model *m, const safetensors *file, const sentences *input, const attn_options *options) {
  *m = (model){.file = file, .input = input};
  m->words = safetensors_get(file, "embeddings.word_embeddings.weight", VOCABULARY, WIDTH);
  m->positions = safetensors_get(file, "embeddings.position_embeddings.weight", POSITIONS, WIDTH);
  m->types = safetensors_get(file, "embeddings.token_type_embeddings.weight", 2, WIDTH);
  m->norm = (attn_norm){safetensors_get(file, "embeddings.LayerNorm.weight", 0, WIDTH),
                        safetensors_get(file, "embeddings.LayerNorm.bias", 0, WIDTH), epsilon};
  if (!m->words || !m->positions || !m->types) return ATTN_INVALID_ARGUMENT;
  attn_status status = ATTN_OK;
  for (int layer = 0; layer < LAYERS && status == ATTN_OK; layer++) status = create_block(m, layer, options);
  if (status != ATTN_OK) return status;
  m->workspace_bytes = attn_block_workspace(m->blocks[0]); /* all layers have the same shape and run one after the other */
  m->workspace = aligned_alloc(64, m->workspace_bytes);
  m->x = malloc((size_t)(row_count(input) * WIDTH) * sizeof *m->x);
  m->embeddings = malloc((size_t)(input->count * WIDTH) * sizeof *m->embeddings);
  return m->workspace && m->x && m->embeddings ? ATTN_OK : ATTN_OUT_OF_MEMORY;
}

/* x = norm(word + position + type); padding is token 0. */
static attn_status embed(const model *m) {
  const sentences *in = m->input;
  for (int64_t s = 0; s < in->count; s++) {
    const int64_t first = first_row(in, s), rows = first_row(in, s + 1) - first;
    for (int64_t place = 0; place < rows; place++) {
      const int64_t id = place < in->lengths[s] ? in->ids[in->starts[s] + place] : 0;
      const float *word = m->words + id * WIDTH, *position = m->positions + place * WIDTH;
      float *x = m->x + (first + place) * WIDTH;
      for (int i = 0; i < WIDTH; i++) x[i] = word[i] + m->types[i] + position[i];
    }
  }
  return attn_add_layer_norm(row_count(in), WIDTH, m->x, NULL, &m->norm, NULL, m->x);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

attn_status encode(model *m) {
  const double begin = seconds();
  attn_status status = embed(m);
  const int32_t *lengths = m->input->padded ? m->input->lengths : NULL, *starts = m->input->padded ? NULL : m->input->starts;
  const attn_args self = ATTN_STRUCT(attn_args, .kv_len = lengths, .cu_seqlens_q = starts, .cu_seqlens_k = starts);
  const attn_block_args args = ATTN_STRUCT(attn_block_args, .x = m->x, .y = m->x, .self = &self, .profile = &m->profile);
  for (int layer = 0; layer < LAYERS && status == ATTN_OK; layer++)
    status = attn_block_run(m->blocks[layer], &args, m->workspace, m->workspace_bytes);
  const attn_pooling pooling =
      ATTN_STRUCT(attn_pooling, .unit = true, .batch = m->input->count, .seq = m->input->longest, .width = WIDTH, .x = m->x,
                  .lengths = lengths, .cu_seqlens = starts, .y = m->embeddings); /* cosines are then dot products */
  if (status == ATTN_OK) status = attn_pool_rows(&pooling);
  m->time += seconds() - begin;
  return status;
}
