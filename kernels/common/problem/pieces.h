/* SPDX-License-Identifier: MIT */
/* Problems that kernels get in another form. Two pieces over different keys, one after the other (src/plan/pieces.c): the
 * early keys, then the later ones. Each leaves O in float32 and its LSE, without sinks; the plan joins them. And factors of
 * channels: the queries take those of K before, O takes those of V afterwards (src/plan/channels.c). */
#ifndef ATTN_COMMON_PIECES_H
#define ATTN_COMMON_PIECES_H

#include "indexing.h"

static inline bool attn_has_channel_factors(const attn_problem *p) {
  return attn_k_channel_step(p) != 0 || attn_v_channel_step(p) != 0;
}

/* Rows of q or o of a head, those of all sequences side by side. */
static inline int64_t attn_all_rows(const attn_problem *p) {
  return attn_uses(p, ATTN_USE_VARLEN) ? p->total_q : p->batch * p->seq_q;
}

/* The same attention for queries that have the factors of K's channels, in dense rows of float32, without those of V's. O is
 * float32: in its place, or in dense rows if its type is another. */
static inline attn_problem attn_without_channel_factors(const attn_problem *p) {
  attn_problem inner = *p;
  const int64_t rows = attn_all_rows(p), dim = p->dim_qk, dim_v = p->dim_v;
  const bool of_k = attn_k_channel_step(p) != 0, of_v = attn_v_channel_step(p) != 0;
  if (of_k) inner.dtype_q = ATTN_F32, inner.q_stride = (attn_strides){p->seq_q * dim, rows * dim, dim, 1};
  if (p->dtype_o != ATTN_F32) inner.o_stride = (attn_strides){p->seq_q * dim_v, rows * dim_v, dim_v, 1};
  inner.dtype_o = ATTN_F32;
  if (of_k) inner.k_scale_stride = (attn_strides){0};
  if (of_v) inner.v_scale_stride = (attn_strides){0};
  if (of_v && (of_k || p->score == ATTN_SCORE_PRECOMPUTED)) inner.uses &= ~(uint32_t)ATTN_USE_KV_SCALES;
  return inner;
}

/* Whether first keys stay beside a window. */
static inline bool attn_window_has_first(const attn_problem *p) { return p->window_first > 0 && p->window_left >= 0; }

/* Whether rows of all sequences meet the first keys together: no row has a place or an input of its own there. */
static inline bool attn_shares_prefix(const attn_problem *p) {
  const bool whole = p->window_left < 0 && p->key_begin == 0 && p->key_end == 0;
  const bool alike = !attn_uses(p, SCORE_SHIFTS) && !attn_lists_keys(p) && p->score != ATTN_SCORE_PRECOMPUTED;
  return p->shared_prefix > 0 && whole && alike;
}

static inline bool attn_has_pieces(const attn_problem *p) { return attn_window_has_first(p) || attn_shares_prefix(p); }

/* The keys from `begin` on that lie before `end`; 0 = open. */
static inline attn_problem attn_keys_between(const attn_problem *p, int64_t begin, int64_t end) {
  attn_problem piece = *p;
  const bool ends = p->key_end > 0 && (end == 0 || p->key_end < end);
  piece.key_end = ends ? p->key_end : end;
  piece.key_begin = max64(p->key_begin, begin);
  if (piece.key_end > 0) piece.key_begin = min64(piece.key_begin, piece.key_end);
  piece.window_first = piece.shared_prefix = 0;
  piece.dtype_o = ATTN_F32;
  piece.uses = (p->uses | ATTN_USE_LSE) & ~(uint32_t)ATTN_USE_SINKS;
  return piece;
}

/* The prefix, for the rows of `sequences` sequences as one: dense, unless those of q lie at one stride. */
static inline attn_problem attn_prefix_keys(const attn_problem *p, int64_t sequences) {
  attn_problem piece = attn_keys_between(p, 0, 0);
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN), one = p->seq_q == 1;
  piece.batch = 1;
  piece.seq_q = varlen ? min64(p->total_q, sequences * p->seq_q) : sequences * p->seq_q;
  piece.seq_k = p->shared_prefix;
  piece.align = ATTN_ALIGN_TOP_LEFT;
  piece.window_right = -1;
  piece.total_q = piece.total_k = piece.page_table_stride = 0;
  piece.uses = ATTN_USE_LSE | ATTN_USE_Q_LEN | (p->uses & (ATTN_USE_SCORE_WEIGHT | ATTN_USE_PAGES | ATTN_USE_KV_SCALES));
  if (attn_uses(p, ATTN_USE_PAGES)) piece.uses |= ATTN_USE_KV_LEN;
  if (!varlen && one) piece.q_stride.s = p->q_stride.b;
  piece.o_stride = (attn_strides){0, piece.seq_q * p->dim_v, p->dim_v, 1};
  piece.lse_stride = (attn_strides){0, piece.seq_q, 1, 1};
  return piece;
}

/* The early and the later keys. */
static inline attn_problem attn_early_keys(const attn_problem *p) {
  if (!attn_window_has_first(p)) return attn_prefix_keys(p, 1);
  attn_problem piece = attn_keys_between(p, 0, p->window_first);
  piece.window_left = -1;
  return piece;
}

static inline attn_problem attn_later_keys(const attn_problem *p) {
  return attn_keys_between(p, attn_window_has_first(p) ? p->window_first : p->shared_prefix, 0);
}

/* Keys that rows of a sequence may see: of a problem of two pieces over its own keys, those of either. */
enum { EARLY_KEYS, LATER_KEYS, KEY_PIECES };
typedef struct attn_needed_keys {
  attn_key_range of[KEY_PIECES];
} attn_needed_keys;

static inline attn_needed_keys attn_keys_needed(const attn_problem *p, const attn_args *args, const attn_sequence *seq,
                                                int64_t b) {
  if (!attn_window_has_first(p)) return (attn_needed_keys){.of = {[LATER_KEYS] = attn_keys_of_sequence(p, args, seq, b)}};
  const attn_problem early = attn_early_keys(p), later = attn_later_keys(p);
  return (attn_needed_keys){
      .of = {attn_keys_of_sequence(&early, args, seq, b), attn_keys_of_sequence(&later, args, seq, b)}};
}

#endif
