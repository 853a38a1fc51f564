/* SPDX-License-Identifier: MIT */
/* attn_args: the pointers and lengths of one call. */
#include <inttypes.h>
#include <math.h>

#include "kernels/common/problem/operation.h"
#include "kernels/common/problem/pieces.h"
#include "kernels/common/problem/unroll.h"
#include "src/api/error.h"
#include "src/api/layouts.h"
#include "src/api/problem.h"

/* Apart, because it is rare and the checks of all pointers are one piece of code. */
static NO_INLINE attn_status refuse_pointer(const attn_problem *p, const char *name, bool of_operation, const char *use) {
  REQUIRE(of_operation, "attn_args.%s is given, but operation '%s' neither reads nor writes it; leave %s NULL", name,
          attn_operations[p->operation].name, name);
  return attn_fail(ATTN_INVALID_ARGUMENT, "attn_args.%s is given, but the problem does not have %s; set it or leave %s NULL",
                   name, use, name);
}

static attn_status check_pointer(const attn_problem *p, const attn_operand *o, const void *pointer) {
  if (pointer && !o->present) return refuse_pointer(p, o->name, o->of_operation, o->use);
  if (!o->present || !o->needed) return ATTN_OK;
  REQUIRE(pointer, "attn_args.%s is NULL; the problem has %s", o->name, o->use);
  REQUIRE((uintptr_t)pointer % o->alignment == 0, "attn_args.%s is %p; it must be aligned to its element, %u bytes", o->name,
          pointer, (unsigned)o->alignment);
  return ATTN_OK;
}

/* Whether certainly nothing is wrong with the pointers: q, k, v and o are given, lse where the problem has it, and nothing
 * else, aligned for any type, and the problem asks for no more. So it is in most calls; the others are checked one by one.
 */
static bool only_tensors(const attn_problem *p, const attn_args *a) {
  _Static_assert(sizeof *a == sizeof a->struct_size + ATTN_OPERANDS * sizeof a->q + 2 * sizeof a->seed, "all are here");
  const uintptr_t places = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->o | (uintptr_t)a->lse;
  const bool given = a->q && a->k && a->v && a->o && places % sizeof(float) == 0;
  const bool others = a->bias || a->mask || a->scores || a->score_weight || a->kv_len || a->q_len || a->row_len ||
                      a->cu_seqlens_q || a->cu_seqlens_k || a->offsets || a->alibi_slopes || a->sinks || a->page_table ||
                      a->state || a->k_scale || a->v_scale || a->kv_num_blocks || a->kv_indices || a->full_kv_num_blocks ||
                      a->full_kv_indices || a->d_o || a->d_lse || a->d_q || a->d_k || a->d_v || a->d_bias || a->d_scores ||
                      a->d_score_weight || a->d_alibi_slopes || a->d_sinks;
  return given && !others && p->operation == ATTN_FORWARD && p->uses == (a->lse ? ATTN_USE_LSE : 0) &&
         p->score != ATTN_SCORE_PRECOMPUTED && p->align != ATTN_ALIGN_OFFSET;
}

static attn_status check_pointers(const attn_problem *p, const attn_args *a) {
  if (only_tensors(p, a)) return ATTN_OK;
  const uint64_t optional = attn_optional_operands(p);
  UNROLL
  for (int i = 0; i < ATTN_OPERANDS; i++) {
    const attn_operand operand = attn_operand_of(p, (attn_operand_id)i);
    const void *pointer = attn_operand_at(&operand, a);
    if (!pointer && (optional >> i & 1)) continue;
    const attn_status status = check_pointer(p, &operand, pointer);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

static attn_status check_lengths(const char *field, const int32_t *lengths, int64_t count, int64_t most) {
  for (int64_t i = 0; i < count; i++)
    REQUIRE(lengths[i] >= 0 && lengths[i] <= most, "attn_args.%s[%" PRId64 "] is %" PRId32 "; it must be in 0..%" PRId64,
            field, i, lengths[i], most);
  return ATTN_OK;
}

static attn_status check_cu_seqlens(const char *field, const int32_t *cu, int64_t batch, int64_t longest, int64_t total) {
  REQUIRE(cu[0] >= 0, "attn_args.%s[0] is %" PRId32 "; it must be at least 0", field, cu[0]);
  for (int64_t b = 0; b < batch; b++) {
    REQUIRE(cu[b + 1] >= cu[b], "attn_args.%s[%" PRId64 "] is %" PRId32 " after %" PRId32 "; it must not decrease", field,
            b + 1, cu[b + 1], cu[b]);
    REQUIRE((int64_t)cu[b + 1] - cu[b] <= longest,
            "attn_args.%s gives sequence %" PRId64 " %" PRId64 " tokens; the problem's longest is %" PRId64, field, b,
            (int64_t)cu[b + 1] - cu[b], longest);
  }
  REQUIRE(cu[batch] <= total, "attn_args.%s[%" PRId64 "] is %" PRId32 "; the tensors hold %" PRId64 " tokens", field, batch,
          cu[batch], total);
  return ATTN_OK;
}

/* A ring: pages come round again. Where the sequence's block `first`, the first that is needed, shares its page with a later
 * one, the ring ends between them, and holds so many tokens. */
static attn_status check_ring(int64_t tokens, attn_key_range used, int64_t b, int64_t first, int64_t at, int32_t page) {
  REQUIRE(used.end - used.begin <= tokens,
          "attn_args.page_table[%" PRId64 "][%" PRId64 "] is %" PRId32 " again, after entry %" PRId64
          ": this ring holds %" PRId64 " tokens, but queries of sequence %" PRId64 " see keys %" PRId64 "..%" PRId64
          "; it must hold at least %" PRId64 ", a window and all new tokens",
          b, at, page, first, tokens, b, used.begin, used.end - 1, used.end - used.begin);
  return ATTN_OK;
}

/* The page of entry `at`, which a ring may use again, must be none of the first `kept` entries: they keep first keys. */
static attn_status check_kept(const int32_t *table, int64_t b, int64_t kept, int64_t at) {
  for (int64_t n = 0; n < kept && n < at; n++)
    REQUIRE(table[at] != table[n],
            "attn_args.page_table[%" PRId64 "][%" PRId64 "] is %" PRId32 ", the page of entry %" PRId64
            "; it must be another one, because window_first keeps the keys of that entry",
            b, at, table[at], n);
  return ATTN_OK;
}

/* Every page that holds keys which some query sees. Within a window, the sequence's keys need places of their own. */
static attn_status check_pages(const attn_problem *p, const int32_t *table, int64_t b, int64_t kept, attn_key_range used) {
  const int64_t first = used.begin / p->page_tokens;
  for (int64_t at = first; at * p->page_tokens < used.end; at++) {
    REQUIRE(table[at] >= 0 && table[at] < p->pages,
            "attn_args.page_table[%" PRId64 "][%" PRId64 "] is %" PRId32 "; it must be in 0..%" PRId64
            ", because sequence %" PRId64 " has queries that see keys of this page",
            b, at, table[at], p->pages - 1, b);
    const attn_status apart = check_kept(table, b, kept, at);
    if (apart != ATTN_OK) return apart;
    if (p->window_left < 0 || at == first || table[at] != table[first]) continue;
    const attn_status status = check_ring((at - first) * p->page_tokens, used, b, first, at, table[at]);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

static attn_status check_page_table(const attn_problem *p, const attn_args *a) {
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, a, b);
    const int32_t *table = a->page_table + b * p->page_table_stride;
    const attn_needed_keys needed = attn_keys_needed(p, a, &seq, b);
    const int64_t kept = ceil_div(needed.of[EARLY_KEYS].end, p->page_tokens);
    attn_status status = check_pages(p, table, b, 0, needed.of[EARLY_KEYS]);
    if (status == ATTN_OK) status = check_pages(p, table, b, kept, needed.of[LATER_KEYS]);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* ---- A prefix that sequences share ---- */

/* Every query sees all of it. The first query sees least, but where each has a length of its own. */
static attn_status check_prefix_seen(const attn_problem *p, const attn_args *a, const attn_sequence *seq) {
  const int64_t rows = attn_uses(p, ATTN_USE_ROW_LEN) ? seq->len_q : min64(seq->len_q, 1);
  for (int64_t i = 0; i < rows; i++) {
    const int64_t end = attn_allowed_keys(p, a, seq, seq->b, i).end;
    REQUIRE(end >= p->shared_prefix,
            "attn_problem.shared_prefix is %" PRId64 ", but query %" PRId64 " of sequence %" PRId64 " sees %" PRId64
            " keys; every query must see all of the prefix",
            p->shared_prefix, i, seq->b, end);
  }
  return ATTN_OK;
}

static attn_status check_prefix_pages(const attn_problem *p, const attn_args *a, int64_t first, int64_t b) {
  if (!attn_uses(p, ATTN_USE_PAGES)) return ATTN_OK;
  const int32_t *shared = a->page_table + first * p->page_table_stride, *own = a->page_table + b * p->page_table_stride;
  for (int64_t at = 0; at * p->page_tokens < p->shared_prefix; at++)
    REQUIRE(own[at] == shared[at],
            "attn_args.page_table[%" PRId64 "][%" PRId64 "] is %" PRId32 "; it must be %" PRId32 " as for sequence %" PRId64
            ", because shared_prefix is %" PRId64,
            b, at, own[at], shared[at], first, p->shared_prefix);
  return ATTN_OK;
}

/* For sequences with queries. */
static attn_status check_shared_prefix(const attn_problem *p, const attn_args *a) {
  int64_t first = -1;
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, a, b);
    if (seq.len_q == 0) continue;
    if (first < 0) first = b;
    attn_status status = check_prefix_seen(p, a, &seq);
    if (status == ATTN_OK) status = check_prefix_pages(p, a, first, b);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* A row's reference and sums are such as a kernel or attn_state_start() leaves. NaN is what an allowed NaN leaves. */
static attn_status check_state_row(const attn_problem *p, const attn_args *a, const attn_sequence *seq, int64_t h,
                                   int64_t i) {
  const float *sums = a->state + attn_state_offset(p, seq, seq->b, h, i) + p->dim_v, reference = sums[ATTN_STATE_SUMS];
  if (reference == -INFINITY) return ATTN_OK;
  double sum = 0;
  for (int part = 0; part < ATTN_STATE_SUMS; part++) sum += (double)sums[part];
  REQUIRE(reference != INFINITY && !(sum <= 0),
          "attn_args.state has reference %g and sum %g for batch %" PRId64 ", head %" PRId64 ", query %" PRId64
          "; attn_state_start() sets references to -inf, and calls leave finite ones with sums above 0",
          (double)reference, sum, seq->b, h, i);
  return ATTN_OK;
}

static attn_status check_state(const attn_problem *p, const attn_args *a) {
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, a, b);
    for (int64_t row = 0; row < p->heads_q * seq.rows; row++) {
      const attn_status status = check_state_row(p, a, &seq, row / seq.rows, row % seq.rows);
      if (status != ATTN_OK) return status;
    }
  }
  return ATTN_OK;
}

/* ---- Lists of key blocks ---- */

/* One list, at [b][head][rows]. */
static attn_status check_key_list(const attn_problem *p, const attn_args *a, bool full, int64_t b, int64_t head,
                                  int64_t rows) {
  const int64_t blocks = ceil_div(p->seq_k, p->block_keys), h = head * attn_group(p), i = rows * p->block_queries;
  const attn_key_list list = attn_key_list_of(p, a, full, b, h, i);
  REQUIRE(list.count >= 0 && list.count <= blocks,
          "attn_args.%skv_num_blocks[%" PRId64 "][%" PRId64 "][%" PRId64 "] is %" PRId64 "; it must be in 0..%" PRId64,
          full ? "full_" : "", b, head, rows, list.count, blocks);
  for (int64_t n = 0; n < list.count; n++) {
    const int32_t block = list.at[n * list.step];
    REQUIRE(block >= 0 && block < blocks,
            "attn_args.%skv_indices[%" PRId64 "][%" PRId64 "][%" PRId64 "][%" PRId64 "] is %" PRId32
            "; it must be in 0..%" PRId64 ", because the list has %" PRId64 " entries",
            full ? "full_" : "", b, head, rows, n, block, blocks - 1, list.count);
  }
  return ATTN_OK;
}

/* The lists of blocks of queries that exist, in sequences with keys. */
static attn_status check_key_lists(const attn_problem *p, const attn_args *a) {
  const int64_t heads = p->kv_num_blocks_stride.h || p->kv_indices_stride.h ? p->heads_kv : 1;
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, a, b);
    const int64_t lists = seq.len_k > 0 ? ceil_div(seq.len_q, p->block_queries) : 0;
    for (int64_t n = 0; n < 2 * heads * lists; n++) {
      const attn_status status = check_key_list(p, a, n % 2, b, n / 2 / lists, n / 2 % lists);
      if (status != ATTN_OK) return status;
    }
  }
  return ATTN_OK;
}

/* ---- Outputs over inputs ---- */

/* The bytes of one tensor. */
typedef struct span {
  const char *field;
  uintptr_t begin, end;
  uint64_t places, elements; /* counts that fit between, and that the tensor has: may wrap where an input overlaps itself */
} span;

/* Moves the ends of the span, in elements, by an axis. */
static inline void span_axis(int64_t size, int64_t stride, int64_t *below, int64_t *above, uint64_t *elements) {
  const int64_t steps = (size - 1) * stride;
  *below += steps < 0 ? steps : 0;
  *above += steps < 0 ? 0 : steps;
  *elements *= stride ? (uint64_t)size : 1;
}

static inline span span_of(const attn_operand *operand, const attn_args *args) {
  const uintptr_t at = (uintptr_t)attn_operand_at(operand, args), bytes = operand->element_bytes;
  const attn_operand blocks = attn_operand_in_blocks(*operand);
  int64_t below = 0, above = 0;
  uint64_t elements = 1;
  for (int i = 0; i < 4; i++) span_axis(blocks.extent[i], blocks.stride[i], &below, &above, &elements);
  return (span){.field = operand->name,
                .begin = at + (uintptr_t)below * bytes,
                .end = at + (uintptr_t)(above + 1) * bytes,
                .places = (uint64_t)(above - below + 1),
                .elements = elements};
}

/* Every byte from begin to end is an element's. */
static bool is_dense(const span *s) { return s->places == s->elements; }

/* Finds what is certain: dense tensors whose bytes meet, and tensors that begin at the same element. Those with gaps may lie
 * in each other's. */
static attn_status check_apart(const span *out, const span *in) {
  const bool meet = out->begin < in->end && in->begin < out->end;
  REQUIRE(!meet || !((is_dense(out) && is_dense(in)) || out->begin == in->begin),
          "attn_args.%s overlaps attn_args.%s; it must be memory of its own", out->field, in->field);
  return ATTN_OK;
}

/* Rows that are written, against rows that are read and those written before them. */
static attn_status check_overlap(const attn_problem *p, const attn_args *a) {
  const uint32_t outputs = (uint32_t)attn_operations[p->operation].outputs; /* those of rows stand first */
  span rows[ATTN_ROW_OPERANDS];
  uint32_t there = 0;
  UNROLL
  for (int i = 0; i < ATTN_ROW_OPERANDS; i++) { /* unrolled, each is a few instructions */
    const attn_operand operand = attn_operand_of(p, (attn_operand_id)i);
    if (!operand.present || !operand.needed || !attn_operand_at(&operand, a)) continue;
    rows[i] = span_of(&operand, a);
    there |= 1u << i;
  }
  for (uint32_t left = there & outputs; left; left &= left - 1) {
    const int out = __builtin_ctz(left);
    for (uint32_t others = there & (~outputs | ((1u << out) - 1)); others; others &= others - 1) {
      const attn_status status = check_apart(&rows[out], &rows[__builtin_ctz(others)]);
      if (status != ATTN_OK) return status;
    }
  }
  return ATTN_OK;
}

attn_status attn_args_read(const attn_problem *p, const attn_args *theirs, attn_args *a) {
  REQUIRE(theirs, "args is NULL; it must point to an attn_args");
  attn_status status = attn_struct_read(&attn_args_layout, theirs, a);
  if (status == ATTN_OK) status = check_pointers(p, a);
  if (status == ATTN_OK) status = check_overlap(p, a);
  if (status == ATTN_OK && (p->uses & ATTN_USE_KV_LEN)) status = check_lengths("kv_len", a->kv_len, p->batch, p->seq_k);
  if (status == ATTN_OK && (p->uses & ATTN_USE_Q_LEN)) status = check_lengths("q_len", a->q_len, p->batch, p->seq_q);
  if (status == ATTN_OK && (p->uses & ATTN_USE_ROW_LEN))
    status = check_lengths("row_len", a->row_len, p->batch * p->seq_q, p->seq_k);
  if (status != ATTN_OK || !p->batch) return status;
  const bool varlen = p->uses & ATTN_USE_VARLEN, paged = p->uses & ATTN_USE_PAGES;
  if (varlen) status = check_cu_seqlens("cu_seqlens_q", a->cu_seqlens_q, p->batch, p->seq_q, p->total_q);
  if (status == ATTN_OK && varlen && !paged)
    status = check_cu_seqlens("cu_seqlens_k", a->cu_seqlens_k, p->batch, p->seq_k, p->total_k);
  if (status == ATTN_OK && paged) status = check_page_table(p, a);
  if (status == ATTN_OK && attn_lists_keys(p)) status = check_key_lists(p, a);
  if (status == ATTN_OK && (p->uses & ATTN_USE_STATE)) status = check_state(p, a);
  return status == ATTN_OK && attn_shares_prefix(p) ? check_shared_prefix(p, a) : status;
}
