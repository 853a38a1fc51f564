/* SPDX-License-Identifier: MIT */
/* Builds cases from specifications, and lists of cases from grids. */
#include "cases/cases.h"

#include <inttypes.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/cli.h"
#include "cases/layout.h"
#include "layers/layer.h"

enum { MOST_COMBINATIONS = 50000 };

int bench_cpu_count(void) {
#ifdef _OPENMP
  int bound = 0; /* with OMP_PROC_BIND the first thread sits in one of these places, and its own mask shows no more */
  for (int i = 0; i < omp_get_num_places(); i++) bound += omp_get_place_num_procs(i);
  if (bound && omp_get_proc_bind() != omp_proc_bind_false) return bound;
#endif
  cpu_set_t set;
  if (!sched_getaffinity(0, sizeof set, &set)) return CPU_COUNT(&set);
  const long online = sysconf(_SC_NPROCESSORS_ONLN);
  return online > 0 ? (int)online : 1;
}

uint64_t bench_random(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* ---- One case ------------------------------------------------------------------------------------------------------ */

static int64_t get_int(const bench_spec *spec, bench_axis axis) {
  int64_t value = 0;
  (void)cli_read_int(bench_spec_get(spec, axis), &value);
  return value;
}

static double get_real(const bench_spec *spec, bench_axis axis) {
  double value = 0;
  (void)cli_read_real(bench_spec_get(spec, axis), &value);
  return value;
}

static bool is(const bench_spec *spec, bench_axis axis, const char *word) {
  return !strcmp(bench_spec_get(spec, axis), word);
}

/* seq_q, seq_k, dim_qk, dim_v: their own value, else that of the axis for both. */
static int64_t get_or(const bench_spec *spec, bench_axis axis, bench_axis both) {
  return get_int(spec, spec->value[axis][0] ? axis : both);
}

/* A layer's width is its own axis or follows from the heads; where it is given, the heads share it out. */
static void build_layer(const bench_spec *spec, bench_case *bench) {
  const bool given = !is(spec, AXIS_WIDTH, "default");
  const int64_t heads = get_int(spec, AXIS_HEADS), width = get_int(spec, AXIS_WIDTH);
  attn_problem *p = &bench->problem;
  if (!is(spec, AXIS_LAYER, "none")) snprintf(bench->layer, BENCH_WORD, "%s", bench_spec_get(spec, AXIS_LAYER));
  bench->width = given ? width : bench_layer_has_width(bench) ? heads * p->dim_v : 0;
  const bool own_dims = spec->value[AXIS_HEAD_DIM][0] || spec->value[AXIS_DIM_QK][0] || spec->value[AXIS_DIM_V][0];
  if (!bench->layer[0] || !given || own_dims) return;
  if (width % heads) bench->width = 0; /* bench_layer_contradicts says so */
  const attn_dtype q = p->dtype_q, kv = p->dtype_kv, o = p->dtype_o;
  const int64_t dim = width / heads > 0 ? width / heads : 1;
  attn_problem_init(p, p->batch, heads, p->heads_kv, p->seq_q, p->seq_k, dim, dim);
  p->dtype_q = q;
  p->dtype_kv = kv;
  p->dtype_o = o;
}

static void build_shape(const bench_spec *spec, attn_problem *problem) {
  const int64_t heads = get_int(spec, AXIS_HEADS);
  const int64_t heads_kv = is(spec, AXIS_HEADS_KV, "heads") ? heads : get_int(spec, AXIS_HEADS_KV);
  attn_problem_init(problem, get_int(spec, AXIS_BATCH), heads, heads_kv, get_or(spec, AXIS_SEQ_Q, AXIS_SEQ),
                    get_or(spec, AXIS_SEQ_K, AXIS_SEQ), get_or(spec, AXIS_DIM_QK, AXIS_HEAD_DIM),
                    get_or(spec, AXIS_DIM_V, AXIS_HEAD_DIM));
  (void)bench_dtype_read(bench_spec_get(spec, AXIS_DTYPE), &problem->dtype_q, &problem->dtype_kv, &problem->dtype_o);
}

static void build_position(const bench_spec *spec, attn_problem *problem) {
  static const struct {
    const char *name;
    attn_align align;
  } aligns[] = {{"top-left", ATTN_ALIGN_TOP_LEFT}, {"bottom-right", ATTN_ALIGN_BOTTOM_RIGHT}, {"offset", ATTN_ALIGN_OFFSET}};
  const bool causal = !is(spec, AXIS_CAUSAL, "none");
  const char *name = bench_spec_get(spec, causal ? AXIS_CAUSAL : AXIS_ALIGN);
  for (size_t i = 0; i < sizeof aligns / sizeof *aligns; i++)
    if (!strcmp(name, aligns[i].name)) problem->align = aligns[i].align;
  (void)bench_window_read(bench_spec_get(spec, AXIS_WINDOW), causal, &problem->window_left, &problem->window_right);
  if (causal) attn_problem_set_causal(problem, problem->align);
}

static void build_score(const bench_spec *spec, attn_problem *problem) {
  static const struct {
    const char *name;
    attn_score score;
    uint32_t uses;
  } scores[] = {{"dot", ATTN_SCORE_DOT, 0},
                {"additive", ATTN_SCORE_ADDITIVE, ATTN_USE_SCORE_WEIGHT},
                {"gaussian", ATTN_SCORE_GAUSSIAN, ATTN_USE_SCORE_WEIGHT},
                {"precomputed", ATTN_SCORE_PRECOMPUTED, 0}};
  for (size_t i = 0; i < sizeof scores / sizeof *scores; i++)
    if (is(spec, AXIS_SCORE, scores[i].name)) {
      problem->score = scores[i].score;
      problem->uses |= scores[i].uses;
    }
  if (!is(spec, AXIS_SCALE, "default")) problem->scale = (float)get_real(spec, AXIS_SCALE);
  problem->softcap = (float)get_real(spec, AXIS_SOFTCAP);
}

/* Masks are shared by the heads; a padding mask also by the queries. */
static void build_masks(const bench_spec *spec, attn_problem *problem) {
  static const struct {
    bench_axis axis;
    const char *word;
    uint32_t uses;
  } switches[] = {{AXIS_ALIBI, "on", ATTN_USE_ALIBI},
                  {AXIS_SINKS, "on", ATTN_USE_SINKS},
                  {AXIS_LSE, "on", ATTN_USE_LSE},
                  {AXIS_MASK, "random", ATTN_USE_MASK},
                  {AXIS_MASK, "padding", ATTN_USE_MASK},
                  {AXIS_BIAS, "full", ATTN_USE_BIAS},
                  {AXIS_BIAS, "masking", ATTN_USE_BIAS},
                  {AXIS_BIAS, "heads", ATTN_USE_BIAS},
                  {AXIS_BIAS, "row", ATTN_USE_BIAS},
                  {AXIS_LENGTHS, "kv_len", ATTN_USE_KV_LEN},
                  {AXIS_LENGTHS, "q_len", ATTN_USE_Q_LEN},
                  {AXIS_LENGTHS, "both", ATTN_USE_KV_LEN | ATTN_USE_Q_LEN},
                  {AXIS_LENGTHS, "row_len", ATTN_USE_ROW_LEN}};
  for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
    if (is(spec, switches[i].axis, switches[i].word)) problem->uses |= switches[i].uses;

  const int64_t q = problem->seq_q, k = problem->seq_k;
  const attn_score_strides per_query = {.b = q * k, .h = 0, .q = k, .k = 1}, per_key = {.b = k, .h = 0, .q = 0, .k = 1};
  if (is(spec, AXIS_MASK, "random")) problem->mask_stride = per_query;
  if (is(spec, AXIS_MASK, "padding")) problem->mask_stride = per_key;
  if (is(spec, AXIS_BIAS, "heads")) problem->bias_stride.b = 0;
  if (is(spec, AXIS_BIAS, "row")) problem->bias_stride = per_key;
}

static void copy_word(char *target, const char *text) { snprintf(target, BENCH_WORD, "%s", text); }

static void build_inputs(const bench_spec *spec, bench_case *bench) {
  const bool varlen = is(spec, AXIS_LENGTHS, "varlen");
  copy_word(bench->mask, bench_spec_get(spec, AXIS_MASK));
  copy_word(bench->bias, bench_spec_get(spec, AXIS_BIAS));
  copy_word(bench->lengths, bench_spec_get(spec, AXIS_LENGTHS));
  copy_word(bench->layout, varlen && !spec->value[AXIS_LAYOUT][0] ? "packed" : bench_spec_get(spec, AXIS_LAYOUT));
  bench->offset = get_int(spec, AXIS_OFFSET);
  if (bench->problem.align == ATTN_ALIGN_OFFSET) snprintf(bench->alignment, BENCH_WORD, "%" PRId64, bench->offset);
  bench->alibi = is(spec, AXIS_ALIBI, "on");
  bench->sinks = is(spec, AXIS_SINKS, "on");
  bench->magnitude = get_real(spec, AXIS_MAGNITUDE);
  bench->uniform_v = is(spec, AXIS_VALUES, "positive");
  bench->cache = is(spec, AXIS_CACHE, "cold")      ? BENCH_COLD_ALL
                 : is(spec, AXIS_CACHE, "cold-kv") ? BENCH_COLD_KV
                                                   : BENCH_WARM;
  bench->threads = is(spec, AXIS_THREADS, "all") ? bench_cpu_count() : (int)get_int(spec, AXIS_THREADS);
  bench_layout_apply(&bench->problem, bench->layout);
}

/* ---- Names --------------------------------------------------------------------------------------------------------- */

/* Equal values get equal text: "0.50" is "0.5", "256" with a causal mask is "256..0". */
static void canonical_value(const bench_spec *spec, bench_axis axis, char *text) {
  const bench_axis_info *info = bench_axis_get(axis);
  const char *value = bench_spec_get(spec, axis);
  int64_t whole, left, right;
  double real;
  snprintf(text, BENCH_WORD * 2, "%s", value);
  if (info->kind == AXIS_IS_INT && cli_read_int(value, &whole)) snprintf(text, BENCH_WORD * 2, "%" PRId64, whole);
  if (info->kind == AXIS_IS_REAL && cli_read_real(value, &real)) snprintf(text, BENCH_WORD * 2, "%.9g", real);
  if (info->kind == AXIS_IS_WINDOW && bench_window_read(value, !is(spec, AXIS_CAUSAL, "none"), &left, &right)) {
    char sides[2][BENCH_WORD] = {"", ""};
    if (left >= 0) snprintf(sides[0], BENCH_WORD, "%" PRId64, left);
    if (right >= 0) snprintf(sides[1], BENCH_WORD, "%" PRId64, right);
    if (left >= 0 || right >= 0) snprintf(text, BENCH_WORD * 2, "%.20s..%.20s", sides[0], sides[1]);
  }
}

static void append(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void append(char *text, size_t bytes, const char *format, ...) {
  const size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, bytes - used, format, arguments);
  va_end(arguments);
}

static void name_dtype(const attn_problem *p, char *text, size_t bytes) {
  const char *q = bench_dtype_name(p->dtype_q), *kv = bench_dtype_name(p->dtype_kv), *o = bench_dtype_name(p->dtype_o);
  if (p->dtype_o != p->dtype_q)
    snprintf(text, bytes, "%s+%s+%s", q, kv, o);
  else if (p->dtype_kv != p->dtype_q)
    snprintf(text, bytes, "%s+%s", q, kv);
  else
    snprintf(text, bytes, "%s", q);
}

/* Everything that makes the data: the shape and, in the order of the table, what is not at its default. */
static void name_problem(const bench_spec *spec, const attn_problem *p, char *name, char *rest) {
  static const bench_axis others[] = {AXIS_ALIGN,   AXIS_OFFSET,    AXIS_WINDOW, AXIS_MASK,  AXIS_BIAS,    AXIS_ALIBI,
                                      AXIS_SOFTCAP, AXIS_SCORE,     AXIS_SCALE,  AXIS_SINKS, AXIS_LENGTHS, AXIS_LSE,
                                      AXIS_LAYOUT,  AXIS_MAGNITUDE, AXIS_VALUES, AXIS_LAYER, AXIS_WIDTH};
  char dtype[BENCH_WORD];
  name_dtype(p, dtype, sizeof dtype);
  snprintf(name, BENCH_NAME,
           "dtype:%s/B:%" PRId64 "/Hq:%" PRId64 "/Hkv:%" PRId64 "/Sq:%" PRId64 "/Sk:%" PRId64 "/D:%" PRId64 "/Dv:%" PRId64
           "/causal:%s",
           dtype, p->batch, p->heads_q, p->heads_kv, p->seq_q, p->seq_k, p->dim_qk, p->dim_v,
           bench_spec_get(spec, AXIS_CAUSAL));
  rest[0] = 0;
  for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
    char value[BENCH_WORD * 2];
    canonical_value(spec, others[i], value);
    if (strcmp(value, bench_axis_get(others[i])->fallback))
      append(rest, BENCH_NAME, "/%s:%s", bench_axis_get(others[i])->name, value);
  }
}

/* FNV-1a */
static uint64_t hash_text(uint64_t hash, const char *text) {
  for (; *text; text++) hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
  return hash;
}

static void name_case(const bench_spec *spec, uint64_t seed, bench_case *bench) {
  char name[BENCH_NAME], rest[BENCH_NAME];
  name_problem(spec, &bench->problem, name, rest);
  uint64_t state = hash_text(hash_text(0xcbf29ce484222325u ^ seed, name), rest);
  bench->seed = bench_random(&state);
  append(bench->case_id, BENCH_NAME, "%s/threads:%d%s", name, bench->threads, rest);
  if (!is(spec, AXIS_CACHE, "warm")) append(bench->case_id, BENCH_NAME, "/cache:%s", bench_spec_get(spec, AXIS_CACHE));
}

/* What attn_problem_validate() cannot know. */
static const char *contradiction(const bench_spec *spec) {
  const bool varlen = is(spec, AXIS_LENGTHS, "varlen");
  if (!varlen && is(spec, AXIS_LAYOUT, "packed")) return "layout=packed needs lengths=varlen";
  if (varlen && spec->value[AXIS_LAYOUT][0] && !is(spec, AXIS_LAYOUT, "packed")) return "lengths=varlen needs layout=packed";
  return NULL;
}

/* Drops what has no meaning, so that equal problems get equal names: the alignment where nothing is positioned or the causal
 * mask says it already, the offset of other alignments, and what layers lack. */
static void tidy(bench_spec *spec) {
  bench_layer_settle(spec);
  const bool causal = !is(spec, AXIS_CAUSAL, "none");
  const bool positioned = !is(spec, AXIS_WINDOW, "none") || is(spec, AXIS_ALIBI, "on");
  if (causal || !positioned) spec->value[AXIS_ALIGN][0] = 0;
  if (!is(spec, causal ? AXIS_CAUSAL : AXIS_ALIGN, "offset")) spec->value[AXIS_OFFSET][0] = 0;
}

void bench_case_build(const bench_spec *asked, uint64_t seed, bench_case *bench) {
  *bench = (bench_case){.spec = *asked};
  bench_spec *spec = &bench->spec;
  tidy(spec);
  build_shape(spec, &bench->problem);
  build_layer(spec, bench);
  build_position(spec, &bench->problem);
  build_score(spec, &bench->problem);
  build_masks(spec, &bench->problem);
  build_inputs(spec, bench);
  name_case(spec, seed, bench);
  char words[sizeof bench->invalid - sizeof "not a valid problem: "];
  const char *reason = contradiction(spec);
  if (!reason && bench_layer_contradicts(spec, bench, words, sizeof words)) reason = words;
  if (!reason && attn_problem_validate(&bench->problem) != ATTN_OK) reason = attn_last_error();
  if (reason) snprintf(bench->invalid, sizeof bench->invalid, "not a valid problem: %s", reason);
}

/* Axes that case_ids abbreviate. */
static const char *long_name(const char *word) {
  static const struct {
    const char *brief, *name;
  } names[] = {{"B", "batch"},  {"Hq", "heads"}, {"Hkv", "heads_kv"}, {"Sq", "seq_q"},
               {"Sk", "seq_k"}, {"D", "dim_qk"}, {"Dv", "dim_v"}};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (!strcmp(word, names[i].brief)) return names[i].name;
  return word;
}

bool bench_spec_from_id(const char *case_id, bench_spec *spec, char *error, size_t error_bytes) {
  bench_grid grid = {0};
  bool fine = true;
  while (fine && *case_id) {
    char part[2 * BENCH_WORD], assignment[4 * BENCH_WORD];
    const size_t length = strcspn(case_id, "/");
    snprintf(part, sizeof part, "%.*s", (int)length, case_id);
    char *colon = strchr(part, ':');
    if (colon) *colon = 0;
    snprintf(assignment, sizeof assignment, "%s=%s", long_name(part), colon ? colon + 1 : "");
    fine = bench_grid_set(&grid, assignment, error, error_bytes);
    case_id += length + (case_id[length] == '/');
  }
  *spec = (bench_spec){0};
  for (int i = 0; i < AXIS_COUNT; i++)
    if (grid.axes[i].count) memcpy(spec->value[i], grid.axes[i].value[0], BENCH_WORD);
  bench_grid_clear(&grid);
  return fine;
}

/* ---- Lists --------------------------------------------------------------------------------------------------------- */

bool bench_cases_append(bench_case_list *list, const bench_case *bench) {
  for (int i = 0; i < list->count; i++)
    if (list->item[i].seed == bench->seed && !strcmp(list->item[i].case_id, bench->case_id)) return true;
  if (!(list->count & (list->count - 1))) { /* grows at powers of two */
    void *grown = realloc(list->item, (list->count ? 2 * (size_t)list->count : 1) * sizeof *list->item);
    if (!grown) return false;
    list->item = grown;
  }
  list->item[list->count++] = *bench;
  return true;
}

void bench_cases_clear(bench_case_list *list) {
  free(list->item);
  *list = (bench_case_list){0};
}

/* Advances the odometer, innermost axis first; false when it has come round. */
static bool next_combination(const bench_grid *grid, int *index) {
  for (int i = AXIS_COUNT - 1; i >= 0; i--) {
    if (!grid->axes[i].count) continue;
    if (++index[i] < grid->axes[i].count) return true;
    index[i] = 0;
  }
  return false;
}

bool bench_cases_add(bench_case_list *list, const bench_grid *grid, uint64_t seed, char *error, size_t error_bytes) {
  if (grid->pick) return bench_cases_cover(list, grid, seed, error, error_bytes);
  double combinations = 1;
  for (int i = 0; i < AXIS_COUNT; i++) combinations *= grid->axes[i].count ? grid->axes[i].count : 1;
  if (combinations > MOST_COMBINATIONS) {
    snprintf(error, error_bytes, "the axes have %.0f combinations, more than %d: give fewer values", combinations,
             MOST_COMBINATIONS);
    return false;
  }
  int index[AXIS_COUNT] = {0};
  do {
    bench_spec spec = {0};
    bench_case bench;
    for (int i = 0; i < AXIS_COUNT; i++)
      if (grid->axes[i].count) memcpy(spec.value[i], grid->axes[i].value[index[i]], BENCH_WORD);
    bench_case_build(&spec, seed, &bench);
    if (!bench_cases_append(list, &bench)) {
      snprintf(error, error_bytes, "out of memory for the list of cases");
      return false;
    }
  } while (next_combination(grid, index));
  return true;
}
