/* SPDX-License-Identifier: MIT */
/* What the axes of a case mean to layers: values that a layer has by itself, and what contradicts it, in words. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"
#include "layers/layer_kinds.h"

const bench_layer_kind *bench_layer_kind_find(const char *name) {
  static const bench_layer_kind *const kinds[] = {&bench_layer_mha,
                                                  &bench_layer_block,
                                                  &bench_layer_decoder,
                                                  &bench_layer_cross,
                                                  &bench_layer_feed_forward,
                                                  &bench_layer_add_norm,
                                                  &bench_layer_additive,
                                                  &bench_layer_synthesizer_dense,
                                                  &bench_layer_synthesizer_random,
                                                  &bench_layer_regression,
                                                  &bench_layer_positions,
                                                  &bench_layer_decode_step};
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
    if (!strcmp(kinds[i]->name, name)) return kinds[i];
  return NULL;
}

const bench_layer_kind *bench_layer_kind_of(const bench_case *bench) {
  return bench_layer_is(bench) ? bench_layer_kind_find(bench->layer) : NULL;
}

bool bench_layer_is(const bench_case *bench) { return bench->layer[0] != 0; }

static bool has(const bench_case *bench, unsigned what) {
  const bench_layer_kind *kind = bench_layer_kind_of(bench);
  return kind && kind->has & what;
}

bool bench_layer_has_width(const bench_case *bench) { return has(bench, BENCH_HAS_WIDTH); }
bool bench_layer_has_plan(const bench_case *bench) { return !bench_layer_is(bench) || has(bench, BENCH_HAS_PLAN); }
bool bench_layer_has_workspace(const bench_case *bench) { return !bench_layer_is(bench) || has(bench, BENCH_HAS_WORKSPACE); }
bool bench_layer_has_heads(const bench_case *bench) { return !bench_layer_is(bench) || has(bench, BENCH_HAS_HEADS); }
bool bench_layer_has_attention(const bench_case *bench) { return !bench_layer_is(bench) || has(bench, BENCH_HAS_ATTENTION); }
bool bench_layer_has_projections(const bench_case *bench) { return has(bench, BENCH_HAS_PROJECTIONS); }

/* ---- Values ---- */

static int64_t get_int(const bench_spec *spec, bench_axis axis) {
  int64_t value = 0;
  (void)cli_read_int(bench_spec_get(spec, axis), &value);
  return value;
}

static void set(bench_spec *spec, bench_axis axis, const char *value) {
  snprintf(spec->value[axis], BENCH_WORD, "%s", value);
}

/* Equal layers get equal names: where heads mean nothing but the width of the rows, that width is what counts. */
static void drop_heads(bench_spec *spec) {
  const bench_axis dim = spec->value[AXIS_DIM_V][0] ? AXIS_DIM_V : AXIS_HEAD_DIM;
  if (!spec->value[AXIS_WIDTH][0] || !strcmp(spec->value[AXIS_WIDTH], "default"))
    snprintf(spec->value[AXIS_WIDTH], BENCH_WORD, "%" PRId64, get_int(spec, AXIS_HEADS) * get_int(spec, dim));
  set(spec, AXIS_HEADS, "1");
  set(spec, AXIS_HEAD_DIM, "1");
  set(spec, AXIS_HEADS_KV, "");
  set(spec, AXIS_DIM_QK, "");
  set(spec, AXIS_DIM_V, "");
}

void bench_layer_settle(bench_spec *spec) {
  const bench_layer_kind *kind = bench_layer_kind_find(bench_spec_get(spec, AXIS_LAYER));
  if (!kind) return;
  for (int i = 0; i < BENCH_LAYER_MOST_AXES && kind->axes[i].value; i++)
    if (!spec->value[kind->axes[i].axis][0]) set(spec, kind->axes[i].axis, kind->axes[i].value);
  if (!(kind->has & BENCH_HAS_HEADS)) drop_heads(spec);
}

/* ---- Contradictions ---- */

/* Where the sentence goes. */
typedef struct verdict {
  char *reason;
  size_t bytes;
} verdict;

static bool refuse(const verdict *v, const char *format, ...) __attribute__((format(printf, 2, 3)));
static bool refuse(const verdict *v, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(v->reason, v->bytes, format, arguments);
  va_end(arguments);
  return true;
}

/* "1" and "01" are equal, as are words that are spelt alike. */
static bool equal(const char *a, const char *b) {
  double x, y;
  return cli_read_real(a, &x) && cli_read_real(b, &y) ? x == y : !strcmp(a, b);
}

static bool is_default(const bench_spec *spec, bench_axis axis) {
  return equal(bench_spec_get(spec, axis), bench_axis_get(axis)->fallback);
}

static bool contradicts_fixed(const bench_layer_kind *kind, const bench_spec *spec, const verdict *v) {
  for (int i = 0; i < BENCH_LAYER_MOST_AXES && kind->axes[i].value; i++) {
    const bench_layer_axis *axis = &kind->axes[i];
    const char *given = bench_spec_get(spec, axis->axis), *name = bench_axis_get(axis->axis)->name;
    if (axis->fixed && !equal(given, axis->value))
      return refuse(v, "%s is %s; layer %s is made for %s=%s only", name, given, kind->name, name, axis->value);
  }
  return false;
}

static bool contradicts_width(const bench_layer_kind *kind, const bench_spec *spec, const bench_case *bench,
                              const verdict *v) {
  if (!(kind->has & BENCH_HAS_WIDTH))
    return !is_default(spec, AXIS_WIDTH) && refuse(v, "width is %s; layer %s has none: give head_dim, or dim_qk and dim_v",
                                                   bench_spec_get(spec, AXIS_WIDTH), kind->name);
  return !bench->width &&
         refuse(v, "width is %s with %" PRId64 " heads; it must be a multiple of its heads, or head_dim be given",
                bench_spec_get(spec, AXIS_WIDTH), bench->problem.heads_q);
}

static bool contradicts_shape(const bench_layer_kind *kind, const bench_case *bench, const verdict *v) {
  const attn_problem *p = &bench->problem;
  const struct {
    const char *name;
    int64_t value;
  } sizes[] = {{"batch", p->batch}, {"seq_q", p->seq_q}, {"seq_k", p->seq_k}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].value < 1) return refuse(v, "%s is %" PRId64 "; layers need at least 1", sizes[i].name, sizes[i].value);
  if (p->seq_q != p->seq_k && !(kind->has & BENCH_HAS_LENGTHS))
    return refuse(v, "seq_q is %" PRId64 " with seq_k %" PRId64 "; layer %s has one length: seq_q and seq_k must be equal",
                  p->seq_q, p->seq_k, kind->name);
  if ((kind->has & BENCH_HAS_PAST) && p->seq_q > p->seq_k)
    return refuse(v,
                  "seq_q is %" PRId64 " with seq_k %" PRId64 "; seq_k counts the step's own tokens too: at least %" PRId64,
                  p->seq_q, p->seq_k, p->seq_q);
  if (p->heads_kv != p->heads_q && !(kind->has & BENCH_HAS_GROUPS))
    return refuse(
        v, "heads_kv is %" PRId64 " with %" PRId64 " heads; heads of layer %s have values of their own: leave it alone",
        p->heads_kv, p->heads_q, kind->name);
  return false;
}

static bool fixes(const bench_layer_kind *kind, bench_axis axis) {
  for (int i = 0; i < BENCH_LAYER_MOST_AXES && kind->axes[i].value; i++)
    if (kind->axes[i].axis == axis && kind->axes[i].fixed) return true;
  return false;
}

/* The one causal mask that some layers have, the windows of others, none. */
static bool contradicts_masks(const bench_layer_kind *kind, const bench_spec *spec, const verdict *v) {
  const char *causal = bench_spec_get(spec, AXIS_CAUSAL), *window = bench_spec_get(spec, AXIS_WINDOW);
  if (!strcmp(causal, "offset") || !strcmp(bench_spec_get(spec, AXIS_ALIGN), "offset"))
    return refuse(v, "alignment is offset; layers know no offsets: top-left or bottom-right");
  if (kind->has & BENCH_HAS_MASKS) return false;
  if (!is_default(spec, AXIS_WINDOW)) return refuse(v, "window is %s; layer %s takes no windows", window, kind->name);
  if (is_default(spec, AXIS_CAUSAL) || fixes(kind, AXIS_CAUSAL)) return false;
  if (!(kind->has & BENCH_HAS_CAUSAL)) return refuse(v, "causal is %s; layer %s takes no masks", causal, kind->name);
  return strcmp(causal, "top-left") && refuse(v, "causal is %s; layer %s takes causal=top-left", causal, kind->name);
}

/* What layers decide themselves, all of them or this one. */
static bool contradicts_the_rest(const bench_layer_kind *kind, const bench_spec *spec, const bench_case *bench,
                                 const verdict *v) {
  static const bench_axis own[] = {AXIS_MASK, AXIS_BIAS,   AXIS_ALIBI, AXIS_SOFTCAP,   AXIS_SINKS, AXIS_LENGTHS,
                                   AXIS_LSE,  AXIS_LAYOUT, AXIS_CACHE, AXIS_MAGNITUDE, AXIS_VALUES};
  const attn_problem *p = &bench->problem;
  for (size_t i = 0; i < sizeof own / sizeof *own; i++)
    if (!is_default(spec, own[i]))
      return refuse(v, "%s is %s; layers here have no such choice: leave it alone", bench_axis_get(own[i])->name,
                    bench_spec_get(spec, own[i]));
  if (p->dtype_q != ATTN_F32 || p->dtype_kv != ATTN_F32 || p->dtype_o != ATTN_F32)
    return refuse(v, "dtype is %s; layers are float32 inside: dtype=f32", bench_spec_get(spec, AXIS_DTYPE));
  if (!is_default(spec, AXIS_SCORE) && !fixes(kind, AXIS_SCORE))
    return refuse(v, "score is %s; layer %s has none to choose: leave it alone", bench_spec_get(spec, AXIS_SCORE),
                  kind->name);
  return !is_default(spec, AXIS_SCALE) && !(kind->has & BENCH_HAS_SCALE) &&
         refuse(v, "scale is %s; layer %s has none to set: leave it alone", bench_spec_get(spec, AXIS_SCALE), kind->name);
}

bool bench_layer_contradicts(const bench_spec *spec, const bench_case *bench, char *reason, size_t bytes) {
  const verdict v = {reason, bytes};
  const bench_layer_kind *kind = bench_layer_kind_of(bench);
  if (!kind) return bench->width && refuse(&v, "width is of layers: layer=mha, layer=block, ... must be given with it");
  return contradicts_fixed(kind, spec, &v) || contradicts_width(kind, spec, bench, &v) ||
         contradicts_shape(kind, bench, &v) || contradicts_masks(kind, spec, &v) ||
         contradicts_the_rest(kind, spec, bench, &v);
}
