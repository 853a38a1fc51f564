/* SPDX-License-Identifier: MIT */
/* Shared by the layers of libattn_nn: see layer_family.h. */
#include "layers/layer_family.h"

#include <stdio.h>
#include <stdlib.h>

#include "attn/extend.h"

void bench_add_times(bench_layer_time *time, const attn_mha_profile *profile) {
  time->projections_ns += profile->projections_ns;
  time->attention_ns += profile->attention_ns;
  time->total_ns += profile->total_ns;
}

/* ---- Fields ---- */

attn_nn_field bench_then(attn_nn_field next, attn_nn_field *used) {
  attn_nn_field_destroy(used);
  return next;
}

attn_linear bench_linear_at(const bench_layer_data *data, int64_t at, int64_t bias_at) {
  return (attn_linear){.weight = data->weights + at, .bias = data->biases + bias_at};
}

attn_nn_field bench_apply(const attn_nn_field *x, attn_linear linear, int64_t out) {
  const attn_nn_matrix matrix = {.w = linear.weight, .in_stride = out, .out_stride = 1, .b = linear.bias};
  return attn_nn_oracle_linear(x, &matrix, out);
}

attn_nn_field bench_take(bench_sequence from, const int64_t *row, int64_t count) {
  attn_nn_field field = attn_nn_field_create(count, from.width);
  for (int64_t r = 0; r < count; r++)
    for (int64_t c = 0; c < from.width; c++)
      field.value[r * from.width + c] = (double)from.base[(from.batch * from.rows + (row ? row[r] : r)) * from.width + c];
  return field;
}

static bench_sequence sequence_of(const bench_chosen *c) {
  const bench_case *bench = c->data->bench;
  return (bench_sequence){c->data->x, bench->problem.seq_q, bench->width, c->batch};
}

attn_nn_field bench_chosen_x(const bench_chosen *c) { return bench_take(sequence_of(c), c->row, c->count); }
attn_nn_field bench_all_x(const bench_chosen *c) { return bench_take(sequence_of(c), NULL, c->data->bench->problem.seq_q); }

/* ---- Making ---- */

void bench_family_unmake(void *pointer) {
  bench_made *made = pointer;
  if (!made) return;
  const bench_family *family = made->data->kind->family;
  if (family->destroy) family->destroy(made->layer);
  attn_product_destroy(made->example);
  free(made);
}

/* What attention of the case runs. Layers that know better overwrite it. */
static attn_status name_kernel(bench_made *made) {
  attn_plan *plan;
  const attn_status status = attn_plan_create(&made->data->bench->problem, &made->options, &plan);
  snprintf(made->kernel, sizeof made->kernel, "%s", attn_plan_kernel(plan));
  attn_plan_destroy(plan);
  return status;
}

static attn_status name_product(bench_made *made) {
  attn_options products = made->options;
  products.kernel = NULL;
  const attn_product_weights one = {.depth = 1, .columns = 1, .weight = made->data->weights};
  return attn_product_create(&one, &products, &made->example);
}

attn_status bench_family_make(const bench_layer_data *data, const attn_options *options, bool wrong, void **result) {
  bench_made *made = calloc(1, sizeof *made);
  if (!made) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for a layer");
  *made = (bench_made){.data = data, .wrong = wrong, .options = *options};
  const bool products = bench_layer_has_projections(data->bench);
  attn_status status = products ? name_product(made) : ATTN_OK;
  if (status == ATTN_OK && (products || bench_layer_has_attention(data->bench))) status = name_kernel(made);
  if (status == ATTN_OK && data->kind->family->create) status = data->kind->family->create(made);
  if (status == ATTN_OK)
    *result = made;
  else
    bench_family_unmake(made);
  return status;
}

size_t bench_family_workspace(const void *pointer) {
  const bench_made *made = pointer;
  const bench_family *family = made->data->kind->family;
  return family->workspace ? family->workspace(made) : 0;
}

const char *bench_family_kernel(const void *made) { return ((const bench_made *)made)->kernel; }

const char *bench_family_product(const void *pointer) {
  const bench_made *made = pointer;
  return made->example ? attn_product_name(made->example) : "";
}

attn_status bench_family_run(const bench_layer_data *data, void *made, void *workspace, size_t bytes,
                             bench_layer_time *time) {
  return data->kind->family->run(made, workspace, bytes, time);
}

/* ---- What is right ---- */

/* What bench_mha_expect wrote into the rows, as a field. */
static attn_nn_field mha_rows(const bench_layer_rows *rows, int64_t first, int64_t count, int64_t columns) {
  attn_nn_field mha = attn_nn_field_create(count, columns);
  for (int64_t i = 0; i < count * columns; i++) {
    mha.value[i] = rows->value[first * columns + i];
    mha.error[i] = rows->limit[first * columns + i] / ATTN_NN_SIGMAS;
  }
  return mha;
}

/* One sequence at a time: its chosen rows stand side by side. */
bool bench_family_expect(bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows) {
  const bench_family *family = data->kind->family;
  const int64_t columns = data->shape.columns;
  if (family->after_mha && !bench_mha_expect(data, numerics, rows)) return false;
  for (int64_t first = 0, next; first < rows->count; first = next) {
    for (next = first; next < rows->count && rows->batch[next] == rows->batch[first];) next++;
    bench_chosen c = {
        .data = data, .numerics = numerics, .batch = rows->batch[first], .count = next - first, .row = rows->row + first};
    if (family->after_mha) c.mha = mha_rows(rows, first, c.count, columns);
    attn_nn_field y = family->expect(&c);
    for (int64_t i = 0; i < c.count * columns; i++) {
      rows->value[first * columns + i] = y.value[i];
      rows->limit[first * columns + i] = ATTN_NN_SIGMAS * y.error[i] + 0x1p-126;
    }
    attn_nn_field_destroy(&y);
    attn_nn_field_destroy(&c.mha);
  }
  return true;
}
