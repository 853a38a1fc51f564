/* Layers as cases: data, rows, verdicts. */
#include "layer.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/product.h"
#include "generate.h"
#include "layer_kinds.h"
#include "work.h"

enum { SEEDED_ROWS = 48, ALL_ROWS = 96, GUARD = 64 /* floats before and behind y */ };

struct bench_layer {
  const bench_layer_kind *kind;
  bench_layer_data data;
  bench_layer_rows rows;
  int64_t *row_memory;
  float *y_memory; /* [GUARD][y][GUARD] */
  int64_t y_floats;
};

struct bench_layer_job {
  bench_layer *layer;
  attn_options options;
  void *made;
  bench_layer_time time;
};

/* ---- The kinds ---- */

const bench_layer_kind *bench_layer_kind_find(const char *name) {
  static const bench_layer_kind *const kinds[] = {&bench_layer_mha,   &bench_layer_block,        &bench_layer_decoder,
                                                  &bench_layer_cross, &bench_layer_feed_forward, &bench_layer_add_norm};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(kinds[i]->name, name)) return kinds[i];
  return NULL;
}

/* ---- The case ---- */

bool bench_layer_is(const bench_case *bench) { return bench->layer[0] != 0; }

const char *bench_layer_contradiction(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  if (!bench_layer_is(bench)) return bench->width ? "width is of layers: layer=mha, layer=block, ... must be given with it" : NULL;
  if (!bench->width) return "a layer's width must be a multiple of its heads, or head_dim be given";
  if (p->seq_q != p->seq_k) return "layers attend to themselves: seq_q and seq_k must be equal";
  if (p->uses || p->score != ATTN_SCORE_DOT || p->softcap > 0)
    return "layers here have causal masks and windows only: no lengths, masks, bias, alibi, sinks, softcap, lse or other "
           "scores";
  if (!bench_layer_kind_find(bench->layer)->masks && (p->window_left >= 0 || p->window_right >= 0))
    return "this layer takes no masks: causal and window must be left alone";
  if (p->dtype_q != ATTN_F32 || p->dtype_kv != ATTN_F32 || p->dtype_o != ATTN_F32)
    return "layers are float32 inside: dtype=f32";
  if (strcmp(bench->layout, "bhsd") || bench->cache != BENCH_WARM || bench->magnitude != 1 || bench->uniform_v)
    return "layers lay out their own heads and make their own data: layout, cache, magnitude and values must be left alone";
  return NULL;
}

double bench_layer_flops(const bench_case *bench) {
  const bench_layer_kind *kind = bench_layer_kind_find(bench->layer);
  const attn_args none = {0};
  if (kind->no_attention) return kind->flops(bench);
  const double attention = bench_work_flops(&bench->problem, bench_work_pairs(&bench->problem, &none));
  return attention + kind->flops(bench);
}

double bench_layer_bytes(const bench_case *bench) {
  const bench_layer_kind *kind = bench_layer_kind_find(bench->layer);
  const double rows = (double)(bench->problem.batch * bench->problem.seq_q);
  return 4.0 * (2 * rows * (double)bench->width + (double)kind->weights(bench) + (double)kind->biases(bench));
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
  const attn_problem *p = &bench->problem;
  const int64_t per_batch = p->seq_q <= ALL_ROWS ? p->seq_q : SEEDED_ROWS + 2 * EDGES, most = p->batch * per_batch;
  int64_t *memory = layer->row_memory = malloc(2 * ((size_t)most + 1) * sizeof *memory);
  if (!memory) return false;
  for (int64_t b = 0; b < p->batch; b++) {
    for (int64_t i = 0; p->seq_q <= ALL_ROWS && i < p->seq_q; i++) add_row(&layer->rows, memory, most, b, i);
    if (p->seq_q <= ALL_ROWS) continue;
    for (int e = 0; e < EDGES; e++) {
      add_row(&layer->rows, memory, most, b, edges[e]);
      add_row(&layer->rows, memory, most, b, p->seq_q - 1 - edges[e]);
    }
    for (int64_t s = 0; s < SEEDED_ROWS; s++)
      add_row(&layer->rows, memory, most, b,
              bench_value_below(bench->seed, BENCH_STREAM_CHECKED_ROWS, (uint64_t)(b * SEEDED_ROWS + s), p->seq_q));
  }
  layer->rows.batch = memory;
  layer->rows.row = memory + most;
  return true;
}

bench_layer *bench_layer_open(const bench_case *bench) {
  bench_layer *layer = calloc(1, sizeof *layer);
  if (!layer) return NULL;
  const bench_layer_kind *kind = layer->kind = bench_layer_kind_find(bench->layer);
  layer->data.bench = bench;
  layer->y_floats = bench->problem.batch * bench->problem.seq_q * bench->width;
  const int64_t weights = kind->weights(bench), biases = kind->biases(bench);
  layer->data.x = normal(bench, 0, layer->y_floats, 1);
  layer->data.weights = normal(bench, (uint64_t)1 << 40, weights, 1 / sqrt((double)bench->width));
  layer->data.biases = normal(bench, (uint64_t)1 << 41, biases, 0.2);
  layer->y_memory = malloc((size_t)(layer->y_floats + 2 * GUARD) * sizeof(float));
  const bool chosen = choose_rows(layer);
  const size_t values = (size_t)(layer->rows.count * bench->width + 1);
  layer->rows.value = malloc(values * sizeof(double));
  layer->rows.limit = malloc(values * sizeof(double));
  if (chosen && layer->data.x && layer->data.weights && layer->data.biases && layer->y_memory && layer->rows.value &&
      layer->rows.limit) {
    layer->data.y = layer->y_memory + GUARD;
    return layer;
  }
  bench_layer_close(layer);
  return NULL;
}

bench_layer_data *bench_layer_data_of(bench_layer *layer) { return &layer->data; }

void bench_layer_close(bench_layer *layer) {
  if (!layer) return;
  layer->kind->forget(&layer->data);
  void *const memory[] = {layer->data.x,     layer->data.weights, layer->data.biases, layer->y_memory,
                          layer->row_memory, layer->rows.value,   layer->rows.limit,  layer};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

/* ---- The layer ---- */

/* The product of the kernel's tier, so that a row of plain C is plain C throughout; beside a kernel that stands on a library, the
 * best there is. */
static const char *cap_for(const attn_kernel_info *kernel) { return kernel && !kernel->library[0] ? kernel->isa : NULL; }

bench_layer_job *bench_layer_make(bench_layer *layer, const attn_kernel_info *kernel) {
  bench_layer_job *job = calloc(1, sizeof *job);
  if (!job) return NULL;
  job->layer = layer;
  job->options = (attn_options){
      .kernel = kernel ? kernel->name : NULL, .max_isa = cap_for(kernel), .threads = layer->data.bench->threads};
  if (layer->kind->make(&layer->data, &job->options, false, &job->made) == ATTN_OK) return job;
  free(job);
  return NULL;
}

void bench_layer_unmake(bench_layer_job *job) {
  if (job) job->layer->kind->unmake(job->made);
  free(job);
}

size_t bench_layer_workspace(const bench_layer_job *job) { return job->layer->kind->workspace(job->made); }
const char *bench_layer_kernel(const bench_layer_job *job) { return job->layer->kind->kernel(job->made); }
const char *bench_layer_product(const bench_layer_job *job) { return job->layer->kind->product(job->made); }

attn_status bench_layer_call(bench_layer_job *job, void *workspace, size_t bytes) {
  return job->layer->kind->run(&job->layer->data, job->made, workspace, bytes, &job->time);
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
  const unsigned char *behind = (const unsigned char *)(layer->data.y + layer->y_floats);
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
  const int64_t width = layer->data.bench->width, seq = layer->data.bench->problem.seq_q;
  *verdict = (bench_verdict){.status = BENCH_PASS, .rows_checked = layer->rows.count};
  for (int64_t r = 0; r < layer->rows.count; r++)
    for (int64_t c = 0; c < width; c++) {
      const int64_t b = layer->rows.batch[r], i = layer->rows.row[r];
      const double got = zeros ? 0 : (double)layer->data.y[(b * seq + i) * width + c];
      const double error = fabs(got - layer->rows.value[r * width + c]);
      const double ratio = ratio_of(error, layer->rows.limit[r * width + c]);
      if (!(error <= verdict->max_abs_err)) verdict->max_abs_err = error;
      if (ratio <= verdict->max_err_ratio) continue;
      verdict->max_err_ratio = ratio;
      const int64_t index[] = {b, 0, i, c};
      memcpy(verdict->err_index, index, sizeof index);
    }
}

/* Whether uniform attention would pass, which proves nothing about the softmax. */
static attn_status run_uniform(bench_layer_job *job, void *workspace, size_t bytes, bench_verdict *verdict) {
  bench_layer *layer = job->layer;
  bench_layer_time ignored = {0};
  void *made;
  attn_status status = layer->kind->make(&layer->data, &job->options, true, &made);
  if (status != ATTN_OK) return status;
  status = layer->kind->run(&layer->data, made, workspace, bytes, &ignored);
  layer->kind->unmake(made);
  if (status == ATTN_OK) compare(layer, false, verdict);
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
  bench_verdict verdict, zeros, uniform;
  if (!layer->kind->expect(&layer->data, numerics, &layer->rows))
    return error_verdict("out of memory for the oracle's answer");
  compare(layer, true, &zeros);
  if (run_uniform(job, workspace, bytes, &uniform) != ATTN_OK) return error_verdict(attn_last_error());
  bench_layer_poison(job);
  if (bench_layer_call(job, workspace, bytes) != ATTN_OK) return error_verdict(attn_last_error());
  compare(layer, false, &verdict);
  judge(layer, &verdict);
  verdict.output_hash = bench_layer_output_hash(job);
  if (verdict.status == BENCH_PASS && layer->rows.count > 0 && (zeros.max_err_ratio <= 1 || uniform.max_err_ratio <= 1)) {
    verdict.status = BENCH_DEGENERATE;
    snprintf(verdict.reason, sizeof verdict.reason, "%s would pass as well",
             zeros.max_err_ratio <= 1 ? "zeros" : "attention that looks at all keys alike");
  }
  return verdict;
}
