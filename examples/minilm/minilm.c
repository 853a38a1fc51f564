/* SPDX-License-Identifier: MIT */
/* Runs a real sentence encoder, all-MiniLM-L6-v2 (encoder.h), with every attention kernel of the library that takes the
 * shape, and writes the embeddings of the fastest. To pick a kernel at run time, put its name into attn_options; nothing
 * else changes.
 *
 *     minilm MODEL.safetensors TOKENS.txt EMBEDDINGS.csv [--threads N] [--kernel NAME] [--padded] [--rounds]
 *
 * TOKENS.txt holds one sentence per line, as token ids; compare.py makes it, and compares our time with PyTorch's.
 * --padded     pads every sentence to the longest, as frameworks do, instead of packing the tokens of all sentences
 * --rounds     one kernel (the library's choice unless named), timed whenever the standard input asks: answer_rounds */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "encoder.h"

typedef struct task {
  safetensors file;
  sentences input;
  const char *output, *kernel;
  int threads;
  bool rounds;
} task;

static int write_embeddings(const char *path, const float *embeddings, int64_t count) {
  FILE *file = fopen(path, "w");
  if (!file) return perror(path), -1;
  for (int64_t s = 0; s < count; s++)
    for (int i = 0; i < WIDTH; i++) fprintf(file, "%.9g%c", (double)embeddings[s * WIDTH + i], i + 1 < WIDTH ? ',' : '\n');
  return fclose(file);
}

/* Prints where the time of all runs so far went. */
static void print_shares(const model *m) {
  const attn_block_profile *p = &m->profile;
  const double all = m->time * 1e9, rest = all - p->projections_ns - p->attention_ns - p->feed_forward_ns - p->norm_ns;
  printf("time in %s: projections %.1f %%, attention %.1f %%, feed-forward %.1f %%, add & norm %.1f %%, the rest %.1f %%\n",
         attn_block_kernel(m->blocks[0]), 100 * p->projections_ns / all, 100 * p->attention_ns / all,
         100 * p->feed_forward_ns / all, 100 * p->norm_ns / all, 100 * rest / all);
}

/* For each number n on standard input: runs once to warm up, then n times, and prints the time in milliseconds per sentence.
 * Sleeps between numbers, so that the caller can time something else on the same CPUs. At the end of the input it prints
 * the profile. */
static attn_status answer_rounds(model *m) {
  m->time = 0;
  m->profile = (attn_block_profile){0};
  for (int runs; fflush(stdout) == 0 && scanf("%d", &runs) == 1 && runs > 0;) {
    attn_status status = encode(m);
    const double before = m->time;
    for (int run = 0; run < runs && status == ATTN_OK; run++) status = encode(m);
    if (status != ATTN_OK) return status;
    printf("%.6f\n", 1e3 * (m->time - before) / runs / (double)m->input->count);
  }
  if (m->time > 0) print_shares(m);
  return ATTN_OK;
}

/* Writes the embeddings, prints the kernel's name, then answers rounds. */
static int run_rounds(const task *t) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = t->kernel, .threads = t->threads);
  model m;
  attn_status status = create_model(&m, &t->file, &t->input, &options);
  if (status == ATTN_OK) status = encode(&m);
  const bool written = status == ATTN_OK && write_embeddings(t->output, m.embeddings, t->input.count) == 0;
  if (written) {
    puts(attn_block_kernel(m.blocks[0]));
    status = answer_rounds(&m);
  }
  if (status != ATTN_OK) fprintf(stderr, "%s\n", attn_last_error());
  destroy_model(&m);
  return written && status == ATTN_OK ? 0 : -1;
}

static int by_size(const void *a, const void *b) {
  const double left = *(const double *)a, right = *(const double *)b;
  return (left > right) - (left < right);
}

/* The median time of a few runs, after one that warms up; negative if a run fails. */
static double time_kernel(model *m) {
  enum { RUNS = 5 };
  double times[RUNS];
  for (int run = -1; run < RUNS; run++) {
    const double before = m->time;
    if (encode(m) != ATTN_OK) return -1;
    if (run >= 0) times[run] = m->time - before;
  }
  qsort(times, RUNS, sizeof *times, by_size);
  return times[RUNS / 2];
}

/* The largest 1 - cosine between two kernels' embeddings of a sentence, which have length 1. */
static double distance(const float *a, const float *b, int64_t count) {
  double largest = 0;
  for (int64_t s = 0; s < count; s++) {
    double cosine = 0;
    for (int i = 0; i < WIDTH; i++) cosine += (double)a[s * WIDTH + i] * (double)b[s * WIDTH + i];
    if (!(1 - cosine <= largest)) largest = 1 - cosine; /* NaN is large */
  }
  return largest;
}

/* Results so far: the embeddings of the first kernel, with which the others must agree, and the fastest kernel. */
typedef struct comparison {
  float *first;
  double fastest;
  char fastest_kernel[64];
} comparison;

/* Runs one kernel, and writes its embeddings if it is the fastest so far. -1 if they are wrong or cannot be written. */
static int try_kernel(const task *t, const char *name, comparison *c) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = name, .threads = t->threads);
  model m;
  const attn_status status = create_model(&m, &t->file, &t->input, &options);
  const double time = status == ATTN_OK ? time_kernel(&m) : -1;
  if (time < 0) {
    printf("%-18s refused: %s\n", name, attn_last_error());
    return destroy_model(&m), 0;
  }
  if (!c->first) {
    c->first = m.embeddings;
    m.embeddings = NULL; /* kept */
  }
  const float *embeddings = m.embeddings ? m.embeddings : c->first;
  const double off = distance(embeddings, c->first, t->input.count);
  printf("%-18s %10.3f   %.0e\n", name, 1e3 * time / (double)t->input.count, fabs(off));
  int result = off <= 1e-5 ? 0 : (fprintf(stderr, "%s: its embeddings differ from those of the first kernel\n", name), -1);
  if (result == 0 && (c->fastest < 0 || time < c->fastest)) {
    c->fastest = time;
    snprintf(c->fastest_kernel, sizeof c->fastest_kernel, "%s", name);
    result = write_embeddings(t->output, embeddings, t->input.count);
  }
  destroy_model(&m);
  return result;
}

static int try_kernels(const task *t) {
  comparison c = {.fastest = -1};
  printf(
      "%lld sentences of up to %lld tokens, %s into %lld rows, %d thread%s\n\n%-18s ms/sentence  1 - cosine to the first\n",
      (long long)t->input.count, (long long)t->input.longest, t->input.padded ? "padded" : "packed",
      (long long)row_count(&t->input), t->threads, t->threads == 1 ? "" : "s", "kernel");
  int result = t->kernel ? try_kernel(t, t->kernel, &c) : 0;
  for (int i = 0; !t->kernel && i < attn_kernel_count() && result == 0; i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (!attn_kernel_unusable(kernel)) result = try_kernel(t, kernel->name, &c);
  }
  if (c.fastest >= 0) printf("\nfastest: %s; its embeddings are in %s\n", c.fastest_kernel, t->output);
  free(c.first);
  return c.fastest >= 0 ? result : -1;
}

static int read_options(int count, char **words, task *t) {
  if (count < 4) return -1;
  for (int i = 4; i < count; i++) {
    const char *value = i + 1 < count ? words[i + 1] : NULL;
    if (strcmp(words[i], "--padded") == 0)
      t->input.padded = true;
    else if (strcmp(words[i], "--rounds") == 0)
      t->rounds = true;
    else if (value && strcmp(words[i], "--kernel") == 0)
      t->kernel = words[++i];
    else if (value && strcmp(words[i], "--threads") == 0)
      t->threads = atoi(words[++i]);
    else
      return -1;
  }
  return 0;
}

int main(int count, char **words) {
  task t = {.threads = 1};
  if (read_options(count, words, &t) != 0)
    return puts(
               "usage: minilm MODEL.safetensors TOKENS.txt EMBEDDINGS.csv [--threads N] [--kernel NAME] [--padded] "
               "[--rounds]"),
           2;
  t.output = words[3];
  if (safetensors_read(words[1], &t.file) != 0 || read_sentences(words[2], &t.input) != 0) return 1;
  const int result = t.rounds ? run_rounds(&t) : try_kernels(&t);
  free_sentences(&t.input);
  safetensors_free(&t.file);
  return result == 0 ? 0 : 1;
}
