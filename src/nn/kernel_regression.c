/* SPDX-License-Identifier: MIT */
/* Nadaraya-Watson kernel regression: attention whose keys are the known points and whose values are the known values. */
#include "src/nn/check.h"

static const attn_struct_layout layout = ATTN_LAYOUT(attn_regression, inverse_width);

static attn_status check_regression(const attn_regression *r) {
  const attn_nn_size known[] = {{"attn_regression.points", r->points, 1},
                                {"attn_regression.dim_x", r->dim_x, 1},
                                {"attn_regression.dim_y", r->dim_y, 1}};
  const attn_nn_size asked[] = {{"attn_regression.points", r->points, 1}, {"attn_regression.queries", r->queries, 0}};
  const attn_nn_pointer pointers[] = {{"attn_regression.x", r->x},
                                      {"attn_regression.y", r->y},
                                      {"attn_regression.query", r->query},
                                      {"attn_regression.prediction", r->prediction}};
  attn_status status = attn_nn_check_sizes(known, NN_COUNT(known));
  if (status == ATTN_OK) status = attn_nn_check_sizes(asked, NN_COUNT(asked));
  return status == ATTN_OK && r->queries > 0 ? attn_nn_check_pointers(pointers, NN_COUNT(pointers)) : status;
}

static attn_status predict(const attn_regression *r, const attn_options *options) {
  attn_problem problem;
  attn_problem_init(&problem, 1, 1, 1, r->queries, r->points, r->dim_x, r->dim_y);
  problem.score = ATTN_SCORE_GAUSSIAN;
  problem.uses = r->inverse_width ? ATTN_USE_SCORE_WEIGHT : 0;
  const attn_args args =
      ATTN_STRUCT(attn_args, .q = r->query, .k = r->x, .v = r->y, .o = r->prediction, .score_weight = r->inverse_width);
  const attn_status status = attn_nn_run_once(&problem, &args, options);
  return status == ATTN_OK && r->weights ? attn_weights(&problem, &args, options, r->weights) : status;
}

attn_status attn_kernel_regression(const attn_regression *regression, const attn_options *options) {
  attn_regression r;
  attn_status status = attn_nn_read(&layout, "regression", regression, &r);
  if (status == ATTN_OK) status = check_regression(&r);
  return status == ATTN_OK && r.queries > 0 ? predict(&r, options) : status;
}
