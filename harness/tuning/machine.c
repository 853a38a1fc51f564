/* SPDX-License-Identifier: MIT */
/* Times of this machine: attn_tune() on generated tensors. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "cases/case.h"
#include "data/generate.h"
#include "data/tensors.h"
#include "kernels/common/problem/operation.h"
#include "src/plan/tune.h"
#include "timing/core_share.h"
#include "tuning/tuning.h"

const char *const bench_tune_mask_name[TUNE_MASKS] = {"full", "causal", "window", "mask", "bias", "alibi", "softcap"};

static const double SOFTCAP = 30;
static const float HIGH_LSE = 12;

attn_dtype bench_tune_queries(attn_dtype dtype) { return attn_dtype_is_float(dtype) ? dtype : ATTN_F32; }

/* Integers without a factor of each token hold hardly any keys, so nobody stores them. */
static bool has_factors(attn_dtype dtype) { return attn_makes_factors(dtype) && attn_dtype_is_integer(dtype); }

static void set_types(attn_problem *p, attn_dtype dtype) {
  const int64_t row = attn_row_elements(dtype, p->dim_qk);
  p->dtype_kv = dtype;
  p->dtype_q = p->dtype_o = bench_tune_queries(dtype);
  p->k_stride = p->v_stride = (attn_strides){.b = p->heads_kv * p->seq_k * row, .h = p->seq_k * row, .s = row, .d = 1};
  if (!has_factors(dtype)) return;
  p->uses |= ATTN_USE_KV_SCALES;
  (void)attn_operand_set_dense(p, ATTN_OPERAND_K_SCALE);
  (void)attn_operand_set_dense(p, ATTN_OPERAND_V_SCALE);
}

void bench_tune_problem(const bench_tune_shape *s, attn_problem *problem) {
  static const uint32_t uses[TUNE_MASKS] = {
      [TUNE_MASK] = ATTN_USE_MASK, [TUNE_BIAS] = ATTN_USE_BIAS, [TUNE_ALIBI] = ATTN_USE_ALIBI};
  attn_problem_init(problem, 1, s->heads_kv * s->group, s->heads_kv, s->seq_q, s->seq_k, s->dim, s->dim);
  set_types(problem, s->dtype);
  problem->uses |= uses[s->mask];
  if (s->mask == TUNE_SOFTCAP) problem->softcap = SOFTCAP;
  if (s->mask == TUNE_ALIBI) problem->align = ATTN_ALIGN_BOTTOM_RIGHT;
  if (s->mask == TUNE_CAUSAL || s->mask == TUNE_WINDOW) attn_problem_set_causal(problem, ATTN_ALIGN_BOTTOM_RIGHT);
  if (s->mask == TUNE_WINDOW) problem->window_left = s->window;
  if (s->backward) attn_problem_set_backward(problem);
}

static void set_int(bench_spec *spec, bench_axis axis, int64_t value) {
  char text[BENCH_WORD];
  snprintf(text, sizeof text, "%" PRId64, value);
  bench_spec_set(spec, axis, text);
}

static void set_mask(bench_spec *spec, const bench_tune_shape *s) {
  static const struct {
    bench_axis axis;
    const char *value;
  } settings[TUNE_MASKS] = {[TUNE_FULL] = {AXIS_CAUSAL, "none"},
                            [TUNE_CAUSAL] = {AXIS_CAUSAL, "bottom-right"},
                            [TUNE_WINDOW] = {AXIS_CAUSAL, "bottom-right"},
                            [TUNE_MASK] = {AXIS_MASK, "random"},
                            [TUNE_BIAS] = {AXIS_BIAS, "full"},
                            [TUNE_ALIBI] = {AXIS_ALIBI, "on"},
                            [TUNE_SOFTCAP] = {AXIS_SOFTCAP, "30"}};
  bench_spec_set(spec, settings[s->mask].axis, settings[s->mask].value);
  if (s->mask == TUNE_ALIBI) bench_spec_set(spec, AXIS_ALIGN, "bottom-right");
  if (s->mask == TUNE_WINDOW) set_int(spec, AXIS_WINDOW, s->window);
}

static void set_dtype(bench_spec *spec, attn_dtype dtype) {
  char text[BENCH_WORD];
  const char *q = bench_dtype_name(bench_tune_queries(dtype)), *kv = bench_dtype_name(dtype);
  if (strcmp(q, kv) == 0)
    snprintf(text, sizeof text, "%s", kv);
  else
    snprintf(text, sizeof text, "%s+%s", q, kv);
  bench_spec_set(spec, AXIS_DTYPE, text);
  if (has_factors(dtype)) bench_spec_set(spec, AXIS_KV_SCALES, "token");
}

void bench_tune_case(const bench_tune_shape *s, bench_case *bench) {
  bench_spec spec = {.value = {""}};
  set_dtype(&spec, s->dtype);
  set_mask(&spec, s);
  set_int(&spec, AXIS_HEADS, s->heads_kv * s->group);
  set_int(&spec, AXIS_HEADS_KV, s->heads_kv);
  set_int(&spec, AXIS_HEAD_DIM, s->dim);
  set_int(&spec, AXIS_SEQ_Q, s->seq_q);
  set_int(&spec, AXIS_SEQ_K, s->seq_k);
  if (s->backward) bench_spec_set(&spec, AXIS_PASS, "backward");
  bench_case_build(&spec, 1, bench);
}

/* Values of a normal distribution, made once and repeated: to make as many as large tensors have takes longer than to time
 * their kernels. Their number is odd, that of blocks, too, so that rows differ. */
enum { VALUES = 65521 };

static const unsigned char *values_of(attn_dtype dtype) {
  static unsigned char values[ATTN_DTYPE_COUNT][VALUES * sizeof(float)];
  static bool made[ATTN_DTYPE_COUNT];
  static double numbers[VALUES];
  if (made[dtype]) return values[dtype];
  for (int64_t i = 0; i < VALUES; i++) numbers[i] = bench_value_normal(1, BENCH_STREAM_Q, (uint64_t)i);
  bench_store_row(values[dtype], dtype, 0, numbers, VALUES);
  made[dtype] = true;
  return values[dtype];
}

static void fill(bench_buffer *t, attn_dtype dtype, size_t first) {
  const size_t units = VALUES / (size_t)attn_dtype_of(dtype).values, all = units * t->element_bytes;
  size_t from = first % units * t->element_bytes;
  for (size_t at = 0, count; at < t->bytes; at += count, from = 0) {
    count = t->bytes - at < all - from ? t->bytes - at : all - from;
    memcpy(t->data + at, values_of(dtype) + from, count);
  }
}

/* Any o does. An lse above all scores keeps P in its usual range, below 1. */
static void fill_gradients(const attn_problem *p, bench_tensors *tensors) {
  bench_buffer *lse = &tensors->buffers[BENCH_LSE];
  fill(&tensors->buffers[BENCH_O], p->dtype_o, 0);
  fill(&tensors->buffers[BENCH_D_O], p->dtype_o, VALUES / 4);
  for (size_t at = 0; at < lse->bytes; at += sizeof(float)) memcpy(lse->data + at, &HIGH_LSE, sizeof HIGH_LSE);
}

static bool create_tensors(const attn_problem *p, bench_tensors *tensors) {
  if (!bench_tensors_create_empty(p, tensors)) return false;
  fill(&tensors->buffers[BENCH_Q], p->dtype_q, 0);
  fill(&tensors->buffers[BENCH_K], p->dtype_kv, VALUES / 3);
  fill(&tensors->buffers[BENCH_V], p->dtype_kv, 2 * VALUES / 3);
  if (p->uses & ATTN_USE_KV_SCALES) {
    fill(&tensors->buffers[BENCH_K_SCALE], ATTN_F32, 0);
    fill(&tensors->buffers[BENCH_V_SCALE], ATTN_F32, 0);
  }
  if (p->operation == ATTN_BACKWARD) fill_gradients(p, tensors);
  if (p->uses & ATTN_USE_BIAS) fill(&tensors->buffers[BENCH_BIAS], ATTN_F32, VALUES / 2);
  bench_fill_slopes(&tensors->buffers[BENCH_ALIBI_SLOPES], p->heads_q);
  for (size_t i = 0; p->uses & ATTN_USE_MASK && i < tensors->buffers[BENCH_MASK].bytes; i++)
    tensors->buffers[BENCH_MASK].data[i] = i % 7 != 0;
  return true;
}

static double now_ns(void *context) { return (void)context, bench_now_ns(); }

static attn_process_usage usage(void *context) { return (void)context, attn_process_usage_now(); }

static attn_status call(void *context, const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes) {
  return (void)context, attn_plan_run(plan, args, workspace, bytes);
}

static bool takes(void *context, const attn_kernel_info *kernel) {
  const int index = bench_tune_kernel(kernel->name);
  return index >= 0 && *(const bench_tune_set *)context >> index & 1;
}

static bool measure_shape(void *context, const bench_tune_shape *shape, bench_tune_set kernels, double seconds,
                          attn_tune_report *report) {
  const attn_tune_meter meter = {.now_ns = now_ns, .call = call, .context = &kernels, .takes = takes, .usage = usage};
  bench_case bench;
  bench_tensors tensors;
  (void)context;
  bench_tune_case(shape, &bench);
  if (bench.invalid[0] || !create_tensors(&bench.problem, &tensors)) return false;
  const attn_options options = ATTN_STRUCT(attn_options, .threads = shape->threads ? 0 : 1);
  *report = (attn_tune_report){.struct_size = sizeof *report};
  const attn_status status = attn_tune_by(&meter, &bench.problem, &tensors.args, &options, seconds, report);
  bench_tensors_destroy(&tensors);
  return status == ATTN_OK;
}

static double now_s(void *context) { return (void)context, 1e-9 * bench_now_ns(); }

static double core_share(void *context) { return (void)context, bench_core_share(1); }

const bench_tune_source bench_tune_machine = {.measure = measure_shape, .now_s = now_s, .core_share = core_share};
