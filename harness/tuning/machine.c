/* SPDX-License-Identifier: MIT */
/* Times of this machine: attn_tune() on generated tensors. */
#include <inttypes.h>
#include <stdio.h>

#include "base/clock.h"
#include "cases/case.h"
#include "data/tensors.h"
#include "tuning/tuning.h"

void bench_tune_problem(const bench_tune_shape *s, attn_problem *problem) {
  attn_problem_init(problem, 1, s->heads_kv * s->group, s->heads_kv, s->seq_q, s->seq_k, s->dim, s->dim);
  problem->dtype_q = problem->dtype_kv = problem->dtype_o = s->dtype;
  if (s->causal) attn_problem_set_causal(problem, ATTN_ALIGN_BOTTOM_RIGHT);
}

static void set_int(bench_spec *spec, bench_axis axis, int64_t value) {
  char text[BENCH_WORD];
  snprintf(text, sizeof text, "%" PRId64, value);
  bench_spec_set(spec, axis, text);
}

void bench_tune_case(const bench_tune_shape *s, bench_case *bench) {
  bench_spec spec = {.value = {""}};
  bench_spec_set(&spec, AXIS_DTYPE, bench_dtype_name(s->dtype));
  bench_spec_set(&spec, AXIS_CAUSAL, s->causal ? "bottom-right" : "none");
  set_int(&spec, AXIS_HEADS, s->heads_kv * s->group);
  set_int(&spec, AXIS_HEADS_KV, s->heads_kv);
  set_int(&spec, AXIS_HEAD_DIM, s->dim);
  set_int(&spec, AXIS_SEQ_Q, s->seq_q);
  set_int(&spec, AXIS_SEQ_K, s->seq_k);
  bench_case_build(&spec, 1, bench);
}

static bool measure(void *context, const bench_tune_shape *shape, double seconds, attn_tune_report *report) {
  bench_case bench;
  bench_tensors tensors;
  (void)context;
  bench_tune_case(shape, &bench);
  if (bench.invalid[0] || !bench_tensors_create(&bench, &tensors)) return false;
  const attn_options options = ATTN_STRUCT(attn_options, .threads = shape->threads ? 0 : 1);
  const attn_status status = attn_tune(&bench.problem, &tensors.args, &options, seconds, report);
  bench_tensors_destroy(&tensors);
  return status == ATTN_OK;
}

static double now_s(void *context) { return (void)context, 1e-9 * bench_now_ns(); }

const bench_tune_source bench_tune_machine = {.measure = measure, .now_s = now_s};
