/* SPDX-License-Identifier: MIT */
/* Add & norm, row by row (norm_row.h). */
#include <inttypes.h>
#include <math.h>

#include "src/api/float_mode.h"
#include "src/layers/norm_row.h"
#include "src/nn/layer_norm.h"

int64_t attn_nn_join_floats(const attn_nn_join *j) {
  int64_t times = j->residual || j->sum ? 2 + (j->residual != NULL) : 0;
  if (j->norm) times += 4 + 3 * (j->norm->gain != NULL) + 3 * (j->norm->bias != NULL); /* two sums, and centring */
  return times * j->width;
}

void attn_nn_join_rows(const void *join, int64_t first, int64_t rows) {
  const attn_nn_join *j = join;
  for (int64_t at = first * j->width; at < (first + rows) * j->width; at += j->width) {
    const float *x = j->x + at;
    if (j->residual || j->sum) {
      float *into = (j->sum ? j->sum : j->y) + at;
      for (int64_t i = 0; i < j->width; i++) into[i] = j->residual ? x[i] + j->residual[at + i] : x[i];
      x = into;
    }
    if (!j->norm) continue;
    const row_norm norm = {j->width, j->rms, j->norm->gain, j->norm->bias, j->norm->epsilon};
    norm_row(&norm, x, j->y + at);
  }
}

attn_status attn_nn_check_norm(const attn_norm *norm) {
  REQUIRE(norm, "norm is NULL; it must point to an attn_norm");
  REQUIRE(norm->epsilon >= 0 && isfinite(norm->epsilon), "attn_norm.epsilon is %g; it must be finite and at least 0",
          (double)norm->epsilon);
  return ATTN_OK;
}

static attn_status add_norm(int64_t rows, const attn_nn_join *j) {
  const attn_nn_size sizes[] = {{"rows", rows, 0}, {"width", j->width, 1}};
  const attn_nn_pointer pointers[] = {{"x", j->x}, {"y", j->y}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK) status = attn_nn_check_norm(j->norm);
  if (status == ATTN_OK && rows > 0) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(!j->sum || j->sum != j->y, "sum and y are the same array; each needs its own");
  const uint64_t mode = attn_float_mode_enter();
  attn_nn_join_rows(j, 0, rows);
  attn_float_mode_leave(mode);
  return ATTN_OK;
}

attn_status attn_add_layer_norm(int64_t rows, int64_t width, const float *x, const float *residual, const attn_norm *norm,
                                float *sum, float *y) {
  return add_norm(rows, &(attn_nn_join){width, x, residual, norm, sum, y, false});
}

attn_status attn_add_rms_norm(int64_t rows, int64_t width, const float *x, const float *residual, const attn_norm *norm,
                              float *sum, float *y) {
  return add_norm(rows, &(attn_nn_join){width, x, residual, norm, sum, y, true});
}
