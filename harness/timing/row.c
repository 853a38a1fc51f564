/* SPDX-License-Identifier: MIT */
/* What a row says before anything ran: its case and its kernel. */
#include "timing/row.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases/case_id.h"
#include "layers/layer.h"

#define COPY(target, text) ((void)snprintf(target, sizeof(target), "%s", text))

/* "none", or keys to the left and to the right, "" = all: "256..0", "..64". */
static void describe_window(bench_row *row, const attn_problem *p) {
  char left[24] = "", right[24] = "";
  if (p->window_left >= 0) snprintf(left, sizeof left, "%" PRId64, p->window_left);
  if (p->window_right >= 0) snprintf(right, sizeof right, "%" PRId64, p->window_right);
  COPY(row->window, "none");
  if (p->window_left >= 0 || p->window_right > 0) snprintf(row->window, sizeof row->window, "%s..%s", left, right);
}

static void describe_problem(bench_row *row, const attn_problem *p) {
  static const char *const aligns[] = {
      [ATTN_ALIGN_TOP_LEFT] = "top-left", [ATTN_ALIGN_BOTTOM_RIGHT] = "bottom-right", [ATTN_ALIGN_OFFSET] = "offset"};
  COPY(row->dtype_q, bench_dtype_name(p->dtype_q));
  COPY(row->dtype_kv, bench_dtype_name(p->dtype_kv));
  COPY(row->dtype_o, bench_dtype_name(p->dtype_o));
  COPY(row->align, aligns[p->align]);
  row->batch = p->batch;
  row->seq_q = p->seq_q;
  row->seq_k = p->seq_k;
  row->softcap = p->softcap;
  describe_window(row, p);
}

static void describe_options(bench_row *row, const bench_case *bench) {
  static const char *const caches[] = {[BENCH_WARM] = "warm", [BENCH_COLD_KV] = "cold-kv", [BENCH_COLD_ALL] = "cold"};
  if (bench_layer_has(bench, BENCH_HAS_ATTENTION)) COPY(row->score, bench_spec_get(&bench->spec, AXIS_SCORE));
  COPY(row->causal, bench_spec_get(&bench->spec, AXIS_CAUSAL));
  COPY(row->mask, bench_spec_get(&bench->spec, AXIS_MASK));
  COPY(row->bias, bench_spec_get(&bench->spec, AXIS_BIAS));
  COPY(row->alibi, bench_spec_get(&bench->spec, AXIS_ALIBI));
  COPY(row->sinks, bench_spec_get(&bench->spec, AXIS_SINKS));
  COPY(row->lengths, bench_spec_get(&bench->spec, AXIS_LENGTHS));
  COPY(row->layout, bench->layout);
  COPY(row->cache, caches[bench->cache]);
}

static bool has_column(bench_axis axis) {
  switch (axis) {
    case AXIS_OFFSET:
    case AXIS_SCALE:
    case AXIS_LSE:
    case AXIS_MAGNITUDE:
    case AXIS_VALUES:
    case AXIS_WIDTH: return false; /* column width is d_model, given or not */
    default: return true;
  }
}

static void describe_case(bench_row *row, const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  char other[BENCH_NAME] = "";
  COPY(row->case_id, bench->case_id);
  bench_case_name_axes(bench, AXIS_IN_DATA, has_column, other);
  if (*other) snprintf(row->other_axes, sizeof row->other_axes, "%.120s", other + 1);
  describe_problem(row, p);
  if (bench_layer_has(bench, BENCH_HAS_HEADS)) {
    row->heads_q = p->heads_q, row->heads_kv = p->heads_kv;
    row->dim_qk = p->dim_qk, row->dim_v = p->dim_v;
  }
  describe_options(row, bench);
  row->threads = bench->threads;
  if (!bench_layer_is(bench)) return;
  COPY(row->layer, bench->layer);
  if (bench_layer_has(bench, BENCH_HAS_WIDTH)) row->width = bench->width;
}

void bench_row_set_origin(bench_row *row, const attn_kernel_info *kernel) {
  COPY(row->algorithm, kernel->algorithm);
  COPY(row->isa, kernel->isa);
  COPY(row->library, kernel->library);
}

bench_row bench_row_create(const bench_case *bench, const attn_kernel_info *kernel) {
  bench_row row = {.time = bench_no_summary, .noise = -1, .softcap = NAN};
  row.batch = row.seq_q = row.seq_k = row.threads = -1;
  row.heads_q = row.heads_kv = row.dim_qk = row.dim_v = row.width = -1;
  row.ratio = bench_no_summary;
  row.threads_counted = row.plan_ns = row.workspace_bytes = row.flops = row.bytes = row.gflops = row.gbs = NAN;
  row.peak_gflops = row.peak_pct = row.peak_gbs = row.bw_pct = row.ratio_best = NAN;
  row.projections_pct = row.attention_pct = row.rest_pct = NAN;
  if (bench) describe_case(&row, bench);
  if (kernel) bench_row_set_origin(&row, kernel);
  if (kernel) COPY(row.kernel, kernel->name);
  return row;
}

void bench_row_clear(bench_row *row) {
  free(row->samples_ns);
  free(row->positions);
  *row = (bench_row){0};
}
