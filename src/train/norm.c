/* SPDX-License-Identifier: MIT */
/* Gradients of norms. Mean and scale of each row are computed again from what was normed, as the forward computes them: the
 * mean is subtracted before squares are summed. They are kept for the second pass, which sums over rows. */
#include <math.h>

#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/arithmetic.h"
#include "src/train/exponential.h"
#include "src/train/tasks.h"

static const attn_struct_layout layout = ATTN_LAYOUT(attn_norm_grad, d_s);

typedef struct norm_run {
  const attn_norm_grad *g;
  int64_t rows;   /* in a task */
  float *moments; /* [rows][2]: mean and scale */
} norm_run;

/* sum of s - shift, and of its square */
static void sums_of(const float *s, int64_t width, float shift, double *sum, double *squares) {
  float sums[TRAIN_LANES] = {0}, squared[TRAIN_LANES] = {0};
  int64_t i = 0;
  for (; i + TRAIN_LANES <= width; i += TRAIN_LANES)
    for (int l = 0; l < TRAIN_LANES; l++) {
      const float c = s[i + l] - shift;
      sums[l] += c;
      squared[l] += c * c;
    }
  for (int l = 0; i + l < width; l++) {
    const float c = s[i + l] - shift;
    sums[l] += c;
    squared[l] += c * c;
  }
  *sum = train_add_lanes(sums);
  *squares = train_add_lanes(squared);
}

static void find_moments(const attn_norm_grad *g, const float *s, float moments[2]) {
  const double width = (double)g->width;
  double sum, squares, rest = 0;
  moments[0] = 0;
  sums_of(s, g->width, 0, &sum, &squares);
  if (g->kind == ATTN_NORM_LAYER) {
    moments[0] = (float)(sum / width);
    sums_of(s, g->width, moments[0], &sum, &squares);
    rest = sum / width; /* rounding error of the float mean */
  }
  const double variance = squares / width - rest * rest;
  moments[1] = (float)(1 / sqrt((variance < 0 ? 0 : variance) + (double)g->norm.epsilon));
}

/* mean(g) and mean(g n) of a row, g = gain d_y. */
static void project(const attn_norm_grad *a, const float *s, const float *d_y, const float moments[2], float means[2]) {
  float sums[TRAIN_LANES] = {0}, products[TRAIN_LANES] = {0};
  for (int64_t first = 0; first < a->width; first += TRAIN_LANES) {
    const int lanes = (int)min64(TRAIN_LANES, a->width - first);
    float g[TRAIN_LANES];
    for (int l = 0; l < lanes; l++) g[l] = a->norm.gain ? a->norm.gain[first + l] * d_y[first + l] : d_y[first + l];
    for (int l = 0; l < lanes; l++) {
      sums[l] += g[l];
      products[l] += g[l] * ((s[first + l] - moments[0]) * moments[1]);
    }
  }
  means[0] = a->kind == ATTN_NORM_LAYER ? (float)(train_add_lanes(sums) / (double)a->width) : 0;
  means[1] = (float)(train_add_lanes(products) / (double)a->width);
}

static void grad_row(const attn_norm_grad *a, int64_t row, const float moments[2]) {
  const int64_t at = row * a->width;
  const float *s = a->s + at, *d_y = a->d_y + at, *d_sum = a->d_sum ? a->d_sum + at : NULL, *gain = a->norm.gain;
  float *d_s = a->d_s + at, means[2];
  project(a, s, d_y, moments, means);
  for (int64_t i = 0; i < a->width; i++) {
    const float g = gain ? gain[i] * d_y[i] : d_y[i], n = (s[i] - moments[0]) * moments[1];
    const float made = moments[1] * ((g - means[0]) - n * means[1]);
    d_s[i] = d_sum ? made + d_sum[i] : made;
  }
}

static void run_rows(void *context, int64_t block, int worker) {
  const norm_run *r = context;
  (void)worker;
  const int64_t end = min64((block + 1) * r->rows, r->g->rows);
  for (int64_t row = block * r->rows; row < end; row++) {
    find_moments(r->g, r->g->s + row * r->g->width, r->moments + 2 * row);
  }
}

static void write_rows(void *context, int64_t block, int worker) {
  const norm_run *r = context;
  (void)worker;
  const int64_t end = min64((block + 1) * r->rows, r->g->rows);
  for (int64_t row = block * r->rows; row < end; row++) grad_row(r->g, row, r->moments + 2 * row);
}

/* d_s may be d_y, so it comes last. */
static attn_status run(norm_run *r, const attn_options *options) {
  const attn_norm_grad *g = r->g;
  const int64_t elements = g->rows * g->width, tasks = ceil_div(g->rows, r->rows);
  attn_train_columns columns = {g->rows, g->width, g->d_y, NULL, r->moments, g->d_bias, g->accumulate};
  attn_status status = attn_train_tasks(options, 2 * elements, tasks, run_rows, r);
  if (status == ATTN_OK && g->d_bias) status = attn_train_sum_columns(options, &columns);
  columns.s = g->s;
  columns.sums = g->d_gain;
  if (status == ATTN_OK && g->d_gain) status = attn_train_sum_columns(options, &columns);
  if (status == ATTN_OK && g->d_s) status = attn_train_tasks(options, 4 * elements, tasks, write_rows, r);
  return status;
}

static attn_status check(const attn_norm_grad *g) {
  const attn_nn_size sizes[] = {{"attn_norm_grad.rows", g->rows, 0}, {"attn_norm_grad.width", g->width, 1}};
  const attn_nn_pointer pointers[] = {{"attn_norm_grad.s", g->s}, {"attn_norm_grad.d_y", g->d_y}};
  const attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status != ATTN_OK) return status;
  REQUIRE(g->kind == ATTN_NORM_LAYER || g->kind == ATTN_NORM_RMS,
          "attn_norm_grad.kind is %d; it must be ATTN_NORM_LAYER or ATTN_NORM_RMS", (int)g->kind);
  REQUIRE(g->norm.epsilon >= 0 && isfinite(g->norm.epsilon),
          "attn_norm_grad.norm.epsilon is %g; it must be finite and at least 0", (double)g->norm.epsilon);
  return g->rows > 0 ? attn_nn_check_pointers(pointers, NN_COUNT(pointers)) : ATTN_OK;
}

attn_status attn_norm_grad_run(const attn_norm_grad *grad, const attn_options *options) {
  attn_norm_grad g;
  attn_status status = attn_nn_read(&layout, "grad", grad, &g);
  if (status == ATTN_OK) status = check(&g);
  if (status != ATTN_OK) return status;
  float *moments = attn_nn_allocate("moments of rows", (size_t)g.rows * 2 * sizeof *moments);
  if (!moments) return ATTN_OUT_OF_MEMORY;
  norm_run r = {&g, max64(1, TRAIN_BLOCK / g.width), moments};
  status = run(&r, options);
  attn_aligned_free(moments);
  return status;
}
