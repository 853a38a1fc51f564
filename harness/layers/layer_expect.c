/* SPDX-License-Identifier: MIT */
/* Expected answers of layers: the steps that they share, and the rows of a whole layer. */
#include "layers/layer_private.h"

/* ---- Steps ---- */

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

/* ---- Rows of a layer ---- */

/* What bench_mha_expect wrote into the rows, as a field. */
static attn_nn_field mha_rows(const bench_layer_rows *rows, int64_t first, int64_t count, int64_t columns) {
  attn_nn_field mha = attn_nn_field_create(count, columns);
  for (int64_t i = 0; i < count * columns; i++) {
    mha.value[i] = rows->value[first * columns + i];
    mha.error[i] = rows->limit[first * columns + i] / ATTN_NN_SIGMAS;
  }
  return mha;
}

static void expect_sequence(const bench_chosen *chosen, const bench_layer_rows *rows, int64_t first) {
  const int64_t columns = chosen->data->shape.columns;
  attn_nn_field y = chosen->data->functions->expect(chosen);
  for (int64_t i = 0; i < chosen->count * columns; i++) {
    rows->value[first * columns + i] = y.value[i];
    rows->limit[first * columns + i] = ATTN_NN_SIGMAS * y.error[i] + 0x1p-126;
  }
  attn_nn_field_destroy(&y);
}

/* One sequence at a time: its chosen rows stand side by side. */
static void expect_sequences(const bench_layer_data *data, const attn_numerics *numerics, const bench_layer_rows *rows) {
  for (int64_t first = 0, next; first < rows->count; first = next) {
    for (next = first; next < rows->count && rows->batch[next] == rows->batch[first];) next++;
    bench_chosen chosen = {
        .data = data, .numerics = numerics, .batch = rows->batch[first], .count = next - first, .row = rows->row + first};
    if (data->functions->after_mha) chosen.mha = mha_rows(rows, first, chosen.count, data->shape.columns);
    expect_sequence(&chosen, rows, first);
    attn_nn_field_destroy(&chosen.mha);
  }
}

bool bench_layer_expect(bench_layer *layer, const attn_numerics *numerics) {
  bench_layer_data *data = &layer->data;
  if (data->functions->after_mha && !bench_mha_expect(data, numerics, &layer->rows)) return false;
  if (data->functions->expect) expect_sequences(data, numerics, &layer->rows);
  return true;
}
