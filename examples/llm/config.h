/* SPDX-License-Identifier: MIT */
/* A model by config.json and generation_config.json of its folder. */
#ifndef EXAMPLES_LLM_CONFIG_H
#define EXAMPLES_LLM_CONFIG_H

#include <attn/nn.h>
#include <cjson/cJSON.h>

enum { LLM_MOST_LAYERS = 256, LLM_MOST_STOPS = 16 };

typedef struct llm_config {
  char type[32]; /* model_type */
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

/* False after a message on stderr that names file, field, value, and what would be right. */
bool llm_config_read(const char *folder, llm_config *config);

/* The object of a file, to be given to cJSON_Delete(); NULL if there is no such file and none is needed. False after a
 * message. */
bool llm_read_json(const char *path, bool needed, cJSON **json);

/* Prints a message, or with NULL the library's last error. Returns false. */
bool llm_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

#endif
