/* SPDX-License-Identifier: MIT */
/* all-MiniLM-L6-v2, a real sentence encoder (Wang et al. 2020, https://arxiv.org/abs/2002.10957; fine-tuned by the
 * sentence-transformers project): six post-norm encoder blocks of twelve heads, mean over the tokens, length 1. */
#ifndef EXAMPLES_MINILM_ENCODER_H
#define EXAMPLES_MINILM_ENCODER_H

#include <attn/nn.h>

#include "safetensors.h"

enum { LAYERS = 6, HEADS = 12, WIDTH = 384, HIDDEN = 1536, VOCABULARY = 30522, POSITIONS = 512 };

/* A row of the batch is a token. Packed, each sentence follows the one before; padded, each takes as many rows as the
 * longest. */
typedef struct sentences {
  int64_t count, longest;
  bool padded;
  int32_t *ids;     /* [starts[count]]: all tokens, packed */
  int32_t *starts;  /* [count + 1]: tokens before each sentence */
  int32_t *lengths; /* [count] */
} sentences;

/* Reads one sentence per line, as token ids, and cuts it after POSITIONS tokens. Returns 0, or -1 after a message on
 * stderr. */
int read_sentences(const char *path, sentences *s);
void free_sentences(sentences *s);
int64_t row_count(const sentences *s);

typedef struct model {
  const safetensors *file;
  const sentences *input;
  const float *words, *positions, *types;
  attn_norm norm;
  attn_block *blocks[LAYERS];
  void *workspace;
  size_t workspace_bytes;
  float *x, *embeddings; /* [rows][WIDTH] and [sentences][WIDTH] */
  double time;           /* seconds in encode so far, and where in the blocks they went */
  attn_block_profile profile;
} model;

/* Makes a model for exactly these sentences, which it does not copy. destroy_model frees it, also after a failure. */
attn_status create_model(model *m, const safetensors *file, const sentences *input, const attn_options *options);
void destroy_model(model *m);

/* Computes m->embeddings. */
attn_status encode(model *m);

#endif
