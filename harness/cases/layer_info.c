/* SPDX-License-Identifier: MIT */
/* The table of layers, and what the axes of a case mean to them. */
#include "cases/layer_info.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/kv_rows.h"

#define FIXED(constant, value)   {AXIS_##constant, value, true},
#define DEFAULT(constant, value) {AXIS_##constant, value, false},

static const bench_layer_info layers[LAYER_COUNT] = {
#define LAYER(constant, text, properties, own_axes) \
  [LAYER_##constant] = {.name = (text), .id = LAYER_##constant, .has = (properties), .axes = {own_axes{0}}},
#include "cases/layers.def"
};

const bench_layer_info *bench_layer_find(const char *name) {
  for (int i = 0; i < LAYER_COUNT; i++)
    if (!strcmp(layers[i].name, name)) return &layers[i];
  return NULL;
}

const bench_layer_info *bench_layer_of(const bench_case *bench) {
  return bench->layer[0] ? bench_layer_find(bench->layer) : NULL;
}

bool bench_layer_is(const bench_case *bench) { return bench->layer[0] != 0; }

bool bench_layer_has(const bench_case *bench, unsigned properties) {
  static const unsigned attention = BENCH_HAS_HEADS | BENCH_HAS_ATTENTION | BENCH_HAS_PLAN | BENCH_HAS_WORKSPACE;
  const bench_layer_info *layer = bench_layer_of(bench);
  return (layer ? layer->has : attention) & properties;
}

/* Equal layers get equal names: a layer without heads is named by its width alone. */
static void drop_heads(bench_spec *spec) {
  const bench_axis dim = spec->value[AXIS_DIM_V][0] ? AXIS_DIM_V : AXIS_HEAD_DIM;
  if (bench_spec_is(spec, AXIS_WIDTH, "default"))
    snprintf(spec->value[AXIS_WIDTH], BENCH_WORD, "%" PRId64, bench_spec_int(spec, AXIS_HEADS) * bench_spec_int(spec, dim));
  bench_spec_set(spec, AXIS_HEADS, "1");
  bench_spec_set(spec, AXIS_HEAD_DIM, "1");
  bench_spec_set(spec, AXIS_HEADS_KV, "");
  bench_spec_set(spec, AXIS_DIM_QK, "");
  bench_spec_set(spec, AXIS_DIM_V, "");
}

void bench_layer_settle(bench_spec *spec) {
  const bench_layer_info *layer = bench_layer_find(bench_spec_get(spec, AXIS_LAYER));
  if (!layer) return;
  for (const bench_layer_axis *own = layer->axes; own->value; own++)
    if (!spec->value[own->axis][0]) bench_spec_set(spec, own->axis, own->value);
  if (!(layer->has & BENCH_HAS_HEADS)) drop_heads(spec);
}

/* ---- Contradictions: each function returns true with a sentence if it finds one ---- */

typedef struct question {
  const bench_layer_info *layer;
  const bench_case *bench;
  const bench_spec *spec; /* the case */
  char *reason;
  size_t bytes;
} question;

#define refuse(q, ...) (!bench_say((q)->reason, (q)->bytes, __VA_ARGS__))

/* "1" and "01" are equal, as are words that are spelt alike. */
static bool equal(const char *a, const char *b) {
  double x, y;
  return cli_read_real(a, &x) && cli_read_real(b, &y) ? x == y : !strcmp(a, b);
}

static bool is_default(const question *q, bench_axis axis) {
  return equal(bench_spec_get(q->spec, axis), bench_axis_get(axis)->fallback);
}

static bool contradicts_fixed(const question *q) {
  for (const bench_layer_axis *own = q->layer->axes; own->value; own++) {
    const char *given = bench_spec_get(q->spec, own->axis), *name = bench_axis_get(own->axis)->name;
    if (own->fixed && !equal(given, own->value))
      return refuse(q, "%s is %s; layer %s is made for %s=%s only", name, given, q->layer->name, name, own->value);
  }
  return false;
}

static bool contradicts_width(const question *q) {
  const char *width = bench_spec_get(q->spec, AXIS_WIDTH);
  if (!(q->layer->has & BENCH_HAS_WIDTH))
    return !is_default(q, AXIS_WIDTH) &&
           refuse(q, "width is %s; layer %s has none: give head_dim, or dim_qk and dim_v", width, q->layer->name);
  return !q->bench->width &&
         refuse(q, "width is %s with %" PRId64 " heads; it must be a multiple of its heads, or head_dim be given", width,
                q->bench->problem.heads_q);
}

static bool contradicts_least_sizes(const question *q) {
  const attn_problem *p = &q->bench->problem;
  const struct {
    const char *name;
    int64_t value;
  } sizes[] = {{"batch", p->batch}, {"seq_q", p->seq_q}, {"seq_k", p->seq_k}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if (sizes[i].value < 1) return refuse(q, "%s is %" PRId64 "; layers need at least 1", sizes[i].name, sizes[i].value);
  return false;
}

static bool contradicts_lengths(const question *q) {
  const attn_problem *p = &q->bench->problem;
  const unsigned has = q->layer->has;
  if (p->seq_q != p->seq_k && !(has & BENCH_HAS_LENGTHS))
    return refuse(q, "seq_q is %" PRId64 " with seq_k %" PRId64 "; layer %s has one length: seq_q and seq_k must be equal",
                  p->seq_q, p->seq_k, q->layer->name);
  return (has & BENCH_HAS_PAST) && p->seq_q > p->seq_k &&
         refuse(q, "seq_q is %" PRId64 " with seq_k %" PRId64 "; seq_k counts the step's own tokens too: at least %" PRId64,
                p->seq_q, p->seq_k, p->seq_q);
}

static bool contradicts_groups(const question *q) {
  const attn_problem *p = &q->bench->problem;
  return p->heads_kv != p->heads_q && !(q->layer->has & BENCH_HAS_GROUPS) &&
         refuse(q,
                "heads_kv is %" PRId64 " with %" PRId64 " heads; heads of layer %s have values of their own: leave it alone",
                p->heads_kv, p->heads_q, q->layer->name);
}

/* No tensor of a layer has more than 16 x max(batch, heads) x size x size numbers, where size is its largest dimension. */
static bool contradicts_memory(const question *q) {
  const attn_problem *p = &q->bench->problem;
  const int64_t sizes[] = {p->seq_q, p->seq_k, q->bench->width, p->heads_q * p->dim_qk, p->heads_q * p->dim_v};
  double largest = 0;
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    if ((double)sizes[i] > largest) largest = (double)sizes[i];
  const double copies = (double)(p->batch > p->heads_q ? p->batch : p->heads_q);
  return 16 * copies * largest * largest > 0x1p60 &&
         refuse(q, "sizes up to %.0f with batch %" PRId64 " and %" PRId64 " heads; no memory holds such a layer", largest,
                p->batch, p->heads_q);
}

static bool fixes(const bench_layer_info *layer, bench_axis axis) {
  for (const bench_layer_axis *own = layer->axes; own->value; own++)
    if (own->axis == axis && own->fixed) return true;
  return false;
}

/* Some layers take one causal mask, some take windows too, some take neither. */
static bool contradicts_masks(const question *q) {
  const char *causal = bench_spec_get(q->spec, AXIS_CAUSAL), *name = q->layer->name;
  const unsigned has = q->layer->has;
  if (!strcmp(causal, "offset") || bench_spec_is(q->spec, AXIS_ALIGN, "offset"))
    return refuse(q, "alignment is offset; layers know no offsets: top-left or bottom-right");
  if (has & BENCH_HAS_MASKS) return false;
  if (!is_default(q, AXIS_WINDOW))
    return refuse(q, "window is %s; layer %s takes no windows", bench_spec_get(q->spec, AXIS_WINDOW), name);
  if (is_default(q, AXIS_CAUSAL) || fixes(q->layer, AXIS_CAUSAL)) return false;
  if (!(has & BENCH_HAS_CAUSAL)) return refuse(q, "causal is %s; layer %s takes no masks", causal, name);
  return strcmp(causal, "top-left") && refuse(q, "causal is %s; layer %s takes causal=top-left", causal, name);
}

/* The axes that some layer takes in addition to those of its shape; other rules look at the shape. */
static bool is_for_layers(bench_axis axis, unsigned has) {
  static const bench_axis some[] = {AXIS_ALIGN, AXIS_OFFSET, AXIS_WINDOW, AXIS_SCORE, AXIS_SCALE, AXIS_LAYER, AXIS_WIDTH};
  for (size_t i = 0; i < sizeof some / sizeof *some; i++)
    if (some[i] == axis) return true;
  if (has & BENCH_HAS_RESHAPE && axis == AXIS_MADE_FOR) return true;
  return has & BENCH_HAS_CACHE &&
         (axis == AXIS_PAGE_TOKENS || axis == AXIS_PAGE_ORDER || axis == AXIS_KV_SCALES || axis == AXIS_ROPE);
}

static bool contradicts_options(const question *q) {
  for (int i = 0; i < AXIS_COUNT; i++) {
    const bench_axis_info *axis = bench_axis_get((bench_axis)i);
    const bool optional = axis->place == AXIS_IN_DATA || axis->place == AXIS_IN_RUN;
    if (optional && !is_for_layers((bench_axis)i, q->layer->has) && !is_default(q, (bench_axis)i))
      return refuse(q, "%s is %s; layers here have no such choice: leave it alone", axis->name,
                    bench_spec_get(q->spec, (bench_axis)i));
  }
  return false;
}

static bool contradicts_dtype(const question *q) {
  const attn_problem *p = &q->bench->problem;
  if (q->layer->has & BENCH_HAS_CACHE)
    return p->dtype_o != p->dtype_q &&
           refuse(q, "dtype is %s; layer %s has no O: give the type of new rows, and of the cache",
                  bench_spec_get(q->spec, AXIS_DTYPE), q->layer->name);
  if (q->layer->has & BENCH_HAS_WEIGHT_TYPES)
    return (p->dtype_o != p->dtype_q || (!attn_dtype_is_float(p->dtype_kv) && p->dtype_kv != ATTN_I8)) &&
           refuse(q, "dtype is %s; layer %s has a type of rows, and of weights: f32+bf16, f32+i8, bf16, ...",
                  bench_spec_get(q->spec, AXIS_DTYPE), q->layer->name);
  if (q->layer->has & BENCH_HAS_TYPES)
    return (p->dtype_kv != p->dtype_q || p->dtype_o != p->dtype_q) &&
           refuse(q, "dtype is %s; layer %s has one type for everything: dtype=f32, bf16 or f16",
                  bench_spec_get(q->spec, AXIS_DTYPE), q->layer->name);
  return (p->dtype_q != ATTN_F32 || p->dtype_kv != ATTN_F32 || p->dtype_o != ATTN_F32) &&
         refuse(q, "dtype is %s; layer %s is float32 inside: dtype=f32", bench_spec_get(q->spec, AXIS_DTYPE),
                q->layer->name);
}

static bool contradicts_scores(const question *q) {
  if (!is_default(q, AXIS_SCORE) && !fixes(q->layer, AXIS_SCORE))
    return refuse(q, "score is %s; layer %s has none to choose: leave it alone", bench_spec_get(q->spec, AXIS_SCORE),
                  q->layer->name);
  return !is_default(q, AXIS_SCALE) && !(q->layer->has & BENCH_HAS_SCALE) &&
         refuse(q, "scale is %s; layer %s has none to set: leave it alone", bench_spec_get(q->spec, AXIS_SCALE),
                q->layer->name);
}

/* The layer's factors of tokens are made while they are written. */
static bool contradicts_factors(const question *q) {
  if (q->layer->has & BENCH_HAS_CACHE && strncmp(bench_spec_get(q->spec, AXIS_KV_SCALES), "channel", 7) == 0)
    return refuse(q, "kv_scales is %s; caches are written with factors of tensors, heads or tokens",
                  bench_spec_get(q->spec, AXIS_KV_SCALES));
  return q->layer->has & BENCH_HAS_CACHE && bench_spec_is(q->spec, AXIS_KV_SCALES, "token") &&
         !attn_makes_factors(q->bench->problem.dtype_kv) &&
         refuse(q, "kv_scales is token with dtype %s; factors are made for caches of e4m3, e5m2 and i8",
                bench_spec_get(q->spec, AXIS_DTYPE));
}

/* attn_rope_create() says the same. */
static bool contradicts_rope(const question *q) {
  const int64_t dim = q->bench->problem.dim_qk;
  return !is_default(q, AXIS_ROPE) && (dim % 2 || dim > ROPE_MOST_DIM) &&
         refuse(q, "rope is %s with dim_qk %" PRId64 "; it turns pairs: an even dim_qk, at most %d",
                bench_spec_get(q->spec, AXIS_ROPE), dim, (int)ROPE_MOST_DIM);
}

bool bench_layer_contradicts(const bench_case *bench, char *reason, size_t bytes) {
  static bool (*const rules[])(const question *) = {contradicts_fixed,   contradicts_width,  contradicts_least_sizes,
                                                    contradicts_lengths, contradicts_groups, contradicts_masks,
                                                    contradicts_options, contradicts_dtype,  contradicts_scores,
                                                    contradicts_factors, contradicts_rope,   contradicts_memory};
  const question q = {bench_layer_of(bench), bench, &bench->spec, reason, bytes};
  if (!q.layer && !is_default(&q, AXIS_MADE_FOR))
    return refuse(&q, "made_for is of layers: layer=mha, layer=block, ... must be given with it");
  if (!q.layer && !is_default(&q, AXIS_ROPE)) return refuse(&q, "rope is of layers: layer=kv-append must be given with it");
  if (!q.layer) return bench->width && refuse(&q, "width is of layers: layer=mha, layer=block, ... must be given with it");
  for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
    if (rules[i](&q)) return true;
  return false;
}
