/* SPDX-License-Identifier: MIT */
/* Which rows and keys a task is about, and where their elements are: what every kernel asks of a problem, answered once.
 *
 * Masks select keys. The part of the selection that is one interval per row (lengths, per-row lengths, window, causal) comes
 * from attn_allowed_keys(). The bool mask, a bias of -inf and lists of key blocks can only take keys away from that
 * interval; so does the gap between a window and first keys that stay, but kernels never meet it (pieces.h). Row and key
 * indices count from the start of their sequence; all offsets are in elements. No index arithmetic here can overflow,
 * however extreme windows and alignment offsets are.
 */
#ifndef ATTN_COMMON_INDEXING_H
#define ATTN_COMMON_INDEXING_H

#include <assert.h>
#include <math.h>

#include "arithmetic.h"
#include "attn/attn.h"
#include "philox.h"

/* One sequence of the batch: batch entry b, or with VARLEN the tokens between two cu_seqlens. */
typedef struct attn_sequence {
  int64_t b;
  int64_t first_q, first_k; /* first token along .s: 0 unless VARLEN, and first_k also with PAGES */
  int64_t rows;             /* rows of o and lse that exist: seq_q, or with VARLEN the sequence's own length */
  int64_t len_q;            /* rows that are computed; rows len_q .. rows-1 get o = 0, lse = -inf */
  int64_t len_k;            /* keys that exist for this sequence: after kv_len or cu_seqlens */
  int64_t offset;           /* query i stands at key position i + offset */
} attn_sequence;

/* Keys [begin, end); begin = end = 0 when there is none. */
typedef struct attn_key_range {
  int64_t begin, end;
} attn_key_range;

/* Arguments that change scores key by key. */
enum { SCORE_SHIFTS = ATTN_USE_MASK | ATTN_USE_BIAS | ATTN_USE_ALIBI };

static inline bool attn_uses(const attn_problem *problem, uint32_t use) { return (problem->uses & use) != 0; }

/* Whether rows visit listed blocks of keys alone. */
static inline bool attn_lists_keys(const attn_problem *problem) {
  return attn_uses(problem, ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS);
}

static inline int64_t attn_saturating_add(int64_t a, int64_t b) {
  if (b > 0 && a > INT64_MAX - b) return INT64_MAX;
  if (b < 0 && a < INT64_MIN - b) return INT64_MIN;
  return a + b;
}

/* Keys of the sequence. */
static inline int64_t attn_len_k(const attn_problem *problem, const attn_args *args, int64_t b) {
  if (attn_uses(problem, ATTN_USE_KV_LEN)) return args->kv_len[b];
  return attn_uses(problem, ATTN_USE_VARLEN) ? args->cu_seqlens_k[b + 1] - args->cu_seqlens_k[b] : problem->seq_k;
}

static inline attn_sequence attn_sequence_of(const attn_problem *problem, const attn_args *args, int64_t b) {
  assert(b >= 0 && b < problem->batch);
  attn_sequence seq = {.b = b, .rows = problem->seq_q, .len_q = problem->seq_q, .len_k = attn_len_k(problem, args, b)};
  if (attn_uses(problem, ATTN_USE_VARLEN)) {
    seq.first_q = args->cu_seqlens_q[b];
    seq.rows = seq.len_q = args->cu_seqlens_q[b + 1] - seq.first_q;
  } else if (attn_uses(problem, ATTN_USE_Q_LEN)) {
    seq.len_q = args->q_len[b];
  }
  if (attn_uses(problem, ATTN_USE_VARLEN) && !attn_uses(problem, ATTN_USE_KV_LEN)) seq.first_k = args->cu_seqlens_k[b];
  if (problem->align == ATTN_ALIGN_BOTTOM_RIGHT) seq.offset = seq.len_k - seq.len_q;
  if (problem->align == ATTN_ALIGN_OFFSET) seq.offset = args->offsets[b];
  return seq;
}

/* Rows of o and lse to write, computed or empty. */
static inline int64_t attn_rows(const attn_problem *problem, const attn_sequence *seq) {
  (void)problem;
  return seq->rows;
}

/* The sequence's keys between key_begin and key_end. */
static inline attn_key_range attn_piece_of(const attn_problem *problem, const attn_sequence *seq) {
  const bool ends = problem->key_end > 0 && problem->key_end < seq->len_k;
  return (attn_key_range){problem->key_begin, ends ? problem->key_end : seq->len_k};
}

/* All that the key ranges of a sequence's rows depend on but the row itself: loops over rows find it once. */
typedef struct attn_row_ranges {
  attn_key_range piece;
  int64_t len_q, first, last, kept; /* row i's window is [i + first, i + last], beside the first `kept` keys */
  const int32_t *row_len;           /* row 0's length; NULL: none */
} attn_row_ranges;

static inline attn_row_ranges attn_row_ranges_of(const attn_problem *problem, const attn_args *args,
                                                 const attn_sequence *seq, int64_t b) {
  const int64_t left = problem->window_left, right = problem->window_right;
  return (attn_row_ranges){.piece = attn_piece_of(problem, seq),
                           .len_q = seq->len_q,
                           .first = left < 0 ? INT64_MIN : attn_saturating_add(seq->offset, -left),
                           .last = right < 0 ? INT64_MAX : attn_saturating_add(seq->offset, right),
                           .kept = problem->window_first,
                           .row_len = attn_uses(problem, ATTN_USE_ROW_LEN) ? args->row_len + b * problem->seq_q : NULL};
}

/* The keys that row i may see by length, piece, row length, causal mask and window. */
static inline attn_key_range attn_range_of_row(const attn_row_ranges *of, int64_t i) {
  attn_key_range keys = of->piece;
  assert(i >= 0);
  if (i >= of->len_q) return (attn_key_range){0, 0};
  if (of->row_len && of->row_len[i] < keys.end) keys.end = of->row_len[i];
  const int64_t first = attn_saturating_add(i, of->first), last = attn_saturating_add(i, of->last);
  if (last < keys.end) keys.end = last + 1;
  if (first > keys.begin && keys.begin >= of->kept) keys.begin = first;
  return keys.begin < keys.end ? keys : (attn_key_range){0, 0};
}

static inline attn_key_range attn_allowed_keys(const attn_problem *problem, const attn_args *args, const attn_sequence *seq,
                                               int64_t b, int64_t i) {
  const attn_row_ranges of = attn_row_ranges_of(problem, args, seq, b);
  return attn_range_of_row(&of, i);
}

/* Whether key j of those lies between the first keys, which stay, and the row's window. */
static inline bool attn_between_windows(const attn_problem *problem, const attn_sequence *seq, int64_t i, int64_t j) {
  if (problem->window_first == 0 || problem->window_left < 0 || j < problem->window_first) return false;
  return j < attn_saturating_add(attn_saturating_add(i, seq->offset), -problem->window_left);
}

/* Whether certainly all rows up to len_q see the same keys, by what attn_allowed_keys goes by. */
static inline bool attn_rows_see_alike(const attn_problem *problem) {
  return problem->window_left < 0 && problem->window_right < 0 && !attn_uses(problem, ATTN_USE_ROW_LEN);
}

/* The smallest range that holds both; an empty one adds nothing. */
static inline attn_key_range attn_join_keys(attn_key_range a, attn_key_range b) {
  if (a.begin >= a.end) return b;
  if (b.begin >= b.end) return a;
  return (attn_key_range){min64(a.begin, b.begin), max64(a.end, b.end)};
}

/* One range that holds all keys that rows of the sequence may see. */
static inline attn_key_range attn_keys_of_sequence(const attn_problem *problem, const attn_args *args,
                                                   const attn_sequence *seq, int64_t b) {
  attn_key_range used = {0, 0};
  if (attn_uses(problem, ATTN_USE_ROW_LEN)) {
    for (int64_t i = 0; i < seq->len_q; i++) used = attn_join_keys(used, attn_allowed_keys(problem, args, seq, b, i));
    return used;
  }
  /* Without per-row lengths the range moves right with the row, so the first row bounds it on the left and the last row on
   * the right. A row that sees no key gives no bound: that side stays open. */
  if (seq->len_q <= 0) return used;
  const attn_key_range piece = attn_piece_of(problem, seq);
  const attn_key_range first = attn_allowed_keys(problem, args, seq, b, 0);
  const attn_key_range last = attn_allowed_keys(problem, args, seq, b, seq->len_q - 1);
  used = (attn_key_range){max64(first.begin, piece.begin), last.begin < last.end ? last.end : piece.end};
  return used.begin < used.end ? used : (attn_key_range){0, 0};
}

/* Query heads that share a KV head. */
static inline int64_t attn_group(const attn_problem *problem) { return problem->heads_q / problem->heads_kv; }

/* Dropout of a call, and where the elements of a query head stand in it. */
static inline philox_dropout attn_dropout_of(const attn_problem *problem, const attn_args *args) {
  return philox_dropout_of(problem->dropout, args->seed, args->offset);
}

static inline uint32_t attn_dropout_stream(const attn_problem *problem, int64_t b, int64_t h) {
  return (uint32_t)(b * problem->heads_q + h);
}

static inline int64_t attn_kv_head(const attn_problem *problem, int64_t h) { return h / attn_group(problem); }

/* A unit is one KV head of one batch (attn/kernel.h): its batch, and the first of its query heads. */
static inline int64_t attn_batch_of_unit(const attn_problem *problem, int64_t unit) { return unit / problem->heads_kv; }

static inline int64_t attn_head_of_unit(const attn_problem *problem, int64_t unit) {
  return unit % problem->heads_kv * attn_group(problem);
}

/* With VARLEN the batch stride is ignored: tokens of all sequences stand one behind the other along .s. */
static inline int64_t attn_row_offset(const attn_problem *problem, const attn_strides *stride, int64_t b, int64_t h,
                                      int64_t token) {
  const int64_t batch = attn_uses(problem, ATTN_USE_VARLEN) ? 0 : b * stride->b;
  return batch + h * stride->h + token * stride->s;
}

/* Element offset of row i of query head h: of its first element, where there are several; the next ones follow at stride .d.
 */
static inline int64_t attn_q_offset(const attn_problem *problem, const attn_sequence *seq, int64_t b, int64_t h, int64_t i) {
  return attn_row_offset(problem, &problem->q_stride, b, h, seq->first_q + i);
}

static inline int64_t attn_o_offset(const attn_problem *problem, const attn_sequence *seq, int64_t b, int64_t h, int64_t i) {
  return attn_row_offset(problem, &problem->o_stride, b, h, seq->first_q + i);
}

static inline int64_t attn_lse_offset(const attn_problem *problem, const attn_sequence *seq, int64_t b, int64_t h,
                                      int64_t i) {
  return attn_row_offset(problem, &problem->lse_stride, b, h, seq->first_q + i);
}

/* The row of args->state (attn_state_floats()). */
static inline int64_t attn_state_offset(const attn_problem *problem, const attn_sequence *seq, int64_t b, int64_t h,
                                        int64_t i) {
  return attn_row_offset(problem, &problem->state_stride, b, h, seq->first_q + i);
}

/* A key run: K and V of consecutive keys of one KV head, each key one stride behind the one before. What follows the last of
 * them may lie anywhere. */
typedef struct attn_key_run {
  int64_t k, v; /* element offsets of the first key's first elements; the next keys follow at k_stride.s and v_stride.s */
  int64_t keys; /* attn_run_keys() */
} attn_key_run;

/* The keys from key j to the end of its run or of the sequence. Runs begin and end at multiples of RUN_KEYS; the last one
 * ends with the sequence. */
enum { RUN_KEYS = 16, MOST_PAGE_TOKENS = 1024 };
static inline int64_t attn_run_keys(const attn_problem *problem, const attn_sequence *seq, int64_t j) {
  const int64_t left = seq->len_k - j;
  return attn_uses(problem, ATTN_USE_PAGES) ? min64(left, problem->page_tokens - j % problem->page_tokens) : left;
}

static inline attn_key_run attn_page_run_at(const attn_problem *problem, const attn_args *args, const attn_sequence *seq,
                                            int64_t kv_head, int64_t j) {
  const int64_t page = args->page_table[seq->b * problem->page_table_stride + j / problem->page_tokens];
  const int64_t token = j % problem->page_tokens;
  const attn_strides *k = &problem->k_stride, *v = &problem->v_stride;
  return (attn_key_run){.k = page * k->b + kv_head * k->h + token * k->s,
                        .v = page * v->b + kv_head * v->h + token * v->s,
                        .keys = attn_run_keys(problem, seq, j)};
}

/* The run from key j on, for the KV head of query head h. Some row may see j, or another of its RUN_KEYS keys. */
static inline attn_key_run attn_key_run_at(const attn_problem *problem, const attn_args *args, const attn_sequence *seq,
                                           int64_t h, int64_t j) {
  const int64_t head = attn_kv_head(problem, h), token = seq->first_k + j;
  if (attn_uses(problem, ATTN_USE_PAGES)) return attn_page_run_at(problem, args, seq, head, j);
  return (attn_key_run){.k = attn_row_offset(problem, &problem->k_stride, seq->b, head, token),
                        .v = attn_row_offset(problem, &problem->v_stride, seq->b, head, token),
                        .keys = attn_run_keys(problem, seq, j)};
}

/* Where key j stands in a tensor of keys with these strides. */
static inline int64_t attn_key_offset(const attn_problem *problem, const attn_args *args, const attn_sequence *seq,
                                      int64_t h, int64_t j, const attn_strides *stride) {
  const int64_t head = attn_kv_head(problem, h), tokens = problem->page_tokens;
  if (!attn_uses(problem, ATTN_USE_PAGES)) return attn_row_offset(problem, stride, seq->b, head, seq->first_k + j);
  const int64_t page = args->page_table[seq->b * problem->page_table_stride + j / tokens];
  return page * stride->b + head * stride->h + j % tokens * stride->s;
}

/* The stride from one channel's factor to the next, of keys and of values; 0 where they have none of their own. Kernels meet
 * no such factors (pieces.h). */
static inline int64_t attn_k_channel_step(const attn_problem *problem) {
  return attn_uses(problem, ATTN_USE_KV_SCALES) && problem->score == ATTN_SCORE_DOT ? problem->k_scale_stride.d : 0;
}

static inline int64_t attn_v_channel_step(const attn_problem *problem) {
  return attn_uses(problem, ATTN_USE_KV_SCALES) ? problem->v_scale_stride.d : 0;
}

/* Factors of consecutive keys and values of one KV head: that of the n-th is k[n * k_step] and v[n * v_step]. They end where
 * the key run does. */
typedef struct attn_key_scales {
  const float *k, *v;
  int64_t k_step, v_step;
} attn_key_scales;

/* Those from key j on; all are 1 in a problem without ATTN_USE_KV_SCALES. j as for attn_key_run_at(). */
static inline attn_key_scales attn_key_scales_at(const attn_problem *problem, const attn_args *args,
                                                 const attn_sequence *seq, int64_t h, int64_t j) {
  static const float one = 1.0f;
  if (!attn_uses(problem, ATTN_USE_KV_SCALES)) return (attn_key_scales){&one, &one, 0, 0};
  const attn_strides *k = &problem->k_scale_stride, *v = &problem->v_scale_stride;
  const bool given = problem->score == ATTN_SCORE_PRECOMPUTED;
  return (attn_key_scales){given ? &one : args->k_scale + attn_key_offset(problem, args, seq, h, j, k),
                           args->v_scale + attn_key_offset(problem, args, seq, h, j, v), given ? 0 : k->s, v->s};
}

/* The offset of an element of bias, mask or scores: always indexed by batch, also with VARLEN. */
static inline int64_t attn_score_offset(const attn_score_strides *stride, int64_t b, int64_t h, int64_t i, int64_t j) {
  return b * stride->b + h * stride->h + i * stride->q + j * stride->k;
}

/* Whether args.mask has columns for the newest keys alone. */
static inline bool attn_masks_newest(const attn_problem *problem) {
  return attn_uses(problem, ATTN_USE_MASK) && problem->mask_keys > 0;
}

/* Whether blocks of keys are of several kinds: by lists, or because a mask is of the newest keys alone. */
static inline bool attn_has_block_kinds(const attn_problem *problem) {
  return attn_lists_keys(problem) || attn_masks_newest(problem);
}

/* The key of the first column of args.mask, in a sequence of len_k keys; it may be negative. No key before it is hidden. */
static inline int64_t attn_first_masked(const attn_problem *problem, int64_t len_k) {
  return attn_masks_newest(problem) ? len_k - problem->mask_keys : 0;
}

static inline bool attn_mask_hides(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i,
                                   int64_t j) {
  const int64_t column = attn_masks_newest(problem) ? j - attn_first_masked(problem, attn_len_k(problem, args, b)) : j;
  return column >= 0 && args->mask[attn_score_offset(&problem->mask_stride, b, h, i, column)] == 0;
}

/* Sizes of listed blocks are multiples of these: so no tile has rows of two blocks if it begins with one, and no panel has
 * keys of two. */
enum { LEAST_BLOCK_QUERIES = 16, LEAST_BLOCK_KEYS = 64 };

/* Keys of a block that is visited or not, with the mask or without: those of lists, or the fewest that they may have. */
static inline int64_t attn_visited_keys(const attn_problem *problem) {
  return attn_lists_keys(problem) ? problem->block_keys : LEAST_BLOCK_KEYS;
}

/* A list of key blocks: entry n is at[n * step]. */
typedef struct attn_key_list {
  const int32_t *at;
  int64_t count, step;
} attn_key_list;

/* The list of row i: of blocks without the mask (`full`), or of the others. Empty where the problem does not have it. */
static inline attn_key_list attn_key_list_of(const attn_problem *problem, const attn_args *args, bool full, int64_t b,
                                             int64_t h, int64_t i) {
  if (!attn_uses(problem, full ? ATTN_USE_FULL_KEY_BLOCKS : ATTN_USE_KEY_BLOCKS)) return (attn_key_list){0};
  const attn_strides *counts = &problem->kv_num_blocks_stride, *entries = &problem->kv_indices_stride;
  const int64_t head = attn_kv_head(problem, h), rows = i / problem->block_queries;
  const int32_t *count = full ? args->full_kv_num_blocks : args->kv_num_blocks;
  return (attn_key_list){
      .at = (full ? args->full_kv_indices : args->kv_indices) + b * entries->b + head * entries->h + rows * entries->s,
      .count = count[b * counts->b + head * counts->h + rows * counts->s],
      .step = entries->d};
}

/* Whether the row's list has the block of key j. */
static inline bool attn_key_listed(const attn_problem *problem, const attn_args *args, bool full, int64_t b, int64_t h,
                                   int64_t i, int64_t j) {
  const attn_key_list list = attn_key_list_of(problem, args, full, b, h, i);
  for (int64_t n = 0; n < list.count; n++)
    if (list.at[n * list.step] == j / problem->block_keys) return true;
  return false;
}

/* Whether either list of the row has the block of key j. */
static inline bool attn_key_visited(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i,
                                    int64_t j) {
  return attn_key_listed(problem, args, true, b, h, i, j) || attn_key_listed(problem, args, false, b, h, i, j);
}

/* Whether lists of blocks, the bool mask and a bias of -inf leave key j to row i. Without any of them it is always true. */
static inline bool attn_key_selected(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i,
                                     int64_t j) {
  const bool full = attn_lists_keys(problem) && attn_key_listed(problem, args, true, b, h, i, j);
  if (attn_lists_keys(problem) && !full && !attn_key_listed(problem, args, false, b, h, i, j)) return false;
  if (attn_uses(problem, ATTN_USE_MASK) && !full && attn_mask_hides(problem, args, b, h, i, j)) return false;
  if (!attn_uses(problem, ATTN_USE_BIAS)) return true;
  const float bias = args->bias[attn_score_offset(&problem->bias_stride, b, h, i, j)];
  return bias != -INFINITY;
}

#endif
