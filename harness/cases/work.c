/* SPDX-License-Identifier: MIT */
/* Counts the work of a case, independently of the kernels and of the oracle. */
#include "cases/case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/operation.h"
#include "kernels/common/problem/pieces.h"

/* Keys of one row before mask and bias: [first, last]. */
typedef struct key_range {
  int64_t first, last;
} key_range;

typedef struct sequence {
  int64_t queries, keys, offset;
} sequence;

static sequence get_sequence(const attn_problem *p, const attn_args *args, int64_t b) {
  sequence s = {p->seq_q, p->seq_k, 0};
  if (p->uses & ATTN_USE_VARLEN) {
    s.queries = args->cu_seqlens_q[b + 1] - args->cu_seqlens_q[b];
    if (!(p->uses & ATTN_USE_PAGES)) s.keys = args->cu_seqlens_k[b + 1] - args->cu_seqlens_k[b];
  }
  if (p->uses & ATTN_USE_Q_LEN) s.queries = args->q_len[b];
  if (p->uses & ATTN_USE_KV_LEN) s.keys = args->kv_len[b];
  if (p->align == ATTN_ALIGN_BOTTOM_RIGHT) s.offset = s.keys - s.queries;
  if (p->align == ATTN_ALIGN_OFFSET) s.offset = args->offsets[b];
  return s;
}

/* The keys of a row are those of its window and, in front of them, first keys that stay. */
enum { FIRST_KEYS, WINDOW, PARTS };

static key_range get_keys(const attn_problem *p, const attn_args *args, const sequence *s, int64_t b, int64_t i, int part) {
  const int64_t first_keys = p->window_left >= 0 ? p->window_first : 0, position = i + s->offset;
  int64_t keys = s->keys;
  if (p->uses & ATTN_USE_ROW_LEN && args->row_len[b * p->seq_q + i] < keys) keys = args->row_len[b * p->seq_q + i];
  if (p->key_end > 0 && p->key_end < keys) keys = p->key_end;
  key_range range = {p->key_begin, keys - 1};
  /* compared so that no window is too wide to be added */
  if (p->window_right >= 0 && p->window_right < range.last - position) range.last = position + p->window_right;
  if (part == FIRST_KEYS) return (key_range){range.first, first_keys <= range.last ? first_keys - 1 : range.last};
  if (p->window_left >= 0 && p->window_left < position - range.first) range.first = position - p->window_left;
  if (first_keys > range.first) range.first = first_keys;
  return range;
}

/* Whether one of the row's two lists names the block of key j. */
static bool is_listed(const attn_problem *p, const int32_t *counts, const int32_t *indices, int64_t b, int64_t h, int64_t i,
                      int64_t j) {
  const attn_strides *n = &p->kv_num_blocks_stride, *entry = &p->kv_indices_stride;
  const int64_t head = h * p->heads_kv / p->heads_q, list = i / p->block_queries;
  if (!counts) return false;
  const int64_t first = b * entry->b + head * entry->h + list * entry->s;
  for (int64_t k = 0; k < counts[b * n->b + head * n->h + list * n->s]; k++)
    if (indices[first + k * entry->d] == j / p->block_keys) return true;
  return false;
}

static bool has_lists(const attn_problem *p) { return p->uses & (ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS); }

static bool is_allowed(const attn_problem *p, const attn_args *args, int64_t keys, int64_t b, int64_t h, int64_t i,
                       int64_t j) {
  const attn_score_strides *m = &p->mask_stride, *s = &p->bias_stride;
  const int64_t column = p->mask_keys > 0 ? j + p->mask_keys - keys : j;
  const bool full = has_lists(p) && is_listed(p, args->full_kv_num_blocks, args->full_kv_indices, b, h, i, j);
  if (has_lists(p) && !full && !is_listed(p, args->kv_num_blocks, args->kv_indices, b, h, i, j)) return false;
  if (p->uses & ATTN_USE_MASK && !full && column >= 0 && !args->mask[b * m->b + h * m->h + i * m->q + column * m->k])
    return false;
  return !(p->uses & ATTN_USE_BIAS && args->bias[b * s->b + h * s->h + i * s->q + j * s->k] == -INFINITY);
}

/* Pairs of one head, looking at every element of mask and bias. */
static int64_t count_masked(const attn_problem *p, const attn_args *args, const sequence *s, int64_t b, int64_t h) {
  int64_t pairs = 0;
  for (int64_t n = 0; n < s->queries * PARTS; n++) {
    const key_range keys = get_keys(p, args, s, b, n / PARTS, (int)(n % PARTS));
    for (int64_t j = keys.first; j <= keys.last; j++) pairs += is_allowed(p, args, s->keys, b, h, n / PARTS, j);
  }
  return pairs;
}

static int64_t count_open(const attn_problem *p, const attn_args *args, const sequence *s, int64_t b) {
  int64_t pairs = 0;
  for (int64_t n = 0; n < s->queries * PARTS; n++) {
    const key_range keys = get_keys(p, args, s, b, n / PARTS, (int)(n % PARTS));
    if (keys.last >= keys.first) pairs += keys.last - keys.first + 1;
  }
  return pairs;
}

/* How many batches differ: all of them, or none from the first. */
static int64_t different_batches(const attn_problem *p) {
  const uint32_t own = ATTN_USE_VARLEN | ATTN_USE_Q_LEN | ATTN_USE_KV_LEN | ATTN_USE_ROW_LEN | ATTN_USE_MASK | ATTN_USE_BIAS;
  return (p->uses & own) || has_lists(p) || p->align == ATTN_ALIGN_OFFSET || p->batch < 1 ? p->batch : 1;
}

static bool is_masked(const attn_problem *p) { return p->uses & (ATTN_USE_MASK | ATTN_USE_BIAS) || has_lists(p); }

static bool masks_per_head(const attn_problem *p) {
  return (p->uses & ATTN_USE_MASK && p->mask_stride.h) || (p->uses & ATTN_USE_BIAS && p->bias_stride.h) ||
         (has_lists(p) && p->kv_indices_stride.h);
}

double bench_work_pairs(const attn_problem *p, const attn_args *args) {
  const bool masked = is_masked(p), per_head = masks_per_head(p);
  const int64_t batches = different_batches(p);
  double pairs = 0;
  for (int64_t b = 0; b < batches; b++) {
    const sequence s = get_sequence(p, args, b);
    if (!masked)
      pairs += (double)p->heads_q * (double)count_open(p, args, &s, b);
    else if (!per_head)
      pairs += (double)p->heads_q * (double)count_masked(p, args, &s, b, 0);
    else
      for (int64_t h = 0; h < p->heads_q; h++) pairs += (double)count_masked(p, args, &s, b, h);
  }
  return batches ? pairs * ((double)p->batch / (double)batches) : 0;
}

double bench_work_flops(const attn_problem *p, double pairs) { return bench_operations[p->operation](p, pairs); }

attn_problem bench_forward_of(const attn_problem *gradients) {
  attn_problem p = *gradients;
  p.operation = ATTN_FORWARD;
  p.uses &= ~attn_operations[ATTN_FORWARD].refused;
  return p;
}

double bench_case_flops(const bench_case *bench, double pairs) {
  const attn_problem forward = bench_forward_of(&bench->problem);
  return bench_work_flops(&bench->problem, pairs) + (bench->both ? bench_work_flops(&forward, pairs) : 0);
}

double bench_multiply_adds(const attn_problem *p) {
  return (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k * (double)(p->dim_qk + p->dim_v);
}

/* Keys of a part that some row of the sequence sees without mask and bias. The first key of a row is never before that of
 * the row above. */
static int64_t count_keys_of(const attn_problem *p, const attn_args *args, const sequence *s, int64_t b, int part) {
  int64_t count = 0, end = 0;
  for (int64_t i = 0; i < s->queries; i++) {
    const key_range keys = get_keys(p, args, s, b, i, part);
    const int64_t from = keys.first > end ? keys.first : end;
    if (keys.last < from) continue;
    count += keys.last + 1 - from;
    end = keys.last + 1;
  }
  return count;
}

static int64_t count_keys(const attn_problem *p, const attn_args *args, const sequence *s, int64_t b) {
  return count_keys_of(p, args, s, b, FIRST_KEYS) + count_keys_of(p, args, s, b, WINDOW);
}

/* The ones of these keys that mask and bias leave to some row of the query heads of a KV head. All of them if memory is
 * short.
 */
static int64_t count_selected_keys(const attn_problem *p, const attn_args *args, const sequence *s, int64_t b, int64_t g) {
  const int64_t group = p->heads_q / p->heads_kv, most = count_keys(p, args, s, b);
  bool *seen = calloc((size_t)s->keys + 1, 1);
  int64_t count = 0;
  if (!seen) return most;
  for (int64_t n = 0; n < s->queries * group * PARTS && count < most; n++) {
    const int64_t row = n / PARTS, i = row / group, h = g * group + row % group;
    const key_range keys = get_keys(p, args, s, b, i, (int)(n % PARTS));
    for (int64_t j = keys.first; j <= keys.last; j++) {
      if (seen[j] || !is_allowed(p, args, s->keys, b, h, i, j)) continue;
      seen[j] = true;
      count++;
    }
  }
  free(seen);
  return count;
}

/* The same, the sum over the KV heads. */
static double count_needed_keys(const attn_problem *p, const attn_args *args, const sequence *s, int64_t b) {
  double count = 0;
  if (!is_masked(p)) return (double)p->heads_kv * (double)count_keys(p, args, s, b);
  if (!masks_per_head(p)) return (double)p->heads_kv * (double)count_selected_keys(p, args, s, b, 0);
  for (int64_t g = 0; g < p->heads_kv; g++) count += (double)count_selected_keys(p, args, s, b, g);
  return count;
}

/* Rows of a tensor, in all heads. */
typedef struct row_counts {
  double keys, queries; /* rows that are read */
  double outputs;       /* rows of queries; those beyond q_len are written as zeros */
  double key_outputs;   /* rows of keys, likewise */
} row_counts;

/* The bytes of all tensors of rows, but for those of one number a row and those that are not read, or are once: V may lie in
 * rows of K. */
static double bytes_of_rows(const attn_problem *p, const attn_args *args, row_counts rows) {
  const bool latent = args->k && args->k == args->v;
  double bytes = 0;
  for (int i = 0; i < ATTN_ROW_OPERANDS; i++) {
    const attn_operand o = attn_operand_of(p, (attn_operand_id)i);
    if (!o.present || o.ignored || o.single || (latent && i == ATTN_OPERAND_V)) continue;
    const bool output = attn_is_output(p, (attn_operand_id)i);
    const double count = o.of_keys ? (output ? rows.key_outputs : rows.keys) : output ? rows.outputs : rows.queries;
    bytes += count * (double)attn_elements_bytes(o.dtype, o.extent[3]);
  }
  return bytes;
}

/* Keys of a prefix that need not be read once more for each sequence behind the first. */
static double shared_keys(const attn_problem *p) {
  return attn_shares_prefix(p) ? (double)((p->batch - 1) * p->heads_kv) * (double)p->shared_prefix : 0;
}

double bench_work_bytes(const attn_problem *p, const attn_args *args) {
  const int64_t batches = different_batches(p);
  row_counts rows = {0};
  for (int64_t b = 0; b < batches; b++) {
    const sequence s = get_sequence(p, args, b);
    rows.queries += (double)(p->heads_q * s.queries);
    rows.keys += count_needed_keys(p, args, &s, b);
    rows.outputs += (double)(p->heads_q * (p->uses & ATTN_USE_VARLEN ? s.queries : p->seq_q));
    rows.key_outputs += (double)(p->heads_kv * (p->uses & ATTN_USE_VARLEN ? s.keys : p->seq_k));
  }
  const double alike = batches ? (double)p->batch / (double)batches : 0;
  if (batches) rows.keys -= shared_keys(p) / alike;
  const double scores = p->score == ATTN_SCORE_PRECOMPUTED ? 4 * bench_work_pairs(p, args) : 0;
  return alike * bytes_of_rows(p, args, rows) + scores;
}

/* Flop/s of a typical core, by tier and algorithm. */
static double typical_rate(const attn_kernel_info *kernel) {
#define ATTN_TIER(isa, folder, architecture, flags, features, typical_flops) {#isa, typical_flops},
  static const struct {
    const char *isa;
    double rate;
  } tiers[] = {
#include "kernels/tiers.def"
  };
#undef ATTN_TIER
  double rate = 20e9;
  for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
    if (!strcmp(kernel->isa, tiers[i].isa)) rate = tiers[i].rate;
  return strcmp(kernel->algorithm, "naive") ? rate : rate / 2.5;
}

double bench_work_typical_pairs(const attn_problem *p) {
  const double causal = p->window_right == 0 ? 0.55 : 1;
  return (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k * causal;
}

double bench_work_guess(const attn_problem *p, const attn_kernel_info *kernel, int threads) {
  return 1e-6 + bench_work_flops(p, bench_work_typical_pairs(p)) / typical_rate(kernel) / (threads > 1 ? threads : 1);
}
