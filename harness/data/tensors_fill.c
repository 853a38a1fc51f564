/* SPDX-License-Identifier: MIT */
/* Values of generated tensors. Only what some row may read gets a value: gaps and unreachable padding keep their NaN
 * poison, so that a kernel that lets them through shows it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/generate.h"
#include "data/lengths.h"
#include "data/tensors.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/operation.h"
#include "kernels/common/problem/pieces.h"
#include "machine/affinity.h"

/* The keys that the rows of one sequence may read, given lengths, windows and padding masks; and where its tokens stand. */
typedef struct reach {
  int64_t first_q, first_k; /* first token; 0 unless VARLEN */
  int64_t rows;             /* queries that are computed */
  int64_t key_begin, key_end;
  int64_t gap_begin, gap_end; /* the part of them between first keys that stay and all windows */
} reach;

static bool reaches(const reach *r, int64_t j) {
  return j >= r->key_begin && j < r->key_end && !(j >= r->gap_begin && j < r->gap_end);
}

static bool is(const bench_case *bench, bench_axis axis, const char *word) {
  return bench_spec_is(&bench->spec, axis, word);
}

/* ---- Lengths ------------------------------------------------------------------------------------------------------ */

typedef int32_t count_fn(const bench_case *bench, int64_t b);

static void fill_lengths(const bench_case *bench, bench_buffer *t, count_fn *count) {
  int32_t *length = (int32_t *)t->data;
  for (int64_t b = 0; t->present && b < bench->problem.batch; b++) length[b] = count(bench, b);
}

static void fill_row_lengths(const bench_case *bench, bench_buffer *t) {
  int32_t *length = (int32_t *)t->data;
  const attn_problem *p = &bench->problem;
  for (int64_t i = 0; t->present && i < p->batch * p->seq_q; i++)
    length[i] = (int32_t)bench_value_below(bench->seed, BENCH_STREAM_ROW_LEN, (uint64_t)i, p->seq_k + 1);
}

static void fill_cu_seqlens(const bench_case *bench, bench_buffer *t, count_fn *count, int64_t total) {
  int32_t *cu = (int32_t *)t->data;
  if (!t->present) return;
  cu[0] = 0;
  for (int64_t b = 0; b < bench->problem.batch; b++) {
    const int64_t end = cu[b] + (int64_t)count(bench, b);
    cu[b + 1] = (int32_t)(end < total ? end : total);
  }
}

/* Whether some query of the sequence needs keys of the page: those of its window, or first keys that stay. */
static bool page_needed(const attn_problem *p, const attn_args *args, int64_t b, int64_t at) {
  const attn_sequence seq = attn_sequence_of(p, args, b);
  const attn_needed_keys needed = attn_keys_needed(p, args, &seq, b);
  for (int i = 0; i < KEY_PIECES; i++)
    if (at * p->page_tokens < needed.of[i].end && needed.of[i].begin < (at + 1) * p->page_tokens) return true;
  return false;
}

/* Fisher-Yates, inside out. */
void bench_pages_order(const bench_case *bench, int32_t *page) {
  const bool shuffled = is(bench, AXIS_PAGE_ORDER, "shuffled");
  for (int64_t n = 0; n < bench->problem.pages; n++) {
    const int64_t other = shuffled ? bench_value_below(bench->seed, BENCH_STREAM_PAGES, (uint64_t)n, n + 1) : n;
    page[n] = page[other];
    page[other] = (int32_t)n;
  }
}

/* Every sequence has its own pages of the pool, but for those of a prefix that they share; in a ring it takes them in turns.
 * Entries of pages whose keys no query needs keep the poison: they name no page. */
static void fill_page_table(const bench_case *bench, bench_buffer *t, const attn_args *args) {
  const attn_problem *p = &bench->problem;
  const int64_t of_each = p->page_table_stride,
                ring = is(bench, AXIS_PAGE_ORDER, "ring") ? p->pages / max64(p->batch, 1) : 0;
  int32_t *page = (int32_t *)t->data;
  if (!t->present) return;
  bench_pages_order(bench, page);
  for (int64_t b = p->batch - 1; b >= 0; b--)
    for (int64_t at = 0; at < of_each; at++) {
      if ((at + 1) * p->page_tokens <= p->shared_prefix) page[b * of_each + at] = page[at];
      if (ring > 0) page[b * of_each + at] = (int32_t)(b * ring + at % ring);
      if (!page_needed(p, args, b, at)) memset(&page[b * of_each + at], BENCH_INPUT_POISON, sizeof *page);
    }
}

static void fill_offsets(const bench_case *bench, bench_buffer *t) {
  int32_t *offset = (int32_t *)t->data;
  const int64_t first = bench_spec_int(&bench->spec, AXIS_OFFSET);
  for (int64_t b = 0; t->present && b < bench->problem.batch; b++) offset[b] = (int32_t)first;
}

/* ---- Reach -------------------------------------------------------------------------------------------------------- */

/* A padding mask switches off all keys from here on; at least one key stays. */
static int64_t unpadded_keys(const bench_case *bench, int64_t b) {
  if (bench->problem.mask_stride.b == 0) b = 0;
  return 1 + bench_value_below(bench->seed, BENCH_STREAM_MASK, (uint64_t)b, bench->problem.seq_k);
}

static reach reach_of(const bench_case *bench, const attn_args *args, int64_t b) {
  const attn_problem *p = &bench->problem;
  attn_sequence seq = attn_sequence_of(p, args, b);
  reach r = {.first_q = seq.first_q, .first_k = seq.first_k, .rows = seq.len_q, .key_begin = seq.len_k};
  for (int64_t i = 0; i < seq.len_q; i++) {
    attn_key_range keys = attn_allowed_keys(p, args, &seq, b, i);
    if (keys.begin >= keys.end) continue;
    if (keys.begin < r.key_begin) r.key_begin = keys.begin;
    if (keys.end > r.key_end) r.key_end = keys.end;
  }
  if (attn_window_has_first(p)) {
    const attn_needed_keys needed = attn_keys_needed(p, args, &seq, b);
    const attn_key_range early = needed.of[EARLY_KEYS], later = needed.of[LATER_KEYS];
    r.gap_begin = early.begin < early.end ? early.end : 0;
    r.gap_end = later.begin < later.end ? later.begin : r.key_end;
  }
  const bool padded = attn_uses(p, ATTN_USE_MASK) && !attn_uses(p, ATTN_USE_FULL_KEY_BLOCKS);
  if (padded && is(bench, AXIS_MASK, "padding") && p->seq_k > 0) {
    int64_t end = unpadded_keys(bench, b);
    if (end < r.key_end) r.key_end = end;
  }
  return r;
}

/* One byte per (batch, token) of q, or of k and v: 1 where some row reads it. Tensors that are broadcast over the batch (or
 * along the sequence) share elements, so they get the union. NULL if memory is short. */
static unsigned char *reach_map(const bench_buffer *t, const attn_problem *p, const reach *batch, bool queries) {
  int64_t tokens = t->extent[2], rows = t->stride[0] == 0 ? 1 : t->extent[0];
  unsigned char *map = calloc((size_t)(rows * tokens) + 1, 1);
  if (!map) return NULL;
  for (int64_t b = 0; b < p->batch; b++) {
    int64_t first = queries ? batch[b].first_q : batch[b].first_k;
    int64_t begin = queries ? 0 : batch[b].key_begin, end = queries ? batch[b].rows : batch[b].key_end;
    for (int64_t j = begin; j < end; j++)
      if (queries || reaches(&batch[b], j)) map[(rows == 1 ? 0 : b * tokens) + (t->stride[2] == 0 ? 0 : first + j)] = 1;
  }
  return map;
}

/* ---- Values ------------------------------------------------------------------------------------------------------- */

/* Broadcast dimensions hold one element. */
static int64_t stored(const bench_buffer *t, int i) { return t->stride[i] == 0 && t->extent[i] > 0 ? 1 : t->extent[i]; }

static int64_t logical_row(const bench_buffer *t, int64_t b, int64_t h, int64_t s) {
  return (b * t->extent[1] + h) * t->extent[2] + s;
}

static int64_t storage_row(const bench_buffer *t, int64_t b, int64_t h, int64_t s) {
  return t->first + b * t->stride[0] + h * t->stride[1] + s * t->stride[2];
}

/* The sequence whose numbers key j of sequence b has: the first one's, in a prefix that they share. */
static int64_t source_of(const attn_problem *p, int64_t b, int64_t j) { return j < p->shared_prefix ? 0 : b; }

/* Integers count 1 / so many where they have factors. A power of two, so that the rest of a factor is what it is for other
 * types. */
enum { INTEGERS_OF_ONE = 32 };

static double integers_of_one(const attn_problem *p) {
  return attn_dtype_is_integer(p->dtype_kv) && attn_uses(p, ATTN_USE_KV_SCALES) ? INTEGERS_OF_ONE : 1;
}

/* The least integer has no negative, which bench_tensors_renew_v() needs, and is their poison. */
static void store_value(bench_buffer *t, int64_t place, double x) {
  const attn_dtype_info type = attn_dtype_of(t->dtype);
  bench_store(t->data, t->dtype, place, attn_dtype_is_integer(t->dtype) ? fmax(x, type.least / 2 - type.overflow) : x);
}

/* One row of q, k or v, whose first number has that index: normal; V may be uniform in [0, magnitude). Or a factor of K or
 * V: uniform in [0.5, 1.5). */
static void fill_row(const bench_case *bench, bench_buffer *t, bench_stream stream, uint64_t index, int64_t place) {
  const double one = integers_of_one(&bench->problem), size = attn_dtype_is_integer(t->dtype) ? one : 1;
  const double magnitude = size * bench_spec_real(&bench->spec, AXIS_MAGNITUDE);
  const bool uniform = stream == BENCH_STREAM_V && is(bench, AXIS_VALUES, "positive");
  if (t->single && stream != BENCH_STREAM_D_LSE) {
    for (int64_t d = 0; d < stored(t, 3); d++) /* one, or those of channels */
      bench_store(t->data, t->dtype, place + d * t->stride[3],
                  (0.5 + bench_value_uniform(bench->seed, stream, index + (uint64_t)d)) / one);
    return;
  }
  const int64_t together = attn_dtype_of(t->dtype).values, columns = together > 1 ? t->columns : stored(t, 3);
  for (int64_t first = 0; first < columns; first += together) {
    const int64_t count = min64(together, columns - first);
    double x[ATTN_BLOCK_VALUES];
    for (int64_t i = 0; i < count; i++) {
      const uint64_t at = index + (uint64_t)(first + i);
      x[i] =
          magnitude * (uniform ? bench_value_uniform(bench->seed, stream, at) : bench_value_normal(bench->seed, stream, at));
    }
    if (together > 1)
      bench_store_row(t->data, t->dtype, (place + first / together) * together, x, count);
    else
      store_value(t, place + first * t->stride[3], x[0]);
  }
}

/* k or v in pages: key j of a sequence has the same values wherever its page lies. */
static void fill_pages(const bench_case *bench, bench_buffer *t, bench_stream stream, const attn_args *args,
                       const reach *batch) {
  const attn_problem *p = &bench->problem;
  for (int64_t b = 0; b < p->batch; b++)
    for (int64_t h = 0; h < p->heads_kv; h++)
      for (int64_t j = batch[b].key_begin; j < batch[b].key_end; j++) {
        if (!reaches(&batch[b], j)) continue;
        const int64_t page = args->page_table[b * p->page_table_stride + j / p->page_tokens];
        const int64_t key = (source_of(p, b, j) * p->heads_kv + h) * p->seq_k + j;
        const int64_t index = t->stride[2] ? key : (t->stride[1] ? h : 0) * p->seq_k; /* one number for many keys */
        fill_row(bench, t, stream, (uint64_t)(index * t->columns), storage_row(t, page, h, j % p->page_tokens));
      }
}

static bool is_of_queries(bench_stream stream) {
  return stream == BENCH_STREAM_Q || stream == BENCH_STREAM_D_O || stream == BENCH_STREAM_D_LSE;
}

/* q, k, v or gradients of outputs in rows of sequences. */
static bool fill_rows(const bench_case *bench, bench_buffer *t, bench_stream stream, const reach *batch) {
  unsigned char *map = reach_map(t, &bench->problem, batch, is_of_queries(stream));
  if (!map) return false;
  for (int64_t b = 0; b < stored(t, 0); b++)
    for (int64_t h = 0; h < stored(t, 1); h++)
      for (int64_t s = 0; s < stored(t, 2); s++) {
        if (!map[b * t->extent[2] + s]) continue;
        const int64_t from = is_of_queries(stream) ? b : source_of(&bench->problem, b, s);
        fill_row(bench, t, stream, (uint64_t)(logical_row(t, from, h, s) * t->columns), storage_row(t, b, h, s));
      }
  free(map);
  return true;
}

static bool fill_keys(const bench_case *bench, bench_buffer *t, bench_stream stream, const attn_args *args,
                      const reach *batch) {
  if (!t->present) return true;
  if (!attn_uses(&bench->problem, ATTN_USE_PAGES)) return fill_rows(bench, t, stream, batch);
  fill_pages(bench, t, stream, args, batch);
  return true;
}

/* True if some row reads the (row, key) element of bias or scores. Broadcast dimensions are always read. */
static bool pair_reached(const bench_buffer *t, const reach *r, int64_t i, int64_t j) {
  if (t->stride[0] == 0) return true;
  return (t->stride[2] == 0 || i < r->rows) && (t->stride[3] == 0 || reaches(r, j));
}

/* Which elements of a masking bias are -inf: one row in eight as a whole, a quarter of the tiles of 16 rows x 64 keys,
 * and one in four of the rest; (h, i, j) counts within batch b. */
static bool bias_masks(const bench_case *bench, const bench_buffer *t, int64_t b, int64_t h, int64_t i, int64_t j) {
  enum { ROWS = 16, KEYS = 64 };
  const uint64_t row = (uint64_t)logical_row(t, b, h, i), tile = (uint64_t)logical_row(t, b, h, i / ROWS * ROWS);
  const uint64_t keys = (uint64_t)t->extent[3], kinds = 3; /* disjoint indices for the three draws */
  return bench_value_bits(bench->seed, BENCH_STREAM_BIAS_MASK, kinds * row * keys) % 8 == 0 ||
         bench_value_bits(bench->seed, BENCH_STREAM_BIAS_MASK, kinds * (tile * keys + (uint64_t)(j / KEYS)) + 1) % 4 == 0 ||
         bench_value_bits(bench->seed, BENCH_STREAM_BIAS_MASK, kinds * (row * keys + (uint64_t)j) + 2) % 4 == 0;
}

/* bias or scores. */
static void fill_pairs(const bench_case *bench, bench_buffer *t, bench_stream stream, double magnitude, const reach *batch) {
  float *data = (float *)t->data;
  const bool masking = stream == BENCH_STREAM_BIAS && is(bench, AXIS_BIAS, "masking");
  for (int64_t b = 0; t->present && b < stored(t, 0); b++)
    for (int64_t h = 0; h < stored(t, 1); h++)
      for (int64_t i = 0; i < stored(t, 2); i++)
        for (int64_t j = 0; j < stored(t, 3); j++) {
          const uint64_t index = (uint64_t)(logical_row(t, b, h, i) * t->extent[3] + j);
          if (!pair_reached(t, &batch[b], i, j)) continue;
          data[storage_row(t, b, h, i) + j * t->stride[3]] =
              masking && bias_masks(bench, t, b, h, i, j)
                  ? -INFINITY
                  : (float)(magnitude * bench_value_normal(bench->seed, stream, index));
        }
}

/* Whether token j of a random tree is token i, or one that leads to it. Each token but the first follows one before it. */
static bool leads_to(const bench_case *bench, int64_t i, int64_t j) {
  while (i > j) i = bench_value_below(bench->seed, BENCH_STREAM_MASK, (uint64_t)i, i);
  return i == j;
}

/* "Allowed" is any nonzero byte, so that the check detects a kernel that reads one bit only. */
static void fill_mask(const bench_case *bench, bench_buffer *t) {
  bool random = is(bench, AXIS_MASK, "random"), padding = is(bench, AXIS_MASK, "padding"),
       tree = is(bench, AXIS_MASK, "tree");
  for (int64_t b = 0; t->present && b < stored(t, 0); b++)
    for (int64_t h = 0; h < stored(t, 1); h++)
      for (int64_t i = 0; i < stored(t, 2); i++)
        for (int64_t j = 0; j < stored(t, 3); j++) {
          uint64_t bits =
              bench_value_bits(bench->seed, BENCH_STREAM_MASK, (uint64_t)(logical_row(t, b, h, i) * t->extent[3] + j));
          bool allowed = tree ? leads_to(bench, i, j) : padding ? j < unpadded_keys(bench, b) : !random || (bits & 1);
          t->data[storage_row(t, b, h, i) + j * t->stride[3]] = (unsigned char)(allowed ? 1 + (bits >> 8) % 255 : 0);
        }
}

enum { NOT_LISTED, LISTED, LISTED_FULL };

/* Whether a list has block `n` of the keys, and of which kind it is. Local lists have the first block, that of the block of
 * queries, or what lies in the same place where there are more or fewer queries than keys, and its two neighbours, which are
 * full. */
static int listing_of(const bench_case *bench, const bench_buffer *t, int64_t list, int64_t n) {
  const int64_t blocks = t->extent[3];
  if (is(bench, AXIS_KEY_BLOCKS, "random")) {
    const uint64_t bits = bench_value_bits(bench->seed, BENCH_STREAM_KEY_BLOCKS, (uint64_t)(list * blocks + n));
    return bits % 2 ? NOT_LISTED : bits / 2 % 2 ? LISTED : LISTED_FULL;
  }
  const int64_t place = list % t->extent[2] * blocks / t->extent[2], distance = n - place;
  if (distance == 0 || n == 0) return LISTED;
  return distance >= -1 && distance <= 1 ? LISTED_FULL : NOT_LISTED;
}

/* Blocks stand in their lists last one first: their order must not matter. Entries behind them keep the poison. */
static void fill_key_lists(const bench_case *bench, bench_buffer *counts, bench_buffer *entries, int listing) {
  for (int64_t b = 0; counts->present && b < stored(counts, 0); b++)
    for (int64_t h = 0; h < stored(counts, 1); h++)
      for (int64_t s = 0; s < counts->extent[2]; s++) {
        int32_t *list = (int32_t *)entries->data + storage_row(entries, b, h, s), count = 0;
        for (int64_t n = entries->extent[3] - 1; n >= 0; n--)
          if (listing_of(bench, entries, logical_row(entries, b, h, s), n) == listing) list[count++] = (int32_t)n;
        ((int32_t *)counts->data)[storage_row(counts, b, h, s)] = count;
      }
}

/* The variance 1/sqrt(dim) keeps additive and gaussian scores within a few units of each other at any dimension. */
static void fill_score_weight(const bench_case *bench, bench_buffer *t) {
  double magnitude = pow((double)bench->problem.dim_qk, -0.25);
  for (int64_t h = 0; t->present && h < stored(t, 2); h++)
    for (int64_t d = 0; d < t->extent[3]; d++)
      ((float *)t->data)[t->first + h * t->stride[2] + d] =
          (float)(magnitude * bench_value_normal(bench->seed, BENCH_STREAM_SCORE_WEIGHT, (uint64_t)(h * t->extent[3] + d)));
}

void bench_fill_slopes(bench_buffer *slopes, int64_t heads) {
  for (int64_t h = 0; slopes->present && h < heads; h++)
    ((float *)slopes->data)[h] = (float)exp2(-8.0 * (double)(h + 1) / (double)heads);
}

static void fill_sinks(const bench_case *bench, bench_buffer *sinks) {
  for (int64_t h = 0; sinks->present && h < bench->problem.heads_q; h++)
    ((float *)sinks->data)[h] = (float)bench_value_normal(bench->seed, BENCH_STREAM_SINKS, (uint64_t)h);
}

/* ---- Outputs of attention that are inputs of its gradients ---- */

static const double SMALL = 4e8; /* multiply-adds up to which naive_c is quick enough */

/* A kernel that computes in float32: the same on all CPUs for small problems. */
static const char *kernel_for(const attn_problem *p) {
  for (int i = 0; bench_multiply_adds(p) > SMALL && i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const attn_numerics *n = &kernel->numerics;
    const bool exact = !(n->p_rounding > 0) && !(n->input_rounding > 0) && !(n->query_rounding > 0);
    if (exact && !kernel->library[0] && !attn_kernel_rejects(kernel, p)) return kernel->name;
  }
  return "naive_c";
}

/* o and lse of the tensors' other inputs. False if memory is short. */
static bool attend(const bench_case *bench, bench_tensors *tensors) {
  const attn_problem p = bench_forward_of(&bench->problem);
  attn_plan *plan = NULL;
  const attn_args args = bench_used_args(&p, &tensors->args);
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel_for(&p), .threads = bench_threads_held());
  bool fine = attn_plan_create(&p, &options, &plan) == ATTN_OK;
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = fine ? attn_aligned_alloc(64, bytes ? bytes : 64) : NULL;
  fine = workspace && attn_plan_run(plan, &args, workspace, bytes) == ATTN_OK;
  attn_aligned_free(workspace);
  attn_plan_destroy(plan);
  return fine;
}

bool bench_tensors_fill(const bench_case *bench, bench_tensors *tensors) {
  const attn_problem *p = &bench->problem;
  bench_buffer *t = tensors->buffers;
  fill_lengths(bench, &t[BENCH_KV_LEN], bench_key_count);
  fill_lengths(bench, &t[BENCH_Q_LEN], bench_query_count);
  fill_row_lengths(bench, &t[BENCH_ROW_LEN]);
  fill_cu_seqlens(bench, &t[BENCH_CU_SEQLENS_Q], bench_query_count, p->total_q);
  fill_cu_seqlens(bench, &t[BENCH_CU_SEQLENS_K], bench_key_count, p->total_k);
  fill_offsets(bench, &t[BENCH_OFFSETS]);
  fill_page_table(bench, &t[BENCH_PAGE_TABLE], &tensors->args);
  fill_score_weight(bench, &t[BENCH_SCORE_WEIGHT]);
  bench_fill_slopes(&t[BENCH_ALIBI_SLOPES], p->heads_q);
  fill_sinks(bench, &t[BENCH_SINKS]);
  fill_mask(bench, &t[BENCH_MASK]);
  fill_key_lists(bench, &t[BENCH_KV_NUM_BLOCKS], &t[BENCH_KV_INDICES], LISTED);
  fill_key_lists(bench, &t[BENCH_FULL_KV_NUM_BLOCKS], &t[BENCH_FULL_KV_INDICES], LISTED_FULL);

  reach *batch = malloc((size_t)(p->batch + 1) * sizeof *batch);
  if (!batch) return false;
  for (int64_t b = 0; b < p->batch; b++) batch[b] = reach_of(bench, &tensors->args, b);
  fill_pairs(bench, &t[BENCH_BIAS], BENCH_STREAM_BIAS, 1.0, batch);
  fill_pairs(bench, &t[BENCH_SCORES], BENCH_STREAM_SCORES, bench_spec_real(&bench->spec, AXIS_MAGNITUDE), batch);
  bool filled = fill_keys(bench, &t[BENCH_V], BENCH_STREAM_V, &tensors->args, batch) &&
                fill_keys(bench, &t[BENCH_K_SCALE], BENCH_STREAM_K_SCALE, &tensors->args, batch) &&
                fill_keys(bench, &t[BENCH_V_SCALE], BENCH_STREAM_V_SCALE, &tensors->args, batch);
  if (p->score != ATTN_SCORE_PRECOMPUTED) { /* else q and k are not read and stay poisoned */
    filled = filled && fill_rows(bench, &t[BENCH_Q], BENCH_STREAM_Q, batch);
    filled = filled && fill_keys(bench, &t[BENCH_K], BENCH_STREAM_K, &tensors->args, batch);
  }
  if (t[BENCH_D_O].present) filled = filled && fill_rows(bench, &t[BENCH_D_O], BENCH_STREAM_D_O, batch);
  if (t[BENCH_D_LSE].present) filled = filled && fill_rows(bench, &t[BENCH_D_LSE], BENCH_STREAM_D_LSE, batch);
  free(batch);
  return filled && (!t[BENCH_O].present || t[BENCH_O].output || attend(bench, tensors));
}
