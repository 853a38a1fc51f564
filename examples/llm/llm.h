/* SPDX-License-Identifier: MIT */
/* The parts of the program; each section is a file. Whatever is wrong ends the program, with a sentence on stderr. */
#ifndef EXAMPLES_LLM_H
#define EXAMPLES_LLM_H

#include <attn/nn.h>
#include <err.h> /* errx */

#include "safetensors.h"

/* ---- llm.c: the program ---- */

/* Numbers of the command line; the head of llm.c says what they mean. */
typedef struct llm_options {
  int64_t tokens, beams, seed, threads, page_tokens, bf16_rows, int8_weights, int8_rows;
  attn_sampling sampling; /* not with beams */
  attn_dtype kv;
} llm_options;

/* Ends the program with the library's last error, unless the status is ATTN_OK. */
void llm_must(attn_status status);

/* Zeroed memory. */
void *llm_allocate(int64_t count, size_t bytes);

/* ---- config.c: a model by config.json and generation_config.json of its folder ---- */

enum { LLM_MOST_LAYERS = 256, LLM_MOST_STOPS = 16 };

typedef struct llm_config {
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

void llm_config_read(const char *folder, llm_config *config);

/* ---- model.c: a decoder of blocks with the KV caches of its texts ---- */

typedef struct llm_weights {
  safetensors files; /* open, because rows of embeddings are read from them */
  int vectors;
  float *vector[16]; /* those of the layer that is read, as float32 */
  char prefix[48];   /* stands before the names that are asked for */
  int dtype;         /* type of the matrices since the prefix was set; -1 = none yet */
} llm_weights;

typedef struct llm_model {
  const llm_options *options;
  attn_options threads;
  llm_config config;
  llm_weights weights;
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
} llm_model;

/* Reads the folder and packs its weights, in the type that they have there. */
void llm_model_open(const char *folder, const llm_options *options, llm_model *model);
void llm_model_close(llm_model *model);

/* Makes the caches of texts that hold no tokens. capacity: tokens of a text at most; rows: those of a step, of all texts. */
void llm_model_begin(llm_model *model, int64_t texts, int64_t capacity, int64_t rows);

/* One step: text b gets counts[b] of the `rows` new tokens, which stand in `tokens` text after text. model->logits then has
 * a row for each text with new tokens: what may follow its last one. */
void llm_model_step(llm_model *model, int64_t rows, const int32_t *counts, const int32_t *tokens);

/* Text b becomes what text parents[b] was; -1 = empty. */
void llm_model_reorder(llm_model *model, const int32_t *parents);

/* ---- generate.c: texts from prompts, all of them in each step ---- */

typedef struct llm_text {
  int64_t count, prompt;       /* tokens, and those of the prompt, which come first */
  int64_t read;                /* tokens of the prompt that the caches have */
  int32_t *tokens;             /* with room for the new ones */
  attn_generation *generation; /* while it grows */
} llm_text;

/* The texts grow. Text i draws as it does alone with seed + i. Prints tokens per second, on a terminal after each step. */
void llm_generate(llm_model *model, int64_t prompts, llm_text *texts);

#endif
