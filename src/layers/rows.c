/* SPDX-License-Identifier: MIT */
/* Rows between dense layers (include/attn/rows.h): checks, and rows over threads. */
#include "attn/rows.h"

#include <inttypes.h>
#include <math.h>

#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/dtypes.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/layouts.h"
#include "src/api/strides.h"
#include "src/choice/dispatch.h"
#include "src/plan/parallel.h"
#include "src/registry/tier_parts.h"

static const attn_struct_layout join_layout = ATTN_LAYOUT(attn_row_join, y);

enum { BLOCK_ELEMENTS = 16384 /* in a task: whole rows, at least one */ };

/* Arrays that are read or written, for the number of threads: later passes over a row find it in the cache. */
static int64_t arrays(const attn_row_join *j) { return 2 + (j->other != NULL) + (j->sum != NULL); }

static attn_status check_array(const char *field, const void *data, attn_dtype dtype, bool needed) {
  REQUIRE(!data || attn_dtype_is_float(dtype), "attn_row_join.dtype_%s is %d; it must be " ATTN_FLOAT_CONSTANTS, field,
          (int)dtype);
  REQUIRE(data || !needed, "attn_row_join.%s is NULL; it must point to its elements", field);
  REQUIRE(!data || (uintptr_t)data % attn_dtype_alignment(dtype) == 0,
          "attn_row_join.%s is %p; it must be aligned to its element, %zu bytes", field, data, attn_dtype_alignment(dtype));
  return ATTN_OK;
}

/* An output over an operand of another type would be written before it is read. */
static attn_status check_places(const attn_row_join *j) {
  const struct {
    const char *field;
    const void *data;
    attn_dtype dtype;
  } in[] = {{"x", j->x, j->dtype_x}, {"other", j->other, j->dtype_other}},
    out[] = {{"sum", j->sum, j->dtype_sum}, {"y", j->y, j->dtype_y}};
  for (int i = 0; i < 4; i++)
    REQUIRE(!out[i / 2].data || out[i / 2].data != in[i % 2].data || out[i / 2].dtype == in[i % 2].dtype,
            "attn_row_join.%s is %s with dtype %d and %d; the same array must have one type", out[i / 2].field,
            in[i % 2].field, (int)out[i / 2].dtype, (int)in[i % 2].dtype);
  REQUIRE(!j->sum || j->sum != j->y, "attn_row_join.sum and y are the same array; each needs its own");
  return ATTN_OK;
}

static attn_status check(const attn_row_join *j) {
  REQUIRE(j->rows >= 0 && j->rows <= ATTN_SIZE_LIMIT, "attn_row_join.rows is %" PRId64 "; it must be in 0..2^31", j->rows);
  REQUIRE(j->width >= 1 && j->width <= ATTN_SIZE_LIMIT, "attn_row_join.width is %" PRId64 "; it must be in 1..2^31",
          j->width);
  REQUIRE(j->kind == ATTN_JOIN_ADD || j->kind == ATTN_JOIN_MULTIPLY,
          "attn_row_join.kind is %d; it must be ATTN_JOIN_ADD or ATTN_JOIN_MULTIPLY", (int)j->kind);
  REQUIRE((unsigned)j->norm_kind <= ATTN_NORM_RMS,
          "attn_row_join.norm_kind is %d; it must be ATTN_NORM_NONE, _LAYER or _RMS", (int)j->norm_kind);
  REQUIRE(j->norm_kind == ATTN_NORM_NONE || (j->norm.epsilon >= 0 && isfinite(j->norm.epsilon)),
          "attn_norm.epsilon is %g; it must be finite and at least 0", (double)j->norm.epsilon);
  if (j->rows == 0) return ATTN_OK;
  attn_status status = check_array("x", j->x, j->dtype_x, true);
  if (status == ATTN_OK) status = check_array("other", j->other, j->dtype_other, j->kind == ATTN_JOIN_MULTIPLY);
  if (status == ATTN_OK) status = check_array("sum", j->sum, j->dtype_sum, false);
  if (status == ATTN_OK) status = check_array("y", j->y, j->dtype_y, true);
  return status == ATTN_OK ? check_places(j) : status;
}

typedef struct join_run {
  const attn_row_join *join;
  const attn_rows_kernel *kernel;
  int64_t blocks;
} join_run;

static void run_block(void *context, int64_t block, int worker) {
  const join_run *r = context;
  (void)worker;
  const int64_t rows = r->join->rows, first = block * rows / r->blocks, end = (block + 1) * rows / r->blocks;
  const uint64_t mode = attn_float_mode_enter();
  r->kernel->join(r->join, first, end - first);
  attn_float_mode_leave(mode);
}

attn_status attn_row_join_run(const attn_row_join *join, const attn_options *options) {
  REQUIRE(join, "join is NULL; it must point to an attn_row_join");
  attn_row_join j;
  attn_options wanted, resolved;
  const char *cap;
  attn_status status = attn_struct_read(&join_layout, join, &j);
  if (status == ATTN_OK) status = check(&j);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  if (status == ATTN_OK) status = attn_dispatch_cap(&wanted, &cap);
  if (status == ATTN_OK) status = attn_parallel_resolve(&wanted, &resolved);
  if (status != ATTN_OK || j.rows == 0) return status;
  if (wanted.threads == 0 && !attn_parallel_pays_for_elements(j.rows * j.width * arrays(&j))) resolved.threads = 1;
  const int64_t rows_of_block = max64(1, BLOCK_ELEMENTS / j.width);
  join_run run = {&j, attn_tier_parts_below(cap).rows, ceil_div(j.rows, rows_of_block)};
  attn_parallel_run(&resolved, run.blocks, run_block, &run);
  return ATTN_OK;
}
