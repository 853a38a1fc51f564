/* SPDX-License-Identifier: MIT */
#define _DEFAULT_SOURCE /* MADV_HUGEPAGE */
#define _POSIX_C_SOURCE 200809L
#include "learning.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#ifdef __linux__
#include <sys/mman.h>
#endif

/* ---- Programs ---- */

void learn_fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  exit(1);
}

void learn_check(attn_status status) {
  if (status != ATTN_OK) learn_fail(attn_last_error());
}

/* Arrays lie in large parts of memory, for which Linux is asked for pages of 2 MiB: columns of a matrix then share pages. */
float *learn_floats(int64_t count) {
  enum { LINE = 64, PAGE = 2 << 20, PART = 16 * PAGE };
  static char *next;
  static size_t left;
  const size_t bytes = ((size_t)count * sizeof(float) / LINE + 1) * LINE;
  if (bytes > left) {
    left = bytes < PART ? PART : (bytes / PAGE + 1) * PAGE;
    next = calloc(1, left + PAGE);
    if (!next) learn_fail("out of memory");
    next += PAGE - (uintptr_t)next % PAGE;
#ifdef __linux__
    madvise(next, left, MADV_HUGEPAGE);
#endif
  }
  float *made = (float *)(void *)next;
  next += bytes, left -= bytes;
  return made;
}

bool learn_read_option(char *word, learn_option *options, int count, const char **save) {
  char *equals = strchr(word, '=');
  if (!equals) return false;
  *equals = 0;
  if (!strcmp(word, "save")) return *save = equals + 1, true;
  for (int i = 0; i < count; i++)
    if (!strcmp(word, options[i].name)) return options[i].value = strtod(equals + 1, NULL), true;
  learn_fail("no such option");
  return false;
}

double learn_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

uint64_t learn_draw(uint64_t seed, uint64_t place) {
  uint64_t z = seed * UINT64_C(0xBF58476D1CE4E5B9) + place * UINT64_C(0x9E3779B97F4A7C15);
  z = (z ^ (z >> 30)) * UINT64_C(0xBF58476D1CE4E5B9);
  z = (z ^ (z >> 27)) * UINT64_C(0x94D049BB133111EB);
  return z ^ (z >> 31);
}

volatile sig_atomic_t learn_interrupted;

static void interrupt(int signal) {
  (void)signal;
  learn_interrupted = 1;
}

void learn_watch(void) { signal(SIGINT, interrupt); }

/* ---- Parameters ---- */

int64_t learn_place(learner *l, int64_t count) {
  l->count += count;
  return l->count - count;
}

linear_at learn_place_linear(learner *l, int64_t in, int64_t out) {
  const int64_t weight = learn_place(l, in * out);
  return (linear_at){weight, learn_place(l, out), in, out};
}

norm_at learn_place_norm(learner *l, int64_t width) {
  const int64_t gain = learn_place(l, width);
  return (norm_at){gain, learn_place(l, width), width};
}

void learn_allocate(learner *l) {
  l->weights = learn_floats(l->count), l->grads = learn_floats(l->count);
  l->m = learn_floats(l->count), l->v = learn_floats(l->count);
}

void learn_begin_norm(learner *l, norm_at norm) {
  for (int64_t i = 0; i < norm.width; i++) l->weights[norm.gain + i] = 1, l->weights[norm.bias + i] = 0;
}

void learn_begin_linear(learner *l, linear_at map, float factor) {
  for (int64_t i = 0; i < map.in * map.out; i++) l->weights[map.weight + i] *= factor;
  for (int64_t i = 0; i < map.out; i++) l->weights[map.bias + i] = 0;
}

double learn_step(learner *l, attn_adamw adamw, int64_t step) {
  double norm;
  learn_check(attn_clip_grads(l->count, l->grads, 1, &norm, &l->run));
  learn_check(attn_adamw_step(&adamw, step, l->count, l->weights, l->grads, l->m, l->v, &l->run));
  return norm;
}

int64_t learn_load(learner *l, const char *path) {
  int64_t head[2] = {0, 0};
  FILE *file = path ? fopen(path, "rb") : NULL;
  if (!file) return 0;
  const size_t count = (size_t)l->count;
  if (fread(head, sizeof *head, 2, file) != 2 || head[0] != l->count ||
      fread(l->weights, sizeof *l->weights, count, file) != count || fread(l->m, sizeof *l->m, count, file) != count ||
      fread(l->v, sizeof *l->v, count, file) != count)
    learn_fail("the checkpoint is not of this model");
  fclose(file);
  return head[1];
}

/* Beside the old one at first: an interruption leaves one or the other. */
void learn_store(const learner *l, const char *path, int64_t step) {
  if (!path) return;
  char beside[4096];
  snprintf(beside, sizeof beside, "%s.new", path);
  FILE *file = fopen(beside, "wb");
  const size_t count = (size_t)l->count;
  const int64_t head[2] = {l->count, step};
  if (!file || fwrite(head, sizeof *head, 2, file) != 2 || fwrite(l->weights, sizeof *l->weights, count, file) != count ||
      fwrite(l->m, sizeof *l->m, count, file) != count || fwrite(l->v, sizeof *l->v, count, file) != count || fclose(file) ||
      rename(beside, path))
    learn_fail("the checkpoint cannot be written");
}

/* ---- Layers ---- */

attn_linear learn_linear(const learner *l, linear_at map) {
  return (attn_linear){.weight = l->weights + map.weight, .bias = l->weights + map.bias};
}

attn_linear_grad learn_linear_grad(const learner *l, linear_at map) {
  return (attn_linear_grad){l->grads + map.weight, l->grads + map.bias};
}

void learn_map(const learner *l, linear_at map, int64_t rows, const float *x, float *y) {
  learn_check(attn_dense_run(&ATTN_STRUCT(attn_dense, .rows = rows, .in = map.in, .out = map.out,
                                          .map = learn_linear(l, map), .x = x, .y = y, .bf16_products = l->bf16),
                             &l->run));
}

void learn_map_grad(const learner *l, linear_at map, int64_t rows, const float *x, const float *d_y, float *d_x) {
  const attn_linear_grad d = learn_linear_grad(l, map);
  learn_check(attn_dense_grad(
      &ATTN_STRUCT(attn_dense, .rows = rows, .in = map.in, .out = map.out, .map = learn_linear(l, map), .x = x, .d_y = d_y,
                   .d_x = d_x, .d_weight = d.weight, .d_bias = d.bias, .bf16_products = l->bf16),
      &l->run));
}

static attn_norm norm_of(const learner *l, norm_at norm) {
  return (attn_norm){l->weights + norm.gain, l->weights + norm.bias, 1e-5f};
}

void learn_join(const learner *l, norm_at norm, int64_t rows, const float *x, const float *other, float *sum, float *scales,
                float *y) {
  learn_check(
      attn_row_join_run(&ATTN_STRUCT(attn_row_join, .rows = rows, .width = norm.width, .norm_kind = ATTN_NORM_LAYER,
                                     .norm = norm_of(l, norm), .x = x, .other = other, .sum = sum, .scales = scales, .y = y),
                        &l->run));
}

void learn_join_grad(const learner *l, norm_at norm, int64_t rows, const float *sum, const float *scales, const float *d_y,
                     const float *d_sum, float *d_s) {
  learn_check(
      attn_norm_grad_run(&ATTN_STRUCT(attn_norm_grad, .rows = rows, .width = norm.width, .kind = ATTN_NORM_LAYER,
                                      .norm = norm_of(l, norm), .s = sum, .scales = scales, .d_y = d_y, .d_sum = d_sum,
                                      .d_s = d_s, .d_gain = l->grads + norm.gain, .d_bias = l->grads + norm.bias),
                         &l->run));
}

void learn_drop(const learner *l, int place, int64_t rows, int64_t width, const float *x, float *y) {
  attn_dropout own = l->drop;
  own.stream = 0x80000000u + (uint32_t)place;
  if (own.probability > 0)
    learn_check(attn_dropout_rows(&own, rows, width, x, y, &l->run));
  else if (x != y)
    memcpy(y, x, (size_t)(rows * width) * sizeof *y);
}

attn_args learn_arrays(const learner *l, int place) {
  return ATTN_STRUCT(attn_args, .seed = l->drop.seed + (uint64_t)place, .offset = l->drop.offset);
}
