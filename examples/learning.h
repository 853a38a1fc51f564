/* SPDX-License-Identifier: MIT */
/* Common parts of programs that learn by attn/train.h: parameters in one array, their gradients in a second, AdamW's
 * moments in two more, so that clipping, a step and a checkpoint are one call each. Every failure ends the program with a
 * sentence. */
#ifndef EXAMPLES_LEARNING_H
#define EXAMPLES_LEARNING_H

#include <attn/train.h>
#include <signal.h>

/* ---- Programs ---- */

void learn_fail(const char *what);
void learn_check(attn_status status);

/* Zeros; room for one more than `count`. */
float *learn_floats(int64_t count);

/* An option and its default. */
typedef struct learn_option {
  const char *name;
  double value;
} learn_option;

/* Reads name=value into the table, and save=FILE into *save. False: the word has no '='. */
bool learn_read_option(char *word, learn_option *options, int count, const char **save);

double learn_now(void);

/* SplitMix64 of seed and place: what is drawn for a step depends on nothing else. */
uint64_t learn_draw(uint64_t seed, uint64_t place);

/* Set by SIGINT once learn_watch() has run. */
extern volatile sig_atomic_t learn_interrupted;
void learn_watch(void);

/* ---- Parameters ---- */

typedef struct learner {
  int64_t count;
  float *weights, *grads, *m, *v;
  attn_options run;
  attn_dropout drop; /* its seed draws weights, too; its offset is the step */
  bool bf16;         /* products of bf16 */
} learner;

/* Where a map or a norm lies among the parameters. */
typedef struct linear_at {
  int64_t weight, bias, in, out;
} linear_at;

typedef struct norm_at {
  int64_t gain, bias, width;
} norm_at;

int64_t learn_place(learner *l, int64_t count);
linear_at learn_place_linear(learner *l, int64_t in, int64_t out);
norm_at learn_place_norm(learner *l, int64_t width);

/* Once all is placed: the four arrays. Gains begin as 1 and biases as 0 by learn_begin_norm() and learn_begin_linear(),
 * which multiplies its weights by `factor`. */
void learn_allocate(learner *l);
void learn_begin_norm(learner *l, norm_at norm);
void learn_begin_linear(learner *l, linear_at map, float factor);

/* One step by gradients clipped to norm 1, which it returns as it was before. `step` is 1 at first. */
double learn_step(learner *l, attn_adamw adamw, int64_t step);

/* A file: the number of parameters, steps done, and weights, m and v. Loading returns the steps; 0 without a file, or where
 * path is NULL. */
int64_t learn_load(learner *l, const char *path);
void learn_store(const learner *l, const char *path, int64_t step);

/* ---- Layers ---- */

attn_linear learn_linear(const learner *l, linear_at map);
attn_linear_grad learn_linear_grad(const learner *l, linear_at map);

/* y = x W + b, and backwards. d_x may be NULL. */
void learn_map(const learner *l, linear_at map, int64_t rows, const float *x, float *y);
void learn_map_grad(const learner *l, linear_at map, int64_t rows, const float *x, const float *d_y, float *d_x);

/* sum = x + other, y = norm(sum); other and sum may be NULL; scales, [rows][3], are those of attn_row_join. Backwards d_s =
 * norm's gradient + d_sum, which may be NULL. */
void learn_join(const learner *l, norm_at norm, int64_t rows, const float *x, const float *other, float *sum, float *scales,
                float *y);
void learn_join_grad(const learner *l, norm_at norm, int64_t rows, const float *sum, const float *scales, const float *d_y,
                     const float *d_sum, float *d_s);

/* y = dropout(x), forwards and backwards; `place` is another one in each place of the model. */
void learn_drop(const learner *l, int place, int64_t rows, int64_t width, const float *x, float *y);

/* Seed and offset of an attention's dropout, likewise. */
attn_args learn_arrays(const learner *l, int place);

#endif
