/* SPDX-License-Identifier: MIT */
/* A server's loop: requests arrive at random, share a system prompt, and leave when they are done; each round one call
 * serves whatever is there, prompts and single tokens side by side (continuous batching; Yu et al. 2022, Orca).
 *
 * The "model" is two attention layers whose queries, keys and values are noise made from the token and its position, so what
 * is shown is the cache: pages from a pool, a prompt kept once for all, requests that wait while pages are short, and begin
 * anew where all wait. Every
 * request's output is compared with dense attention over its whole text, which must give the same bits.
 *
 *     server [pages [seed]]        default: 40 1 */
#include <attn/nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { REQUESTS = 8, LAYERS = 2, HEADS_Q = 8, HEADS_KV = 2, DIM = 64, PAGE = 16, PREFIX = 50, LONGEST = 200, CHUNK = 24 };
enum { SYSTEM = REQUESTS, SEQUENCES = REQUESTS + 1 }; /* the system prompt is a sequence of its own */

static unsigned state;
static int pick(int below) { return (int)((state = state * 1664525u + 1013904223u) >> 8) % below; }

static void must(attn_status status) {
  if (status == ATTN_OK) return;
  fprintf(stderr, "%s: %s\n", attn_status_name(status), attn_last_error());
  exit(1);
}

/* A row of the model: of a token in its text, for one layer, one of q, k, v, and one head. */
static void fill_row(int text, int position, int layer, int kind, int head, float *row) {
  unsigned noise = (unsigned)(((((text * 1009 + position) * 7 + layer) * 5 + kind) * 11 + head) * 2 + 1);
  for (int d = 0; d < DIM; d++) row[d] = (float)((noise = noise * 1664525u + 1013904223u) >> 8) / 0x1p23f - 1;
}

/* The text that a request's position belongs to: the prefix is everyone's. */
static int text_of(int sequence, int position) { return position < PREFIX ? SYSTEM : sequence; }

/* `count` tokens of a sequence from `first` on: [token][heads][dim]. */
static void fill(int sequence, int first, int count, int layer, int kind, int heads, float *rows) {
  for (int t = 0; t < count; t++)
    for (int h = 0; h < heads; h++)
      fill_row(text_of(sequence, first + t), first + t, layer, kind, h, rows + (t * heads + h) * DIM);
}

typedef struct request {
  int arrives, prompt, total; /* round; tokens of the prompt, and of prompt and answer */
  float *o[LAYERS];           /* [total][HEADS_Q][DIM] */
} request;

/* Compares what a request got with one dense call over its text. */
static int is_right(const request *r, int sequence, const attn_rope *rope, const char *kernel) {
  const size_t rows = (size_t)r->total * DIM * sizeof(float);
  float *q = malloc(HEADS_Q * rows), *k = malloc(HEADS_KV * rows), *v = malloc(HEADS_KV * rows), *o = malloc(HEADS_Q * rows);
  int right = 1;
  for (int layer = 0; layer < LAYERS; layer++) {
    fill(sequence, 0, r->total, layer, 0, HEADS_Q, q);
    fill(sequence, 0, r->total, layer, 1, HEADS_KV, k);
    fill(sequence, 0, r->total, layer, 2, HEADS_KV, v);
    const attn_strides of_q = {0, DIM, HEADS_Q * DIM, 1}, of_k = {0, DIM, HEADS_KV * DIM, 1};
    attn_rope_args turn = ATTN_STRUCT(attn_rope_args, .batch = 1, .tokens = r->total, .heads = HEADS_Q, .dim = DIM, .x = q,
                                      .out = q, .x_stride = of_q, .out_stride = of_q);
    must(attn_rope_run(rope, &turn, NULL));
    turn.heads = HEADS_KV, turn.x = turn.out = k, turn.x_stride = turn.out_stride = of_k;
    must(attn_rope_run(rope, &turn, NULL));
    attn_problem p;
    attn_problem_init(&p, 1, HEADS_Q, HEADS_KV, r->total, r->total, DIM, DIM);
    attn_problem_set_bshd(&p);
    attn_problem_set_causal(&p, ATTN_ALIGN_TOP_LEFT);
    attn_plan *plan;
    must(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = kernel), &plan));
    const size_t bytes = attn_plan_workspace(plan);
    void *workspace = aligned_alloc(64, bytes + 64);
    must(attn_plan_run(plan, &ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o), workspace, bytes));
    right = right && !memcmp(o + PREFIX * HEADS_Q * DIM, r->o[layer] + PREFIX * HEADS_Q * DIM,
                             (size_t)(r->total - PREFIX) * HEADS_Q * DIM * sizeof(float));
    attn_plan_destroy(plan), free(workspace);
  }
  free(q), free(k), free(v), free(o);
  return right;
}

/* One round: the new tokens of all sequences, packed, through all layers. */
static void run_round(attn_kv_cache *cache, request *requests, const int32_t *counts) {
  static float q[SEQUENCES * PREFIX * HEADS_Q * DIM], o[SEQUENCES * PREFIX * HEADS_Q * DIM];
  static float k[SEQUENCES * PREFIX * HEADS_KV * DIM], v[SEQUENCES * PREFIX * HEADS_KV * DIM];
  const int32_t *lengths = attn_kv_cache_lengths(cache);
  for (int layer = 0; layer < LAYERS; layer++) {
    int at = 0;
    for (int b = 0; b < SEQUENCES; at += counts[b++]) {
      const int first = lengths[b] - counts[b];
      fill(b, first, counts[b], layer, 0, HEADS_Q, q + at * HEADS_Q * DIM);
      fill(b, first, counts[b], layer, 1, HEADS_KV, k + at * HEADS_KV * DIM);
      fill(b, first, counts[b], layer, 2, HEADS_KV, v + at * HEADS_KV * DIM);
    }
    must(attn_kv_cache_attend(cache, &ATTN_STRUCT(attn_kv_cache_args, .layer = layer, .q = q, .k = k, .v = v, .o = o)));
    at = 0;
    for (int b = 0; b < SEQUENCES; at += counts[b++])
      if (b != SYSTEM)
        memcpy(requests[b].o[layer] + (lengths[b] - counts[b]) * HEADS_Q * DIM, o + at * HEADS_Q * DIM,
               (size_t)counts[b] * HEADS_Q * DIM * sizeof *o);
  }
}

static void start_requests(request *requests) {
  for (int b = 0; b < REQUESTS; b++) {
    request *r = &requests[b];
    r->arrives = 1 + pick(30);
    r->prompt = PREFIX + 1 + pick(60);
    r->total = r->prompt + 1 + pick(LONGEST - r->prompt);
    for (int layer = 0; layer < LAYERS; layer++) r->o[layer] = malloc((size_t)(r->total * HEADS_Q * DIM) * sizeof(float));
  }
}

int main(int count, char **words) {
  const int pages = count > 1 ? atoi(words[1]) : 40;
  const char *kernel = "flash_portable"; /* one kernel for chunks, single tokens and the check: the same bits */
  request requests[REQUESTS];
  state = count > 2 ? (unsigned)atoi(words[2]) : 1;
  start_requests(requests);
  attn_rope *rope;
  must(attn_rope_create(&ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = DIM, .base = 10000), &rope));
  const attn_kv_cache_shape shape =
      ATTN_STRUCT(attn_kv_cache_shape, .batch = SEQUENCES, .heads_q = HEADS_Q, .heads_kv = HEADS_KV, .dim_qk = DIM,
                  .dim_v = DIM, .capacity = LONGEST, .layers = LAYERS, .page_tokens = PAGE, .pages = pages, .rope = rope);
  attn_kv_cache *cache;
  must(attn_kv_cache_create(&shape, &ATTN_STRUCT(attn_options, .kernel = kernel), &cache));
  const int32_t *lengths = attn_kv_cache_lengths(cache), prefix[SEQUENCES] = {[SYSTEM] = PREFIX};
  must(attn_kv_cache_begin(cache, prefix)); /* the system prompt, once */
  run_round(cache, requests, prefix);

  int done[REQUESTS] = {0}, left = REQUESTS, wrong = 0, waits = 0, round = 0;
  for (; left > 0; round++) {
    int32_t counts[SEQUENCES] = {0};
    int running = 0;
    for (int b = 0; b < REQUESTS; b++) {
      const request *r = &requests[b];
      if (done[b] || round < r->arrives) continue;
      if (lengths[b] == 0) must(attn_kv_cache_fork(cache, SYSTEM, b, PREFIX)); /* it joins */
      counts[b] = lengths[b] >= r->prompt ? 1 : r->prompt - lengths[b] < CHUNK ? r->prompt - lengths[b] : CHUNK;
      running++;
    }
    attn_status status = attn_kv_cache_begin(cache, counts);
    for (int b = REQUESTS - 1; status == ATTN_OUT_OF_MEMORY && running > 1 && b >= 0; b--) { /* the last ones wait */
      if (counts[b] == 0) continue;
      counts[b] = 0, running--, waits++;
      status = attn_kv_cache_begin(cache, counts);
    }
    if (status == ATTN_OUT_OF_MEMORY) { /* all wait for each other: the last one gives its pages back, and begins anew */
      int last = REQUESTS - 1;
      while (last >= 0 && lengths[last] <= PREFIX) last--; /* it has no page of its own */
      if (last < 0 || counts[last] > 0) return printf("%d pages are too few\n", pages), 1;
      must(attn_kv_cache_truncate_sequence(cache, last, 0));
      continue;
    }
    must(status);
    run_round(cache, requests, counts);
    for (int b = 0; b < REQUESTS; b++) {
      if (done[b] || lengths[b] < requests[b].total) continue;
      must(attn_kv_cache_truncate_sequence(cache, b, 0)); /* it leaves */
      const int right = is_right(&requests[b], b, rope, kernel);
      printf("round %3d: request %d done, %3d tokens of prompt, %3d of answer: %s; %lld of %d pages free\n", round, b,
             requests[b].prompt, requests[b].total - requests[b].prompt, right ? "right" : "WRONG",
             (long long)attn_kv_pool_free_pages(attn_kv_cache_pool(cache)), pages);
      wrong += !right, done[b] = 1, left--;
    }
  }
  printf("%d requests in %d rounds; requests waited %d times for pages\n", REQUESTS, round, waits);
  for (int b = 0; b < REQUESTS; b++)
    for (int layer = 0; layer < LAYERS; layer++) free(requests[b].o[layer]);
  attn_kv_cache_destroy(cache), attn_rope_destroy(rope);
  return wrong == 0 ? 0 : 1;
}
