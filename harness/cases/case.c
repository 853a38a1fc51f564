/* SPDX-License-Identifier: MIT */
/* From a specification to a case: what the value of each axis does to the problem, and to how its data is made; and the name
 * of a case, as text and back. */
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/cli.h"
#include "cases/case.h"
#include "cases/cases.h"
#include "cases/layer_info.h"
#include "kernels/common/problem/indexing.h"
#include "kernels/common/problem/operation.h"

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

int bench_usable_threads(void) {
#ifdef _OPENMP
  return bench_cpu_count();
#else
  return 1;
#endif
}

static bool is(const bench_case *bench, bench_axis axis, const char *word) {
  return bench_spec_is(&bench->spec, axis, word);
}

static bool is_given(const bench_case *bench, bench_axis axis) { return bench->spec.value[axis][0] != 0; }

/* ---- Shape --------------------------------------------------------------------------------------------------------- */

/* seq_q, seq_k, dim_qk, dim_v: their own value, else that of the axis for both. */
static int64_t get_or(const bench_case *bench, bench_axis axis, bench_axis both) {
  return bench_spec_int(&bench->spec, is_given(bench, axis) ? axis : both);
}

static int64_t heads_kv_of(const bench_case *bench) {
  return bench_spec_int(&bench->spec, is(bench, AXIS_HEADS_KV, "heads") ? AXIS_HEADS : AXIS_HEADS_KV);
}

/* A chunk is the most queries of a sequence. */
static int64_t seq_q_of(const bench_case *bench) {
  return is(bench, AXIS_CHUNK, "none") ? get_or(bench, AXIS_SEQ_Q, AXIS_SEQ) : bench_spec_int(&bench->spec, AXIS_CHUNK);
}

/* The problem of these head dimensions. */
static void set_shape(bench_case *bench, int64_t dim_qk, int64_t dim_v) {
  const bench_spec *spec = &bench->spec;
  attn_problem *p = &bench->problem;
  attn_problem_init(p, bench_spec_int(spec, AXIS_BATCH), bench_spec_int(spec, AXIS_HEADS), heads_kv_of(bench),
                    seq_q_of(bench), get_or(bench, AXIS_SEQ_K, AXIS_SEQ), dim_qk, dim_v);
  (void)bench_dtype_read(bench_spec_get(spec, AXIS_DTYPE), &p->dtype_q, &p->dtype_kv, &p->dtype_o);
}

static void build_shape(bench_case *bench) {
  set_shape(bench, get_or(bench, AXIS_DIM_QK, AXIS_HEAD_DIM), get_or(bench, AXIS_DIM_V, AXIS_HEAD_DIM));
}

/* A layer's width is its own axis or follows from the heads. Where it is given and no head dimension is, the heads share
 * it. A width that they cannot share becomes 0: bench_layer_contradicts says so. */
static void build_layer(bench_case *bench) {
  const bool width_given = !is(bench, AXIS_WIDTH, "default");
  const int64_t heads = bench->problem.heads_q, width = bench_spec_int(&bench->spec, AXIS_WIDTH);
  if (!is(bench, AXIS_LAYER, "none")) snprintf(bench->layer, BENCH_WORD, "%s", bench_spec_get(&bench->spec, AXIS_LAYER));
  bench->width = width_given ? width : bench_layer_has(bench, BENCH_HAS_WIDTH) ? heads * bench->problem.dim_v : 0;
  if (!bench->layer[0] || !width_given) return;
  if (is_given(bench, AXIS_HEAD_DIM) || is_given(bench, AXIS_DIM_QK) || is_given(bench, AXIS_DIM_V)) return;
  if (width % heads) bench->width = 0;
  const int64_t dim = width / heads > 0 ? width / heads : 1;
  set_shape(bench, dim, dim);
}

/* ---- Scores and masks ---------------------------------------------------------------------------------------------- */

static void build_position(bench_case *bench) {
  attn_problem *p = &bench->problem;
  const int causal = bench_spec_index(&bench->spec, AXIS_CAUSAL); /* 0: none */
  p->align = (attn_align)(causal ? causal - 1 : bench_spec_index(&bench->spec, AXIS_ALIGN));
  bench_window window;
  if (bench_window_read(bench_spec_get(&bench->spec, AXIS_WINDOW), causal, &window)) {
    p->window_left = window.left;
    p->window_right = window.right;
  }
  if (causal) attn_problem_set_causal(p, p->align);
  p->window_first = bench_spec_int(&bench->spec, AXIS_WINDOW_FIRST);
  p->key_begin = bench_spec_int(&bench->spec, AXIS_KEY_BEGIN);
  p->key_end = bench_spec_int(&bench->spec, AXIS_KEY_END);
  p->shared_prefix = bench_spec_int(&bench->spec, AXIS_SHARED_PREFIX);
}

static void build_score(bench_case *bench) {
  attn_problem *p = &bench->problem;
  p->score = (attn_score)bench_spec_index(&bench->spec, AXIS_SCORE);
  if (!is(bench, AXIS_SCALE, "default")) p->scale = (float)bench_spec_real(&bench->spec, AXIS_SCALE);
  p->softcap = (float)bench_spec_real(&bench->spec, AXIS_SOFTCAP);
  p->dropout = (float)bench_spec_real(&bench->spec, AXIS_DROPOUT);
}

/* The inputs that a word brings with it. */
static void build_uses(bench_case *bench) {
  static const struct {
    bench_axis axis;
    const char *word;
    uint32_t uses;
  } switches[] = {{AXIS_SCORE, "additive", ATTN_USE_SCORE_WEIGHT},
                  {AXIS_SCORE, "gaussian", ATTN_USE_SCORE_WEIGHT},
                  {AXIS_ALIBI, "on", ATTN_USE_ALIBI},
                  {AXIS_SINKS, "on", ATTN_USE_SINKS},
                  {AXIS_LSE, "on", ATTN_USE_LSE},
                  {AXIS_MASK, "random", ATTN_USE_MASK},
                  {AXIS_MASK, "padding", ATTN_USE_MASK},
                  {AXIS_MASK, "tree", ATTN_USE_MASK},
                  {AXIS_BIAS, "full", ATTN_USE_BIAS},
                  {AXIS_BIAS, "masking", ATTN_USE_BIAS},
                  {AXIS_BIAS, "heads", ATTN_USE_BIAS},
                  {AXIS_BIAS, "row", ATTN_USE_BIAS},
                  {AXIS_KV_SCALES, "tensor", ATTN_USE_KV_SCALES},
                  {AXIS_KV_SCALES, "head", ATTN_USE_KV_SCALES},
                  {AXIS_KV_SCALES, "token", ATTN_USE_KV_SCALES},
                  {AXIS_KV_SCALES, "channel", ATTN_USE_KV_SCALES},
                  {AXIS_KV_SCALES, "channels", ATTN_USE_KV_SCALES},
                  {AXIS_LENGTHS, "kv_len", ATTN_USE_KV_LEN},
                  {AXIS_LENGTHS, "q_len", ATTN_USE_Q_LEN},
                  {AXIS_LENGTHS, "both", ATTN_USE_KV_LEN | ATTN_USE_Q_LEN},
                  {AXIS_LENGTHS, "row_len", ATTN_USE_ROW_LEN}};
  for (size_t i = 0; i < sizeof switches / sizeof *switches; i++)
    if (is(bench, switches[i].axis, switches[i].word)) bench->problem.uses |= switches[i].uses;
}

/* The heads share masks; the queries share a padding mask too. */
static void build_masks(bench_case *bench) {
  attn_problem *p = &bench->problem;
  const int64_t q = p->seq_q, k = p->seq_k;
  const attn_score_strides per_query = {.b = q * k, .h = 0, .q = k, .k = 1}, per_key = {.b = k, .h = 0, .q = 0, .k = 1};
  if (is(bench, AXIS_MASK, "random")) p->mask_stride = per_query;
  if (is(bench, AXIS_MASK, "padding")) p->mask_stride = per_key;
  if (is(bench, AXIS_MASK, "tree")) attn_problem_set_newest_mask(p, q);
  if (is(bench, AXIS_MASK, "tree")) p->mask_stride.b = p->mask_stride.h = 0;
  if (is(bench, AXIS_BIAS, "heads")) p->bias_stride.b = 0;
  if (is(bench, AXIS_BIAS, "row")) p->bias_stride = per_key;
}

/* Pages that hold all keys which some query of a sequence sees, wherever they begin within a page. */
static int64_t ring_pages(const attn_problem *p) {
  const int64_t keys = attn_saturating_add(attn_saturating_add(p->window_left, p->window_right), p->seq_q);
  if (keys <= 0 || keys >= p->seq_k) return p->page_table_stride;
  return min64((keys + p->page_tokens - 2) / p->page_tokens + 1, p->page_table_stride);
}

/* Each sequence has pages of its own for seq_k keys, or in a ring for those of its window; all of them are used.
 * bench_layout_apply() sets strides. */
static void build_pages(bench_case *bench) {
  attn_problem *p = &bench->problem;
  if (is(bench, AXIS_PAGE_TOKENS, "none")) return;
  const int64_t tokens = bench_spec_int(&bench->spec, AXIS_PAGE_TOKENS);
  attn_problem_set_pages(p, tokens, 0);
  p->pages = p->batch * (is(bench, AXIS_PAGE_ORDER, "ring") ? ring_pages(p) : p->page_table_stride);
}

/* Local lists are the same for all sequences and heads. */
static void build_key_blocks(bench_case *bench) {
  attn_problem *p = &bench->problem;
  if (is(bench, AXIS_KEY_BLOCKS, "none")) return;
  attn_problem_set_key_blocks(p, bench_spec_int(&bench->spec, AXIS_BLOCK_QUERIES),
                              bench_spec_int(&bench->spec, AXIS_BLOCK_KEYS));
  p->uses |= ATTN_USE_FULL_KEY_BLOCKS;
  if (!is(bench, AXIS_KEY_BLOCKS, "local")) return;
  p->kv_num_blocks_stride.b = p->kv_num_blocks_stride.h = p->kv_indices_stride.b = p->kv_indices_stride.h = 0;
}

/* Whether queries are packed. */
static bool is_packed(const bench_case *bench) {
  return is(bench, AXIS_LENGTHS, "varlen") || is(bench, AXIS_LENGTHS, "mixed") || !is(bench, AXIS_CHUNK, "none");
}

static void build_run(bench_case *bench) {
  const bool packed = is_packed(bench) && !is_given(bench, AXIS_LAYOUT);
  snprintf(bench->layout, BENCH_WORD, "%s", packed ? "packed" : bench_spec_get(&bench->spec, AXIS_LAYOUT));
  bench->cache = (bench_cache)bench_spec_index(&bench->spec, AXIS_CACHE);
  bench->steady = bench_spec_int(&bench->spec, AXIS_STEADY) == 1;
  bench->both = is(bench, AXIS_PASS, "both");
  bench->made_for_row = is(bench, AXIS_MADE_FOR, "row");
  bench->threads = is(bench, AXIS_THREADS, "all") ? bench_cpu_count() : (int)bench_spec_int(&bench->spec, AXIS_THREADS);
}

/* ---- The whole ----------------------------------------------------------------------------------------------------- */

/* Drops what has no meaning, so that equal problems get equal names: the alignment where nothing is positioned or the causal
 * mask says it already, the offset of other alignments, the order of no pages, sizes of no blocks, and what layers lack. */
static void tidy(bench_case *bench) {
  bench_spec *spec = &bench->spec;
  bench_layer_settle(spec);
  const bool causal = !is(bench, AXIS_CAUSAL, "none");
  const bool positioned = !is(bench, AXIS_WINDOW, "none") || is(bench, AXIS_ALIBI, "on");
  if (causal || !positioned) bench_spec_set(spec, AXIS_ALIGN, "");
  if (!is(bench, causal ? AXIS_CAUSAL : AXIS_ALIGN, "offset")) bench_spec_set(spec, AXIS_OFFSET, "");
  if (is(bench, AXIS_PAGE_TOKENS, "none")) bench_spec_set(spec, AXIS_PAGE_ORDER, "");
  if (is(bench, AXIS_PASS, "forward")) bench_spec_set(spec, AXIS_GRADIENTS, "");
  if (is(bench, AXIS_KEY_BLOCKS, "none")) {
    bench_spec_set(spec, AXIS_BLOCK_QUERIES, "");
    bench_spec_set(spec, AXIS_BLOCK_KEYS, "");
  }
}

/* Keys that the first query sees, whatever the lengths: fill_lengths() leaves sequences a prefix and all queries. */
static int64_t first_query_sees(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  int64_t offset = p->align == ATTN_ALIGN_OFFSET ? bench_spec_int(&bench->spec, AXIS_OFFSET) : 0;
  if (p->align == ATTN_ALIGN_BOTTOM_RIGHT) offset = p->shared_prefix;
  return p->window_right < 0 ? p->seq_k : offset + p->window_right + 1;
}

/* A prefix that the data cannot have, or that not every query would see. */
static const char *prefix_contradiction(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  if (p->shared_prefix == 0) return NULL;
  if (is(bench, AXIS_LENGTHS, "varlen") && is(bench, AXIS_PAGE_TOKENS, "none"))
    return "shared_prefix with lengths=varlen needs page_tokens";
  if (is(bench, AXIS_LENGTHS, "row_len"))
    return "shared_prefix: every query sees all of it, so lengths=row_len must be left out";
  if (p->shared_prefix + p->seq_q > p->seq_k) return "shared_prefix + seq_q must be at most seq_k";
  if (first_query_sees(bench) < p->shared_prefix) return "shared_prefix: the first query must see all of it";
  return NULL;
}

/* Only where K is read, has as many columns as V, and both have the same factors. */
static const char *latent_contradiction(const bench_case *bench) {
  const attn_problem *p = &bench->problem;
  if (is(bench, AXIS_LATENT, "off")) return NULL;
  if (p->dim_v > p->dim_qk) return "latent: V is the first columns of K, so dim_v must be at most dim_qk";
  if (p->score == ATTN_SCORE_PRECOMPUTED) return "latent: V is a part of K, which score=precomputed does not read";
  if (p->uses & ATTN_USE_KV_SCALES) return "latent: K and V are the same numbers, so kv_scales must be none";
  if (attn_dtype_of(p->dtype_kv).values > 1 && p->dim_v % attn_dtype_of(p->dtype_kv).values)
    return "latent: V must end with a block of K's, so dim_v must be a multiple of its values";
  if (!is(bench, AXIS_LAYOUT, "bhsd") && !is(bench, AXIS_LAYOUT, "bshd") && !is(bench, AXIS_LAYOUT, "packed"))
    return "latent: K and V have one layout, which must be bhsd, bshd or packed";
  if (!is(bench, AXIS_LAYER, "none")) return "latent: V of a layer is no part of K, so layer must be none";
  return NULL;
}

/* Names a contradiction between axes that attn_problem_validate() cannot see in the problem; NULL without one. */
static const char *contradiction(const bench_case *bench) {
  const bool varlen = is_packed(bench), chunked = !is(bench, AXIS_CHUNK, "none");
  if (strlen(bench->case_id) + 1 == BENCH_NAME) return "its case_id is cut off: too many axes have long values";
  if (!varlen && is(bench, AXIS_LAYOUT, "packed")) return "layout=packed needs lengths=varlen, lengths=mixed or a chunk";
  if (varlen && is_given(bench, AXIS_LAYOUT) && !is(bench, AXIS_LAYOUT, "packed"))
    return "lengths=varlen, lengths=mixed and a chunk need layout=packed";
  if ((chunked || is(bench, AXIS_LENGTHS, "mixed")) && !(bench->problem.uses & ATTN_USE_PAGES))
    return "lengths=mixed and a chunk need page_tokens";
  if (chunked && (is(bench, AXIS_LENGTHS, "varlen") || is(bench, AXIS_LENGTHS, "q_len") || is(bench, AXIS_LENGTHS, "both")))
    return "a chunk says how many queries a sequence has: lengths must be full, kv_len or mixed";
  if (bench->problem.uses & ATTN_USE_PAGES && is(bench, AXIS_LAYOUT, "broadcast"))
    return "layout=broadcast has one K for all sequences; page_tokens gives each its own pages: leave one of them out";
  if (is(bench, AXIS_PAGE_ORDER, "ring")) {
    if (bench->problem.window_left < 0 || bench->problem.window_right < 0)
      return "page_order=ring needs a window with both sides, or causal and a window: only its keys are kept";
    if (bench->problem.window_first > 0 || bench->problem.shared_prefix > 0)
      return "page_order=ring keeps a window's keys alone: window_first and shared_prefix must be 0";
  }
  const char *latent = latent_contradiction(bench);
  return latent ? latent : prefix_contradiction(bench);
}

/* The first reason why no kernel can take the case, or NULL. */
static const char *find_fault(const bench_case *bench, char *words, size_t bytes) {
  const char *reason = contradiction(bench);
  if (reason) return reason;
  if (bench_layer_contradicts(bench, words, bytes)) return words;
  return attn_problem_validate(&bench->problem) == ATTN_OK ? NULL : attn_last_error();
}

/* Strides of factors of K and V: dense for one a key and KV head, or one a channel and KV head. */
static void build_scales(bench_case *bench) {
  attn_problem *p = &bench->problem;
  const bool of_k = is(bench, AXIS_KV_SCALES, "channel"), of_both = is(bench, AXIS_KV_SCALES, "channels");
  if (is(bench, AXIS_KV_SCALES, "head")) p->k_scale_stride.h = p->v_scale_stride.h = 1;
  if (is(bench, AXIS_KV_SCALES, "token")) (void)attn_operand_set_dense(p, ATTN_OPERAND_K_SCALE);
  if (is(bench, AXIS_KV_SCALES, "token") || of_k) (void)attn_operand_set_dense(p, ATTN_OPERAND_V_SCALE);
  if (of_k || of_both) p->k_scale_stride = (attn_strides){.h = p->dim_qk, .d = 1};
  if (of_both) p->v_scale_stride = (attn_strides){.h = p->dim_v, .d = 1};
}

/* A gradient whose tensor is broadcast is dense: outputs must not overlap. */
static void spread_gradient(attn_problem *p, attn_operand_id which) {
  const attn_operand o = attn_operand_of(p, which);
  bool overlaps = false;
  for (int i = 0; i < 4; i++) overlaps = overlaps || (o.extent[i] > 1 && o.stride[i] == 0);
  if (overlaps) (void)attn_operand_set_dense(p, which);
}

/* The problem's gradients. What writes LSE becomes what depends on it. */
static void build_gradients(bench_case *bench) {
  attn_problem *p = &bench->problem;
  if (is(bench, AXIS_PASS, "forward")) return;
  if (attn_uses(p, ATTN_USE_LSE)) p->uses |= ATTN_USE_D_LSE;
  for (int i = 0; i < ATTN_GRADIENT_USES && is(bench, AXIS_GRADIENTS, "all"); i++)
    if (attn_uses(p, attn_gradient_uses[i].of)) p->uses |= attn_gradient_uses[i].gradient;
  attn_problem_set_backward(p);
  for (int which = ATTN_OPERAND_D_Q; which <= ATTN_OPERAND_D_V; which++) spread_gradient(p, (attn_operand_id)which);
}

/* Says in `invalid` why no kernel can take the case, if so. */
static void note_invalid(bench_case *bench) {
  char words[sizeof bench->invalid - sizeof "not a valid problem: "];
  const char *reason = "batch x heads x seq x dim is more than 2^56 numbers";
  if (bench_layout_apply(&bench->problem, bench->layout)) {
    build_scales(bench);
    if (is(bench, AXIS_LATENT, "on")) bench->problem.v_stride = bench->problem.k_stride;
    build_gradients(bench);
    reason = find_fault(bench, words, sizeof words);
  }
  if (reason) snprintf(bench->invalid, sizeof bench->invalid, "not a valid problem: %s", reason);
}

static void build_parts(const bench_spec *asked, bench_case *bench) {
  *bench = (bench_case){.spec = *asked};
  tidy(bench);
  build_shape(bench);
  build_layer(bench);
  build_position(bench);
  build_score(bench);
  build_uses(bench);
  build_masks(bench);
  build_pages(bench);
  build_key_blocks(bench);
  build_run(bench);
}

void bench_case_build(const bench_spec *asked, uint64_t seed, bench_case *bench) {
  build_parts(asked, bench);
  bench_case_name(bench, seed);
  note_invalid(bench);
}

void bench_case_draft(const bench_spec *asked, bench_case *bench) {
  build_parts(asked, bench);
  note_invalid(bench);
}

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

static void append_head(const bench_case *bench, char *text) {
  for (int i = 0; i < HEAD_PARTS; i++) {
    char value[VALUE];
    write_value(bench, head[i].axis, value);
    bench_append(text, BENCH_NAME, "%s%s:%s", i ? "/" : "", head[i].brief, value);
  }
}

void bench_case_name_axes(const bench_case *bench, bench_axis_place place, bool (*skips)(bench_axis), char *text) {
  for (int i = 0; i < AXIS_COUNT; i++) {
    const bench_axis_info *axis = bench_axis_get((bench_axis)i);
    char value[VALUE];
    if (axis->place != place || (skips && skips((bench_axis)i))) continue;
    write_value(bench, (bench_axis)i, value);
    if (strcmp(value, axis->fallback)) bench_append(text, BENCH_NAME, "/%s:%s", axis->name, value);
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
  bench_append(bench->case_id, BENCH_NAME, "%s/threads:%d%s", shape, bench->threads, rest);
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
