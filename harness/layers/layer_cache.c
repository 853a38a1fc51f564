/* SPDX-License-Identifier: MIT */
/* Writing a KV cache: seq_q new tokens of each sequence behind seq_k - seq_q that it holds, converted, rotated where the
 * case has a rotation, and stored in a dense cache or in pages. */
#include <math.h>
#include <stdlib.h>

#include "attn/extend.h"
#include "attn/kv.h"
#include "data/generate.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/ref/oracle_f64.h"
#include "layers/layer.h"

/* x: K, then V, as projections leave them: [batch][tokens][heads][dim]. y: the cache of K, then that of V, each
 * [page][heads][page_tokens][dim]; a dense cache has one page for each sequence. A row is a token's in one head: its key,
 * then its value. */
static const double BASE = 10000;

static int64_t page_tokens(const attn_problem *p) { return p->uses & ATTN_USE_PAGES ? p->page_tokens : p->seq_k; }
static int64_t pages(const attn_problem *p) { return p->uses & ATTN_USE_PAGES ? p->pages : p->batch; }
static int64_t new_rows(const attn_problem *p) { return p->batch * p->seq_q * p->heads_kv; }
static int64_t rows_of_cache(const attn_problem *p) { return pages(p) * p->heads_kv * page_tokens(p); }

static bench_layer_shape append_shape(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  return (bench_layer_shape){.inputs = new_rows(p) * (p->dim_qk + p->dim_v),
                             .rows = p->seq_q * p->heads_kv,
                             .columns = p->dim_qk + p->dim_v,
                             .type_x = p->dtype_q,
                             .type_y = p->dtype_kv,
                             .places = rows_of_cache(p) * (p->dim_qk + p->dim_v)};
}

/* Rows are tokens x heads. */
static int64_t place(const bench_layer_data *data, int64_t batch, int64_t row, int64_t column) {
  const attn_problem *p = &data->bench->problem;
  const int64_t head = row % p->heads_kv, token = p->seq_k - p->seq_q + row / p->heads_kv, of_page = page_tokens(p);
  const int64_t page = data->pages ? data->pages[batch * p->page_table_stride + token / of_page] : batch;
  const int64_t row_of_cache = (page * p->heads_kv + head) * of_page + token % of_page;
  return column < p->dim_qk ? row_of_cache * p->dim_qk + column
                            : rows_of_cache(p) * p->dim_qk + row_of_cache * p->dim_v + column - p->dim_qk;
}

/* ---- Calls ---- */

typedef struct append {
  attn_kv_append_args args;
  attn_rope *rope;
  int32_t past[];
} append;

static void append_destroy(void *layer) {
  append *a = layer;
  if (a) attn_rope_destroy(a->rope);
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
  const int64_t v = new_rows(p) * p->dim_qk, v_cache = rows_of_cache(p) * p->dim_qk;
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

static attn_status append_create(bench_layer_trial *trial) {
  const attn_problem *p = &trial->data->bench->problem;
  append *a = calloc(1, sizeof *a + (size_t)p->batch * sizeof *a->past);
  if (!a) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for the lengths of sequences");
  for (int64_t b = 0; b < p->batch; b++) a->past[b] = (int32_t)(p->seq_k - p->seq_q);
  a->args = args_of(trial);
  a->args.past = a->past;
  trial->layer = a;
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

/* Element `column` of a new row, and the same as the cache holds it. */
static double new_number(const bench_layer_data *data, int64_t row, int64_t column) {
  const attn_problem *p = &data->bench->problem;
  const int64_t of_k = row * p->dim_qk + column, of_v = new_rows(p) * p->dim_qk + row * p->dim_v + column - p->dim_qk;
  return attn_oracle_load(data->x, p->dtype_q, column < p->dim_qk ? of_k : of_v);
}

static double as_stored(double value, attn_dtype dtype) {
  float room = 0;
  bench_store(&room, dtype, 0, value);
  return attn_oracle_load(&room, dtype, 0);
}

/* An element of a rotated key, and by how much float32 and then the type of the cache may miss it. */
static double turned(const bench_layer_data *data, int64_t token, int64_t row, int64_t column, double *error) {
  const attn_problem *p = &data->bench->problem;
  const bool halves = pairing_of(data->bench) == ATTN_ROPE_HALVES;
  const int64_t apart = halves ? p->dim_qk / 2 : 1, pair = halves ? column % apart : column / 2;
  const int64_t first = halves ? pair : 2 * pair;
  const double angle = (double)token * pow(BASE, -2.0 * (double)pair / (double)p->dim_qk);
  const double own = new_number(data, row, column) * cos(angle);
  const double other =
      column == first ? -new_number(data, row, first + apart) * sin(angle) : new_number(data, row, first) * sin(angle);
  const attn_dtype_info stored = attn_dtype_of(p->dtype_kv);
  *error = attn_dtype_of(ATTN_F32).roundoff * sqrt(2 * own * own + 2 * other * other + (own + other) * (own + other));
  if (p->dtype_kv != ATTN_F32) /* a bound, which the limit must not multiply */
    *error += (stored.roundoff * fabs(own + other) + stored.least) / ATTN_NN_SIGMAS;
  return own + other;
}

static attn_nn_field append_expect(const bench_chosen *c) {
  const bench_layer_data *data = c->data;
  const attn_problem *p = &data->bench->problem;
  attn_nn_field y = attn_nn_field_create(c->count, p->dim_qk + p->dim_v);
  for (int64_t i = 0; i < c->count * y.width; i++) {
    const int64_t row = c->row[i / y.width], of_all = c->batch * p->seq_q * p->heads_kv + row, column = i % y.width;
    const int64_t token = p->seq_k - p->seq_q + row / p->heads_kv;
    if (pairing_of(data->bench) && column < p->dim_qk)
      y.value[i] = turned(data, token, of_all, column, &y.error[i]);
    else
      y.value[i] = as_stored(new_number(data, of_all, column), p->dtype_kv);
  }
  return y;
}

const bench_layer_functions bench_layer_kv_append = {.shape = append_shape,
                                                     .wrong = "rows that begin one element later",
                                                     .create = append_create,
                                                     .destroy = append_destroy,
                                                     .run = append_run,
                                                     .expect = append_expect,
                                                     .place = place};
