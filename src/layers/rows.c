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

static const attn_struct_layout join_layout = ATTN_LAYOUT(attn_row_join, function);

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

typedef struct array {
  const char *field;
  const void *data;
  attn_dtype dtype;
} array;

static bool overlap(const attn_row_join *j, array a, array b) {
  const uintptr_t begin = (uintptr_t)a.data, other = (uintptr_t)b.data;
  const uintptr_t bytes = (uintptr_t)attn_elements_bytes(a.dtype, j->rows * j->width);
  const uintptr_t others = (uintptr_t)attn_elements_bytes(b.dtype, j->rows * j->width);
  return a.data && b.data && begin < other + others && other < begin + bytes;
}

/* An output elsewhere in an operand, or of another type, would be written before that is read. */
static attn_status check_places(const attn_row_join *j) {
  const array in[] = {{"x", j->x, j->dtype_x}, {"other", j->other, j->dtype_other}};
  const array out[] = {{"sum", j->sum, j->dtype_sum}, {"y", j->y, j->dtype_y}};
  for (int i = 0; i < 4; i++) {
    const array to = out[i / 2], from = in[i % 2];
    REQUIRE(!overlap(j, to, from) || (to.data == from.data && to.dtype == from.dtype),
            "attn_row_join.%s is %p, of dtype %d, and %s is %p, of dtype %d; they must not overlap unless they are the same "
            "array of one type",
            to.field, to.data, (int)to.dtype, from.field, from.data, (int)from.dtype);
  }
  REQUIRE(!overlap(j, out[0], out[1]), "attn_row_join.sum and y overlap, at %p and %p; each needs memory of its own", j->sum,
          j->y);
  return ATTN_OK;
}

static attn_status check_norm(const attn_norm *norm) {
  REQUIRE(norm->epsilon >= 0 && isfinite(norm->epsilon), "attn_norm.epsilon is %g; it must be finite and at least 0",
          (double)norm->epsilon);
  REQUIRE((uintptr_t)norm->gain % sizeof(float) == 0, "attn_norm.gain is %p; it must be aligned to its element, 4 bytes",
          (const void *)norm->gain);
  REQUIRE((uintptr_t)norm->bias % sizeof(float) == 0, "attn_norm.bias is %p; it must be aligned to its element, 4 bytes",
          (const void *)norm->bias);
  return ATTN_OK;
}

static attn_status check(const attn_row_join *j) {
  const int64_t elements = (int64_t)1 << 58;
  REQUIRE(j->width >= 1 && j->width <= ATTN_SIZE_LIMIT, "attn_row_join.width is %" PRId64 "; it must be in 1..2^31",
          j->width);
  REQUIRE(j->rows >= 0 && j->rows <= elements / j->width,
          "attn_row_join.rows is %" PRId64 "; it must be in 0..%" PRId64 ", for 2^58 elements", j->rows,
          elements / j->width);
  REQUIRE(j->kind == ATTN_JOIN_ADD || j->kind == ATTN_JOIN_MULTIPLY,
          "attn_row_join.kind is %d; it must be ATTN_JOIN_ADD or ATTN_JOIN_MULTIPLY", (int)j->kind);
  REQUIRE((unsigned)j->norm_kind <= ATTN_NORM_RMS,
          "attn_row_join.norm_kind is %d; it must be ATTN_NORM_NONE, _LAYER or _RMS", (int)j->norm_kind);
  attn_status status = j->norm_kind == ATTN_NORM_NONE ? ATTN_OK : check_norm(&j->norm);
  if (status != ATTN_OK || j->rows == 0) return status;
  REQUIRE((uintptr_t)j->scales % sizeof(float) == 0,
          "attn_row_join.scales is %p; it must be aligned to its element, 4 bytes", (const void *)j->scales);
  status = check_array("x", j->x, j->dtype_x, true);
  if (status == ATTN_OK) status = check_array("other", j->other, j->dtype_other, j->kind == ATTN_JOIN_MULTIPLY);
  if (status == ATTN_OK) status = check_array("sum", j->sum, j->dtype_sum, false);
  if (status == ATTN_OK) status = check_array("y", j->y, j->dtype_y, true);
  return status == ATTN_OK ? check_places(j) : status;
}

static const attn_rows_kernel *choose(const attn_options *options) {
  attn_options own;
  const char *cap;
  if (attn_options_read(options, &own) != ATTN_OK || attn_dispatch_cap(&own, &cap) != ATTN_OK) return NULL;
  return attn_tier_parts_below(cap).rows;
}

attn_row_join_function attn_row_join_choose(const attn_options *options) {
  const attn_rows_kernel *kernel = choose(options);
  return kernel ? kernel->join : NULL;
}

const attn_row_gradients *attn_row_gradients_choose(const attn_options *options) {
  const attn_rows_kernel *kernel = choose(options);
  return kernel ? &kernel->gradients : NULL;
}

typedef struct join_run {
  const attn_row_join *join;
  attn_row_join_function function;
  int64_t rows; /* in a block */
} join_run;

static void run_block(void *context, int64_t block, int worker) {
  const join_run *r = context;
  (void)worker;
  const int64_t first = block * r->rows;
  const uint64_t mode = attn_float_mode_enter();
  r->function(r->join, first, min64(r->rows, r->join->rows - first));
  attn_float_mode_leave(mode);
}

attn_status attn_row_join_run(const attn_row_join *join, const attn_options *options) {
  REQUIRE(join, "join is NULL; it must point to an attn_row_join");
  attn_row_join j;
  attn_options wanted, resolved;
  attn_status status = attn_struct_read(&join_layout, join, &j);
  if (status == ATTN_OK) status = check(&j);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  if (status == ATTN_OK) status = attn_parallel_resolve(&wanted, &resolved);
  if (status != ATTN_OK || j.rows == 0) return status;
  join_run run = {&j, j.function ? j.function : attn_row_join_choose(&wanted), max64(1, BLOCK_ELEMENTS / j.width)};
  if (!run.function) return ATTN_INVALID_ARGUMENT; /* attn_row_join_choose() has said why */
  if (wanted.threads == 0 && !attn_parallel_pays_for_elements(j.rows * j.width * arrays(&j))) resolved.threads = 1;
  attn_parallel_run_near(&resolved, ceil_div(j.rows, run.rows), run_block, &run);
  return ATTN_OK;
}
