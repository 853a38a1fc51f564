/* SPDX-License-Identifier: MIT */
/* Texts from prompts: greedily, by sampling or by beam search, all of them in each step. */
#ifndef EXAMPLES_LLM_GENERATE_H
#define EXAMPLES_LLM_GENERATE_H

#include "model.h"

/* Tokens of a text; those of the prompt come first. */
typedef struct llm_text {
  int64_t count, prompt, fed; /* fed: tokens that the caches have */
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

/* The tokens of a text that one step takes at most. */
enum { LLM_CHUNK = 512 };

/* False after a message. The model's caches must have room for prompts x beams texts. */
bool llm_generate(llm_model *model, llm_task *task);

#endif
