/* SPDX-License-Identifier: MIT */
/* Layers as cases: data, rows, verdicts. layer_axes.c says what the axes mean to them. */
#include "layers/layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "data/generate.h"
#include "layers/layer_kinds.h"
#include "cases/work.h"

enum { SEEDED_ROWS = 48, ALL_ROWS = 96, GUARD = 64 /* floats before and behind y */ };

struct bench_layer {
  bench_layer_data data;
  bench_layer_rows rows;
  int64_t *row_memory;
  float *y_memory; /* [GUARD][y][GUARD] */
  int64_t y_floats;
};

struct bench_layer_job {
  bench_layer *layer;
  const bench_layer_kind *kind;
  attn_options options;
  void *made;
  bench_layer_time time;
};

/* ---- Work ---- */

int64_t bench_layer_case_rows(const bench_case *bench) { return bench->problem.batch * bench->problem.seq_q; }

bench_layer_shape bench_layer_rows_to_rows(const bench_case *bench, int64_t weights, int64_t biases) {
  return (bench_layer_shape){.inputs = bench_layer_case_rows(bench) * bench->width,
                             .rows = bench->problem.seq_q,
                             .columns = bench->width,
                             .weights = weights,
                             .biases = biases};
}

double bench_layer_flops(const bench_case *bench) {
  const bench_layer_kind *kind = bench_layer_kind_of(bench);
  const attn_args none = {0};
  const double own = kind->flops ? kind->flops(bench) : 0;
  if (!bench_layer_has_attention(bench)) return own;
  return own + bench_work_flops(&bench->problem, bench_work_pairs(&bench->problem, &none));
}

double bench_layer_bytes(const bench_case *bench) {
  const bench_layer_shape s = bench_layer_kind_of(bench)->shape(bench);
  const double outputs = (double)(bench->problem.batch * s.rows) * (double)s.columns;
  return 4.0 * ((double)s.inputs + outputs + (double)s.weights + (double)s.biases);
}

/* ---- Data ---- */

static float *normal(const bench_case *bench, uint64_t first, int64_t count, double scale) {
  float *data = malloc(((size_t)count + 1) * sizeof *data);
  for (int64_t i = 0; data && i < count; i++)
    data[i] = (float)(scale * bench_value_normal(bench->seed, BENCH_STREAM_LAYER, first + (uint64_t)i));
  return data;
}

static void add_row(bench_layer_rows *rows, int64_t *memory, int64_t most, int64_t b, int64_t i) {
  for (int64_t r = 0; r < rows->count; r++)
    if (memory[r] == b && memory[most + r] == i) return;
  memory[rows->count] = b;
  memory[most + rows->count++] = i;
}

/* All rows of short sequences; of long ones the first, the last, those around the blocks that products and kernels work in, and
 * seeded ones. Batches one after the other. */
static bool choose_rows(bench_layer *layer) {
  static const int64_t edges[] = {0, 1, 5, 6, 63, 64, 95, 96, 97};
  enum { EDGES = sizeof edges / sizeof *edges };
  const bench_case *bench = layer->data.bench;
  const int64_t batches = bench->problem.batch, rows = layer->data.shape.rows;
  const int64_t per_batch = rows <= ALL_ROWS ? rows : SEEDED_ROWS + 2 * EDGES, most = batches * per_batch;
  int64_t *memory = layer->row_memory = malloc(2 * ((size_t)most + 1) * sizeof *memory);
  if (!memory) return false;
  for (int64_t b = 0; b < batches; b++) {
    for (int64_t i = 0; rows <= ALL_ROWS && i < rows; i++) add_row(&layer->rows, memory, most, b, i);
    if (rows <= ALL_ROWS) continue;
    for (int e = 0; e < EDGES && edges[e] < rows; e++) {
      add_row(&layer->rows, memory, most, b, edges[e]);
      add_row(&layer->rows, memory, most, b, rows - 1 - edges[e]);
    }
    for (int64_t s = 0; s < SEEDED_ROWS; s++)
      add_row(&layer->rows, memory, most, b,
              bench_value_below(bench->seed, BENCH_STREAM_CHECKED_ROWS, (uint64_t)(b * SEEDED_ROWS + s), rows));
  }
  layer->rows.batch = memory;
  layer->rows.row = memory + most;
  return true;
}

bench_layer *bench_layer_open(const bench_case *bench) {
  bench_layer *layer = calloc(1, sizeof *layer);
  if (!layer) return NULL;
  bench_layer_data *data = &layer->data;
  data->bench = bench;
  data->kind = bench_layer_kind_of(bench);
  data->shape = data->kind->shape(bench);
  layer->y_floats = bench->problem.batch * data->shape.rows * data->shape.columns;
  data->x = normal(bench, 0, data->shape.inputs, 1);
  data->weights = normal(bench, (uint64_t)1 << 40, data->shape.weights, 1 / sqrt((double)(bench->width ? bench->width : 1)));
  data->biases = normal(bench, (uint64_t)1 << 41, data->shape.biases, 0.2);
  layer->y_memory = malloc((size_t)(layer->y_floats + 2 * GUARD) * sizeof(float));
  const bool chosen = choose_rows(layer);
  const size_t values = (size_t)(layer->rows.count * data->shape.columns + 1);
  layer->rows.value = malloc(values * sizeof(double));
  layer->rows.limit = malloc(values * sizeof(double));
  if (chosen && data->x && data->weights && data->biases && layer->y_memory && layer->rows.value && layer->rows.limit) {
    data->y = layer->y_memory + GUARD;
    if (data->kind->prepare) data->kind->prepare(data);
    return layer;
  }
  bench_layer_close(layer);
  return NULL;
}

bench_layer_data *bench_layer_data_of(bench_layer *layer) { return &layer->data; }

void bench_layer_close(bench_layer *layer) {
  if (!layer) return;
  if (layer->data.kind->forget) layer->data.kind->forget(&layer->data);
  void *const memory[] = {layer->data.x,     layer->data.weights, layer->data.biases, layer->y_memory,
                          layer->row_memory, layer->rows.value,   layer->rows.limit,  layer};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

/* ---- The layer ---- */

/* The product of the kernel's tier, so that a row of plain C is plain C throughout; beside a kernel that stands on a library, the
 * best there is. */
static const char *cap_for(const attn_kernel_info *kernel) { return kernel && !kernel->library[0] ? kernel->isa : NULL; }

static attn_status make(bench_layer *layer, const attn_options *options, bool wrong, bench_layer_job **result) {
  *result = NULL;
  bench_layer_job *job = calloc(1, sizeof *job);
  if (!job) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for a layer");
  *job = (bench_layer_job){.layer = layer, .kind = layer->data.kind, .options = *options};
  const attn_status status = job->kind->make(&layer->data, options, wrong, &job->made);
  if (status == ATTN_OK)
    *result = job;
  else
    free(job);
  return status;
}

static attn_options options_for(const bench_layer *layer, const attn_kernel_info *kernel) {
  return (attn_options){
      .kernel = kernel ? kernel->name : NULL, .max_isa = cap_for(kernel), .threads = layer->data.bench->threads};
}

attn_status bench_layer_make(bench_layer *layer, const attn_kernel_info *kernel, bench_layer_job **job) {
  const attn_options options = options_for(layer, kernel);
  return make(layer, &options, false, job);
}

attn_status bench_layer_make_wrong(bench_layer *layer, const attn_kernel_info *kernel, bench_layer_job **job) {
  const attn_options options = options_for(layer, kernel);
  return make(layer, &options, true, job);
}

void bench_layer_unmake(bench_layer_job *job) {
  if (job) job->kind->unmake(job->made);
  free(job);
}

size_t bench_layer_workspace(const bench_layer_job *job) { return job->kind->workspace(job->made); }
const char *bench_layer_kernel(const bench_layer_job *job) { return job->kind->kernel(job->made); }
const char *bench_layer_product(const bench_layer_job *job) { return job->kind->product(job->made); }

attn_status bench_layer_call(bench_layer_job *job, void *workspace, size_t bytes) {
  return job->kind->run(&job->layer->data, job->made, workspace, bytes, &job->time);
}

/* Guards and output alike. */
void bench_layer_poison(bench_layer_job *job) {
  memset(job->layer->y_memory, 0xff, (size_t)(job->layer->y_floats + 2 * GUARD) * sizeof(float));
}

/* FNV-1a over 32-bit words. */
uint64_t bench_layer_output_hash(const bench_layer_job *job) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < job->layer->y_floats; i++) {
    uint32_t word;
    memcpy(&word, job->layer->data.y + i, sizeof word);
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return hash;
}

void bench_layer_reset_shares(bench_layer_job *job) { job->time = (bench_layer_time){0}; }

bench_shares bench_layer_shares(const bench_layer_job *job) {
  const bench_layer_time *t = &job->time;
  if (t->total_ns <= 0) return (bench_shares){0};
  return (bench_shares){.projections = t->projections_ns / t->total_ns,
                        .attention = t->attention_ns / t->total_ns,
                        .rest = (t->total_ns - t->projections_ns - t->attention_ns) / t->total_ns};
}

/* ---- The check ---- */

static bool guards_stand(const bench_layer *layer) {
  const unsigned char *before = (const unsigned char *)layer->y_memory;
  const unsigned char *behind = (const unsigned char *)(layer->y_memory + GUARD + layer->y_floats);
  for (size_t i = 0; i < GUARD * sizeof(float); i++)
    if (before[i] != 0xff || behind[i] != 0xff) return false;
  return true;
}

/* Error over limit; a NaN anywhere fails. */
static double ratio_of(double error, double limit) {
  if (error <= limit) return limit > 0 ? error / limit : 0;
  const double ratio = error / limit;
  return ratio > 1 && ratio < INFINITY ? ratio : INFINITY;
}

/* Compares what stands in y, or zeros, with the expected rows. */
static void compare(const bench_layer *layer, bool zeros, bench_verdict *verdict) {
  const int64_t columns = layer->data.shape.columns, rows = layer->data.shape.rows;
  *verdict = (bench_verdict){.status = BENCH_PASS, .rows_checked = layer->rows.count};
  for (int64_t r = 0; r < layer->rows.count; r++)
    for (int64_t c = 0; c < columns; c++) {
      const int64_t b = layer->rows.batch[r], i = layer->rows.row[r];
      const double got = zeros ? 0 : (double)layer->data.y[(b * rows + i) * columns + c];
      const double error = fabs(got - layer->rows.value[r * columns + c]);
      const double ratio = ratio_of(error, layer->rows.limit[r * columns + c]);
      if (!(error <= verdict->max_abs_err)) verdict->max_abs_err = error;
      if (ratio <= verdict->max_err_ratio) continue;
      verdict->max_err_ratio = ratio;
      const int64_t index[] = {b, 0, i, c};
      memcpy(verdict->err_index, index, sizeof index);
    }
}

/* Whether the wrong answer would pass, which proves nothing of what it has wrong. */
static attn_status run_wrong(bench_layer_job *job, void *workspace, size_t bytes, bench_verdict *verdict) {
  bench_layer_job *wrong;
  attn_status status = make(job->layer, &job->options, true, &wrong);
  if (status != ATTN_OK) return status;
  status = bench_layer_call(wrong, workspace, bytes);
  bench_layer_unmake(wrong);
  if (status == ATTN_OK) compare(job->layer, false, verdict);
  return status;
}

static bench_verdict error_verdict(const char *reason) {
  bench_verdict verdict = {.status = BENCH_ERROR};
  snprintf(verdict.reason, sizeof verdict.reason, "%s", reason);
  return verdict;
}

static void judge(const bench_layer *layer, bench_verdict *verdict) {
  if (verdict->max_err_ratio > 1) {
    verdict->status = BENCH_FAIL;
    snprintf(verdict->reason, sizeof verdict->reason, "error is %.3g of the limit at batch %lld, row %lld, column %lld",
             verdict->max_err_ratio, (long long)verdict->err_index[0], (long long)verdict->err_index[2],
             (long long)verdict->err_index[3]);
  } else if (!guards_stand(layer)) {
    verdict->status = BENCH_FAIL;
    snprintf(verdict->reason, sizeof verdict->reason, "wrote outside y");
  }
}

bench_verdict bench_layer_check(bench_layer_job *job, const attn_numerics *numerics, void *workspace, size_t bytes) {
  bench_layer *layer = job->layer;
  bench_verdict verdict, zeros, wrong;
  if (!job->kind->expect(&layer->data, numerics, &layer->rows))
    return error_verdict("out of memory for the oracle's answer");
  compare(layer, true, &zeros);
  if (run_wrong(job, workspace, bytes, &wrong) != ATTN_OK) return error_verdict(attn_last_error());
  bench_layer_poison(job);
  if (bench_layer_call(job, workspace, bytes) != ATTN_OK) return error_verdict(attn_last_error());
  compare(layer, false, &verdict);
  judge(layer, &verdict);
  verdict.output_hash = bench_layer_output_hash(job);
  if (verdict.status == BENCH_PASS && layer->rows.count > 0 && (zeros.max_err_ratio <= 1 || wrong.max_err_ratio <= 1)) {
    verdict.status = BENCH_DEGENERATE;
    snprintf(verdict.reason, sizeof verdict.reason, "%s would pass as well",
             zeros.max_err_ratio <= 1 ? "zeros" : job->kind->wrong);
  }
  return verdict;
}
