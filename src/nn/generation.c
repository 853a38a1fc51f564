/* SPDX-License-Identifier: MIT */
/* The texts that follow a prompt (include/attn/nn.h). Each step keeps of a running text its token and the place of the text
 * before it. So a text is read backwards from its last token. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/aligned.h"
#include "src/api/float_mode.h"
#include "src/nn/check.h"

static const attn_struct_layout config_layout = ATTN_LAYOUT(attn_generation_config, beams);

/* A text of the step before with one more token. */
typedef struct candidate {
  double score; /* log of the probability of its tokens */
  int32_t beam, token;
} candidate;

struct attn_generation {
  attn_generation_config config; /* stop_tokens is a copy of its own */
  attn_sampling sampling;
  uint64_t state;         /* the draws are here */
  int64_t made;           /* tokens of a running text */
  int64_t running, ended; /* texts */
  int64_t most;           /* candidates of a step: enough that `beams` texts can run on if all others end */
  candidate *list;        /* [most], the best first */
  candidate *steps;       /* [most_tokens][beams]: the running texts after each step */
  candidate *ends;        /* [beams]: texts that ended, the best first by their scores per token */
  int64_t best_made;      /* tokens of the best text that ended */
};

/* ---- Creating ---- */

static attn_status check_config(const attn_generation_config *c) {
  const attn_nn_size sizes[] = {{"attn_generation_config.most_tokens", c->most_tokens, 1},
                                {"attn_generation_config.beams", c->beams, 1},
                                {"attn_generation_config.stop_count", c->stop_count, 0}};
  const attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE(c->vocabulary >= 1 && c->vocabulary <= INT32_MAX,
          "attn_generation_config.vocabulary is %" PRId64 "; it must lie in 1..2^31 - 1", c->vocabulary);
  REQUIRE(c->stop_tokens || c->stop_count == 0,
          "attn_generation_config.stop_tokens is NULL with stop_count %" PRId64 "; it must point to as many tokens",
          c->stop_count);
  REQUIRE(!c->sampling || c->beams == 1,
          "attn_generation_config.sampling is given with beams %" PRId64 "; beam search does not draw, so it must be NULL",
          c->beams);
  REQUIRE(c->first_sequence >= 0 && c->first_sequence <= INT32_MAX - c->beams,
          "attn_generation_config.first_sequence is %" PRId64 "; it must be at least 0, and with beams below 2^31",
          c->first_sequence);
  return ATTN_OK;
}

/* Copies how tokens are drawn, and tries it on one logit. */
static attn_status read_sampling(const attn_sampling *theirs, attn_sampling *ours) {
  uint64_t state = 0;
  int32_t token;
  *ours = ATTN_STRUCT(attn_sampling, .temperature = 0);
  if (!theirs) return ATTN_OK;
  const attn_status status = attn_nn_read(&attn_nn_sampling_layout, "sampling", theirs, ours);
  return status == ATTN_OK ? attn_sample_token(ours, 1, &(float){0}, &state, NULL, &token) : status;
}

/* The generation's arrays, in one piece of memory. */
static bool allocate(attn_generation *g) {
  const attn_generation_config *c = &g->config;
  const size_t candidates = (size_t)(g->most + c->beams * c->most_tokens + c->beams);
  const size_t stops = (size_t)c->stop_count * sizeof *c->stop_tokens;
  g->list = attn_nn_allocate("attn_generation", candidates * sizeof *g->list + stops);
  if (!g->list) return false;
  g->steps = g->list + g->most;
  g->ends = g->steps + c->beams * c->most_tokens;
  int32_t *copy = (int32_t *)(void *)(g->ends + c->beams);
  if (stops) memcpy(copy, c->stop_tokens, stops);
  g->config.stop_tokens = copy;
  return true;
}

attn_status attn_generation_create(const attn_generation_config *config, attn_generation **generation) {
  REQUIRE(generation, "generation is NULL; it must point to where the generation's address goes");
  *generation = NULL;
  attn_generation_config c;
  attn_sampling sampling;
  attn_status status = attn_nn_read(&config_layout, "config", config, &c);
  if (status != ATTN_OK) return status;
  if (c.beams == 0) c.beams = 1;
  status = check_config(&c);
  if (status == ATTN_OK) status = read_sampling(c.sampling, &sampling);
  if (status != ATTN_OK) return status;
  attn_generation *g = attn_nn_new("attn_generation", sizeof *g);
  if (!g) return ATTN_OUT_OF_MEMORY;
  g->config = c, g->sampling = sampling, g->state = c.seed, g->running = 1;
  g->most = c.beams == 1 ? 1 : c.beams * (1 + (c.stop_count ? c.stop_count : 1));
  if (!allocate(g)) return free(g), ATTN_OUT_OF_MEMORY;
  *generation = g;
  return ATTN_OK;
}

void attn_generation_destroy(attn_generation *g) {
  if (!g) return;
  attn_aligned_free(g->list);
  free(g);
}

/* ---- The next tokens ---- */

/* The running texts after the last step. */
static candidate *last_step(const attn_generation *g) { return g->steps + (g->made - 1) * g->config.beams; }

/* Inserts into a descending list of at most `most`; of equal scores the earlier one stays in front. Returns the count. */
static int64_t insert(candidate *list, int64_t count, int64_t most, candidate added) {
  if (count == most && !(added.score > list[count - 1].score)) return count;
  int64_t at = count < most ? count++ : count - 1;
  for (; at > 0 && added.score > list[at - 1].score; at--) list[at] = list[at - 1];
  list[at] = added;
  return count;
}

/* Adds the continuations of a running text to `count` candidates. `largest` is the place of its largest logit. */
static int64_t add_candidates(attn_generation *g, int64_t count, int64_t text, const float *logits, int32_t largest) {
  const int64_t vocabulary = g->config.vocabulary;
  double sum = 0;
  for (int64_t t = 0; t < vocabulary; t++) sum += (double)expf(logits[t] - logits[largest]);
  const double base = (g->made ? last_step(g)[text].score : 0) - (double)logits[largest] - log(sum);
  for (int64_t t = 0; t < vocabulary; t++)
    if (logits[t] > -INFINITY)
      count = insert(g->list, count, g->most, (candidate){base + (double)logits[t], (int32_t)text, (int32_t)t});
  return count;
}

/* Fills the list with the best continuations of the running texts, or of one beam with the token that is drawn. */
static attn_status find_candidates(attn_generation *g, const float *logits, int64_t *count) {
  const int64_t vocabulary = g->config.vocabulary;
  const attn_sampling greedy = ATTN_STRUCT(attn_sampling, .temperature = 0);
  int32_t token;
  *count = 0;
  if (g->config.beams == 1) {
    const attn_status status = attn_sample_token(&g->sampling, vocabulary, logits, &g->state, NULL, &token);
    if (status == ATTN_OK) g->list[(*count)++] = (candidate){.token = token};
    return status;
  }
  for (int64_t i = 0; i < g->running; i++, logits += vocabulary) {
    const attn_status status = attn_sample_token(&greedy, vocabulary, logits, NULL, NULL, &token);
    if (status != ATTN_OK) return status;
    *count = add_candidates(g, *count, i, logits, token);
  }
  return ATTN_OK;
}

static bool ends(const attn_generation *g, int32_t token) {
  for (int64_t i = 0; i < g->config.stop_count; i++)
    if (g->config.stop_tokens[i] == token) return true;
  return g->made + 1 == g->config.most_tokens;
}

/* A text ends with this candidate, which counts by its score per token from here on. */
static void end_text(attn_generation *g, candidate last) {
  last.score /= (double)(g->made + 1);
  if (g->ended == 0 || last.score > g->ends[0].score) g->best_made = g->made + 1;
  g->ended = insert(g->ends, g->ended, g->config.beams, last);
}

/* The candidates that end leave the search, and the best others run on, unless none of them has more than the worst end. */
static void choose(attn_generation *g, int64_t count) {
  const int64_t beams = g->config.beams;
  candidate *next = g->steps + g->made * beams;
  g->running = 0;
  for (int64_t i = 0; i < count && g->running < beams; i++) {
    if (!ends(g, g->list[i].token))
      next[g->running++] = g->list[i];
    else if (i < beams)
      end_text(g, g->list[i]);
  }
  g->made++;
  if (g->ended == beams && g->running && next->score / (double)g->made <= g->ends[beams - 1].score) g->running = 0;
}

attn_status attn_generation_advance(attn_generation *g, const float *logits, int32_t *tokens, int32_t *parents) {
  const attn_nn_pointer pointers[] = {{"generation", g}, {"logits", logits}, {"tokens", tokens}, {"parents", parents}};
  attn_status status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(g->running, "generation has ended after %" PRId64 " tokens; attn_generation_running must be above 0", g->made);
  int64_t count;
  const uint64_t mode = attn_float_mode_enter(); /* a caller may take denormals for 0 */
  status = find_candidates(g, logits, &count);
  if (status == ATTN_OK) choose(g, count);
  attn_float_mode_leave(mode);
  for (int64_t i = 0; status == ATTN_OK && i < g->config.beams; i++) {
    const bool runs = i < g->running;
    tokens[i] = runs ? last_step(g)[i].token : -1;
    parents[i] = runs ? (int32_t)(g->config.first_sequence + last_step(g)[i].beam) : -1;
  }
  return status;
}

/* ---- Results ---- */

int64_t attn_generation_running(const attn_generation *g) { return g ? g->running : 0; }

int64_t attn_generation_text(const attn_generation *g, int32_t *tokens) {
  if (!g || g->made == 0) return 0;
  candidate last = g->ended ? g->ends[0] : *last_step(g);
  const int64_t made = g->ended ? g->best_made : g->made;
  for (int64_t i = made; tokens && i-- > 0;) {
    tokens[i] = last.token;
    if (i > 0) last = g->steps[(i - 1) * g->config.beams + last.beam];
  }
  return made;
}
