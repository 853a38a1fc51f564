/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "llm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 512 }; /* tokens of a prompt that one step takes at most */

typedef struct run {
  llm_model *model;
  int64_t prompts, beams; /* prompt p has the sequences p * beams and following */
  llm_text *texts;        /* [prompts] */
  int32_t *counts;        /* [prompts][beams]: tokens of the step */
  int32_t *tokens;        /* [prompts][beams]: the newest of each running text, or -1 */
  int32_t *parents;       /* [prompts][beams]: the sequences that they continue */
  int32_t *step;          /* tokens of the step, sequence after sequence */
} run;

/* The next tokens of every running text. Returns their number; *read: those of prompts. */
static int64_t gather(const run *r, int64_t *read) {
  int64_t rows = *read = 0;
  for (int64_t p = 0; p < r->prompts; p++) {
    llm_text *text = &r->texts[p];
    const int64_t left = text->prompt - text->read, chunk = left < CHUNK ? left : CHUNK;
    memcpy(r->step + rows, text->tokens + text->read, (size_t)chunk * sizeof *r->step);
    text->read += chunk;
    *read += chunk;
    rows += chunk;
    for (int64_t i = p * r->beams; i < (p + 1) * r->beams; i++) {
      r->counts[i] = r->tokens[i] >= 0;
      if (r->counts[i]) r->step[rows++] = r->tokens[i];
    }
    if (chunk) r->counts[p * r->beams] = (int32_t)chunk;
  }
  return rows;
}

/* Every text whose tokens have all been read gets its next one. Returns the number of prompts whose texts did. */
static int64_t advance(const run *r) {
  const float *logits = r->model->logits;
  int64_t made = 0;
  for (int64_t i = 0; i < r->prompts * r->beams; i++) r->parents[i] = (int32_t)i;
  for (int64_t p = 0; p < r->prompts; p++) {
    const llm_text *text = &r->texts[p];
    const int64_t rows = attn_generation_running(text->generation), first = p * r->beams;
    if (rows && text->read == text->prompt) {
      llm_must(attn_generation_advance(text->generation, logits, r->tokens + first, r->parents + first));
      made++;
    }
    logits += rows * r->model->config.vocabulary;
  }
  llm_model_reorder(r->model, r->parents);
  return made;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Steps that brought tokens of prompts, and the others. */
typedef struct rates {
  int64_t prompt_tokens, new_tokens;
  double prompt_seconds, new_seconds;
} rates;

static void print_rates(const rates *r, const char *end) {
  fprintf(stderr, "%lld tokens read, %.1f/s; %lld made after them, %.1f/s%s", (long long)r->prompt_tokens,
          (double)r->prompt_tokens / r->prompt_seconds, (long long)r->new_tokens,
          r->new_tokens ? (double)r->new_tokens / r->new_seconds : 0.0, end);
}

static void run_steps(const run *r, bool progress) {
  rates sums = {0};
  for (int64_t rows, read; (rows = gather(r, &read)) > 0;) {
    const double begin = seconds();
    llm_model_step(r->model, rows, r->counts, r->step);
    const int64_t made = advance(r);
    *(read ? &sums.prompt_seconds : &sums.new_seconds) += seconds() - begin;
    sums.prompt_tokens += read;
    sums.new_tokens += read ? 0 : made;
    if (progress) print_rates(&sums, " \r");
  }
  print_rates(&sums, "\n");
}

/* Makes the model's caches for the prompts and their new tokens, and what says which tokens follow each prompt. */
static void begin(const run *r) {
  const llm_config *c = &r->model->config;
  const llm_options *o = r->model->options;
  int64_t rows = 0, capacity = 0;
  for (int64_t p = 0; p < r->prompts; p++) {
    const int64_t prompt = r->texts[p].prompt, tokens = prompt + o->tokens;
    if (tokens > c->positions)
      errx(1, "prompt %lld and --tokens are %lld tokens; max_position_embeddings is %lld", (long long)p, (long long)tokens,
           (long long)c->positions);
    if (tokens > capacity) capacity = tokens;
    rows += (prompt < CHUNK ? prompt : CHUNK) + r->beams;
    const attn_generation_config next =
        ATTN_STRUCT(attn_generation_config, .vocabulary = c->vocabulary, .most_tokens = o->tokens, .beams = r->beams,
                    .stop_tokens = c->stop, .stop_count = c->stops, .sampling = r->beams == 1 ? &o->sampling : NULL,
                    .seed = (uint64_t)(o->seed + p), .first_sequence = p * r->beams);
    llm_must(attn_generation_create(&next, &r->texts[p].generation));
  }
  llm_model_begin(r->model, r->prompts * r->beams, capacity, rows);
}

void llm_generate(llm_model *model, int64_t prompts, llm_text *texts) {
  const int64_t beams = model->options->beams, all = prompts * beams;
  const run r = {.model = model,
                 .prompts = prompts,
                 .beams = beams,
                 .texts = texts,
                 .counts = llm_allocate(all, sizeof *r.counts),
                 .tokens = llm_allocate(all, sizeof *r.tokens),
                 .parents = llm_allocate(all, sizeof *r.parents),
                 .step = llm_allocate(all, CHUNK * sizeof *r.step)};
  for (int64_t i = 0; i < all; i++) r.tokens[i] = -1;
  begin(&r);
  run_steps(&r, isatty(STDERR_FILENO));
  for (llm_text *text = texts; text < texts + prompts; text++) {
    text->count = text->prompt + attn_generation_text(text->generation, text->tokens + text->prompt);
    attn_generation_destroy(text->generation);
  }
  free(r.counts), free(r.tokens), free(r.parents), free(r.step);
}
