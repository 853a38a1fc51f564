/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "llm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { CHUNK = 512 }; /* tokens of a prompt that one step takes at most */

/* A running text of the step before with one more token, and the log of the probability that both have. */
typedef struct candidate {
  double score;
  int beam;
  int32_t token;
} candidate;

/* The texts of a prompt: at most `beams`, of which `live` run on. */
typedef struct search {
  llm_text *text;   /* the prompt, and then the best text that has ended */
  uint64_t state;   /* the draws are here */
  int64_t fed;      /* tokens of the prompt that the caches have */
  int64_t made;     /* tokens that each running text has after the prompt */
  int live, ended;  /* running texts, 1 until the prompt has been read; and entries of `ends` */
  candidate *steps; /* [tokens][beams]: the running texts after each step; `beam` leads to the step before */
  candidate *ends;  /* [beams]: texts that ended, by their scores per token */
} search;

typedef struct run {
  llm_model *model;
  const llm_options *options;
  int64_t prompts;
  int beams;
  search *searches;          /* [prompts] */
  int32_t *counts, *parents; /* [prompts][beams], as the model takes them */
  int32_t *step;             /* tokens of the step */
  int most;                  /* candidates of a step: enough that `beams` texts can run on if all others stop */
  candidate *list;           /* [most] */
} run;

/* ---- The next tokens of one prompt's texts ---- */

/* The running texts after the last step. */
static candidate *running(const run *r, const search *s) { return s->steps + (s->made - 1) * r->beams; }

/* Inserts into a descending list of at most `most`; of equal scores the earlier one stays in front. Returns the count. */
static int insert(candidate *list, int count, int most, candidate added) {
  if (count == most && !(added.score > list[count - 1].score)) return count;
  int at = count < most ? count++ : count - 1;
  for (; at > 0 && added.score > list[at - 1].score; at--) list[at] = list[at - 1];
  list[at] = added;
  return count;
}

/* Puts the best candidates into the list, or without beams the one that is drawn. Returns their count. */
static int find_candidates(const run *r, search *s, const float *logits) {
  const int64_t vocabulary = r->model->config.vocabulary;
  int count = 0;
  if (r->beams == 1) {
    *r->list = (candidate){0};
    llm_must(attn_sample_token(&r->options->sampling, vocabulary, logits, &s->state, NULL, &r->list->token));
    return 1;
  }
  for (int i = 0; i < s->live; i++, logits += vocabulary) {
    float largest = -INFINITY;
    double sum = 0;
    for (int64_t t = 0; t < vocabulary; t++) largest = logits[t] > largest ? logits[t] : largest;
    for (int64_t t = 0; t < vocabulary; t++) sum += (double)expf(logits[t] - largest);
    if (!isfinite(sum)) llm_fail("the logits of a text are not finite");
    const double base = (s->made ? running(r, s)[i].score : 0) - (double)largest - log(sum);
    for (int64_t t = 0; t < vocabulary; t++)
      count = insert(r->list, count, r->most, (candidate){base + (double)logits[t], i, (int32_t)t});
  }
  return count;
}

static bool stops(const run *r, const search *s, int32_t token) {
  const llm_config *c = &r->model->config;
  for (int i = 0; i < c->stops; i++)
    if (c->stop[i] == token) return true;
  return s->made + 1 == r->options->tokens;
}

/* A text ends with this candidate. It counts by its score per token; the best one is copied to the prompt's text. */
static void finish(const run *r, search *s, candidate last) {
  int32_t *tokens = s->text->tokens + s->text->prompt;
  last.score /= (double)(s->made + 1);
  const bool best = s->ended == 0 || last.score > s->ends[0].score;
  s->ended = insert(s->ends, s->ended, r->beams, last);
  if (!best) return;
  s->text->count = s->text->prompt + s->made + 1;
  tokens[s->made] = last.token;
  for (int64_t i = s->made; i-- > 0; tokens[i] = last.token) last = s->steps[i * r->beams + last.beam];
}

/* Beam search as in transformers with early_stopping=False and length_penalty=1: a text that stops is a result only among
 * the first `beams` candidates; the search ends when no running text has more than the worst result. */
static void advance(const run *r, search *s, const float *logits) {
  const int count = find_candidates(r, s, logits);
  candidate *next = s->steps + s->made * r->beams;
  s->live = 0;
  for (int i = 0; i < count && s->live < r->beams; i++) {
    if (!stops(r, s, r->list[i].token))
      next[s->live++] = r->list[i];
    else if (i < r->beams)
      finish(r, s, r->list[i]);
  }
  s->made++;
  if (s->live && s->ended == r->beams && next[0].score / (double)s->made <= s->ends[r->beams - 1].score) s->live = 0;
}

/* ---- Steps of all texts ---- */

/* The next tokens of every running text. Returns their number; *read: those of prompts. */
static int64_t gather(const run *r, int64_t *read) {
  int64_t rows = *read = 0;
  for (int64_t p = 0; p < r->prompts; p++) {
    search *s = &r->searches[p];
    int32_t *counts = r->counts + p * r->beams;
    const int64_t left = s->text->prompt - s->fed, chunk = left < CHUNK ? left : CHUNK;
    memcpy(r->step + rows, s->text->tokens + s->fed, (size_t)chunk * sizeof *r->step);
    s->fed += chunk;
    *read += chunk;
    rows += chunk;
    for (int i = 0; i < r->beams; i++) {
      counts[i] = chunk == 0 && i < s->live;
      if (counts[i]) r->step[rows++] = running(r, s)[i].token;
    }
    if (chunk) counts[0] = (int32_t)chunk;
  }
  return rows;
}

/* Every text whose tokens have all been read gets its next one. Returns the number of prompts whose texts did. */
static int64_t advance_all(const run *r) {
  const float *logits = r->model->logits;
  int64_t made = 0;
  for (int64_t p = 0; p < r->prompts; p++) {
    search *s = &r->searches[p];
    const int live = s->live;
    const bool ready = live && s->fed == s->text->prompt;
    if (ready) advance(r, s, logits);
    made += ready;
    logits += live * r->model->config.vocabulary;
    for (int i = 0; i < r->beams; i++)
      r->parents[p * r->beams + i] = i < s->live ? (int32_t)(p * r->beams) + (ready ? running(r, s)[i].beam : i) : -1;
  }
  llm_model_reorder(r->model, r->parents);
  return made;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static llm_rates run_steps(const run *r, bool progress) {
  llm_rates rates = {0};
  for (int64_t rows, read; (rows = gather(r, &read)) > 0;) {
    const double begin = seconds();
    llm_model_step(r->model, r->counts, r->step);
    const int64_t made = advance_all(r);
    *(read ? &rates.prompt_seconds : &rates.new_seconds) += seconds() - begin;
    rates.prompt_tokens += read;
    rates.new_tokens += read ? 0 : made;
    if (progress)
      fprintf(stderr, "\r%lld tokens read, %lld made, %.1f/s ", (long long)rates.prompt_tokens, (long long)rates.new_tokens,
              rates.new_tokens ? (double)rates.new_tokens / rates.new_seconds : 0.0);
  }
  if (progress) fputc('\n', stderr);
  return rates;
}

/* Makes the model's caches for the prompts and their new tokens. */
static void begin(const run *r) {
  const int64_t positions = r->model->config.positions;
  int64_t rows = 0, capacity = 0;
  for (int64_t p = 0; p < r->prompts; p++) {
    const int64_t prompt = r->searches[p].text->prompt, tokens = prompt + r->options->tokens;
    if (tokens > positions)
      llm_fail("prompt %lld and --tokens are %lld tokens; max_position_embeddings is %lld", (long long)p, (long long)tokens,
               (long long)positions);
    if (tokens > capacity) capacity = tokens;
    rows += (prompt < CHUNK ? prompt : CHUNK) + r->beams;
  }
  llm_model_begin(r->model, r->prompts * r->beams, capacity, rows);
}

llm_rates llm_generate(llm_model *model, int64_t prompts, llm_text *texts) {
  const llm_options *o = model->options;
  const int64_t all = prompts * o->beams;
  run r = {.model = model, .options = o, .prompts = prompts, .beams = (int)o->beams};
  r.most = r.beams * (1 + (model->config.stops ? model->config.stops : 1));
  r.searches = llm_allocate(prompts, sizeof *r.searches);
  r.counts = llm_allocate(all, sizeof *r.counts);
  r.parents = llm_allocate(all, sizeof *r.parents);
  r.step = llm_allocate(all, CHUNK * sizeof *r.step);
  r.list = llm_allocate(r.most, sizeof *r.list);
  candidate *steps = llm_allocate(all, (size_t)o->tokens * sizeof *steps), *ends = llm_allocate(all, sizeof *ends);
  for (int64_t p = 0; p < prompts; p++)
    r.searches[p] = (search){.text = &texts[p],
                             .state = (uint64_t)(o->seed + p),
                             .live = 1,
                             .steps = steps + p * o->beams * o->tokens,
                             .ends = ends + p * o->beams};
  begin(&r);
  const llm_rates rates = run_steps(&r, isatty(STDERR_FILENO));
  free(r.searches), free(r.counts), free(r.parents), free(r.step), free(r.list), free(steps), free(ends);
  return rates;
}
