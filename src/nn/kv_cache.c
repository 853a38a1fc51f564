/* SPDX-License-Identifier: MIT */
/* A KV cache and the step that decodes with it: append, then attend causally, aligned bottom-right.
 *
 * The alignment yields positions: with kv_len = tokens cached and q_len = tokens of this step, offset = kv_len - q_len is
 * the position of the step's first token. It is computed per sequence, so sequences may have different lengths. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/dtypes.h"
#include "src/nn/check.h"

struct attn_kv_cache {
  attn_kv_cache_shape shape;
  attn_options options;
  char kernel[64]; /* copies of options.kernel and max_isa: the caller may free the strings */
  char max_isa[32];
  char *k, *v;
  int32_t *lengths, *counts; /* [batch] each: tokens cached, tokens of the step */
  attn_plan *plan;           /* for steps of planned_tokens; NULL before the first */
  int64_t planned_tokens;
  void *workspace;
};

/* ---- Creating ---- */

static const attn_struct_layout shape_layout = ATTN_LAYOUT(attn_kv_cache_shape, dtype);

static attn_status check_shape(const attn_kv_cache_shape *s) {
  const int64_t dim = s->dim_qk > s->dim_v ? s->dim_qk : s->dim_v;
  const attn_nn_size sizes[] = {{"attn_kv_cache_shape.batch", s->batch, 1},
                                {"attn_kv_cache_shape.heads_q", s->heads_q, 1},
                                {"attn_kv_cache_shape.capacity", s->capacity, 1},
                                {s->dim_qk > s->dim_v ? "attn_kv_cache_shape.dim_qk" : "attn_kv_cache_shape.dim_v", dim, 1}};
  const attn_nn_size least[] = {{"attn_kv_cache_shape.heads_kv", s->heads_kv, 1},
                                {"attn_kv_cache_shape.dim_qk", s->dim_qk, 1}};
  const attn_nn_size last[] = {{"attn_kv_cache_shape.dim_v", s->dim_v, 1}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK) status = attn_nn_check_sizes(least, NN_COUNT(least));
  if (status == ATTN_OK) status = attn_nn_check_sizes(last, NN_COUNT(last));
  if (status != ATTN_OK) return status;
  REQUIRE(s->capacity < INT32_MAX, "attn_kv_cache_shape.capacity is %" PRId64 "; it must be below 2^31 - 1", s->capacity);
  REQUIRE(s->heads_q % s->heads_kv == 0,
          "attn_kv_cache_shape.heads_q is %" PRId64 " with heads_kv %" PRId64 "; it must be a multiple", s->heads_q,
          s->heads_kv);
  REQUIRE(attn_dtype_exists(s->dtype), "attn_kv_cache_shape.dtype is %d; it must be " ATTN_DTYPE_CONSTANTS, (int)s->dtype);
  return ATTN_OK;
}

/* No kernel has a name that is too long to keep. Cut off, it is still unknown. */
static const char *keep(char *memory, size_t bytes, const char *text) {
  if (!text) return NULL;
  strncpy(memory, text, bytes - 1);
  return memory;
}

static attn_status make_plan(attn_kv_cache *cache, int64_t tokens) {
  const attn_kv_cache_shape *s = &cache->shape;
  attn_problem p;
  attn_problem_init(&p, s->batch, s->heads_q, s->heads_kv, tokens, s->capacity, s->dim_qk, s->dim_v);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  p.uses = ATTN_USE_KV_LEN | ATTN_USE_Q_LEN;
  p.dtype_q = p.dtype_kv = s->dtype;
  attn_plan *plan;
  attn_status status = attn_plan_create(&p, &cache->options, &plan);
  if (status != ATTN_OK) return status;
  void *workspace = attn_nn_allocate("the workspace of a step", attn_plan_workspace(plan));
  if (!workspace) return attn_plan_destroy(plan), ATTN_OUT_OF_MEMORY;
  attn_plan_destroy(cache->plan);
  attn_aligned_free(cache->workspace);
  cache->plan = plan;
  cache->workspace = workspace;
  cache->planned_tokens = tokens;
  return ATTN_OK;
}

static size_t row_bytes(const attn_kv_cache_shape *shape, int64_t dim) {
  return (size_t)attn_elements_bytes(shape->dtype, dim);
}

static attn_status create(const attn_kv_cache_shape *shape, const attn_options *options, attn_kv_cache **result) {
  attn_kv_cache *cache = calloc(1, sizeof *cache);
  if (!cache) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_kv_cache needs %zu bytes", sizeof *cache);
  cache->shape = *shape;
  cache->options = *options;
  cache->options.kernel = keep(cache->kernel, sizeof cache->kernel, cache->options.kernel);
  cache->options.max_isa = keep(cache->max_isa, sizeof cache->max_isa, cache->options.max_isa);
  const size_t rows = (size_t)(shape->batch * shape->heads_kv * shape->capacity);
  cache->k = attn_nn_allocate("the cache of keys", rows * row_bytes(shape, shape->dim_qk));
  cache->v = attn_nn_allocate("the cache of values", rows * row_bytes(shape, shape->dim_v));
  cache->lengths = calloc((size_t)shape->batch, sizeof *cache->lengths);
  cache->counts = calloc((size_t)shape->batch, sizeof *cache->counts);
  attn_status status;
  if (!cache->k || !cache->v || !cache->lengths || !cache->counts) {
    status = attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the cache has %zu rows of %" PRId64 " + %" PRId64 " elements",
                       rows, shape->dim_qk, shape->dim_v);
  } else {
    status = make_plan(cache, 1); /* a kernel that cannot decode is refused now, not at the first generated token */
  }
  if (status != ATTN_OK) return attn_kv_cache_destroy(cache), status;
  *result = cache;
  return ATTN_OK;
}

attn_status attn_kv_cache_create(const attn_kv_cache_shape *shape, const attn_options *options, attn_kv_cache **result) {
  REQUIRE(result, "cache is NULL; it must point to where the cache's address goes");
  *result = NULL;
  attn_kv_cache_shape s;
  attn_options wanted;
  attn_status status = attn_nn_read(&shape_layout, "shape", shape, &s);
  if (status == ATTN_OK) status = check_shape(&s);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  return status == ATTN_OK ? create(&s, &wanted, result) : status;
}

void attn_kv_cache_destroy(attn_kv_cache *cache) {
  if (!cache) return;
  attn_plan_destroy(cache->plan);
  attn_aligned_free(cache->workspace);
  attn_aligned_free(cache->k);
  attn_aligned_free(cache->v);
  free(cache->lengths);
  free(cache->counts);
  free(cache);
}

/* ---- Steps ---- */

static attn_status check_step(attn_kv_cache *cache, int64_t tokens, const int32_t *counts) {
  const int64_t capacity = cache->shape.capacity;
  REQUIRE(tokens >= 0 && tokens <= capacity, "tokens is %" PRId64 "; it must be in 0..%" PRId64 ", the cache's capacity",
          tokens, capacity);
  for (int64_t b = 0; b < cache->shape.batch; b++) {
    const int64_t count = counts ? counts[b] : tokens;
    REQUIRE(count >= 0 && count <= tokens, "counts[%" PRId64 "] is %" PRId64 "; it must be in 0..%" PRId64, b, count,
            tokens);
    REQUIRE(cache->lengths[b] + count <= capacity,
            "sequence %" PRId64 " holds %d of %" PRId64 " tokens; %" PRId64 " more do not fit", b, (int)cache->lengths[b],
            capacity, count);
  }
  return ATTN_OK;
}

/* Appends the step's rows of one tensor to the cached ones. */
static void append(const attn_kv_cache *cache, int64_t tokens, const char *rows, int64_t dim, char *cached) {
  const attn_kv_cache_shape *s = &cache->shape;
  const size_t bytes = row_bytes(s, dim);
  for (int64_t b = 0; b < s->batch; b++)
    for (int64_t h = 0; h < s->heads_kv; h++) {
      const int64_t head = b * s->heads_kv + h;
      memcpy(cached + (size_t)(head * s->capacity + cache->lengths[b]) * bytes, rows + (size_t)(head * tokens) * bytes,
             (size_t)cache->counts[b] * bytes);
    }
}

attn_status attn_kv_cache_step(attn_kv_cache *cache, int64_t tokens, const int32_t *counts, const void *q, const void *k,
                               const void *v, float *o) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  attn_status status = check_step(cache, tokens, counts);
  if (status != ATTN_OK || tokens == 0) return status;
  const attn_nn_pointer pointers[] = {{"q", q}, {"k", k}, {"v", v}, {"o", o}};
  status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status == ATTN_OK && tokens != cache->planned_tokens) status = make_plan(cache, tokens);
  if (status != ATTN_OK) return status;
  for (int64_t b = 0; b < cache->shape.batch; b++) cache->counts[b] = counts ? counts[b] : (int32_t)tokens;
  append(cache, tokens, k, cache->shape.dim_qk, cache->k);
  append(cache, tokens, v, cache->shape.dim_v, cache->v);
  for (int64_t b = 0; b < cache->shape.batch; b++) cache->lengths[b] += cache->counts[b];
  const attn_args args =
      ATTN_STRUCT(attn_args, .q = q, .k = cache->k, .v = cache->v, .o = o, .kv_len = cache->lengths, .q_len = cache->counts);
  status = attn_plan_run(cache->plan, &args, cache->workspace, attn_plan_workspace(cache->plan));
  for (int64_t b = 0; status != ATTN_OK && b < cache->shape.batch; b++) cache->lengths[b] -= cache->counts[b];
  return status;
}

const int32_t *attn_kv_cache_lengths(const attn_kv_cache *cache) { return cache ? cache->lengths : NULL; }

const char *attn_kv_cache_kernel(const attn_kv_cache *cache) { return cache ? attn_plan_kernel(cache->plan) : ""; }

attn_status attn_kv_cache_truncate(attn_kv_cache *cache, int64_t length) {
  REQUIRE(cache, "cache is NULL; it must come from attn_kv_cache_create");
  REQUIRE(length >= 0, "length is %" PRId64 "; it must be at least 0", length);
  for (int64_t b = 0; b < cache->shape.batch; b++)
    if (cache->lengths[b] > length) cache->lengths[b] = (int32_t)length;
  return ATTN_OK;
}
