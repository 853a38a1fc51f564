/* SPDX-License-Identifier: MIT */
#define _POSIX_C_SOURCE 200809L
#include "generate.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A text's next token, and the log of the probability that both have. */
typedef struct candidate {
  double score;
  int beam;
  int32_t token;
} candidate;

/* The texts of a prompt: at most `beams`, of which `live` run on. */
typedef struct search {
  uint64_t state;     /* the draws are here */
  int live, ended;    /* live: 1 until the prompt has been read; 0 at the end */
  candidate *running; /* [beams], `live` of them */
  candidate *ends;    /* [beams], `ended` of them, by their scores per token */
  llm_text best;      /* the first of these */
} search;

typedef struct run {
  llm_model *model;
  llm_task *task;
  int64_t batch, room;              /* texts, and tokens that each has room for */
  search *searches;                 /* [prompts] */
  llm_text *texts;                  /* [batch] */
  int32_t *counts, *parents, *step; /* [batch], [batch], tokens of the step */
  int32_t *copies;                  /* [beams][room] */
  int most;                         /* candidates of a step: enough that `beams` texts can run on if all others stop */
  candidate *list;                  /* [most] */
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

/* Inserts into a descending list of at most `most`; of equal scores the earlier one stays in front. Returns the count. */
static int insert(candidate *list, int count, int most, candidate added) {
  if (count == most && !(added.score > list[count - 1].score)) return count;
  int at = count < most ? count++ : count - 1;
  for (; at > 0 && added.score > list[at - 1].score; at--) list[at] = list[at - 1];
  list[at] = added;
  return count;
}

/* -1, after a message, if no logit is finite or one is NaN. */
static int best_candidates(const run *r, const search *s, const float *logits) {
  const int64_t vocabulary = r->model->config.vocabulary;
  int count = 0;
  for (int beam = 0; beam < s->live; beam++, logits += vocabulary) {
    double largest = -INFINITY, sum = 0;
    for (int64_t t = 0; t < vocabulary; t++) largest = fmax(largest, (double)logits[t]);
    for (int64_t t = 0; t < vocabulary; t++) sum += exp((double)logits[t] - largest);
    if (!isfinite(sum)) return llm_fail("the logits of a text are not finite"), -1;
    const double base = s->running[beam].score - largest - log(sum);
    for (int64_t t = 0; t < vocabulary; t++)
      count = insert(r->list, count, r->most, (candidate){base + (double)logits[t], beam, (int32_t)t});
  }
  return count;
}

/* A text has ended: it counts by its score per token. */
static void finish(const run *r, search *s, const llm_text *text, candidate last) {
  const double best = s->ended ? s->ends[0].score : -INFINITY;
  last.score /= (double)(text->count + 1 - text->prompt);
  s->ended = insert(s->ends, s->ended, (int)r->task->beams, last);
  if (s->ended > 1 && !(last.score > best)) return;
  copy_text(text, &s->best);
  s->best.tokens[s->best.count++] = last.token;
}

/* Each running text becomes the one that its candidate is about, with its token. All of them are as long. */
static void move_texts(run *r, const search *s, int64_t first) {
  llm_text *texts = r->texts + first;
  const int64_t count = texts[0].count;
  for (int i = 0; i < s->live; i++) {
    int32_t *copy = r->copies + i * r->room;
    memcpy(copy, texts[s->running[i].beam].tokens, (size_t)count * sizeof *copy);
    copy[count] = s->running[i].token;
    r->parents[first + i] = (int32_t)first + s->running[i].beam;
  }
  for (int i = s->live; i-- > 0;) {
    const llm_text moved = {
        .tokens = r->copies + i * r->room, .count = count + 1, .prompt = texts[0].prompt, .fed = texts[0].fed};
    copy_text(&moved, &texts[i]);
  }
}

/* Beam search as in transformers with early_stopping=False and length_penalty=1: a text that stops is a result only among
 * the first `beams` candidates; the search ends when no running text has more than the worst result. */
static bool advance_beams(run *r, int64_t prompt, const float *logits) {
  const int beams = (int)r->task->beams, count = best_candidates(r, &r->searches[prompt], logits);
  if (count < 0) return false;
  search *s = &r->searches[prompt];
  const llm_text *texts = r->texts + prompt * beams;
  const int64_t length = texts[0].count + 1 - texts[0].prompt;
  s->live = 0;
  for (int i = 0; i < count; i++) {
    if (length == r->task->tokens || stops(&r->model->config, r->list[i].token)) {
      if (i < beams) finish(r, s, &texts[r->list[i].beam], r->list[i]);
    } else if (s->live < beams) {
      s->running[s->live++] = r->list[i];
    }
  }
  move_texts(r, s, prompt * beams);
  if (s->ended == beams && s->running[0].score / (double)length <= s->ends[beams - 1].score) s->live = 0;
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
    if (t->progress)
      fprintf(stderr, "\r%lld tokens read, %lld made, %.1f/s ", (long long)t->prompt_tokens, (long long)t->new_tokens,
              t->new_tokens ? (double)t->new_tokens / t->new_seconds : 0.0);
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
  enough &= (r->list = malloc((size_t)r->most * sizeof *r->list)) != NULL;
  r->parents = r->counts + r->batch;
  for (int64_t b = 0; enough && b < r->batch; b++) enough = (r->texts[b].tokens = malloc(tokens)) != NULL;
  for (int64_t p = 0; enough && p < t->prompts; p++) {
    search *s = &r->searches[p];
    enough = (s->running = calloc((size_t)t->beams, 2 * sizeof *s->running)) != NULL;
    s->ends = s->running + t->beams;
    s->live = 1;
    s->state = t->seed + (uint64_t)p;
    s->best = t->texts[p];
    copy_text(&t->texts[p], &r->texts[p * t->beams]);
  }
  return enough || llm_fail("out of memory: %lld texts of %lld tokens", (long long)r->batch, (long long)r->room);
}

bool llm_generate(llm_model *model, llm_task *task) {
  const int stops = model->config.stops ? model->config.stops : 1;
  run r = {.model = model, .task = task, .batch = task->prompts * task->beams, .most = (int)task->beams * (1 + stops)};
  for (int64_t p = 0; p < task->prompts; p++)
    if (task->texts[p].count + task->tokens > r.room) r.room = task->texts[p].count + task->tokens;
  const bool right = allocate(&r) && run_steps(&r);
  for (int64_t p = 0; r.searches && p < task->prompts; p++) {
    if (right) task->texts[p] = r.searches[p].best;
    free(r.searches[p].running);
  }
  for (int64_t b = 0; r.texts && b < r.batch; b++) free(r.texts[b].tokens);
  free(r.searches), free(r.texts), free(r.counts), free(r.step), free(r.copies), free(r.list);
  return right;
}
