/* SPDX-License-Identifier: MIT */
/* The table of axes, and how single values are read. */
#include "cases/axes.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"
#include "cases/case.h"
#include "kernels/common/problem/dtypes.h"

enum {
  MOST_TOKENS = INT32_MAX, /* lengths and offsets are int32 in attn_args; sizes beyond 2^31 are invalid anyway */
  MOST_THREADS = 4096,     /* attn_options.threads */
};

#define WORDS(...) \
  (const char *const[]) { __VA_ARGS__, NULL }
#define NO_WORDS NULL

static const char *const layer_words[] = {"none",
#define LAYER(constant, name, ...) name,
#include "cases/layers.def"
                                          NULL};
#define LAYER_WORDS layer_words

static const bench_axis_info axes[AXIS_COUNT] = {
#define AXIS(constant, text, where, type, value, smallest, largest, all_words, sentence) \
  [AXIS_##constant] = {.name = (text),                                                   \
                       .fallback = (value),                                              \
                       .kind = AXIS_IS_##type,                                           \
                       .place = AXIS_IN_##where,                                         \
                       .least = (smallest),                                              \
                       .most = (largest),                                                \
                       .words = all_words,                                               \
                       .help = (sentence)},
#include "cases/axes.def"
};

const bench_axis_info *bench_axis_get(bench_axis axis) { return &axes[axis]; }

/* ---- Specifications ------------------------------------------------------------------------------------------------ */

const char *bench_spec_get(const bench_spec *spec, bench_axis axis) {
  return spec->value[axis][0] ? spec->value[axis] : axes[axis].fallback;
}

int64_t bench_spec_int(const bench_spec *spec, bench_axis axis) {
  int64_t value = 0;
  (void)cli_read_int(bench_spec_get(spec, axis), &value);
  return value;
}

double bench_spec_real(const bench_spec *spec, bench_axis axis) {
  double value = 0;
  (void)cli_read_real(bench_spec_get(spec, axis), &value);
  return value;
}

int bench_spec_index(const bench_spec *spec, bench_axis axis) {
  const int index = cli_index_of(bench_spec_get(spec, axis), axes[axis].words);
  return index < 0 ? 0 : index;
}

bool bench_spec_is(const bench_spec *spec, bench_axis axis, const char *word) {
  return !strcmp(bench_spec_get(spec, axis), word);
}

void bench_spec_set(bench_spec *spec, bench_axis axis, const char *value) {
  snprintf(spec->value[axis], BENCH_WORD, "%s", value);
}

/* ---- Single values ------------------------------------------------------------------------------------------------- */

const char *bench_dtype_name(attn_dtype dtype) { return attn_dtype_of(dtype).name; }

static bool read_dtype(const char *text, size_t length, attn_dtype *dtype) {
  for (attn_dtype d = 0; attn_dtype_exists(d); d++)
    if (strlen(bench_dtype_name(d)) == length && !strncmp(bench_dtype_name(d), text, length)) {
      *dtype = d;
      return true;
    }
  return false;
}

bool bench_dtype_read(const char *text, attn_dtype *q, attn_dtype *kv, attn_dtype *o) {
  attn_dtype parts[3];
  int count = 0;
  for (const char *part = text; count < 3; part++) {
    const size_t length = strcspn(part, "+");
    if (!read_dtype(part, length, &parts[count++])) return false;
    part += length;
    if (!*part) break;
    if (count == 3) return false;
  }
  *q = parts[0];
  *kv = count > 1 ? parts[1] : parts[0];
  *o = count > 2 ? parts[2] : parts[0];
  return true;
}

static bool read_within(const bench_axis_info *axis, const char *text, int64_t *value) {
  return cli_read_int(text, value) && *value >= axis->least && *value <= axis->most;
}

/* One side of a window: "" = open. */
static bool read_side(const char *text, int64_t *keys) {
  *keys = -1;
  return !*text || read_within(&axes[AXIS_WINDOW], text, keys);
}

bool bench_window_read(const char *text, bool causal, bench_window *window) {
  char left[BENCH_WORD];
  *window = (bench_window){-1, -1};
  if (!strcmp(text, "none")) return true;
  const char *dots = strstr(text, "..");
  if (dots) {
    snprintf(left, sizeof left, "%.*s", (int)(dots - text), text);
    return read_side(left, &window->left) && read_side(dots + 2, &window->right);
  }
  if (!*text || !read_side(text, &window->left)) return false;
  window->right = causal ? 0 : window->left;
  return true;
}

/* The library keeps such numbers as float32: a value must not become infinite there, nor 0 unless it is 0. */
static bool fits_float(double value) {
  const float narrow = (float)value;
  return isfinite(narrow) && (narrow != 0 || value == 0);
}

const char *bench_axis_wants(const bench_axis_info *axis, const char *text) {
  bench_window window;
  int64_t whole;
  double real;
  attn_dtype q, kv, o;
  if (axis->words && cli_index_of(text, axis->words) >= 0) return NULL;
  switch (axis->kind) {
    case AXIS_IS_INT: return read_within(axis, text, &whole) ? NULL : "a whole number, or a range a:b:+s, a:b:*f";
    case AXIS_IS_REAL:
      if (!cli_read_real(text, &real)) return "a number";
      return fits_float(real) ? NULL : "0, or a number from 1e-45 to 3e38 in magnitude, as float32 holds";
    case AXIS_IS_DTYPE:
      return bench_dtype_read(text, &q, &kv, &o)
                 ? NULL
                 : "f32, f16, bf16, or several joined by +, of which K and V may be e4m3, e5m2, i8, q8_0 or q4_0";
    case AXIS_IS_WINDOW: return bench_window_read(text, false, &window) ? NULL : "none, W, or LEFT..RIGHT";
    default: return "one of its words";
  }
}

/* ---- Layouts: strides that a caller might use, common and rare ---------------------------------------------------- */

typedef attn_strides (*layout_fn)(int64_t heads, int64_t seq, int64_t dim);

static attn_strides dense(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = heads * seq * dim, .h = seq * dim, .s = dim, .d = 1};
}

/* Gaps after every row, head and batch; odd numbers, so that nothing stays aligned. */
static attn_strides strided(int64_t heads, int64_t seq, int64_t dim) {
  const int64_t s = dim + 5, h = seq * s + 7;
  return (attn_strides){.b = heads * h + 11, .h = h, .s = s, .d = 1};
}

/* A gap after every element. */
static attn_strides spread(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = heads * seq * dim * 2, .h = seq * dim * 2, .s = dim * 2, .d = 2};
}

/* [batch][heads][dim][seq] */
static attn_strides transposed(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = heads * seq * dim, .h = seq * dim, .s = 1, .d = seq};
}

/* Heads, rows and elements run backwards through memory. */
static attn_strides reversed(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = heads * seq * dim, .h = -seq * dim, .s = -dim, .d = -1};
}

/* Tokens of K and V whose strides are set: of a sequence, or of a page. */
static int64_t key_tokens(const attn_problem *p) { return p->uses & ATTN_USE_PAGES ? p->page_tokens : p->seq_k; }

/* The layout of a type of blocks is one of rows: it places blocks, whose elements adjoin. */
static attn_strides of_keys(const attn_problem *p, layout_fn strides, int64_t dim) {
  const int64_t together = attn_dtype_of(p->dtype_kv).values;
  attn_strides s = strides(p->heads_kv, key_tokens(p), attn_row_elements(p->dtype_kv, dim) / together);
  if (together == 1) return s;
  if (strides != transposed) s.d = 1;
  return (attn_strides){.b = s.b * together, .h = s.h * together, .s = s.s * together, .d = s.d};
}

static void apply(attn_problem *p, layout_fn strides) {
  p->q_stride = strides(p->heads_q, p->seq_q, p->dim_qk);
  p->k_stride = of_keys(p, strides, p->dim_qk);
  p->v_stride = of_keys(p, strides, p->dim_v);
  p->o_stride = strides(p->heads_q, p->seq_q, p->dim_v);
}

/* Neighbouring keys side by side, of a sequence or of a page. */
static void transpose_keys(attn_problem *p) {
  apply(p, dense);
  p->k_stride = of_keys(p, transposed, p->dim_qk);
}

/* One query tensor for all heads, one K for all KV heads and the whole batch, one V for the whole batch. */
static void broadcast(attn_problem *p) {
  apply(p, dense);
  p->q_stride.h = 0;
  p->k_stride.h = 0;
  p->k_stride.b = 0;
  p->v_stride.b = 0;
}

/* The heads of a token side by side; where K and V lie in pages, packed queries do not pack them. */
static void apply_bshd(attn_problem *p, const char *layout) {
  if (!strcmp(layout, "bshd")) attn_problem_set_bshd(p);
  if (!strcmp(layout, "packed"))
    attn_problem_set_varlen(p, p->batch * p->seq_q, p->uses & ATTN_USE_PAGES ? 0 : p->batch * p->seq_k);
  if (!(p->uses & ATTN_USE_PAGES)) return;
  const int64_t k = attn_row_elements(p->dtype_kv, p->dim_qk), v = attn_row_elements(p->dtype_kv, p->dim_v);
  p->k_stride = (attn_strides){p->page_tokens * p->heads_kv * k, k, p->heads_kv * k, 1};
  p->v_stride = (attn_strides){p->page_tokens * p->heads_kv * v, v, p->heads_kv * v, 1};
}

/* True if no stride of any layout can overflow: all stay far below 2^63 then. Strides count heads, rows and columns of an
 * empty batch, too. */
static bool is_addressable(const attn_problem *p) {
  const double keys = (double)p->seq_k + (p->uses & ATTN_USE_PAGES ? (double)p->page_tokens : 0);
  const double rows = fmax((double)p->heads_q * (double)p->seq_q, (double)p->heads_kv * keys);
  return fmax((double)p->batch, 1) * rows * fmax((double)p->dim_qk, (double)p->dim_v) <= 0x1p56;
}

bool bench_layout_apply(attn_problem *problem, const char *layout) {
  static const struct {
    const char *name;
    layout_fn strides;
  } layouts[] = {
      {"bhsd", dense}, {"strided", strided}, {"spread", spread}, {"transposed", transposed}, {"reversed", reversed}};
  if (!is_addressable(problem)) return false;
  for (size_t i = 0; i < sizeof layouts / sizeof *layouts; i++)
    if (!strcmp(layout, layouts[i].name)) apply(problem, layouts[i].strides);
  if (!strcmp(layout, "bshd") || !strcmp(layout, "packed")) apply_bshd(problem, layout);
  if (!strcmp(layout, "k-transposed")) transpose_keys(problem);
  if (!strcmp(layout, "broadcast")) broadcast(problem);
  return true;
}
