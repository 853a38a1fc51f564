/* SPDX-License-Identifier: MIT */
/* A decoder of blocks with the KV caches of its texts. Weights keep the type that they have in their files. */
#ifndef EXAMPLES_LLM_MODEL_H
#define EXAMPLES_LLM_MODEL_H

#include "config.h"
#include "weights.h"

typedef struct llm_model {
  llm_config config;
  llm_weights weights; /* open: rows of embeddings are read from the file */
  attn_options options;
  bool bf16_rows;    /* dense layers round rows, where the weights are bf16 */
  bool int8_weights; /* dense layers round weights */
  attn_block *blocks[LLM_MOST_LAYERS];
  attn_embedding embedding;
  attn_norm norm; /* the last one */
  attn_product *head;
  attn_rope *rope;

  int64_t texts;
  attn_kv_cache *cache[2]; /* layers that see everything, and those with a window; or NULL */

  int64_t rows;      /* room of the following */
  float *x, *normed; /* [rows][width] */
  float *logits;     /* [texts][vocabulary] */
  void *workspace;   /* for the head and `texts` rows */
  size_t workspace_bytes;
} llm_model;

/* How keys and values are kept. */
typedef struct llm_cache {
  attn_dtype dtype;
  int64_t page_tokens; /* 0: the library's choice */
  int64_t texts;       /* at most, at once */
  int64_t capacity;    /* tokens of a text */
} llm_cache;

/* Reads the folder and packs its weights. model: zeros, but for how dense layers round. False after a message;
 * llm_model_close() frees what there is. */
bool llm_model_open(const char *folder, int threads, llm_model *model);

/* Makes the caches of texts that hold no tokens. */
bool llm_model_begin(llm_model *model, const llm_cache *cache);

/* One step: text b gets counts[b] new tokens, which stand in `tokens` text after text. model->logits then has a row for each
 * text with new tokens: what may follow its last one. */
bool llm_model_step(llm_model *model, const int32_t *counts, const int32_t *tokens);

/* Text b becomes what text parents[b] was; -1 = empty. */
bool llm_model_reorder(llm_model *model, const int32_t *parents);

void llm_model_close(llm_model *model);

#endif
