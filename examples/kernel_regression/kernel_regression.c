/* SPDX-License-Identifier: MIT */
/* Kernel regression, the oldest attention: it estimates a curve from fifty noisy points.
 *
 * The points are the classic example (Zhang et al., Dive into Deep Learning, https://d2l.ai, "Attention Pooling"): y = 2
 * sin(x) + x^0.8 + noise of deviation 0.5, x in 0..5. A prediction is the mean of all known y, weighted by exp(-(distance
 * / bandwidth)^2 / 2). Queries are the places to predict, keys the known places, values the known y.
 *
 * The bandwidth is chosen by leave-one-out validation: every known point is predicted from all others. A mask hides it.
 *
 *     kernel_regression [FOLDER]     writes points.csv, curve.csv and weights.csv there; plot.py draws them */
#include <attn/nn.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { POINTS = 50, QUERIES = 101 };

static float x[POINTS], y[POINTS], at[QUERIES], prediction[QUERIES], weights[QUERIES * POINTS];

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

/* Mean square error of predicting each known point from the others; negative on failure. */
static double left_out_error(float bandwidth) {
  static uint8_t others[POINTS * POINTS];
  for (int i = 0; i < POINTS * POINTS; i++) others[i] = i / POINTS != i % POINTS;
  const float inverse_width = 1 / bandwidth;
  float guess[POINTS];
  attn_problem problem;
  attn_problem_init(&problem, 1, 1, 1, POINTS, POINTS, 1, 1);
  problem.score = ATTN_SCORE_GAUSSIAN;
  problem.uses = ATTN_USE_SCORE_WEIGHT | ATTN_USE_MASK;
  const attn_args args =
      ATTN_STRUCT(attn_args, .q = x, .k = x, .v = y, .o = guess, .score_weight = &inverse_width, .mask = others);
  if (attn_sdpa(&problem, &args) != ATTN_OK) return -1;
  double error = 0;
  for (int i = 0; i < POINTS; i++) error += (double)((guess[i] - y[i]) * (guess[i] - y[i])) / POINTS;
  return error;
}

static float choose_bandwidth(void) {
  float best = 0;
  double least = INFINITY;
  printf("bandwidth  mean square error of points left out\n");
  for (float bandwidth = 0.0625f; bandwidth < 5; bandwidth *= 1.4142136f) {
    const double error = left_out_error(bandwidth);
    if (error < 0) return 0;
    printf("%9.3f  %.4f\n", (double)bandwidth, error);
    if (error < least) least = error, best = bandwidth;
  }
  return best;
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
  const float bandwidth = choose_bandwidth(), inverse_width = 1 / bandwidth;
  if (bandwidth == 0) return puts(attn_last_error()), 1;

  const attn_regression regression =
      ATTN_STRUCT(attn_regression, .points = POINTS, .queries = QUERIES, .dim_x = 1, .dim_y = 1, .x = x, .y = y, .query = at,
                  .inverse_width = &inverse_width, .prediction = prediction, .weights = weights);
  if (attn_kernel_regression(&regression, NULL) != ATTN_OK) return puts(attn_last_error()), 1;

  static float true_curve[QUERIES], average[QUERIES]; /* the average is what infinite bandwidth gives: the simplest guess */
  for (int i = 0; i < QUERIES; i++) true_curve[i] = (float)truth((double)at[i]);
  for (int i = 0; i < QUERIES; i++)
    for (int j = 0; j < POINTS; j++) average[i] += y[j] / POINTS;
  printf("\nbandwidth %.3f: mean square distance from the true curve %.4f; of the plain average %.4f\n", (double)bandwidth,
         error_of(prediction), error_of(average));

  const float *const known[] = {y}, *const curves[] = {true_curve, prediction, average}, *const rows[] = {weights};
  const table tables[] = {{"points.csv", "x,y", POINTS, x, 1, known, 0},
                          {"curve.csv", "x,truth,prediction,average", QUERIES, at, 3, curves, 0},
                          {"weights.csv", "x,weights", QUERIES, at, POINTS, rows, POINTS}};
  for (int i = 0; i < 3; i++)
    if (write_csv(folder, &tables[i]) != 0) return 1;
  return error_of(prediction) < 0.2 * error_of(average) ? 0 : 1;
}
