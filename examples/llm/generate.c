/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* The texts of a prompt: at most `beams`, of which `live` run on. */
typedef struct search {
  int live;                /* 1 until the prompt has been read; 0 at the end */
  double *scores;          /* [beams]: log of the probability of each text */
  uint64_t state;          /* the draws are here */
  int finished;            /* texts that ended, at most `beams`: */
  double *finished_scores; /* [beams], descending, per token */
  llm_text best;           /* the one of the largest */
} search;

typedef struct run {
  llm_model *model;
  llm_task *task;
  int64_t batch, room;              /* texts, and tokens that each has room for */
  search *searches;                 /* [prompts] */
  llm_text *texts;                  /* [batch] */
  int32_t *counts, *parents, *step; /* [batch], [batch], tokens of the step */
  int32_t *copies;                  /* [beams][room] */
} run;

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static bool stops(const llm_config *c, int32_t token) {
  for (int i = 0; i < c->stops; i++)
    if (c->stop[i] == token) return true;
  return false;
}

static void copy_text(const llm_text *from, llm_text *to) {
  memcpy(to->tokens, from->tokens, (size_t)from->count * sizeof *to->tokens);
  to->count = from->count, to->prompt = from->prompt, to->fed = from->fed;
}

/* ---- One text: greedily or by sampling ---- */

static bool advance_text(run *r, search *s, llm_text *text, const float *logits) {
  const attn_status status = attn_sample_token(&r->task->sampling, r->model->config.vocabulary, logits, &s->state, NULL,
                                               &text->tokens[text->count]);
  if (status != ATTN_OK) return llm_fail(NULL);
  text->count++;
  if (stops(&r->model->config, text->tokens[text->count - 1]) || text->count - text->prompt == r->task->tokens) {
    s->live = 0;
    copy_text(text, &s->best);
  }
  return true;
}

/* ---- Beams ---- */

/* A text's next token, and the log of the probability that both have. */
typedef struct candidate {
  double score;
  int beam;
  int32_t token;
} candidate;

/* Inserts into a descending list of at most `most`; of equal scores the earlier one stays in front. Returns the count. */
static int insert(candidate *list, int count, int most, candidate added) {
  if (count == most && !(added.score > list[count - 1].score)) return count;
  int at = count < most ? count++ : count - 1;
  for (; at > 0 && added.score > list[at - 1].score; at--) list[at] = list[at - 1];
  list[at] = added;
  return count;
}

static int best_candidates(const run *r, const search *s, const float *logits, int most, candidate *list) {
  const int64_t vocabulary = r->model->config.vocabulary;
  int count = 0;
  for (int beam = 0; beam < s->live; beam++, logits += vocabulary) {
    double largest = -INFINITY, sum = 0;
    for (int64_t t = 0; t < vocabulary; t++) largest = fmax(largest, (double)logits[t]);
    for (int64_t t = 0; t < vocabulary; t++) sum += exp((double)logits[t] - largest);
    const double base = s->scores[beam] - largest - log(sum);
    for (int64_t t = 0; t < vocabulary; t++)
      count = insert(list, count, most, (candidate){base + (double)logits[t], beam, (int32_t)t});
  }
  return count;
}

/* A text has ended: it counts by its score per token. */
static void finish(const run *r, search *s, const llm_text *text, candidate last) {
  const int most = (int)r->task->beams;
  const double score = last.score / (double)(text->count + 1 - text->prompt);
  if (s->finished == most && score <= s->finished_scores[most - 1]) return;
  int at = s->finished < most ? s->finished++ : most - 1;
  for (; at > 0 && score > s->finished_scores[at - 1]; at--) s->finished_scores[at] = s->finished_scores[at - 1];
  s->finished_scores[at] = score;
  if (at > 0) return;
  copy_text(text, &s->best);
  s->best.tokens[s->best.count++] = last.token;
}

/* Beam search as in transformers with early_stopping=False and length_penalty=1: enough candidates that `beams` texts can
 * run on if all others stop; one that stops is a result only among the first `beams`; the search ends when no running text
 * has more than the worst result. */
static bool advance_beams(run *r, int64_t prompt, const float *logits) {
  const int beams = (int)r->task->beams, most = beams * (1 + (r->model->config.stops ? r->model->config.stops : 1));
  search *s = &r->searches[prompt];
  llm_text *texts = r->texts + prompt * beams;
  candidate *list = malloc((size_t)most * sizeof *list);
  if (!list) return llm_fail("out of memory");
  const int count = best_candidates(r, s, logits, most, list);
  const bool last = texts[0].count + 1 - texts[0].prompt == r->task->tokens;
  int running = 0;
  for (int i = 0; i < count; i++) {
    const llm_text *from = &texts[list[i].beam];
    if (last || stops(&r->model->config, list[i].token)) {
      if (i < beams) finish(r, s, from, list[i]);
    } else if (running < beams) {
      list[running++] = list[i];
    }
  }
  const llm_text before = texts[0]; /* all of them are as long */
  for (int i = 0; i < running; i++) {
    int32_t *copy = r->copies + i * r->room;
    memcpy(copy, texts[list[i].beam].tokens, (size_t)before.count * sizeof *copy);
    copy[before.count] = list[i].token;
    r->parents[prompt * beams + i] = (int32_t)(prompt * beams + list[i].beam);
    s->scores[i] = list[i].score;
  }
  for (int i = 0; i < running; i++) {
    memcpy(texts[i].tokens, r->copies + i * r->room, (size_t)(before.count + 1) * sizeof(int32_t));
    texts[i].count = before.count + 1, texts[i].fed = before.fed, texts[i].prompt = before.prompt;
  }
  const double length = (double)(texts[0].count - texts[0].prompt);
  s->live = running;
  if (last || (s->finished == beams && list[0].score / length <= s->finished_scores[beams - 1])) s->live = 0;
  free(list);
  return true;
}

/* ---- Steps ---- */

/* The next tokens of every running text. Returns their number; *reads: whether some are a prompt's. */
static int64_t gather(run *r, bool *reads) {
  int64_t rows = 0;
  *reads = false;
  for (int64_t b = 0; b < r->batch; b++) {
    llm_text *text = &r->texts[b];
    const bool live = b % r->task->beams < r->searches[b / r->task->beams].live;
    const int64_t left = live ? text->count - text->fed : 0, count = left < LLM_CHUNK ? left : LLM_CHUNK;
    r->counts[b] = (int32_t)count;
    if (count == 0) continue;
    memcpy(r->step + rows, text->tokens + text->fed, (size_t)count * sizeof *r->step);
    *reads |= text->fed < text->prompt;
    if (text->fed < text->prompt) r->task->prompt_tokens += count;
    text->fed += count;
    rows += count;
  }
  return rows;
}

/* Every text whose tokens have all been read gets its next one. */
static bool advance(run *r, int64_t *made) {
  const float *logits = r->model->logits;
  bool moved = r->task->beams > 1;
  for (int64_t b = 0; b < r->batch; b++) r->parents[b] = (int32_t)b;
  for (int64_t p = 0; p < r->task->prompts; p++) {
    search *s = &r->searches[p];
    llm_text *text = &r->texts[p * r->task->beams];
    const int live = s->live;
    if (live && text->fed == text->count) {
      if (!(r->task->beams > 1 ? advance_beams(r, p, logits) : advance_text(r, s, text, logits))) return false;
      ++*made;
    }
    moved |= live && !s->live;
    logits += live * r->model->config.vocabulary;
    for (int64_t b = p * r->task->beams + s->live; b < (p + 1) * r->task->beams; b++) r->parents[b] = -1;
  }
  return !moved || llm_model_reorder(r->model, r->parents);
}

static bool run_steps(run *r) {
  llm_task *t = r->task;
  bool reads;
  for (int64_t rows; (rows = gather(r, &reads)) > 0;) {
    const double begin = seconds();
    int64_t made = 0;
    if (!llm_model_step(r->model, r->counts, r->step) || !advance(r, &made)) return false;
    *(reads ? &t->prompt_seconds : &t->new_seconds) += seconds() - begin;
    if (!reads) t->new_tokens += made;
    if (t->progress) {
      fprintf(stderr, "\r%lld tokens read, %lld made, %.1f/s ", (long long)t->prompt_tokens, (long long)t->new_tokens,
              t->new_tokens ? (double)t->new_tokens / t->new_seconds : 0.0);
    }
  }
  if (t->progress) fputc('\n', stderr);
  return true;
}

static bool allocate(run *r) {
  llm_task *t = r->task;
  const size_t tokens = (size_t)r->room * sizeof(int32_t);
  bool enough = (r->searches = calloc((size_t)t->prompts, sizeof *r->searches)) != NULL;
  enough &= (r->texts = calloc((size_t)r->batch, sizeof *r->texts)) != NULL;
  enough &= (r->counts = calloc((size_t)r->batch, 2 * sizeof *r->counts)) != NULL;
  enough &= (r->step = malloc((size_t)r->batch * LLM_CHUNK * sizeof *r->step)) != NULL;
  enough &= (r->copies = malloc((size_t)t->beams * tokens)) != NULL;
  r->parents = r->counts + r->batch;
  for (int64_t b = 0; enough && b < r->batch; b++) enough = (r->texts[b].tokens = malloc(tokens)) != NULL;
  for (int64_t p = 0; enough && p < t->prompts; p++) {
    search *s = &r->searches[p];
    enough &= (s->scores = calloc((size_t)t->beams, 2 * sizeof *s->scores)) != NULL;
    s->finished_scores = s->scores + t->beams;
    s->live = 1;
    s->state = t->seed + (uint64_t)p;
    s->best = t->texts[p];
    copy_text(&t->texts[p], &r->texts[p * t->beams]);
  }
  return enough || llm_fail("out of memory: %lld texts of %lld tokens", (long long)r->batch, (long long)r->room);
}

bool llm_generate(llm_model *model, llm_task *task) {
  run r = {.model = model, .task = task, .batch = task->prompts * task->beams};
  for (int64_t p = 0; p < task->prompts; p++)
    if (task->texts[p].count + task->tokens > r.room) r.room = task->texts[p].count + task->tokens;
  const bool right = allocate(&r) && run_steps(&r);
  for (int64_t p = 0; r.searches && p < task->prompts; p++) {
    if (right) task->texts[p] = r.searches[p].best;
    free(r.searches[p].scores);
  }
  for (int64_t b = 0; r.texts && b < r.batch; b++) free(r.texts[b].tokens);
  free(r.searches), free(r.texts), free(r.counts), free(r.step), free(r.copies);
  return right;
}
