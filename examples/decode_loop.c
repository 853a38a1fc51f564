/* SPDX-License-Identifier: MIT */
/* Generation with a KV cache, timed with every kernel. Each step appends one token, attends to all tokens so far, and
 * yields the next one.
 *
 * The model is one attention layer made by hand, an induction head (Elhage et al. 2021,
 * https://transformer-circuits.pub/2021/framework/), so that the right answer is known. Every token has a code of +1 and
 * -1. The key of a position is the code of the token *before* it, and its value is its own code. The query is the code of
 * the present token. So attention finds the places where the present token stood before, and returns what followed there:
 * given a melody once, the layer repeats it for ever. Every kernel must give the same notes.
 *
 *     decode_loop [prompt [generated]]        default: 1024 256 */
#define _POSIX_C_SOURCE 200809L
#include <attn/nn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { NOTES = 256, HEADS_Q = 8, HEADS_KV = 2, DIM = 64, CODE = HEADS_KV * DIM };

/* Code of each note, one part per KV head; the extra one stands before the first note. */
static float codes[NOTES + 1][CODE];

static void make_codes(void) {
  unsigned state = 1;
  for (int note = 0; note <= NOTES; note++)
    for (int i = 0; i < CODE; i++) {
      state = state * 1664525u + 1013904223u;
      codes[note][i] = state >> 31 ? 1.0f : -1.0f;
    }
}

/* A melody of `period` different notes, repeated. No note occurs twice in a period, so each note determines the next. */
static int note_at(int64_t position, int64_t period) { return (int)(position % period * 37 % NOTES); }

/* q, k and v of `tokens` tokens as the cache wants them: [heads][tokens][dim]. The query heads of a group have the same
 * query, with a larger factor from head to head. */
static void fill_step(const int *notes, int before, int64_t tokens, float *q, float *k, float *v) {
  for (int64_t t = 0; t < tokens; t++) {
    const float *own = codes[notes[t]], *previous = codes[t > 0 ? notes[t - 1] : before];
    for (int h = 0; h < HEADS_KV; h++) {
      memcpy(k + (h * tokens + t) * DIM, previous + h * DIM, DIM * sizeof *k);
      memcpy(v + (h * tokens + t) * DIM, own + h * DIM, DIM * sizeof *v);
    }
    for (int h = 0; h < HEADS_Q; h++)
      for (int d = 0; d < DIM; d++)
        q[(h * tokens + t) * DIM + d] = own[h / (HEADS_Q / HEADS_KV) * DIM + d] * (float)(4 + h % (HEADS_Q / HEADS_KV));
  }
}

/* The note whose code is nearest to what attention returned for the last token of a step: o[heads][tokens][dim]. */
static int nearest_note(const float *o, int64_t tokens) {
  float mean[CODE] = {0};
  for (int h = 0; h < HEADS_Q; h++)
    for (int d = 0; d < DIM; d++) mean[h / (HEADS_Q / HEADS_KV) * DIM + d] += o[(h * tokens + tokens - 1) * DIM + d];
  int best = 0;
  float most = -1e30f;
  for (int note = 0; note < NOTES; note++) {
    float likeness = 0;
    for (int i = 0; i < CODE; i++) likeness += mean[i] * codes[note][i];
    if (likeness > most) most = likeness, best = note;
  }
  return best;
}

static double seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* Result of one kernel. */
typedef struct outcome {
  attn_status status;
  int64_t right;               /* correct notes among those generated */
  double prompt_s, generate_s; /* spent in attn_kv_cache_step */
} outcome;

/* Reads the prompt in steps of at most `chunk` tokens, then generates note by note from its own output. */
static outcome hum(attn_kv_cache *cache, int64_t prompt, int64_t generate, int64_t period, int64_t chunk) {
  const size_t row = (size_t)chunk * DIM * sizeof(float);
  float *q = malloc(HEADS_Q * row), *k = malloc(HEADS_KV * row), *v = malloc(HEADS_KV * row), *o = malloc(HEADS_Q * row);
  int *notes = malloc((size_t)(prompt + generate) * sizeof *notes), present = NOTES;
  outcome out = {.status = q && k && v && o && notes ? ATTN_OK : ATTN_OUT_OF_MEMORY};
  for (int64_t at = 0; out.status == ATTN_OK && at < prompt + generate - 1;) {
    const bool reading = at < prompt;
    const int64_t tokens = !reading ? 1 : prompt - at < chunk ? prompt - at : chunk;
    if (reading)
      for (int64_t t = 0; t < tokens; t++) notes[at + t] = note_at(at + t, period);
    fill_step(notes + at, present, tokens, q, k, v);
    const double begin = seconds();
    out.status = attn_kv_cache_step(cache, tokens, NULL, q, k, v, o);
    *(reading ? &out.prompt_s : &out.generate_s) += seconds() - begin;
    at += tokens;
    present = notes[at - 1];
    if (at >= prompt) notes[at] = nearest_note(o, tokens);
  }
  for (int64_t at = prompt; out.status == ATTN_OK && at < prompt + generate; at++)
    out.right += notes[at] == note_at(at, period);
  free(q), free(k), free(v), free(o), free(notes);
  return out;
}

static outcome try_kernel(const char *name, int64_t prompt, int64_t generate) {
  const attn_kv_cache_shape shape = ATTN_STRUCT(attn_kv_cache_shape, .batch = 1, .heads_q = HEADS_Q, .heads_kv = HEADS_KV,
                                                .dim_qk = DIM, .dim_v = DIM, .capacity = prompt + generate);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = name, .threads = 1);
  const int64_t period = prompt / 2 < NOTES ? prompt / 2 : NOTES;
  attn_kv_cache *cache;
  outcome out = {.status = attn_kv_cache_create(&shape, &options, &cache)};
  if (out.status != ATTN_OK) return out;
  out = hum(cache, prompt, generate, period, 64);
  if (out.status == ATTN_UNSUPPORTED) { /* a kernel for few queries: read the prompt in smaller steps */
    attn_kv_cache_truncate(cache, 0);
    out = hum(cache, prompt, generate, period, 4);
  }
  attn_kv_cache_destroy(cache);
  return out;
}

int main(int count, char **words) {
  const int64_t prompt = count > 1 ? atoll(words[1]) : 1024, generate = count > 2 ? atoll(words[2]) : 256;
  if (prompt < 8 || generate < 1) return puts("usage: decode_loop [prompt >= 8 [generated >= 1]]"), 2;
  make_codes();
  printf("%d query heads on %d KV heads of %d, prompt of %lld tokens, %lld generated, one thread\n\n", HEADS_Q, HEADS_KV,
         DIM, (long long)prompt, (long long)generate);
  printf("%-18s %16s %18s %8s\n", "kernel", "prompt tokens/s", "generated tokens/s", "right");
  int ran = 0, wrong = 0;
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const char *name = kernel->name, *why_not = attn_kernel_unusable(kernel);
    if (why_not) {
      printf("%-18s %s\n", name, why_not);
      continue;
    }
    const outcome out = try_kernel(name, prompt, generate);
    if (out.status != ATTN_OK) {
      printf("%-18s %s\n", name, attn_last_error());
      continue;
    }
    printf("%-18s %16.0f %18.0f %7.1f%%\n", name, (double)prompt / out.prompt_s,
           (double)(generate - 1) / (out.generate_s > 0 ? out.generate_s : 1e-9),
           100.0 * (double)out.right / (double)generate);
    ran++, wrong += out.right != generate;
  }
  return ran > 0 && wrong == 0 ? 0 : 1;
}
