/* SPDX-License-Identifier: MIT */
/* The parts of the program; each section is a file. Functions that return false have printed why. */
#ifndef EXAMPLES_LLM_H
#define EXAMPLES_LLM_H

#include <attn/nn.h>
#include <cjson/cJSON.h>

#include "safetensors.h"

/* ---- config.c: a model by config.json and generation_config.json of its folder ---- */

enum { LLM_MOST_LAYERS = 256, LLM_MOST_STOPS = 16 };

typedef struct llm_config {
  const char *type; /* model_type */
  int64_t width, hidden, layers, heads, heads_kv, dim, vocabulary, positions, window;
  bool windowed[LLM_MOST_LAYERS]; /* whether a layer's queries see `window` tokens only */
  float epsilon;
  float scale, softcap, final_softcap; /* 0: 1 / sqrt(dim), none, none */
  attn_activation activation;
  attn_rope_config rope;
  bool qkv_biases, output_bias, network_biases; /* which must be there; others may */
  bool head_norms;                              /* heads of queries and keys are normed (Qwen3) */
  bool gemma; /* gains lack 1, embeddings are times sqrt(width), norms stand after the sublayers, too */
  bool tied;  /* the embeddings are the last layer's matrix too */
  int stops;
  int32_t stop[LLM_MOST_STOPS]; /* tokens that end a text */
} llm_config;

bool llm_config_read(const char *folder, llm_config *config);

/* The object of a file, to be given to cJSON_Delete(); NULL if there is no such file and none is needed. */
bool llm_read_json(const char *path, bool needed, cJSON **json);

/* Prints a message, or with NULL the library's last error. Returns false. */
bool llm_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* ---- weights.c: the tensors of model.safetensors, or of the files that model.safetensors.index.json lists ---- */

enum { LLM_MOST_FILES = 512 };

typedef struct llm_weights {
  int count;
  safetensors file[LLM_MOST_FILES];
  int64_t bytes;              /* all files together */
  char prefix[48];            /* stands before the names that are asked for */
  int dtype;                  /* matrices since llm_weights_begin() have it; -1 = none yet */
  struct llm_vector *vectors; /* all that were read */
  bool failed;                /* a tensor was missing or wrong, and a message has said so */
} llm_weights;

bool llm_weights_open(const char *folder, llm_weights *weights);
void llm_weights_close(llm_weights *weights);

/* Begins a group of tensors whose matrices must have one type. What was read of files leaves memory. */
void llm_weights_begin(llm_weights *weights, const char *prefix);

/* The elements of a matrix [rows][columns], of weights->dtype, where the file has them; NULL with `failed` set. */
const void *llm_weights_matrix(llm_weights *weights, const char *name, int64_t rows, int64_t columns);

/* A vector as float32, which stays until the weights are closed. NULL if there is none and none is needed, or with `failed`
 * set. */
float *llm_weights_vector(llm_weights *weights, const char *name, int64_t count, bool needed);

/* ---- model.c: a decoder of blocks with the KV caches of its texts ---- */

typedef struct llm_model {
  /* Set before llm_model_open(): */
  attn_options options;
  bool bf16_rows;    /* dense layers round rows, where the weights are bf16 */
  bool int8_weights; /* dense layers round weights */

  llm_config config;
  llm_weights weights; /* open: rows of embeddings are read from the file */
  attn_block *blocks[LLM_MOST_LAYERS];
  attn_embedding embedding;
  attn_norm norm; /* the last one */
  attn_product *head;
  attn_rope *rope;

  int64_t texts;
  attn_kv_cache *cache[2]; /* layers that see everything, and those with a window; or NULL */
  float *x;                /* [rows of a step][width] */
  float *logits;           /* [texts][vocabulary] */
  void *workspace;         /* for the head and `texts` rows */
  size_t workspace_bytes;
} llm_model;

/* Reads the folder and packs its weights, in the type that they have there. model: zeros, but for its first fields.
 * llm_model_close() frees it, also after a failure. */
bool llm_model_open(const char *folder, llm_model *model);
void llm_model_close(llm_model *model);

/* Makes the caches of texts that hold no tokens. shape: batch, capacity, dtype and page_tokens; the model knows the rest.
 * rows: tokens of a step at most, of all texts. */
bool llm_model_begin(llm_model *model, const attn_kv_cache_shape *shape, int64_t rows);

/* One step: text b gets counts[b] new tokens, which stand in `tokens` text after text. model->logits then has a row for each
 * text with new tokens: what may follow its last one. */
bool llm_model_step(llm_model *model, const int32_t *counts, const int32_t *tokens);

/* Text b becomes what text parents[b] was; -1 = empty. */
bool llm_model_reorder(llm_model *model, const int32_t *parents);

/* ---- generate.c: texts from prompts, all of them in each step ---- */

enum { LLM_CHUNK = 512 }; /* tokens of a prompt that one step takes at most */

/* Tokens of a text; those of the prompt come first. */
typedef struct llm_text {
  int64_t count, prompt;
  int32_t *tokens;
} llm_text;

typedef struct llm_task {
  int64_t prompts, tokens, beams; /* tokens: new ones at most; beams: 1 = no beam search */
  llm_text *texts;                /* [prompts], each with room for `tokens` more; they grow */
  attn_sampling sampling;         /* not with beams */
  uint64_t seed;                  /* text i draws as it does alone with seed + i */
  bool progress;                  /* a line on stderr */

  /* Results: steps that brought tokens of prompts, and the others. */
  int64_t prompt_tokens, new_tokens;
  double prompt_seconds, new_seconds;
} llm_task;

/* The model's caches must have room for prompts x beams texts. */
bool llm_generate(llm_model *model, llm_task *task);

#endif
