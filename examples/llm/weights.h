/* SPDX-License-Identifier: MIT */
/* The tensors of a transformers folder: model.safetensors, or the files that model.safetensors.index.json lists. */
#ifndef EXAMPLES_LLM_WEIGHTS_H
#define EXAMPLES_LLM_WEIGHTS_H

#include <attn/nn.h>

#include "safetensors.h"

enum { LLM_MOST_FILES = 512, LLM_MOST_VECTORS = 16 };

typedef struct llm_weights {
  int count;
  safetensors file[LLM_MOST_FILES];
  int64_t bytes;   /* all files together */
  char prefix[48]; /* stands before the names that are asked for */
  int dtype;       /* matrices since llm_weights_begin() have it; -1 = none yet */
  int vectors;
  float *vector[LLM_MOST_VECTORS]; /* read since then */
  bool failed;                     /* a tensor was missing or wrong */
} llm_weights;

/* False after a message. */
bool llm_weights_open(const char *folder, llm_weights *weights);

/* Begins a group of tensors whose matrices must have one type. Vectors of the group before are freed, and what was read of
 * files leaves memory. */
void llm_weights_begin(llm_weights *weights, const char *prefix);

/* The elements of a matrix [rows][columns], of weights->dtype, where the file has them. After a message NULL, and `failed`
 * is set. */
const void *llm_weights_matrix(llm_weights *weights, const char *name, int64_t rows, int64_t columns);

/* A vector as float32. NULL if there is none and none is needed; and after a message, with `failed` set. */
float *llm_weights_vector(llm_weights *weights, const char *name, int64_t count, bool needed);

void llm_weights_close(llm_weights *weights);

#endif
