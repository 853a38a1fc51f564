/* SPDX-License-Identifier: MIT */
/* Kernel regression, the oldest attention: it estimates a curve from fifty noisy points.
 *
 * The points are the classic example (Zhang et al., Dive into Deep Learning, https://d2l.ai, "Attention Pooling"): y = 2
 * sin(x) + x^0.8 + noise of deviation 0.5, x in 0..5. A prediction is the mean of all known y, weighted by exp(-(distance
 * / bandwidth)^2 / 2). Queries are the places to predict, keys the known places, values the known y.
 *
 * The bandwidth is learnt, as there: every known point is predicted from all others, which a mask brings about, and the
 * gradient of the mean square error moves 1 / bandwidth.
 *
 *     kernel_regression [FOLDER]     writes points.csv, curve.csv, before.csv and after.csv there; plot.py draws them */
#include <attn/train.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 50, QUERIES = 101, STEPS = 100 };

static float x[POINTS], y[POINTS], at[QUERIES], first_guess[QUERIES], prediction[QUERIES];
static float before[QUERIES * POINTS], after[QUERIES * POINTS]; /* attention weights */

static double truth(double place) { return 2 * sin(place) + pow(place, 0.8); }

static double uniform(void) { /* in (0, 1), the same numbers on every machine */
  static uint64_t state = 20;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return ((double)(state >> 11) + 0.5) * 0x1p-53;
}

static double normal(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

static int ascending(const void *a, const void *b) {
  const float left = *(const float *)a, right = *(const float *)b;
  return (left > right) - (left < right);
}

static void make_points(void) {
  for (int i = 0; i < POINTS; i++) x[i] = (float)(5 * uniform());
  qsort(x, POINTS, sizeof *x, ascending);
  for (int i = 0; i < POINTS; i++) y[i] = (float)(truth((double)x[i]) + 0.5 * normal());
  for (int i = 0; i < QUERIES; i++) at[i] = 5.0f * (float)i / (QUERIES - 1);
}

/* Mean square error of predicting each known point from the others, and its gradient by 1 / bandwidth; negative on failure.
 */
static double left_out_error(float inverse_width, float *slope) {
  static uint8_t others[POINTS * POINTS];
  for (int i = 0; i < POINTS * POINTS; i++) others[i] = i / POINTS != i % POINTS;
  float guess[POINTS], lse[POINTS], d_guess[POINTS];
  attn_problem problem;
  attn_problem_init(&problem, 1, 1, 1, POINTS, POINTS, 1, 1);
  problem.score = ATTN_SCORE_GAUSSIAN;
  problem.uses = ATTN_USE_SCORE_WEIGHT | ATTN_USE_MASK | ATTN_USE_LSE;
  attn_args args =
      ATTN_STRUCT(attn_args, .q = x, .k = x, .v = y, .o = guess, .lse = lse, .score_weight = &inverse_width, .mask = others);
  if (attn_sdpa(&problem, &args) != ATTN_OK) return -1;
  double error = 0;
  for (int i = 0; i < POINTS; i++) {
    const float miss = guess[i] - y[i];
    error += (double)(miss * miss) / POINTS;
    d_guess[i] = 2 * miss / POINTS;
  }
  attn_problem_set_backward(&problem);
  problem.uses |= ATTN_USE_D_SCORE_WEIGHT;
  args.d_o = d_guess;
  args.d_score_weight = slope;
  return attn_sdpa(&problem, &args) == ATTN_OK ? error : -1;
}

/* Learns 1 / bandwidth from 1 on. 0 on failure, or if a neighbouring bandwidth is better: then it is no minimum. */
static float learn_inverse_width(void) {
  const attn_adamw adamw = ATTN_STRUCT(attn_adamw, .rate = 0.2f, .beta1 = 0.9f, .beta2 = 0.99f, .epsilon = 1e-8f);
  float inverse_width = 1, slope, m = 0, v = 0;
  printf("step  bandwidth  mean square error of points left out\n");
  for (int step = 1; step <= STEPS; step++) {
    const double error = left_out_error(inverse_width, &slope);
    if (step % 20 == 1) printf("%4d  %9.3f  %.4f\n", step, 1 / (double)inverse_width, error);
    if (error < 0 || attn_adamw_step(&adamw, step, 1, &inverse_width, &slope, &m, &v, NULL) != ATTN_OK) return 0;
  }
  const double least = left_out_error(inverse_width, &slope);
  if (left_out_error(inverse_width * 0.9f, &slope) < least || left_out_error(inverse_width * 1.1f, &slope) < least) return 0;
  return inverse_width;
}

static attn_status predict(float inverse_width, float *guess, float *weights) {
  return attn_kernel_regression(
      &ATTN_STRUCT(attn_regression, .points = POINTS, .queries = QUERIES, .dim_x = 1, .dim_y = 1, .x = x, .y = y,
                   .query = at, .inverse_width = &inverse_width, .prediction = guess, .weights = weights),
      NULL);
}

/* A file of one line per row: its first column, then `columns` values, values[column][row], or with a stride
 * values[0][row * stride + column]. */
typedef struct table {
  const char *name, *header;
  int rows;
  const float *first;
  int columns;
  const float *const *values;
  int stride;
} table;

static int write_csv(const char *folder, const table *t) {
  char path[1024];
  snprintf(path, sizeof path, "%s/%s", folder, t->name);
  FILE *file = fopen(path, "w");
  if (!file) return perror(path), -1;
  fprintf(file, "%s\n", t->header);
  for (int row = 0; row < t->rows; row++) {
    fprintf(file, "%g", (double)t->first[row]);
    for (int c = 0; c < t->columns; c++)
      fprintf(file, ",%.6g", (double)(t->stride ? t->values[0][row * t->stride + c] : t->values[c][row]));
    fprintf(file, "\n");
  }
  return fclose(file);
}

static double error_of(const float *guess) {
  double error = 0;
  for (int i = 0; i < QUERIES; i++) error += pow((double)guess[i] - truth((double)at[i]), 2) / QUERIES;
  return error;
}

int main(int count, char **words) {
  const char *folder = count > 1 ? words[1] : ".";
  make_points();
  const float inverse_width = learn_inverse_width();
  if (inverse_width == 0 || predict(1, first_guess, before) != ATTN_OK ||
      predict(inverse_width, prediction, after) != ATTN_OK)
    return fprintf(stderr, "no bandwidth was learnt. %s\n", attn_last_error()), 1;

  static float true_curve[QUERIES], average[QUERIES]; /* the average is what infinite bandwidth gives: the simplest guess */
  for (int i = 0; i < QUERIES; i++) true_curve[i] = (float)truth((double)at[i]);
  for (int i = 0; i < QUERIES; i++)
    for (int j = 0; j < POINTS; j++) average[i] += y[j] / POINTS;
  printf("\nbandwidth %.3f: mean square distance from the true curve %.4f; of bandwidth 1 %.4f, of the plain average %.4f\n",
         1 / (double)inverse_width, error_of(prediction), error_of(first_guess), error_of(average));

  const float *const known[] = {y}, *const curves[] = {true_curve, first_guess, prediction, average};
  const float *const rows[][1] = {{before}, {after}};
  const table tables[] = {{"points.csv", "x,y", POINTS, x, 1, known, 0},
                          {"curve.csv", "x,truth,first,prediction,average", QUERIES, at, 4, curves, 0},
                          {"before.csv", "x,weights", QUERIES, at, POINTS, rows[0], POINTS},
                          {"after.csv", "x,weights", QUERIES, at, POINTS, rows[1], POINTS}};
  for (int i = 0; i < 4; i++)
    if (write_csv(folder, &tables[i]) != 0) return 1;
  return error_of(prediction) < 0.5 * error_of(first_guess) ? 0 : 1;
}
