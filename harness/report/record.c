/* SPDX-License-Identifier: MIT */
/* From a result to text. */
#include "report/record.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const bench_column_names[] = {
#define COLUMN(name) #name,
#include "report/columns.def"
#undef COLUMN
    NULL};

void bench_format_number(double value, char *text, size_t bytes) {
  text[0] = 0;
  if (isnan(value)) return;
  snprintf(text, bytes, "%.9g", value);
  char *comma = strchr(text, ',');
  if (comma) *comma = '.';
}

const char *bench_record_get(const bench_record *record, bench_column column) {
  return record->field[column] ? record->field[column] : "";
}

double bench_record_number(const bench_record *record, bench_column column) {
  const char *text = bench_record_get(record, column);
  char *end;
  const double value = strtod(text, &end);
  return end == text || *end ? 0 : value;
}

bool bench_record_is(const bench_record *record, bench_status status) {
  return !strcmp(bench_record_get(record, COLUMN_status), bench_status_name(status));
}

bool bench_record_set(bench_record *record, bench_column column, const char *text) {
  char *copy = text[0] ? strdup(text) : NULL;
  if (text[0] && !copy) return false;
  free(record->field[column]);
  record->field[column] = copy;
  return true;
}

static bool set_number(bench_record *record, bench_column column, double value) {
  char text[32];
  bench_format_number(value, text, sizeof text);
  return bench_record_set(record, column, text);
}

static bool set_positive(bench_record *record, bench_column column, double value) {
  return value > 0 ? set_number(record, column, value) : bench_record_set(record, column, "");
}

static bool set_whole(bench_record *record, bench_column column, int64_t value) {
  char text[32];
  snprintf(text, sizeof text, "%" PRId64, value);
  return bench_record_set(record, column, text);
}

/* Heads and their sizes, where there are any. */
static bool fill_heads(bench_record *r, const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  return !bench_layer_has_heads(bench) ||
         (set_whole(r, COLUMN_heads_q, p->heads_q) && set_whole(r, COLUMN_heads_kv, p->heads_kv) &&
          set_whole(r, COLUMN_dim_qk, p->dim_qk) && set_whole(r, COLUMN_dim_v, p->dim_v));
}

static bool fill_problem(bench_record *r, const attn_problem *p) {
  static const char *const aligns[] = {
      [ATTN_ALIGN_TOP_LEFT] = "top-left", [ATTN_ALIGN_BOTTOM_RIGHT] = "bottom-right", [ATTN_ALIGN_OFFSET] = "offset"};
  char window[64] = "none";
  char left[24] = "", right[24] = "";
  if (p->window_left >= 0) snprintf(left, sizeof left, "%" PRId64, p->window_left);
  if (p->window_right >= 0) snprintf(right, sizeof right, "%" PRId64, p->window_right);
  if (p->window_left >= 0 || p->window_right > 0) snprintf(window, sizeof window, "%s..%s", left, right);
  return bench_record_set(r, COLUMN_dtype_q, bench_dtype_name(p->dtype_q)) &&
         bench_record_set(r, COLUMN_dtype_kv, bench_dtype_name(p->dtype_kv)) &&
         bench_record_set(r, COLUMN_dtype_o, bench_dtype_name(p->dtype_o)) && set_whole(r, COLUMN_batch, p->batch) &&
         set_whole(r, COLUMN_seq_q, p->seq_q) && set_whole(r, COLUMN_seq_k, p->seq_k) &&
         bench_record_set(r, COLUMN_align, aligns[p->align]) && bench_record_set(r, COLUMN_window, window) &&
         set_number(r, COLUMN_softcap, p->softcap);
}

static bool fill_case(bench_record *r, const bench_case *bench) {
  static const char *const caches[] = {[BENCH_WARM] = "warm", [BENCH_COLD_KV] = "cold-kv", [BENCH_COLD_ALL] = "cold"};
  const bench_case *c = bench;
  const char *score = bench_layer_has_attention(c) ? bench_spec_get(&bench->spec, AXIS_SCORE) : "";
  return fill_problem(r, &c->problem) && fill_heads(r, c) && bench_record_set(r, COLUMN_case_id, c->case_id) &&
         bench_record_set(r, COLUMN_score, score) &&
         bench_record_set(r, COLUMN_causal, bench_spec_get(&bench->spec, AXIS_CAUSAL)) &&
         bench_record_set(r, COLUMN_mask, c->mask) && bench_record_set(r, COLUMN_bias, c->bias) &&
         bench_record_set(r, COLUMN_alibi, c->alibi ? "on" : "off") &&
         bench_record_set(r, COLUMN_sinks, c->sinks ? "on" : "off") && bench_record_set(r, COLUMN_lengths, c->lengths) &&
         bench_record_set(r, COLUMN_layout, c->layout) && bench_record_set(r, COLUMN_cache, caches[c->cache]) &&
         set_whole(r, COLUMN_threads, c->threads);
}

static bool fill_verdict(bench_record *r, const bench_result *result) {
  const bench_verdict *v = &result->verdict;
  char index[96];
  if (!bench_record_set(r, COLUMN_status, bench_status_name(v->status)) || !bench_record_set(r, COLUMN_reason, v->reason) ||
      !bench_record_set(r, COLUMN_kernel, result->kernel->name) ||
      !bench_record_set(r, COLUMN_algorithm, result->kernel->algorithm) ||
      !bench_record_set(r, COLUMN_isa, result->kernel->isa) || !bench_record_set(r, COLUMN_library, result->kernel->library))
    return false;
  if (v->status == BENCH_SKIP || v->status == BENCH_ERROR) return true;
  snprintf(index, sizeof index, "%" PRId64 ":%" PRId64 ":%" PRId64 ":%" PRId64, v->err_index[0], v->err_index[1],
           v->err_index[2], v->err_index[3]);
  return set_whole(r, COLUMN_rows_checked, v->rows_checked) && set_number(r, COLUMN_max_err_ratio, v->max_err_ratio) &&
         set_number(r, COLUMN_max_abs_err, v->max_abs_err) && bench_record_set(r, COLUMN_err_index, index);
}

static bool fill_work(bench_record *r, const bench_result *result) {
  const double seconds = result->time.median * 1e-9, gbs = result->bytes / seconds * 1e-9;
  const bench_case *bench = result->bench;
  return (!bench_layer_has_plan(bench) || set_number(r, COLUMN_plan_ns, result->plan_ns)) &&
         (!bench_layer_has_workspace(bench) || set_number(r, COLUMN_workspace_bytes, result->workspace_bytes)) &&
         set_positive(r, COLUMN_flops, result->flops) && set_number(r, COLUMN_bytes, result->bytes) &&
         set_positive(r, COLUMN_gflops, result->flops / seconds * 1e-9) && set_number(r, COLUMN_gbs, gbs) &&
         set_positive(r, COLUMN_peak_gflops, result->peak_flops * 1e-9) &&
         set_positive(r, COLUMN_peak_pct, result->peak_ratio * 100) &&
         set_positive(r, COLUMN_peak_gbs, result->read_bandwidth * 1e-9) &&
         set_positive(r, COLUMN_bw_pct, result->read_bandwidth > 0 ? gbs * 1e9 / result->read_bandwidth * 100 : 0);
}

static bool fill_shares(bench_record *r, const bench_result *result) {
  const bench_shares *shares = &result->shares;
  if (!result->timed || !bench_layer_has_projections(result->bench)) return true;
  return set_number(r, COLUMN_projections_pct, 100 * shares->projections) &&
         (!bench_layer_has_attention(result->bench) || set_number(r, COLUMN_attention_pct, 100 * shares->attention)) &&
         set_number(r, COLUMN_rest_pct, 100 * shares->rest);
}

static bool fill_layer(bench_record *r, const bench_result *result) {
  const bench_case *bench = result->bench;
  if (!bench_layer_is(bench)) return true;
  return bench_record_set(r, COLUMN_layer, bench->layer) &&
         (!bench_layer_has_width(bench) || set_whole(r, COLUMN_width, bench->width)) &&
         bench_record_set(r, COLUMN_product, result->product ? result->product : "") && fill_shares(r, result);
}

static bool fill_times(bench_record *r, bench_result *result) {
  const bench_summary *t = &result->time, *ratio = &result->ratio;
  r->samples_ns = result->samples_ns;
  r->positions = result->positions;
  r->sample_count = t->n;
  r->iterations = result->iterations;
  r->noise = result->noise;
  r->ratio_best = result->ratio_best.median;
  result->samples_ns = NULL;
  result->positions = NULL;
  return set_whole(r, COLUMN_samples, t->n) && set_number(r, COLUMN_time_ns_min, t->min) &&
         set_number(r, COLUMN_time_ns_median, t->median) && set_number(r, COLUMN_time_ns_mad, t->mad) &&
         set_number(r, COLUMN_time_ns_ci_lo, t->ci_lo) && set_number(r, COLUMN_time_ns_ci_hi, t->ci_hi) &&
         fill_work(r, result) && bench_record_set(r, COLUMN_baseline, result->baseline) &&
         set_positive(r, COLUMN_ratio, ratio->median) && set_positive(r, COLUMN_ratio_ci_lo, ratio->ci_lo) &&
         set_positive(r, COLUMN_ratio_ci_hi, ratio->ci_hi) &&
         bench_record_set(r, COLUMN_stop_reason, bench_stop_name(result->stop));
}

bool bench_record_fill(bench_record *record, const bench_case *bench, bench_result *result, const char *run_id) {
  *record = (bench_record){.noise = -1};
  return bench_record_set(record, COLUMN_run_id, run_id) && fill_case(record, bench) && fill_verdict(record, result) &&
         fill_layer(record, result) && (!result->timed || fill_times(record, result)) &&
         bench_record_set(record, COLUMN_warnings, result->warnings);
}

void bench_record_clear(bench_record *record) {
  for (int i = 0; i < BENCH_COLUMNS; i++) free(record->field[i]);
  free(record->samples_ns);
  free(record->positions);
  *record = (bench_record){0};
}

bool bench_records_append(bench_records *records, bench_record *record) {
  if (!(records->count & (records->count - 1))) { /* grows at powers of two */
    void *grown = realloc(records->item, (records->count ? 2 * (size_t)records->count : 1) * sizeof *records->item);
    if (!grown) return false;
    records->item = grown;
  }
  records->item[records->count++] = *record;
  *record = (bench_record){0};
  return true;
}

void bench_records_clear(bench_records *records) {
  for (int i = 0; i < records->count; i++) bench_record_clear(&records->item[i]);
  free(records->item);
  *records = (bench_records){0};
}
