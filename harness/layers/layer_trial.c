/* SPDX-License-Identifier: MIT */
/* A layer made with one kernel: making it, calling it, and where its time went. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "layers/layer_functions.h"

/* ---- Making ---- */

void bench_layer_name_kernel(bench_layer_trial *trial, const char *kernel) {
  snprintf(trial->kernel, sizeof trial->kernel, "%s", kernel);
}

/* The kernel that attention of the case runs. A layer that chooses otherwise overwrites the name. */
static attn_status name_kernel(bench_layer_trial *trial) {
  attn_plan *plan;
  const attn_status status = attn_plan_create(&trial->data->bench->problem, &trial->options, &plan);
  bench_layer_name_kernel(trial, attn_plan_kernel(plan));
  attn_plan_destroy(plan);
  return status;
}

static attn_status make_example(bench_layer_trial *trial) {
  attn_options products = trial->options;
  products.kernel = NULL;
  const attn_product_weights one = {.depth = 1, .columns = 1, .weight = trial->data->weights};
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
static attn_status make(bench_layer *layer, const attn_kernel_info *kernel, bool wrong, bench_layer_trial **result) {
  *result = NULL;
  bench_layer_trial *trial = calloc(1, sizeof *trial);
  if (!trial) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for a layer");
  *trial = (bench_layer_trial){.data = &layer->data, .of = layer, .asked = kernel, .wrong = wrong};
  trial->options = (attn_options){.kernel = kernel ? kernel->name : NULL,
                                  .max_isa = kernel && !kernel->library[0] ? kernel->isa : NULL,
                                  .threads = layer->data.bench->threads};
  const attn_status status = create(trial);
  if (status == ATTN_OK)
    *result = trial;
  else
    bench_layer_unmake(trial);
  return status;
}

attn_status bench_layer_make(bench_layer *layer, const attn_kernel_info *kernel, bench_layer_trial **trial) {
  return make(layer, kernel, false, trial);
}

attn_status bench_layer_make_wrong(bench_layer *layer, const attn_kernel_info *kernel, bench_layer_trial **trial) {
  return make(layer, kernel, true, trial);
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

const char *bench_layer_kernel(const bench_layer_trial *trial) { return trial->kernel; }

const char *bench_layer_product(const bench_layer_trial *trial) {
  return trial->example ? attn_product_name(trial->example) : "";
}

attn_status bench_layer_call(bench_layer_trial *trial, void *workspace, size_t bytes) {
  return trial->data->functions->run(trial, workspace, bytes);
}

/* Poisons the guards too. */
void bench_layer_poison(bench_layer_trial *trial) {
  memset(trial->of->y_memory, 0xff, (size_t)(trial->of->y_floats + 2 * BENCH_LAYER_GUARD) * sizeof(float));
}

void bench_layer_negate(bench_layer_trial *trial) {
  bench_layer *layer = trial->of;
  if (layer->data.shape.inputs) layer->negated = !layer->negated;
  for (int64_t i = 0; i < layer->data.shape.inputs; i++) layer->data.x[i] = -layer->data.x[i];
}

/* FNV-1a over 32-bit words. */
uint64_t bench_layer_hash_y(const bench_layer *layer) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (int64_t i = 0; i < layer->y_floats; i++) {
    uint32_t word;
    memcpy(&word, layer->data.y + i, sizeof word);
    hash = (hash ^ word) * 0x100000001b3u;
  }
  return hash;
}

uint64_t bench_layer_output_hash(const bench_layer_trial *trial) {
  const uint64_t hash = bench_layer_hash_y(trial->of);
  if (!trial->of->negated) return hash;
  return hash == trial->hash[1] ? trial->hash[0] : ~trial->hash[0];
}

/* ---- Time ---- */

void bench_add_times(bench_layer_time *time, const attn_mha_profile *profile) {
  time->projections_ns += profile->projections_ns;
  time->attention_ns += profile->attention_ns;
  time->total_ns += profile->total_ns;
}

void bench_layer_reset_shares(bench_layer_trial *trial) { trial->time = (bench_layer_time){0}; }

bench_shares bench_layer_shares(const bench_layer_trial *trial) {
  const bench_layer_time *t = &trial->time;
  if (t->total_ns <= 0) return (bench_shares){0};
  return (bench_shares){.projections = t->projections_ns / t->total_ns,
                        .attention = t->attention_ns / t->total_ns,
                        .rest = (t->total_ns - t->projections_ns - t->attention_ns) / t->total_ns};
}
