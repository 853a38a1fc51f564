/* SPDX-License-Identifier: MIT */
/* Writes and reads case ids. */
#include "cases/case_id.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/cli.h"
#include "cases/grid.h"

/* The parts that always stand at the beginning, before `threads`. */
static const struct {
  const char *brief;
  bench_axis axis;
} head[] = {{"dtype", AXIS_DTYPE}, {"B", AXIS_BATCH},  {"Hq", AXIS_HEADS}, {"Hkv", AXIS_HEADS_KV}, {"Sq", AXIS_SEQ_Q},
            {"Sk", AXIS_SEQ_K},    {"D", AXIS_DIM_QK}, {"Dv", AXIS_DIM_V}, {"causal", AXIS_CAUSAL}};
enum { HEAD_PARTS = sizeof head / sizeof *head, VALUE = 2 * BENCH_WORD };

/* ---- Values -------------------------------------------------------------------------------------------------------- */

static void write_dtype(const attn_problem *p, char *text) {
  const char *q = bench_dtype_name(p->dtype_q), *kv = bench_dtype_name(p->dtype_kv), *o = bench_dtype_name(p->dtype_o);
  if (p->dtype_o != p->dtype_q)
    snprintf(text, VALUE, "%s+%s+%s", q, kv, o);
  else if (p->dtype_kv != p->dtype_q)
    snprintf(text, VALUE, "%s+%s", q, kv);
  else
    snprintf(text, VALUE, "%s", q);
}

static void write_window(const char *value, bool causal, char *text) {
  char left[BENCH_WORD] = "", right[BENCH_WORD] = "";
  bench_window window;
  if (!bench_window_read(value, causal, &window) || (window.left < 0 && window.right < 0)) return;
  if (window.left >= 0) snprintf(left, sizeof left, "%" PRId64, window.left);
  if (window.right >= 0) snprintf(right, sizeof right, "%" PRId64, window.right);
  snprintf(text, VALUE, "%.20s..%.20s", left, right);
}

/* Sizes that the case may have from elsewhere than their own axis: from `seq`, `head_dim`, `heads` or `width`. */
static const int64_t *size_of_axis(const attn_problem *p, bench_axis axis) {
  switch (axis) {
    case AXIS_HEADS_KV: return &p->heads_kv;
    case AXIS_SEQ_Q: return &p->seq_q;
    case AXIS_SEQ_K: return &p->seq_k;
    case AXIS_DIM_QK: return &p->dim_qk;
    case AXIS_DIM_V: return &p->dim_v;
    default: return NULL;
  }
}

/* Equal values get equal text: "0.50" is "0.5", "256" with a causal mask is "256..0". */
static void write_value(const bench_case *bench, bench_axis axis, char *text) {
  const char *value = bench_spec_get(&bench->spec, axis);
  const int64_t *size = size_of_axis(&bench->problem, axis);
  int64_t whole;
  double real;
  snprintf(text, VALUE, "%s", value);
  switch (bench_axis_get(axis)->kind) {
    case AXIS_IS_INT:
      if (size || cli_read_int(value, &whole)) snprintf(text, VALUE, "%" PRId64, size ? *size : whole);
      break;
    case AXIS_IS_REAL:
      if (cli_read_real(value, &real)) snprintf(text, VALUE, "%.9g", real);
      break;
    case AXIS_IS_WINDOW: write_window(value, !bench_spec_is(&bench->spec, AXIS_CAUSAL, "none"), text); break;
    case AXIS_IS_DTYPE: write_dtype(&bench->problem, text); break;
    default: break;
  }
}

/* ---- Writing ------------------------------------------------------------------------------------------------------- */

static void append(char *text, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void append(char *text, const char *format, ...) {
  const size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, BENCH_NAME - used, format, arguments);
  va_end(arguments);
}

static void append_head(const bench_case *bench, char *text) {
  for (int i = 0; i < HEAD_PARTS; i++) {
    char value[VALUE];
    write_value(bench, head[i].axis, value);
    append(text, "%s%s:%s", i ? "/" : "", head[i].brief, value);
  }
}

void bench_case_name_axes(const bench_case *bench, bench_axis_place place, bool (*skips)(bench_axis), char *text) {
  for (int i = 0; i < AXIS_COUNT; i++) {
    const bench_axis_info *axis = bench_axis_get((bench_axis)i);
    char value[VALUE];
    if (axis->place != place || (skips && skips((bench_axis)i))) continue;
    write_value(bench, (bench_axis)i, value);
    if (strcmp(value, axis->fallback)) append(text, "/%s:%s", axis->name, value);
  }
}

/* FNV-1a */
static uint64_t hash_text(uint64_t hash, const char *text) {
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  return hash;
}

void bench_case_name(bench_case *bench, uint64_t run_seed) {
  char shape[BENCH_NAME] = "", rest[BENCH_NAME] = "";
  append_head(bench, shape);
  bench_case_name_axes(bench, AXIS_IN_DATA, NULL, rest);
  uint64_t state = hash_text(hash_text(0xcbf29ce484222325u ^ run_seed, shape), rest);
  bench->seed = bench_random(&state);
  bench->case_id[0] = '\0';
  append(bench->case_id, "%s/threads:%d%s", shape, bench->threads, rest);
  bench_case_name_axes(bench, AXIS_IN_RUN, NULL, bench->case_id);
}

/* ---- Reading ------------------------------------------------------------------------------------------------------- */

static const char *axis_of_part(const char *word) {
  for (int i = 0; i < HEAD_PARTS; i++)
    if (!strcmp(word, head[i].brief)) return bench_axis_get(head[i].axis)->name;
  return word;
}

bool bench_id_next(const char **at, bench_id_part *part) {
  if (!**at) return false;
  const size_t length = strcspn(*at, "/"), name = strcspn(*at, ":/"), value = name < length ? name + 1 : length;
  snprintf(part->name, sizeof part->name, "%.*s", (int)name, *at);
  snprintf(part->value, sizeof part->value, "%.*s", (int)(length - value), *at + value);
  *at += length + ((*at)[length] == '/');
  return true;
}

bool bench_spec_from_id(const char *case_id, bench_spec *spec, char *error, size_t error_bytes) {
  bench_grid grid = {0};
  bench_id_part part;
  bool fine = true;
  while (fine && bench_id_next(&case_id, &part)) {
    char assignment[sizeof part + 1];
    snprintf(assignment, sizeof assignment, "%s=%s", axis_of_part(part.name), part.value);
    fine = bench_grid_set(&grid, assignment, error, error_bytes);
  }
  *spec = bench_grid_spec(&grid, (const int[AXIS_COUNT]){0});
  bench_grid_clear(&grid);
  return fine;
}
