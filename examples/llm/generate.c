/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "llm.h"

/* A running text of the step before with one more token, and the log of the probability that both have. */
typedef struct candidate {
  double score;
  int beam;
  int32_t token;
} candidate;

/* The texts of a prompt: at most `beams`, of which `live` run on. */
typedef struct search {
  uint64_t state;   /* the draws are here */
  int64_t fed;      /* tokens of the prompt that the caches have */
  int64_t made;     /* tokens that each running text has after the prompt */
  int live;         /* 1 until the prompt has been read; 0 at the end */
  int ended;        /* entries of `ends` */
  candidate *steps; /* [tokens][beams]: the running texts after each step; `beam` leads to the step before */
  candidate *ends;  /* [beams]: texts that ended, by their scores per token; the first is in the task's text */
} search;

typedef struct run {
  llm_model *model;
  llm_task *task;
  int beams;
  search *searches; /* [prompts] */
  candidate *steps, *ends;
  int32_t *counts, *parents; /* [texts], as the model takes them */
  int32_t *step;             /* tokens of the step */
  int most;                  /* candidates of a step: enough that `beams` texts can run on if all others stop */
  candidate *list;           /* [most] */
} run;

/* ---- The next tokens of one prompt's texts ---- */

/* Inserts into a descending list of at most `most`; of equal scores the earlier one stays in front. Returns the count. */
static int insert(candidate *list, int count, int most, candidate added) {
  if (count == most && !(added.score > list[count - 1].score)) return count;
  int at = count < most ? count++ : count - 1;
  for (; at > 0 && added.score > list[at - 1].score; at--) list[at] = list[at - 1];
  list[at] = added;
  return count;
}

/* Puts the best candidates into the list. Returns their count; 0, after a message, if no logit is finite or one is NaN. */
static int best_candidates(const run *r, const search *s, const float *logits) {
  const int64_t vocabulary = r->model->config.vocabulary;
  int count = 0;
  for (int beam = 0; beam < s->live; beam++, logits += vocabulary) {
    double largest = -INFINITY, sum = 0;
    for (int64_t t = 0; t < vocabulary; t++) largest = fmax(largest, (double)logits[t]);
    for (int64_t t = 0; t < vocabulary; t++) sum += exp((double)logits[t] - largest);
    if (!isfinite(sum)) return llm_fail("the logits of a text are not finite");
    const double score = s->made ? s->steps[(s->made - 1) * r->beams + beam].score : 0, base = score - largest - log(sum);
    for (int64_t t = 0; t < vocabulary; t++)
      count = insert(r->list, count, r->most, (candidate){base + (double)logits[t], beam, (int32_t)t});
  }
  return count;
}

/* Without beams the one candidate is drawn. */
static int drawn_candidate(const run *r, search *s, const float *logits) {
  *r->list = (candidate){.beam = 0};
  return attn_sample_token(&r->task->sampling, r->model->config.vocabulary, logits, &s->state, NULL, &r->list->token) ==
             ATTN_OK ||
         llm_fail(NULL);
}

static bool stops(const run *r, const search *s, int32_t token) {
  const llm_config *c = &r->model->config;
  for (int i = 0; i < c->stops; i++)
    if (c->stop[i] == token) return true;
  return s->made + 1 == r->task->tokens;
}

/* A text ends with this candidate. It counts by its score per token; the best one is copied to `text`. */
static void finish(const run *r, search *s, candidate last, llm_text *text) {
  last.score /= (double)(s->made + 1);
  const bool best = s->ended == 0 || last.score > s->ends[0].score;
  s->ended = insert(s->ends, s->ended, r->beams, last);
  if (!best) return;
  text->count = text->prompt + s->made + 1;
  for (int64_t i = s->made;; last = s->steps[--i * r->beams + last.beam]) {
    text->tokens[text->prompt + i] = last.token;
    if (i == 0) return;
  }
}

/* Beam search as in transformers with early_stopping=False and length_penalty=1: a text that stops is a result only among
 * the first `beams` candidates; the search ends when no running text has more than the worst result. */
static bool advance(run *r, int64_t prompt, const float *logits) {
  search *s = &r->searches[prompt];
  candidate *next = s->steps + s->made * r->beams;
  const int count = r->beams > 1 ? best_candidates(r, s, logits) : drawn_candidate(r, s, logits);
  s->live = 0;
  for (int i = 0; i < count; i++) {
    if (!stops(r, s, r->list[i].token))
      next[s->live++] = r->list[i];
    else if (i < r->beams)
      finish(r, s, r->list[i], &r->task->texts[prompt]);
    if (s->live == r->beams) break;
  }
  s->made++;
  if (s->live && s->ended == r->beams && next[0].score / (double)s->made <= s->ends[r->beams - 1].score) s->live = 0;
  return count > 0;
}

/* ---- Steps of all texts ---- */

/* The next tokens of every running text. Returns their number; *reads: whether some are a prompt's. */
static int64_t gather(run *r, bool *reads) {
  int64_t rows = 0;
  *reads = false;
  memset(r->counts, 0, (size_t)r->model->texts * sizeof *r->counts);
  for (int64_t p = 0; p < r->task->prompts; p++) {
    search *s = &r->searches[p];
    const llm_text *text = &r->task->texts[p];
    const int64_t left = text->prompt - s->fed, count = left < LLM_CHUNK ? left : LLM_CHUNK;
    if (count > 0) {
      memcpy(r->step + rows, text->tokens + s->fed, (size_t)count * sizeof *r->step);
      r->counts[p * r->beams] = (int32_t)count;
      r->task->prompt_tokens += count;
      s->fed += count;
      rows += count;
      *reads = true;
    } else {
      for (int i = 0; i < s->live; i++, rows++) {
        r->step[rows] = s->steps[(s->made - 1) * r->beams + i].token;
        r->counts[p * r->beams + i] = 1;
      }
    }
  }
  return rows;
}

/* Every text whose tokens have all been read gets its next one. *made counts the prompts whose texts did. */
static bool advance_all(run *r, int64_t *made) {
  const float *logits = r->model->logits;
  for (int64_t p = 0; p < r->task->prompts; p++) {
    search *s = &r->searches[p];
    const int live = s->live;
    const bool ready = live && s->fed == r->task->texts[p].prompt;
    if (ready && !advance(r, p, logits)) return false;
    *made += ready;
    logits += live * r->model->config.vocabulary;
    for (int i = 0; i < r->beams; i++) {
      const int from = ready && i < s->live ? s->steps[(s->made - 1) * r->beams + i].beam : i;
      r->parents[p * r->beams + i] = i < s->live ? (int32_t)(p * r->beams) + from : -1;
    }
  }
  return llm_model_reorder(r->model, r->parents);
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool run_steps(run *r) {
  llm_task *t = r->task;
  bool reads;
  while (gather(r, &reads) > 0) {
    const double begin = seconds();
    int64_t made = 0;
    if (!llm_model_step(r->model, r->counts, r->step) || !advance_all(r, &made)) return false;
    *(reads ? &t->prompt_seconds : &t->new_seconds) += seconds() - begin;
    if (!reads) t->new_tokens += made;
    if (t->progress)
      fprintf(stderr, "\r%lld tokens read, %lld made, %.1f/s ", (long long)t->prompt_tokens, (long long)t->new_tokens,
              t->new_tokens ? (double)t->new_tokens / t->new_seconds : 0.0);
  }
  if (t->progress) fputc('\n', stderr);
  return true;
}

bool llm_generate(llm_model *model, llm_task *task) {
  const int beams = (int)task->beams, stops = model->config.stops ? model->config.stops : 1;
  const size_t prompts = (size_t)task->prompts, texts = prompts * (size_t)beams, tokens = (size_t)task->tokens;
  run r = {.model = model, .task = task, .beams = beams, .most = beams * (1 + stops)};
  r.searches = calloc(prompts, sizeof *r.searches);
  r.steps = calloc(texts * tokens, sizeof *r.steps);
  r.ends = calloc(texts, sizeof *r.ends);
  r.counts = calloc(texts, sizeof *r.counts);
  r.parents = calloc(texts, sizeof *r.parents);
  r.step = calloc(texts, LLM_CHUNK * sizeof *r.step);
  r.list = calloc((size_t)r.most, sizeof *r.list);
  bool right = r.searches && r.steps && r.ends && r.counts && r.parents && r.step && r.list;
  if (!right) llm_fail("out of memory: %zu texts of %zu new tokens", texts, tokens);
  for (size_t p = 0; right && p < prompts; p++)
    r.searches[p] = (search){.state = task->seed + p,
                             .live = 1,
                             .steps = r.steps + p * tokens * (size_t)beams,
                             .ends = r.ends + p * (size_t)beams};
  right = right && run_steps(&r);
  free(r.searches), free(r.steps), free(r.ends), free(r.counts), free(r.parents), free(r.step), free(r.list);
  return right;
}
