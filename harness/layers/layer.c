/* SPDX-License-Identifier: MIT */
/* Layers as cases: work, data, the rows to check; a layer made with one kernel, and where its time went. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "cases/case.h"
#include "data/generate.h"
#include "data/tensors.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/dtypes.h"
#include "layers/layer.h"

enum { SEEDED_ROWS = 48, ALL_ROWS = 96, GUARD_BYTES = BENCH_LAYER_GUARD * sizeof(float), ALIGNMENT = 64 };

/* ---- Work ---- */

int64_t bench_layer_case_rows(const bench_case *bench) { return bench->problem.batch * bench->problem.seq_q; }

bench_layer_shape bench_layer_rows_to_rows(const bench_case *bench, int64_t weights, int64_t biases) {
  return (bench_layer_shape){.inputs = bench_layer_case_rows(bench) * bench->width,
                             .rows = bench->problem.seq_q,
                             .columns = bench->width,
                             .weights = weights,
                             .biases = biases,
                             .type_x = bench->problem.dtype_q,
                             .type_y = bench->problem.dtype_q,
                             .type_weights = bench->problem.dtype_q};
}

double bench_dense_flops(const bench_case *bench, int64_t weights) {
  return 2.0 * (double)bench_layer_case_rows(bench) * (double)weights;
}

static const bench_layer_functions *functions_of(const bench_case *bench) {
  static const bench_layer_functions *const all[] = {
#define LAYER(constant, ...) [LAYER_##constant] = &bench_layer_##constant,
#include "cases/layers.def"
  };
  return all[bench_layer_of(bench)->id];
}

double bench_layer_flops(const bench_case *bench) {
  const bench_layer_functions *layer = functions_of(bench);
  const attn_args none = {.struct_size = sizeof(attn_args)};
  const double own = layer->flops                                    ? layer->flops(bench)
                     : bench_layer_has(bench, BENCH_HAS_PROJECTIONS) ? bench_dense_flops(bench, layer->shape(bench).weights)
                                                                     : 0;
  if (!bench_layer_has(bench, BENCH_HAS_ATTENTION)) return own;
  return own + bench_work_flops(&bench->problem, bench_work_pairs(&bench->problem, &none));
}

double bench_layer_bytes(const bench_case *bench) {
  const bench_layer_shape s = functions_of(bench)->shape(bench);
  const int64_t rows = bench->problem.batch * s.rows;
  return (double)(attn_elements_bytes(s.type_x, s.inputs) +
                  attn_elements_bytes(s.type_y, rows * (s.stored ? s.stored : s.columns)) +
                  attn_elements_bytes(s.type_weights, s.weights)) +
         4.0 * ((double)s.biases + (s.factors ? BENCH_LAYER_FACTORS * (double)rows : 0));
}

/* Elements of a type that is no wider than float32, each rounded from float32; there is room for as many floats. */
static void *normal(const bench_case *bench, attn_dtype dtype, uint64_t first, int64_t count, double scale) {
  void *data = attn_aligned_alloc(ALIGNMENT, ((size_t)count + 1) * sizeof(float));
  for (int64_t i = 0; data && i < count; i++)
    bench_store(data, dtype, i, scale * bench_value_normal(bench->seed, BENCH_STREAM_LAYER, first + (uint64_t)i));
  return data;
}

/* ---- The rows to check ---- */

/* Room for the rows of all batches: [batch of each][row of each]. */
typedef struct row_list {
  int64_t *batch, *row;
  int64_t count;
} row_list;

static void append_row(row_list *list, int64_t b, int64_t i) {
  list->batch[list->count] = b;
  list->row[list->count++] = i;
}

static void add_row(row_list *list, int64_t b, int64_t i) {
  for (int64_t r = 0; r < list->count; r++)
    if (list->batch[r] == b && list->row[r] == i) return;
  append_row(list, b, i);
}

/* Rows around the blocks that products and kernels work in. */
static const int64_t edges[] = {0, 1, 5, 6, 63, 64, 95, 96, 97};
enum { EDGES = sizeof edges / sizeof *edges };

/* Edges counted from both ends, and seeded rows. */
static void add_some_rows(row_list *list, const bench_case *bench, int64_t b, int64_t rows) {
  for (int e = 0; e < EDGES && edges[e] < rows; e++) {
    add_row(list, b, edges[e]);
    add_row(list, b, rows - 1 - edges[e]);
  }
  for (int64_t s = 0; s < SEEDED_ROWS; s++)
    add_row(list, b, bench_value_below(bench->seed, BENCH_STREAM_CHECKED_ROWS, (uint64_t)(b * SEEDED_ROWS + s), rows));
}

/* All rows of short sequences and of caches, some of long sequences; one batch after the other. */
static bool choose_rows(bench_layer *layer) {
  const bench_case *bench = layer->data.bench;
  const int64_t batches = bench->problem.batch, rows = layer->data.shape.rows;
  const bool all = rows <= ALL_ROWS || bench_layer_has(bench, BENCH_HAS_CACHE);
  const int64_t most = batches * (all ? rows : SEEDED_ROWS + 2 * EDGES);
  layer->row_memory = malloc(2 * ((size_t)most + 1) * sizeof *layer->row_memory);
  if (!layer->row_memory) return false;
  row_list list = {layer->row_memory, layer->row_memory + most, 0};
  for (int64_t b = 0; b < batches; b++)
    if (!all)
      add_some_rows(&list, bench, b, rows);
    else
      for (int64_t i = 0; i < rows; i++) append_row(&list, b, i);
  layer->rows = (bench_layer_rows){.count = list.count, .batch = list.batch, .row = list.row};
  return true;
}

/* ---- Inputs ---- */

static int64_t numbers_read(const bench_layer *layer) {
  const bench_layer_shape *s = &layer->data.shape;
  return s->inputs_read ? s->inputs_read : s->inputs;
}

void bench_layer_choose_input(bench_layer *layer, int input) {
  const float *from = layer->all_x + input / 2 * BENCH_LAYER_SHIFT, sign = input % 2 ? -1 : 1;
  const bench_layer_shape *s = &layer->data.shape;
  layer->input = s->inputs ? input : 0;
  for (int64_t i = 0; i < numbers_read(layer); i++) bench_store(layer->data.x, s->type_x, i, (double)(sign * from[i]));
}

void bench_layer_freshen(bench_layer_trial *trial, uint64_t *random) {
  const uint64_t others = BENCH_LAYER_INPUTS - 1, step = 1 + bench_value_bits(*random, BENCH_STREAM_LAYER, *random) % others;
  ++*random;
  bench_layer_choose_input(trial->of, (int)(((uint64_t)trial->of->input + step) % BENCH_LAYER_INPUTS));
}

/* The numbers behind the inputs are the first ones once more. */
static bool keep_inputs(bench_layer *layer) {
  const int64_t count = numbers_read(layer), all = count + BENCH_LAYER_INPUTS / 2 * BENCH_LAYER_SHIFT;
  layer->all_x = malloc((size_t)all * sizeof(float));
  for (int64_t i = 0; layer->all_x && i < all && count; i++) layer->all_x[i] = layer->data.x[i % count];
  return layer->all_x;
}

/* ---- Opening ---- */

/* Where the factors begin, in bytes. */
static int64_t numbers_bytes(const bench_layer_data *data) {
  const bench_layer_shape *s = &data->shape;
  const int64_t numbers = s->places ? s->places : data->bench->problem.batch * s->rows * s->columns;
  const int64_t bytes = attn_elements_bytes(s->type_y, numbers), align = sizeof(float);
  return s->factors ? (bytes + align - 1) / align * align : bytes;
}

float *bench_layer_factors(const bench_layer_data *data) { return (float *)(void *)((char *)data->y + numbers_bytes(data)); }

static bool allocate(bench_layer *layer) {
  bench_layer_data *data = &layer->data;
  const bench_case *bench = data->bench;
  const bench_layer_shape *s = &data->shape;
  data->x = normal(bench, ATTN_F32, 0, s->inputs + 1, 1); /* one more for wrong answers */
  data->weights =
      normal(bench, s->type_weights, (uint64_t)1 << 40, s->weights, 1 / sqrt((double)(bench->width ? bench->width : 1)));
  data->biases = normal(bench, ATTN_F32, (uint64_t)1 << 41, s->biases, 0.2);
  const int64_t pages = bench->problem.uses & ATTN_USE_PAGES ? bench->problem.pages : 0;
  if (pages) data->pages = malloc((size_t)pages * sizeof *data->pages);
  layer->y_bytes = numbers_bytes(data) + s->factors * (int64_t)sizeof(float);
  layer->y_memory = attn_aligned_alloc(ALIGNMENT, (size_t)layer->y_bytes + 2 * GUARD_BYTES);
  if (!data->x || (pages && !data->pages) || !data->weights || !data->biases || !layer->y_memory || !choose_rows(layer))
    return false;
  data->y = layer->y_memory + BENCH_LAYER_GUARD;
  const size_t values = (size_t)(layer->rows.count * s->columns + 1);
  layer->rows.value = malloc(values * sizeof(double));
  layer->rows.limit = malloc(values * sizeof(double));
  if (pages) bench_pages_order(bench, data->pages);
  return layer->rows.value && layer->rows.limit;
}

bench_layer *bench_layer_open(const bench_case *bench) {
  bench_layer *layer = calloc(1, sizeof *layer);
  if (!layer) return NULL;
  const bench_layer_functions *functions = functions_of(bench);
  layer->data =
      (bench_layer_data){.bench = bench, .functions = functions, .shape = functions->shape(bench), .kept = &layer->kept};
  if (allocate(layer)) {
    if (functions->prepare) functions->prepare(&layer->data);
    if (keep_inputs(layer)) return bench_layer_choose_input(layer, 0), layer;
  }
  bench_layer_close(layer);
  return NULL;
}

void bench_layer_close(bench_layer *layer) {
  if (!layer) return;
  bench_forget(&layer->kept);
  void *const aligned[] = {layer->data.x, layer->data.weights, layer->data.biases, layer->y_memory};
  void *const memory[] = {layer->data.pages, layer->all_x, layer->row_memory, layer->rows.value, layer->rows.limit, layer};
  for (size_t i = 0; i < sizeof aligned / sizeof *aligned; i++) attn_aligned_free(aligned[i]);
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

/* ---- Making ---- */

attn_status bench_layer_made(bench_layer_trial *trial, attn_status status, void *layer, const char *kernel) {
  trial->layer = layer;
  if (kernel != trial->kernel) snprintf(trial->kernel, sizeof trial->kernel, "%s", kernel);
  return status;
}

/* The kernel that attention of the case runs. A layer that chooses otherwise overwrites the name. */
static attn_status name_kernel(bench_layer_trial *trial) {
  attn_plan *plan;
  const attn_status status = attn_plan_create(&trial->data->bench->problem, &trial->options, &plan);
  (void)bench_layer_made(trial, status, NULL, attn_plan_kernel(plan));
  attn_plan_destroy(plan);
  return status;
}

const char *bench_product_to_name(const bench_layer_trial *trial) { return trial->product[0] ? trial->product : NULL; }

/* The product of the kernel's tier, which may be one that is taken by name only; otherwise the best up to that tier. */
static attn_status make_example(bench_layer_trial *trial) {
  attn_options products = trial->options;
  const bench_layer_shape *s = &trial->data->shape;
  const attn_product_weights one =
      ATTN_STRUCT(attn_product_weights, .depth = 1, .columns = 1, .dtype = s->type_weights, .dtype_x = s->type_x,
                  .weight = trial->data->weights, .scale = s->type_weights == ATTN_I8 ? trial->data->biases : NULL);
  if (trial->data->functions->names_product && trial->options.max_isa) {
    snprintf(trial->product, sizeof trial->product, "product_%s", trial->options.max_isa);
    products.kernel = trial->product;
    if (attn_product_create(&one, &products, &trial->example) == ATTN_OK) return ATTN_OK;
    trial->product[0] = 0; /* the tier has none */
  }
  products.kernel = NULL;
  return attn_product_create(&one, &products, &trial->example);
}

static attn_status create(bench_layer_trial *trial) {
  const bench_case *bench = trial->data->bench;
  const bench_layer_functions *functions = trial->data->functions;
  const bool dense = bench_layer_has(bench, BENCH_HAS_PROJECTIONS);
  attn_status status = dense ? make_example(trial) : ATTN_OK;
  if (status == ATTN_OK && (dense || bench_layer_has(bench, BENCH_HAS_ATTENTION))) status = name_kernel(trial);
  return status == ATTN_OK && functions->create ? functions->create(trial) : status;
}

/* With the product of the kernel's tier, so that a row of plain C is plain C throughout. A kernel that stands on a library
 * goes with the best product there is. */
attn_status bench_layer_make(bench_layer *layer, const attn_kernel_info *kernel, bool wrong, bench_layer_trial **result) {
  *result = NULL;
  bench_layer_trial *trial = calloc(1, sizeof *trial);
  if (!trial) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for a layer");
  *trial = (bench_layer_trial){.data = &layer->data, .of = layer, .asked = kernel, .wrong = wrong};
  trial->options =
      ATTN_STRUCT(attn_options, .kernel = kernel ? kernel->name : NULL,
                  .max_isa = kernel && !kernel->library[0] ? kernel->isa : NULL, .threads = layer->data.bench->threads);
  const attn_status status = create(trial);
  if (status == ATTN_OK) return *result = trial, status;
  bench_layer_unmake(trial);
  return status;
}

void bench_layer_unmake(bench_layer_trial *trial) {
  if (!trial) return;
  if (trial->data->functions->destroy) trial->data->functions->destroy(trial->layer);
  attn_product_destroy(trial->example);
  free(trial);
}

/* ---- Calling ---- */

size_t bench_layer_workspace(const bench_layer_trial *trial) {
  const bench_layer_functions *functions = trial->data->functions;
  return functions->workspace ? functions->workspace(trial) : 0;
}

const char *bench_layer_product(const bench_layer_trial *trial) {
  return trial->example ? attn_product_name(trial->example) : "";
}

attn_status bench_layer_call(bench_layer_trial *trial, void *workspace, size_t bytes) {
  return trial->data->functions->run(trial, workspace, bytes);
}

/* Poisons the guards too. */
unsigned char bench_layer_poison_byte(const bench_layer *layer) { return bench_poison_of(layer->data.shape.type_y); }

void bench_layer_poison(bench_layer_trial *trial) {
  memset(trial->of->y_memory, bench_layer_poison_byte(trial->of), (size_t)trial->of->y_bytes + 2 * GUARD_BYTES);
}

uint64_t bench_layer_hash_y(const bench_layer *layer) {
  return bench_hash_bytes(0, (const unsigned char *)layer->data.y, (size_t)layer->y_bytes);
}

uint64_t bench_layer_output_hash(const bench_layer_trial *trial) {
  return bench_layer_hash_y(trial->of) == trial->hash[trial->of->input] ? trial->hash[0] : ~trial->hash[0];
}

/* ---- Time ---- */

bench_shares bench_layer_shares(const bench_layer_trial *trial) {
  const attn_mha_profile *t = &trial->time;
  if (t->total_ns <= 0) return (bench_shares){0};
  return (bench_shares){.projections = t->projections_ns / t->total_ns,
                        .attention = t->attention_ns / t->total_ns,
                        .rest = (t->total_ns - t->projections_ns - t->attention_ns) / t->total_ns};
}
