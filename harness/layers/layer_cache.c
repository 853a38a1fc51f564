/* SPDX-License-Identifier: MIT */
/* Writing a KV cache: seq_q new tokens of each sequence behind seq_k - seq_q that it holds, rotated where the case has a
 * rotation, converted or quantised, and stored in a dense cache or in pages. */
#include <math.h>
#include <stdlib.h>

#include "attn/extend.h"
#include "attn/kv.h"
#include "data/cached.h"
#include "data/generate.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/ref/oracle_f64.h"
#include "layers/layer.h"

/* x: K, then V, as projections leave them: [batch][tokens][heads][dim]. y: the cache of K, then that of V, each
 * [page][heads][page_tokens][dim]; a dense cache has one page for each sequence; then the factors that are made, of K and of
 * V, each [page][heads][page_tokens]. A row is a token's in one head: its key, then its value. */
static const double BASE = 10000;

static int64_t page_tokens(const attn_problem *p) { return p->uses & ATTN_USE_PAGES ? p->page_tokens : p->seq_k; }
static int64_t pages(const attn_problem *p) { return p->uses & ATTN_USE_PAGES ? p->pages : p->batch; }
static int64_t new_rows(const attn_problem *p) { return p->batch * p->seq_q * p->heads_kv; }
static int64_t rows_of_cache(const attn_problem *p) { return pages(p) * p->heads_kv * page_tokens(p); }
static int64_t stored_of(const attn_problem *p, int64_t dim) { return attn_row_elements(p->dtype_kv, dim); }

/* kv_scales=token makes the factors; those of a tensor or of its heads are given. */
static bool makes_factors(const bench_case *bench) { return bench_spec_is(&bench->spec, AXIS_KV_SCALES, "token"); }

/* No number of x is beyond 6, and none is beyond 6 sqrt(2) when it is rotated, so that all fit 127 of this. */
static float given_factor(const bench_case *bench, bool of_v, int64_t head) {
  const bench_stream stream = of_v ? BENCH_STREAM_V_SCALE : BENCH_STREAM_K_SCALE;
  const int64_t index = bench_spec_is(&bench->spec, AXIS_KV_SCALES, "head") ? head : 0;
  if (!(bench->problem.uses & ATTN_USE_KV_SCALES)) return 1;
  return (float)(9.0 / 127 * (1 + bench_value_uniform(bench->seed, stream, (uint64_t)index)));
}

static bench_layer_shape append_shape(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  const int64_t stored = stored_of(p, p->dim_qk) + stored_of(p, p->dim_v);
  return (bench_layer_shape){.inputs = new_rows(p) * (p->dim_qk + p->dim_v),
                             .rows = p->seq_q * p->heads_kv,
                             .columns = p->dim_qk + p->dim_v,
                             .type_x = p->dtype_q,
                             .type_y = p->dtype_kv,
                             .places = rows_of_cache(p) * stored,
                             .stored = stored,
                             .factors = makes_factors(bench) ? 2 * rows_of_cache(p) : 0};
}

/* Rows are tokens x heads. */
static int64_t row_of_cache(const bench_layer_data *data, int64_t batch, int64_t row) {
  const attn_problem *p = &data->bench->problem;
  const int64_t head = row % p->heads_kv, token = p->seq_k - p->seq_q + row / p->heads_kv, of_page = page_tokens(p);
  const int64_t page = data->pages ? data->pages[batch * p->page_table_stride + token / of_page] : batch;
  return (page * p->heads_kv + head) * of_page + token % of_page;
}

static int64_t place(const bench_layer_data *data, int64_t batch, int64_t row, int64_t column) {
  const attn_problem *p = &data->bench->problem;
  const int64_t at = row_of_cache(data, batch, row), of_k = stored_of(p, p->dim_qk);
  return column < p->dim_qk ? at * of_k + column
                            : rows_of_cache(p) * of_k + at * stored_of(p, p->dim_v) + column - p->dim_qk;
}

static double factor(const bench_layer_data *data, int64_t batch, int64_t row, int64_t column) {
  const attn_problem *p = &data->bench->problem;
  const bool of_v = column >= p->dim_qk;
  if (!makes_factors(data->bench)) return (double)given_factor(data->bench, of_v, row % p->heads_kv);
  return (double)bench_layer_factors(data)[(of_v ? rows_of_cache(p) : 0) + row_of_cache(data, batch, row)];
}

/* ---- Calls ---- */

typedef struct append {
  attn_kv_append_args args;
  attn_rope *rope;
  int32_t *past;
  float *factors; /* given ones of K's heads, then of V's */
} append;

static void append_destroy(void *layer) {
  append *a = layer;
  if (!a) return;
  attn_rope_destroy(a->rope);
  free(a->past);
  free(a->factors);
  free(a);
}

static attn_rope_pairing pairing_of(const bench_case *bench) {
  static const attn_rope_pairing pairings[] = {0, ATTN_ROPE_INTERLEAVED, ATTN_ROPE_HALVES}; /* the words of the axis */
  return pairings[bench_spec_index(&bench->spec, AXIS_ROPE)];
}

static attn_strides new_strides(const attn_problem *p, int64_t dim) {
  return (attn_strides){.b = p->seq_q * p->heads_kv * dim, .h = dim, .s = p->heads_kv * dim, .d = 1};
}

/* The wrong answer takes rows that begin one element later. */
static attn_kv_append_args args_of(const bench_layer_trial *trial) {
  const bench_layer_data *data = trial->data;
  const attn_problem *p = &data->bench->problem;
  const int64_t v = new_rows(p) * p->dim_qk, v_cache = rows_of_cache(p) * stored_of(p, p->dim_qk);
  const bool paged = data->pages;
  return ATTN_STRUCT(attn_kv_append_args, .batch = p->batch, .tokens = p->seq_q, .heads_kv = p->heads_kv,
                     .dim_qk = p->dim_qk, .dim_v = p->dim_v, .dtype = p->dtype_q, .cache_dtype = p->dtype_kv,
                     .k = attn_element_at(data->x, p->dtype_q, trial->wrong),
                     .v = attn_element_at(data->x, p->dtype_q, v + trial->wrong), .k_stride = new_strides(p, p->dim_qk),
                     .v_stride = new_strides(p, p->dim_v), .k_cache = data->y,
                     .v_cache = (char *)data->y + attn_elements_bytes(p->dtype_kv, v_cache),
                     .capacity = paged ? 0 : p->seq_k, .page_tokens = paged ? p->page_tokens : 0,
                     .pages = paged ? p->pages : 0, .page_table = data->pages, .page_table_stride = p->page_table_stride);
}

static void add_factors(const bench_layer_data *data, append *a) {
  const attn_problem *p = &data->bench->problem;
  if (makes_factors(data->bench)) {
    a->args.k_scale_cache = bench_layer_factors(data);
    a->args.v_scale_cache = a->args.k_scale_cache + rows_of_cache(p);
  } else if (p->uses & ATTN_USE_KV_SCALES) {
    for (int64_t i = 0; i < 2 * p->heads_kv; i++)
      a->factors[i] = given_factor(data->bench, i >= p->heads_kv, i % p->heads_kv);
    a->args.k_scale = a->factors;
    a->args.v_scale = a->factors + p->heads_kv;
    a->args.k_scale_stride.h = a->args.v_scale_stride.h = 1;
  }
}

static attn_status append_create(bench_layer_trial *trial) {
  const attn_problem *p = &trial->data->bench->problem;
  append *a = trial->layer = calloc(1, sizeof *a);
  if (a) a->past = malloc((size_t)p->batch * sizeof *a->past);
  if (a) a->factors = malloc((size_t)(2 * p->heads_kv) * sizeof *a->factors);
  if (!a || !a->past || !a->factors)
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for the lengths of sequences and the factors of heads");
  for (int64_t b = 0; b < p->batch; b++) a->past[b] = (int32_t)(p->seq_k - p->seq_q);
  a->args = args_of(trial);
  a->args.past = a->past;
  add_factors(trial->data, a);
  const attn_rope_config config =
      ATTN_STRUCT(attn_rope_config, .pairing = pairing_of(trial->data->bench), .dim = p->dim_qk, .base = BASE);
  if (!config.pairing) return ATTN_OK;
  const attn_status status = attn_rope_create(&config, &a->rope);
  a->args.rope = a->rope;
  return status;
}

static attn_status append_run(bench_layer_trial *trial, void *workspace, size_t bytes) {
  const append *a = trial->layer;
  (void)workspace, (void)bytes;
  return attn_kv_append(&a->args, &trial->options);
}

/* ---- Expected answer ---- */

/* Element `column` of a new row. */
static double new_number(const bench_layer_data *data, int64_t row, int64_t column) {
  const attn_problem *p = &data->bench->problem;
  const int64_t of_k = row * p->dim_qk + column, of_v = new_rows(p) * p->dim_qk + row * p->dim_v + column - p->dim_qk;
  return attn_oracle_load(data->x, p->dtype_q, column < p->dim_qk ? of_k : of_v);
}

/* An element of a rotated key, and by how much float32 may miss it. */
static double turned(const bench_layer_data *data, int64_t token, int64_t row, int64_t column, double *error) {
  const attn_problem *p = &data->bench->problem;
  const bool halves = pairing_of(data->bench) == ATTN_ROPE_HALVES;
  const int64_t apart = halves ? p->dim_qk / 2 : 1, pair = halves ? column % apart : column / 2;
  const int64_t first = halves ? pair : 2 * pair;
  const double angle = (double)token * pow(BASE, -2.0 * (double)pair / (double)p->dim_qk);
  const double own = new_number(data, row, column) * cos(angle);
  const double other =
      column == first ? -new_number(data, row, first + apart) * sin(angle) : new_number(data, row, first) * sin(angle);
  *error = attn_dtype_of(ATTN_F32).roundoff * sqrt(2 * own * own + 2 * other * other + (own + other) * (own + other));
  return own + other;
}

/* Rounds a row as the cache does. */
static void round_row(const bench_cached *how, double *row, int64_t count) {
  const float scale = bench_cached_factor(how, row, count);
  for (int64_t first = 0; first < count; first += ATTN_BLOCK_VALUES) {
    float room[ATTN_BLOCK_VALUES];
    const int64_t values = count - first < ATTN_BLOCK_VALUES ? count - first : ATTN_BLOCK_VALUES;
    bench_cached_store(room, how->dtype, 0, 1, row + first, values, scale);
    for (int64_t i = 0; i < values; i++) row[first + i] = (double)scale * attn_oracle_load(room, how->dtype, i);
  }
}

/* Gives a rotated row, which is known to within its error's limit, the limit of what the cache may hold. It is a bound,
 * which attn_nn_limit() must not multiply. */
static void bound_row(const bench_cached *how, const double *row, double *error, int64_t count) {
  for (int64_t i = 0; i < count; i++) error[i] = attn_nn_limit(error[i]);
  bench_cached_bounds(how, row, error, count, error);
  for (int64_t i = 0; i < count; i++) error[i] /= ATTN_NN_SIGMAS;
}

static void expect_row(const bench_layer_data *data, int64_t row, double *value, double *error) {
  const attn_problem *p = &data->bench->problem;
  const int64_t token = p->seq_k - p->seq_q + row / p->heads_kv % p->seq_q, all = p->dim_qk + p->dim_v;
  const bool turns = pairing_of(data->bench);
  for (int64_t i = 0; i < all; i++)
    value[i] = turns && i < p->dim_qk ? turned(data, token, row, i, &error[i]) : new_number(data, row, i);
  for (int v = 0; v < 2; v++) {
    const bench_cached how = {p->dtype_kv, makes_factors(data->bench), given_factor(data->bench, v, row % p->heads_kv)};
    const int64_t first = v ? p->dim_qk : 0, count = v ? p->dim_v : p->dim_qk;
    if (turns && !v)
      bound_row(&how, value, error, count);
    else
      round_row(&how, value + first, count);
  }
}

static attn_nn_field append_expect(const bench_chosen *c) {
  const attn_problem *p = &c->data->bench->problem;
  attn_nn_field y = attn_nn_field_create(c->count, p->dim_qk + p->dim_v);
  for (int64_t r = 0; r < c->count; r++)
    expect_row(c->data, c->batch * p->seq_q * p->heads_kv + c->row[r], y.value + r * y.width, y.error + r * y.width);
  return y;
}

const bench_layer_functions bench_layer_kv_append = {.shape = append_shape,
                                                     .wrong = "rows that begin one element later",
                                                     .create = append_create,
                                                     .destroy = append_destroy,
                                                     .run = append_run,
                                                     .expect = append_expect,
                                                     .place = place,
                                                     .factor = factor};
