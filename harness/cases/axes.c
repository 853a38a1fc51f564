/* SPDX-License-Identifier: MIT */
/* The table of axes, and how their values are read. */
#include "cases/axes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"

enum { MOST_VALUES = 4096 };

static const char *const causal_words[] = {"none", "top-left", "bottom-right", "offset", NULL};
static const char *const align_words[] = {"top-left", "bottom-right", "offset", NULL};
static const char *const mask_words[] = {"none", "random", "padding", NULL};
static const char *const bias_words[] = {"none", "full", "masking", "heads", "row", NULL};
static const char *const switch_words[] = {"off", "on", NULL};
static const char *const score_words[] = {"dot", "additive", "gaussian", "precomputed", NULL};
static const char *const length_words[] = {"full", "kv_len", "q_len", "both", "row_len", "varlen", NULL};
static const char *const layout_words[] = {"bhsd",     "bshd",      "strided", "spread", "transposed",
                                           "reversed", "broadcast", "packed",  NULL};
static const char *const value_words[] = {"zero-mean", "positive", NULL};
static const char *const layer_words[] = {"none",
                                          "mha",
                                          "block",
                                          "decoder",
                                          "cross",
                                          "feed-forward",
                                          "add-norm",
                                          "additive",
                                          "synthesizer-dense",
                                          "synthesizer-random",
                                          "regression",
                                          "positions",
                                          "decode-step",
                                          NULL};
static const char *const cache_words[] = {"warm", "cold-kv", "cold", NULL};
static const char *const heads_words[] = {"heads", NULL};
static const char *const default_words[] = {"default", NULL};
static const char *const all_words[] = {"all", NULL};

static const bench_axis_info axes[AXIS_COUNT] = {
    [AXIS_DTYPE] = {"dtype", "f32", AXIS_IS_DTYPE, 0, NULL, "f32, f16, bf16; f32+bf16: Q and O, then K and V; or Q+KV+O"},
    [AXIS_BATCH] = {"batch", "1", AXIS_IS_INT, 0, NULL, "sequences"},
    [AXIS_HEADS] = {"heads", "8", AXIS_IS_INT, 1, NULL, "query heads"},
    [AXIS_HEADS_KV] = {"heads_kv", "heads", AXIS_IS_INT, 1, heads_words, "KV heads; a divisor of heads (1 = multi-query)"},
    [AXIS_HEAD_DIM] = {"head_dim", "64", AXIS_IS_INT, 1, NULL, "dim_qk and dim_v at once"},
    [AXIS_DIM_QK] = {"dim_qk", "", AXIS_IS_INT, 1, NULL, "of queries and keys (default: head_dim)"},
    [AXIS_DIM_V] = {"dim_v", "", AXIS_IS_INT, 1, NULL, "of values and outputs (default: head_dim)"},
    [AXIS_SEQ] = {"seq", "512", AXIS_IS_INT, 0, NULL, "seq_q and seq_k at once"},
    [AXIS_SEQ_Q] = {"seq_q", "", AXIS_IS_INT, 0, NULL, "queries (default: seq)"},
    [AXIS_SEQ_K] = {"seq_k", "", AXIS_IS_INT, 0, NULL, "keys (default: seq)"},
    [AXIS_CAUSAL] = {"causal", "none", AXIS_IS_WORD, 0, causal_words, "causal mask, by where query 0 stands among the keys"},
    [AXIS_ALIGN] = {"align", "top-left", AXIS_IS_WORD, 0, align_words,
                    "the same for window and alibi without a causal mask"},
    [AXIS_OFFSET] = {"offset", "0", AXIS_IS_INT, INT32_MIN, NULL, "key position of query 0, for the alignment 'offset'"},
    [AXIS_WINDOW] = {"window", "none", AXIS_IS_WINDOW, 0, NULL,
                     "LEFT..RIGHT keys, an open side left out; W: W..W, causal W..0"},
    [AXIS_MASK] = {"mask", "none", AXIS_IS_WORD, 0, mask_words,
                   "boolean mask: each key with p = 1/2, or a random suffix off"},
    [AXIS_BIAS] = {"bias", "none", AXIS_IS_WORD, 0, bias_words,
                   "added to the scores: full, with -inf for single keys, tiles and rows, broadcast over batch, or per key"},
    [AXIS_ALIBI] = {"alibi", "off", AXIS_IS_WORD, 0, switch_words, "ALiBi slopes"},
    [AXIS_SOFTCAP] = {"softcap", "0", AXIS_IS_REAL, 0, NULL, "c: scores become c tanh(s/c); 0 = off"},
    [AXIS_SCORE] = {"score", "dot", AXIS_IS_WORD, 0, score_words, "score function"},
    [AXIS_SCALE] = {"scale", "default", AXIS_IS_REAL, 0, default_words, "of dot scores (default: 1/sqrt(dim_qk))"},
    [AXIS_SINKS] = {"sinks", "off", AXIS_IS_WORD, 0, switch_words, "one sink logit per head in the denominator"},
    [AXIS_LENGTHS] = {"lengths", "full", AXIS_IS_WORD, 0, length_words,
                      "random lengths per sequence, both, per row, or packed"},
    [AXIS_LSE] = {"lse", "off", AXIS_IS_WORD, 0, switch_words, "write log-sum-exp as well"},
    [AXIS_LAYOUT] = {"layout", "bhsd", AXIS_IS_WORD, 0, layout_words, "strides of q, k, v, o (packed: with lengths=varlen)"},
    [AXIS_MAGNITUDE] = {"magnitude", "1", AXIS_IS_REAL, 0, NULL, "standard deviation of the generated inputs"},
    [AXIS_VALUES] = {"values", "zero-mean", AXIS_IS_WORD, 0, value_words,
                     "mean of V; positive: only the proven bound applies"},
    [AXIS_CACHE] = {"cache", "warm", AXIS_IS_WORD, 0, cache_words,
                    "K and V, or all tensors, rotated beyond the last-level cache"},
    [AXIS_LAYER] = {"layer", "none", AXIS_IS_WORD, 0, layer_words,
                    "attention alone, or what libattn_nn builds with it: multi-head attention, an encoder block, ... "
                    "(docs/measuring.md)"},
    [AXIS_WIDTH] = {"width", "default", AXIS_IS_INT, 1, default_words,
                    "of a layer, d_model: head_dim is width / heads (default: heads x head_dim)"},
    [AXIS_THREADS] = {"threads", "1", AXIS_IS_INT, 1, all_words, "threads of the kernel; all: every CPU allowed"},
};

const bench_axis_info *bench_axis_get(bench_axis axis) { return &axes[axis]; }

const char *bench_spec_get(const bench_spec *spec, bench_axis axis) {
  return spec->value[axis][0] ? spec->value[axis] : axes[axis].fallback;
}

/* ---- Single values ------------------------------------------------------------------------------------------------- */

static bool is_word(const char *const *words, const char *text) {
  for (; words && *words; words++)
    if (!strcmp(*words, text)) return true;
  return false;
}

static bool read_dtype(const char *text, size_t length, attn_dtype *dtype) {
  for (attn_dtype d = ATTN_F32; d <= ATTN_BF16; d++)
    if (strlen(bench_dtype_name(d)) == length && !strncmp(bench_dtype_name(d), text, length)) {
      *dtype = d;
      return true;
    }
  return false;
}

const char *bench_dtype_name(attn_dtype dtype) {
  static const char *const names[] = {[ATTN_F32] = "f32", [ATTN_F16] = "f16", [ATTN_BF16] = "bf16"};
  return names[dtype];
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

bool bench_window_read(const char *text, bool causal, int64_t *left, int64_t *right) {
  char first[BENCH_WORD];
  *left = *right = -1;
  if (!strcmp(text, "none")) return true;
  const char *dots = strstr(text, "..");
  if (!dots) {
    if (!cli_read_int(text, left) || *left < 0) return false;
    *right = causal ? 0 : *left;
    return true;
  }
  snprintf(first, sizeof first, "%.*s", (int)(dots - text), text);
  if (first[0] && (!cli_read_int(first, left) || *left < 0)) return false;
  if (dots[2] && (!cli_read_int(dots + 2, right) || *right < 0)) return false;
  return true;
}

/* NULL, or what the value should have been. */
static const char *check_value(const bench_axis_info *axis, const char *text) {
  int64_t left, right, whole;
  double real;
  attn_dtype q, kv, o;
  if (is_word(axis->words, text)) return NULL;
  switch (axis->kind) {
    case AXIS_IS_INT:
      return cli_read_int(text, &whole) && whole >= axis->least ? NULL : "a whole number, or a range a:b:+s, a:b:*f";
    case AXIS_IS_REAL: return cli_read_real(text, &real) ? NULL : "a number";
    case AXIS_IS_DTYPE: return bench_dtype_read(text, &q, &kv, &o) ? NULL : "f32, f16, bf16, or several joined by +";
    case AXIS_IS_WINDOW: return bench_window_read(text, false, &left, &right) ? NULL : "none, W, or LEFT..RIGHT";
    default: return "one of its words";
  }
}

static void say_bad_value(const bench_axis_info *axis, const char *text, const char *wanted, char *error, size_t bytes) {
  const char *near = axis->kind == AXIS_IS_WORD ? cli_nearest(text, axis->words) : NULL;
  int used = snprintf(error, bytes, "axis %s: '%s' should be ", axis->name, text);
  if (axis->kind != AXIS_IS_WORD) used += snprintf(error + used, bytes - (size_t)used, "%s", wanted);
  for (int i = 0; axis->kind == AXIS_IS_WORD && axis->words[i] && (size_t)used < bytes; i++)
    used += snprintf(error + used, bytes - (size_t)used, "%s%s", i ? ", " : "", axis->words[i]);
  if (axis->kind == AXIS_IS_INT && axis->least >= 0 && (size_t)used < bytes)
    used += snprintf(error + used, bytes - (size_t)used, ", at least %lld", (long long)axis->least);
  if (near && (size_t)used < bytes) snprintf(error + used, bytes - (size_t)used, "; did you mean %s?", near);
}

/* ---- Lists and ranges ---------------------------------------------------------------------------------------------- */

static bool add_value(bench_values *values, const char *text) {
  if (values->count == MOST_VALUES || strlen(text) >= BENCH_WORD) return false;
  if (!(values->count & (values->count - 1))) { /* grows at powers of two */
    const size_t room = values->count ? (size_t)values->count * 2 : 1;
    void *grown = realloc(values->value, room * sizeof *values->value);
    if (!grown) return false;
    values->value = grown;
  }
  snprintf(values->value[values->count++], BENCH_WORD, "%s", text);
  return true;
}

/* Reads "a:b", "a:b:s", "a:b:+s" or "a:b:*f". */
static bool read_range(const char *text, int64_t *first, int64_t *last, int64_t *step, bool *multiply) {
  char copy[3 * BENCH_WORD];
  snprintf(copy, sizeof copy, "%s", text);
  char *second = strchr(copy, ':');
  *second++ = 0;
  char *third = strchr(second, ':');
  *step = 1;
  *multiply = false;
  if (third) {
    *third++ = 0;
    *multiply = *third == '*';
    if (*third == '*' || *third == '+') third++;
    if (!cli_read_int(third, step) || *step < 1 + (*multiply ? 1 : 0)) return false;
  }
  return cli_read_int(copy, first) && cli_read_int(second, last) && *first <= *last && !(*multiply && *first < 1);
}

static bool add_range(bench_values *values, const char *text) {
  int64_t first, last, step;
  bool multiply;
  if (!read_range(text, &first, &last, &step, &multiply)) return false;
  for (int64_t value = first; value <= last;) {
    char word[BENCH_WORD];
    snprintf(word, sizeof word, "%lld", (long long)value);
    if (!add_value(values, word)) return false;
    if (value > last / (multiply ? step : 1) || (!multiply && value > last - step)) break;
    value = multiply ? value * step : value + step;
  }
  return true;
}

static bool add_item(const bench_axis_info *axis, bench_values *values, const char *item, char *error, size_t bytes) {
  if (axis->kind == AXIS_IS_INT && strchr(item, ':')) {
    if (add_range(values, item) && !check_value(axis, values->value[values->count - 1]) &&
        !check_value(axis, values->value[0]))
      return true;
    snprintf(error, bytes,
             "axis %s: range '%s' should be FIRST:LAST, FIRST:LAST:+STEP or FIRST:LAST:*FACTOR, FIRST <= LAST, "
             "at most %d values",
             axis->name, item, MOST_VALUES);
    return false;
  }
  const char *wanted = strlen(item) < BENCH_WORD ? check_value(axis, item) : "shorter";
  if (wanted) {
    say_bad_value(axis, item, wanted, error, bytes);
    return false;
  }
  if (add_value(values, item)) return true;
  snprintf(error, bytes, "axis %s: more than %d values", axis->name, MOST_VALUES);
  return false;
}

static void clear_values(bench_values *values) {
  free(values->value);
  *values = (bench_values){0};
}

bool bench_axis_is(const char *assignment, const char *name, const char **values) {
  const size_t length = strlen(name);
  if (strncmp(assignment, name, length) || assignment[length] != '=') return false;
  *values = assignment + length + 1;
  return true;
}

static bench_axis find_axis(const char *assignment, const char **values) {
  for (int i = 0; i < AXIS_COUNT; i++)
    if (bench_axis_is(assignment, axes[i].name, values)) return (bench_axis)i;
  return AXIS_COUNT;
}

static bool unknown_axis(const char *assignment, char *error, size_t bytes) {
  const char *names[AXIS_COUNT + 2];
  char word[BENCH_WORD * 2];
  for (int i = 0; i < AXIS_COUNT; i++) names[i] = axes[i].name;
  names[AXIS_COUNT] = "kernel";
  names[AXIS_COUNT + 1] = NULL;
  snprintf(word, sizeof word, "%.*s", (int)strcspn(assignment, "="), assignment);
  if (!strchr(assignment, '=')) {
    snprintf(error, bytes, "'%s' should be AXIS=VALUES, as in seq=128:8192:*2", assignment);
    return false;
  }
  const char *near = cli_nearest(word, names);
  if (near)
    snprintf(error, bytes, "unknown axis '%s'; did you mean %s?", word, near);
  else
    snprintf(error, bytes, "unknown axis '%s'; see attnbench list axes", word);
  return false;
}

bool bench_grid_set(bench_grid *grid, const char *assignment, char *error, size_t error_bytes) {
  const char *values;
  const bench_axis axis = find_axis(assignment, &values);
  if (axis == AXIS_COUNT) return unknown_axis(assignment, error, error_bytes);

  clear_values(&grid->axes[axis]);
  if (axis == AXIS_SEQ) clear_values(&grid->axes[AXIS_SEQ_Q]), clear_values(&grid->axes[AXIS_SEQ_K]);
  if (axis == AXIS_HEAD_DIM) clear_values(&grid->axes[AXIS_DIM_QK]), clear_values(&grid->axes[AXIS_DIM_V]);
  while (true) {
    char item[3 * BENCH_WORD];
    const size_t length = strcspn(values, ",");
    snprintf(item, sizeof item, "%.*s", (int)length, values);
    if (!add_item(&axes[axis], &grid->axes[axis], item, error, error_bytes)) return false;
    if (!values[length]) return true;
    values += length + 1;
  }
}

void bench_grid_clear(bench_grid *grid) {
  for (int i = 0; i < AXIS_COUNT; i++) clear_values(&grid->axes[i]);
  *grid = (bench_grid){0};
}
