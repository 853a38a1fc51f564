/* SPDX-License-Identifier: MIT */
/* What a trial does: calls, verdicts and room for samples. */
#include "timing/trial.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const attn_kernel_info bench_automatic = {
    .name = "auto", .algorithm = "auto", .isa = "", .library = "", .summary = "the library's own choice"};

void bench_conclude(bench_trial *t, bench_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  t->verdict = (bench_verdict){.status = status};
  vsnprintf(t->verdict.reason, sizeof t->verdict.reason, format, arguments);
  va_end(arguments);
}

void bench_warn(bench_trial *t, const char *format, ...) {
  size_t used = strlen(t->warnings);
  va_list arguments;
  va_start(arguments, format);
  if (used && used + 2 < sizeof t->warnings) used += (size_t)sprintf(t->warnings + used, "; ");
  vsnprintf(t->warnings + used, sizeof t->warnings - used, format, arguments);
  va_end(arguments);
}

static bench_tensors *tensors_of(const bench_trial *t, int64_t turn) { return &t->tensors[turn % t->tensor_count]; }

attn_status bench_trial_call(const bench_trial *t, int64_t turn) {
  if (t->layer) return bench_layer_call(t->layer, t->workspace, t->workspace_bytes);
  return attn_plan_run(t->plan, &tensors_of(t, turn)->args, t->workspace, t->workspace_bytes);
}

void bench_trial_renew(const bench_trial *t, int64_t turn, int threads) {
  if (t->layer)
    bench_layer_negate(t->layer);
  else
    bench_tensors_renew_v(tensors_of(t, turn), threads);
}

void bench_trial_poison(const bench_trial *t, int64_t turn) {
  static const uint8_t poison[] = {0xff, 0x3e, 0xbd}; /* a NaN in every float type; 0.19 and -0.09 in two of them */
  if (t->layer)
    bench_layer_poison(t->layer);
  else
    bench_tensors_poison_output(tensors_of(t, turn), poison[t->samples.rounds % (int)sizeof poison]);
}

uint64_t bench_trial_output_hash(const bench_trial *t, int64_t turn) {
  return t->layer ? bench_layer_output_hash(t->layer) : bench_tensors_output_hash(tensors_of(t, turn));
}

bool bench_trial_allocate(bench_trial *t, int rounds) {
  t->samples = (bench_samples){.time_ns = malloc((size_t)rounds * sizeof(double)),
                               .loop_rate = calloc((size_t)rounds, sizeof(double)),
                               .busy = calloc((size_t)rounds, sizeof(double)),
                               .first_ns = calloc((size_t)rounds, sizeof(double)),
                               .position = malloc((size_t)rounds * sizeof(int))};
  const bench_samples *s = &t->samples;
  return s->time_ns && s->loop_rate && s->busy && s->first_ns && s->position;
}

void bench_trial_clear(bench_trial *t) {
  free(t->samples.time_ns);
  free(t->samples.loop_rate);
  free(t->samples.busy);
  free(t->samples.first_ns);
  free(t->samples.position);
  t->samples = (bench_samples){.rounds = 0};
}
