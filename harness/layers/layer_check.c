/* SPDX-License-Identifier: MIT */
/* The check of a layer against float64; and the steps that the expected answers of layers share. */
#include <math.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "kernels/ref/oracle_f64.h"
#include "layers/layer.h"

/* ---- Steps ---- */

attn_nn_field bench_then(attn_nn_field next, attn_nn_field *used) {
  attn_nn_field_destroy(used);
  return next;
}

attn_nn_field bench_attend(const attn_nn_attention *attention, attn_nn_field *q, attn_nn_field *k, attn_nn_field *v) {
  const attn_nn_field o = attn_nn_oracle_attention(attention, q, k, v);
  attn_nn_field *const used[] = {q, k, v};
  for (int i = 0; i < 3; i++)
    if (used[i]) attn_nn_field_destroy(used[i]);
  return o;
}

const void *bench_weights_at(const bench_layer_data *data, int64_t at) {
  return attn_element_at(data->weights, data->shape.type_weights, at);
}

attn_linear bench_linear_at(const bench_layer_data *data, int64_t at, int64_t bias_at) {
  return (attn_linear){.weight = bench_weights_at(data, at), .bias = data->biases + bias_at};
}

attn_nn_field bench_apply(const attn_nn_field *x, attn_linear linear, int64_t out) {
  return attn_nn_oracle_linear(x, &linear, out);
}

attn_nn_field bench_take(bench_sequence from, const int64_t *row, int64_t count) {
  attn_nn_field field = attn_nn_field_create(count, from.width);
  for (int64_t r = 0; r < count; r++)
    for (int64_t c = 0; c < from.width; c++)
      field.value[r * from.width + c] =
          attn_oracle_load(from.base, from.dtype, (from.batch * from.rows + (row ? row[r] : r)) * from.width + c);
  return field;
}

static bench_sequence sequence_of(const bench_chosen *c) {
  const bench_case *bench = c->data->bench;
  return (bench_sequence){c->data->x, c->data->shape.type_x, bench->problem.seq_q, bench->width, c->batch};
}

attn_nn_field bench_chosen_x(const bench_chosen *c) { return bench_take(sequence_of(c), c->row, c->count); }
attn_nn_field bench_all_x(const bench_chosen *c) { return bench_take(sequence_of(c), NULL, c->data->bench->problem.seq_q); }

void bench_forget(bench_kept *kept) {
  attn_nn_field_destroy(&kept->kv[0]);
  attn_nn_field_destroy(&kept->kv[1]);
}

/* Fills in the expected rows and their limits, one sequence at a time: its chosen rows stand side by side. */
static void expect(bench_layer *layer, const attn_numerics *numerics) {
  const bench_layer_data *data = &layer->data;
  const bench_layer_rows *rows = &layer->rows;
  const int64_t columns = data->shape.columns;
  for (int64_t first = 0, next; first < rows->count; first = next) {
    for (next = first; next < rows->count && rows->batch[next] == rows->batch[first];) next++;
    const bench_chosen chosen = {data, numerics, rows->batch[first], next - first, rows->row + first};
    attn_nn_field y = data->functions->expect(&chosen);
    for (int64_t i = 0; i < chosen.count * columns; i++) {
      rows->value[first * columns + i] = y.value[i];
      rows->limit[first * columns + i] = attn_nn_limit(y.error[i]);
    }
    attn_nn_field_destroy(&y);
  }
}

/* ---- Comparing ---- */

static bool guards_stand(const bench_layer *layer) {
  const unsigned char *before = (const unsigned char *)layer->y_memory;
  const unsigned char *behind = before + BENCH_LAYER_GUARD * sizeof(float) + layer->y_bytes;
  const unsigned char poison = bench_layer_poison_byte(layer);
  for (size_t i = 0; i < BENCH_LAYER_GUARD * sizeof(float); i++)
    if (before[i] != poison || behind[i] != poison) return false;
  return true;
}

/* How many of `count` units of `bytes` bytes each are not poison. */
static int64_t count_written(const bench_layer *layer, const void *units, int64_t count, int64_t bytes) {
  const unsigned char *byte = units, poison = bench_layer_poison_byte(layer);
  int64_t written = 0;
  for (int64_t i = 0; i < count; i++, byte += bytes) {
    int64_t same = 0;
    while (same < bytes && byte[same] == poison) same++;
    written += same < bytes;
  }
  return written;
}

/* Whether as many numbers (or blocks) and factors of y are written as the rows have, all of which were compared: no other
 * place is. */
static bool others_stand(const bench_layer *layer) {
  const bench_layer_shape *s = &layer->data.shape;
  const attn_dtype_info type = attn_dtype_of(s->type_y);
  const int64_t rows = layer->rows.count;
  if (!s->places) return true;
  if (s->factors &&
      count_written(layer, bench_layer_factors(&layer->data), s->factors, sizeof(float)) != BENCH_LAYER_FACTORS * rows)
    return false;
  return count_written(layer, layer->data.y, s->places / type.values, (int64_t)type.bytes) == rows * s->stored / type.values;
}

static double number_at(const bench_layer *layer, const int64_t index[4]) {
  const bench_layer_data *data = &layer->data;
  const int64_t in_order = (index[0] * data->shape.rows + index[2]) * data->shape.columns + index[3];
  const bench_layer_functions *f = data->functions;
  const int64_t place = f->place ? f->place(data, index[0], index[2], index[3]) : in_order;
  const double factor = f->factor ? f->factor(data, index[0], index[2], index[3]) : 1;
  return factor * attn_oracle_load(data->y, data->shape.type_y, place);
}

/* Takes one number into the verdict; a NaN anywhere fails. Limits are above 0. */
static void compare_number(double error, double limit, const int64_t index[4], bench_verdict *verdict) {
  const double ratio = error < INFINITY && !isnan(limit) ? error / limit : INFINITY;
  if (!(error <= verdict->max_abs_err)) verdict->max_abs_err = error;
  if (ratio <= verdict->max_err_ratio) return;
  verdict->max_err_ratio = ratio;
  memcpy(verdict->err_index, index, sizeof verdict->err_index);
}

/* Compares what stands in y, or zeros, with the expected rows. */
static void compare(const bench_layer *layer, bool zeros, bench_verdict *verdict) {
  const int64_t columns = layer->data.shape.columns;
  *verdict = (bench_verdict){.status = BENCH_PASS, .rows_checked = layer->rows.count};
  for (int64_t r = 0; r < layer->rows.count; r++)
    for (int64_t c = 0; c < columns; c++) {
      const int64_t index[] = {layer->rows.batch[r], 0, layer->rows.row[r], c};
      const double got = zeros ? 0 : number_at(layer, index);
      compare_number(fabs(got - layer->rows.value[r * columns + c]), layer->rows.limit[r * columns + c], index, verdict);
    }
}

/* Compares the wrong answer of the layer. If it passes, the case cannot see that error. */
static attn_status run_wrong(bench_layer_trial *trial, void *workspace, size_t bytes, bench_verdict *verdict) {
  bench_layer_trial *wrong;
  attn_status status = bench_layer_make(trial->of, trial->asked, true, &wrong);
  if (status != ATTN_OK) return status;
  status = bench_layer_call(wrong, workspace, bytes);
  bench_layer_unmake(wrong);
  if (status == ATTN_OK) compare(trial->of, false, verdict);
  return status;
}

static bench_verdict error_verdict(const char *reason) {
  bench_verdict verdict = {0};
  return bench_set_reason(&verdict, BENCH_ERROR, "%s", reason), verdict;
}

static void decide(const bench_layer *layer, bench_verdict *verdict) {
  if (verdict->max_err_ratio > 1)
    bench_set_reason(verdict, BENCH_FAIL, "error is %.3g of the limit at batch %lld, row %lld, column %lld",
                     verdict->max_err_ratio, (long long)verdict->err_index[0], (long long)verdict->err_index[2],
                     (long long)verdict->err_index[3]);
  else if (!guards_stand(layer))
    bench_set_reason(verdict, BENCH_FAIL, "wrote outside y");
  else if (!others_stand(layer))
    bench_set_reason(verdict, BENCH_FAIL, "wrote to places of other tokens");
}

/* The wrong answer that the case does not tell from the right one, or NULL. */
static const char *undetected(const bench_layer_trial *trial, const bench_verdict *zeros, const bench_verdict *wrong) {
  if (trial->of->rows.count == 0) return NULL;
  if (zeros->max_err_ratio <= 1) return "zeros";
  const char *other = trial->data->functions->wrong;
  if (wrong->max_err_ratio > 1) return NULL;
  return other ? other : "attention that looks at all keys alike";
}

/* The outputs on all other inputs: timing compares with them. False if a call failed. */
static bool run_others(bench_layer_trial *trial, void *workspace, size_t bytes, bench_verdict *verdict) {
  bench_layer *layer = trial->of;
  const bool differs = layer->data.shape.inputs && layer->y_bytes;
  bool ran = true;
  for (int n = 0; n < BENCH_LAYER_INPUTS && ran; n++) {
    if (n) bench_layer_choose_input(layer, n);
    if (n) bench_layer_poison(trial);
    ran = !n || bench_layer_call(trial, workspace, bytes) == ATTN_OK;
    trial->hash[n] = bench_layer_hash_y(layer);
    if (n == 1 && differs && trial->hash[n] == trial->hash[0] && verdict->status == BENCH_PASS)
      bench_set_reason(verdict, BENCH_FAIL, "negated inputs give the same output");
  }
  verdict->output_hash = trial->hash[0];
  bench_layer_choose_input(layer, 0);
  return ran;
}

bench_verdict bench_layer_check(bench_layer_trial *trial, const attn_numerics *numerics, void *workspace, size_t bytes) {
  bench_layer *layer = trial->of;
  bench_verdict verdict, zeros, wrong;
  expect(layer, numerics);
  compare(layer, true, &zeros);
  if (run_wrong(trial, workspace, bytes, &wrong) != ATTN_OK) return error_verdict(attn_last_error());
  bench_layer_poison(trial);
  if (bench_layer_call(trial, workspace, bytes) != ATTN_OK) return error_verdict(attn_last_error());
  compare(layer, false, &verdict);
  decide(layer, &verdict);
  if (!run_others(trial, workspace, bytes, &verdict)) return error_verdict(attn_last_error());
  const char *missed = undetected(trial, &zeros, &wrong);
  if (verdict.status == BENCH_PASS && missed) bench_set_reason(&verdict, BENCH_DEGENERATE, "%s would pass as well", missed);
  return verdict;
}
