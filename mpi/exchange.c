/* SPDX-License-Identifier: MIT */
/* EXCHANGE: every rank gets all rows and keys of some heads, computes them as one process does, and sends the rows back.
 * Gathered rows lie token by token, [token][batch][head], so that each part of a rank is received at its place. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* Offsets in the workspace: gathered tensors, and packed ones of this rank for all others, then of all others for this. */
typedef struct exchange_layout {
  int64_t q, o, lse, keys[BOX_TENSORS], own_q, own_o, own_lse, own_keys, call, bytes;
  int64_t rows, key_count; /* gathered: all of the problem */
} exchange_layout;

static mpi_heads heads_of(const attn_mpi_plan *plan, int rank) {
  const int64_t heads = plan->whole.heads_q;
  return (mpi_heads){heads * rank / plan->ranks, heads * (rank + 1) / plan->ranks};
}

static mpi_heads kv_heads_of(const attn_mpi_plan *plan, int rank) {
  const mpi_heads q = heads_of(plan, rank);
  const int64_t group = attn_group(&plan->whole);
  return q.begin == q.end ? (mpi_heads){0, 0} : (mpi_heads){q.begin / group, ceil_div(q.end, group)};
}

static int64_t length(mpi_heads heads) { return heads.end - heads.begin; }

/* Bytes of a row of Q, O or LSE of one head. */
static int64_t q_row(const attn_mpi_plan *plan) { return attn_elements_bytes(plan->whole.dtype_q, plan->whole.dim_qk); }
static int64_t o_row(const attn_mpi_plan *plan) { return attn_elements_bytes(plan->whole.dtype_o, plan->whole.dim_v); }

/* Keys of a part as they travel: whole pages. */
static int64_t sent_keys(const attn_mpi_plan *plan, const mpi_part *part) {
  const int64_t keys = part_length(part);
  return attn_uses(&plan->whole, ATTN_USE_PAGES) ? round_up(keys, plan->own.page_tokens) : keys;
}

static exchange_layout lay_out_run(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN), paged = attn_uses(p, ATTN_USE_PAGES);
  const int64_t heads = length(heads_of(plan, plan->rank)), kv = length(kv_heads_of(plan, plan->rank));
  const int64_t batch = batch_of(p), key_batch = plan->box.rows / p->heads_kv;
  exchange_layout at = {.rows = varlen ? p->total_q : p->seq_q, .key_count = varlen && !paged ? p->total_k : p->seq_k};
  if (paged) at.key_count = round_up(at.key_count, plan->own.page_tokens);
  int64_t all_kv = 0, own_keys = 0, token = 0;
  for (int rank = 0; rank < plan->ranks; rank++) all_kv += length(kv_heads_of(plan, rank));
  for (int64_t i = 0; i < plan->keys.count; i++)
    if (plan->keys.part[i].owner == plan->rank) own_keys += sent_keys(plan, &plan->keys.part[i]);
  for (int i = 0; i < BOX_TENSORS; i++) token += mpi_tensor_bytes(plan, i);
  const int64_t floats = attn_uses(p, ATTN_USE_LSE) ? float_bytes(1) : 0;
  const memory_part parts[] = {
      {&at.q, at.rows * batch * heads, q_row(plan)},
      {&at.o, at.rows * batch * heads, o_row(plan)},
      {&at.lse, at.rows * batch * heads, floats},
      {&at.keys[0], at.key_count * key_batch * kv, mpi_tensor_bytes(plan, 0)},
      {&at.keys[1], at.key_count * key_batch * kv, mpi_tensor_bytes(plan, 1)},
      {&at.keys[2], at.key_count * key_batch * kv, mpi_tensor_bytes(plan, 2)},
      {&at.keys[3], at.key_count * key_batch * kv, mpi_tensor_bytes(plan, 3)},
      {&at.own_q, plan->own_rows * batch * p->heads_q, q_row(plan)},
      {&at.own_o, plan->own_rows * batch * p->heads_q, o_row(plan)},
      {&at.own_lse, plan->own_rows * batch * p->heads_q, floats},
      {&at.own_keys, own_keys * key_batch * all_kv, token},
      {&at.call, 1, (int64_t)plan->call_bytes},
  };
  if (!LAY_OUT(parts, &at.bytes)) at.bytes = INT64_MAX;
  return at;
}

static const char *refuses(const attn_mpi_plan *plan) {
  const char *stay = mpi_rows_stay(plan);
  if (stay) return stay;
  return plan->overlaps ? "some rows are those of several ranks; take ATTN_MPI_PASS_KV or ATTN_MPI_SPLIT" : NULL;
}

/* ---- Calls: query heads that share all their KV heads are one, else each KV head is ---- */

typedef struct segment {
  mpi_heads q, kv; /* among the heads of this rank */
} segment;

static int64_t segments_of(const attn_mpi_plan *plan) {
  const mpi_heads q = heads_of(plan, plan->rank), kv = kv_heads_of(plan, plan->rank);
  if (length(q) == 0) return 0;
  return length(q) == length(kv) * attn_group(&plan->whole) ? 1 : length(kv);
}

static segment segment_at(const attn_mpi_plan *plan, int64_t n) {
  const mpi_heads q = heads_of(plan, plan->rank), kv = kv_heads_of(plan, plan->rank);
  const int64_t group = attn_group(&plan->whole);
  if (segments_of(plan) == 1) return (segment){{0, length(q)}, {0, length(kv)}};
  const int64_t begin = max64(q.begin, (kv.begin + n) * group), end = min64(q.end, (kv.begin + n + 1) * group);
  return (segment){{begin - q.begin, end - q.begin}, {n, n + 1}};
}

static attn_strides by_token(const attn_mpi_plan *plan, int64_t columns) {
  const int64_t heads = length(heads_of(plan, plan->rank));
  return (attn_strides){heads * columns, columns, batch_of(&plan->whole) * heads * columns, 1};
}

static attn_problem problem_of_segment(const attn_mpi_plan *plan, const segment *s, int64_t key_count) {
  attn_problem p = plan->whole;
  const mpi_box *box = &plan->box;
  const int64_t kv = length(kv_heads_of(plan, plan->rank)), page = plan->own.page_tokens;
  p.heads_q = length(s->q);
  p.heads_kv = length(s->kv);
  p.q_stride = by_token(plan, p.dim_qk);
  p.o_stride = by_token(plan, p.dim_v);
  p.lse_stride = by_token(plan, 1);
  p.k_stride = mpi_box_strides(plan, kv, box->k_row);
  p.v_stride = mpi_box_strides(plan, kv, box->v_row);
  p.k_scale_stride = box->k_factors ? mpi_box_strides(plan, kv, 1) : plan->own.k_scale_stride;
  p.v_scale_stride = box->v_factors ? mpi_box_strides(plan, kv, 1) : plan->own.v_scale_stride;
  if (box->k_factors) p.k_scale_stride.d = 0;
  if (box->v_factors) p.v_scale_stride.d = 0;
  if (!attn_uses(&p, ATTN_USE_PAGES)) return p;
  p.page_tokens = page;
  p.pages = p.batch * key_count / page;
  p.page_table_stride = key_count / page;
  return p;
}

static attn_status lay_out_mode(attn_mpi_plan *plan) {
  const int64_t key_count = lay_out_run(plan).key_count;
  plan->keys_of_calls = key_count;
  for (int64_t n = 0; n < segments_of(plan); n++) {
    const segment s = segment_at(plan, n);
    const mpi_call call = {.problem = problem_of_segment(plan, &s, key_count)};
    const attn_status status = mpi_add_call(plan, &call);
    if (status != ATTN_OK) return status;
  }
  const exchange_layout at = lay_out_run(plan);
  if (at.bytes == INT64_MAX)
    return attn_fail(ATTN_UNSUPPORTED, "the workspace of ATTN_MPI_EXCHANGE exceeds the address space");
  plan->workspace = (size_t)at.bytes;
  return ATTN_OK;
}

static const float *shifted(const float *data, int64_t floats) { return data ? data + floats : NULL; }

static attn_status compute(attn_mpi_plan *plan, const attn_args *args, const exchange_layout *at, char *workspace) {
  const attn_problem *p = &plan->whole;
  const mpi_heads heads = heads_of(plan, plan->rank), kv = kv_heads_of(plan, plan->rank);
  const bool precomputed = p->score == ATTN_SCORE_PRECOMPUTED;
  int32_t *table = plan->numbers;
  const int64_t pages = attn_uses(p, ATTN_USE_PAGES) ? at->key_count / plan->own.page_tokens : 0;
  for (int64_t i = 0; i < pages * p->batch; i++) table[i] = (int32_t)(i % pages * p->batch + i / pages);
  for (int64_t n = 0; n < segments_of(plan); n++) {
    const segment s = segment_at(plan, n);
    const attn_problem *q = &plan->calls[n].problem;
    attn_args a = *args;
    a.q = workspace + at->q + s.q.begin * q_row(plan);
    a.o = workspace + at->o + s.q.begin * o_row(plan);
    a.lse = attn_uses(p, ATTN_USE_LSE) ? floats_at(workspace, at->lse) + s.q.begin : NULL;
    a.k = precomputed ? NULL : attn_element_at(workspace + at->keys[0], p->dtype_kv, s.kv.begin * q->k_stride.h);
    a.v = attn_element_at(workspace + at->keys[1], p->dtype_kv, s.kv.begin * q->v_stride.h);
    a.k_scale = plan->box.k_factors ? floats_at(workspace, at->keys[2]) + s.kv.begin * q->k_scale_stride.h
                                    : shifted(a.k_scale, (kv.begin + s.kv.begin) * q->k_scale_stride.h);
    a.v_scale = plan->box.v_factors ? floats_at(workspace, at->keys[3]) + s.kv.begin * q->v_scale_stride.h
                                    : shifted(a.v_scale, (kv.begin + s.kv.begin) * q->v_scale_stride.h);
    a.alibi_slopes = shifted(a.alibi_slopes, heads.begin + s.q.begin);
    a.sinks = shifted(a.sinks, heads.begin + s.q.begin);
    a.score_weight = shifted(a.score_weight, (heads.begin + s.q.begin) * p->score_weight_stride_h);
    a.page_table = pages ? table : NULL;
    const attn_status status = mpi_run_call(plan, &plan->calls[n], &a, workspace + at->call);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* ---- Messages ---- */

enum { ROW_TAG, KEY_TAG, RESULT_TAG };

/* Sends what others compute with, and receives what this rank does. */
static attn_status gather(attn_mpi_plan *plan, const attn_args *args, const exchange_layout *at, char *workspace,
                          mpi_requests *all) {
  const attn_problem *p = &plan->whole, *own = &plan->own;
  const int64_t batch = batch_of(p), key_batch = plan->box.rows / p->heads_kv;
  const int64_t heads = length(heads_of(plan, plan->rank)), kv = length(kv_heads_of(plan, plan->rank));
  attn_status status = ATTN_OK;
  for (int64_t i = 0; i < plan->rows.count && status == ATTN_OK; i++) {
    const mpi_part *part = &plan->rows.part[i];
    const int64_t token = batch * heads * q_row(plan);
    status = mpi_receive(all, workspace + at->q + part->begin * token, part_length(part) * token, part->owner, ROW_TAG);
  }
  for (int64_t i = 0; i < plan->keys.count * BOX_TENSORS && status == ATTN_OK; i++) {
    const mpi_part *part = &plan->keys.part[i / BOX_TENSORS];
    const int64_t token = key_batch * kv * mpi_tensor_bytes(plan, (int)(i % BOX_TENSORS));
    status = mpi_receive(all, workspace + at->keys[i % BOX_TENSORS] + part->begin * token, sent_keys(plan, part) * token,
                         part->owner, KEY_TAG);
  }
  char *rows = workspace + at->own_q, *keys = workspace + at->own_keys;
  for (int rank = 0; rank < plan->ranks; rank++) {
    const mpi_heads its = heads_of(plan, rank), its_kv = kv_heads_of(plan, rank);
    for (int64_t i = 0; i < plan->rows.count && status == ATTN_OK; i++) {
      const mpi_part *part = &plan->rows.part[i];
      if (part->owner != plan->rank) continue;
      char *end = mpi_copy_tokens(plan, args, p->dtype_q, (void *)(uintptr_t)args->q, &own->q_stride, p->dim_qk, part, its,
                                  rows, false);
      status = mpi_send(all, rows, end - rows, rank, ROW_TAG);
      rows = end;
    }
    for (int64_t i = 0; i < plan->keys.count && status == ATTN_OK; i++) {
      const mpi_part *part = &plan->keys.part[i];
      if (part->owner != plan->rank) continue;
      char *to[BOX_TENSORS + 1] = {keys};
      for (int t = 0; t < BOX_TENSORS; t++)
        to[t + 1] = to[t] + sent_keys(plan, part) * key_batch * length(its_kv) * mpi_tensor_bytes(plan, t);
      if (attn_uses(p, ATTN_USE_PAGES)) memset(keys, 0, (size_t)(to[BOX_TENSORS] - keys));
      mpi_pack_heads(plan, args, part, its_kv, to);
      for (int t = 0; t < BOX_TENSORS && status == ATTN_OK; t++)
        status = mpi_send(all, to[t], to[t + 1] - to[t], rank, KEY_TAG);
      keys = to[BOX_TENSORS];
    }
  }
  return status == ATTN_OK ? mpi_wait(all, -1, -1) : status;
}

/* Sends rows of O and LSE back to who holds them. */
static attn_status scatter(attn_mpi_plan *plan, const attn_args *args, const exchange_layout *at, char *workspace,
                           mpi_requests *all) {
  const attn_problem *p = &plan->whole, *own = &plan->own;
  const bool lse = attn_uses(p, ATTN_USE_LSE);
  const int64_t batch = batch_of(p), heads = length(heads_of(plan, plan->rank));
  const struct {
    int64_t from, to, row_bytes;
  } tensors[] = {{at->o, at->own_o, o_row(plan)}, {at->lse, at->own_lse, lse ? float_bytes(1) : 0}};
  attn_status status = ATTN_OK;
  all->count = 0;
  for (int t = 0; t < 2; t++) {
    char *to = workspace + tensors[t].to;
    for (int rank = 0; rank < plan->ranks; rank++)
      for (int64_t i = 0; i < plan->rows.count && status == ATTN_OK; i++) {
        const mpi_part *part = &plan->rows.part[i];
        if (part->owner != plan->rank) continue;
        const int64_t bytes = part_length(part) * batch * length(heads_of(plan, rank)) * tensors[t].row_bytes;
        status = mpi_receive(all, to, bytes, rank, RESULT_TAG);
        to += bytes;
      }
    for (int64_t i = 0; i < plan->rows.count && status == ATTN_OK; i++) {
      const mpi_part *part = &plan->rows.part[i];
      const int64_t token = batch * heads * tensors[t].row_bytes;
      status = mpi_send(all, workspace + tensors[t].from + part->begin * token, part_length(part) * token, part->owner,
                        RESULT_TAG);
    }
  }
  if (status == ATTN_OK) status = mpi_wait(all, -1, -1);
  if (status != ATTN_OK) return status;
  char *o = workspace + at->own_o, *sums = workspace + at->own_lse;
  for (int rank = 0; rank < plan->ranks; rank++)
    for (int64_t i = 0; i < plan->rows.count; i++) {
      const mpi_part *part = &plan->rows.part[i];
      if (part->owner != plan->rank) continue;
      o = mpi_copy_tokens(plan, args, p->dtype_o, args->o, &own->o_stride, p->dim_v, part, heads_of(plan, rank), o, true);
      if (lse)
        sums = mpi_copy_tokens(plan, args, ATTN_F32, args->lse, &own->lse_stride, 1, part, heads_of(plan, rank), sums, true);
    }
  return ATTN_OK;
}

static int64_t most_requests(const attn_mpi_plan *plan, const exchange_layout *at) {
  const int64_t parts = plan->rows.count * 2 + plan->keys.count * BOX_TENSORS;
  return parts * (1 + plan->ranks) + 2 * mpi_messages_of(at->bytes) + BOX_TENSORS * (plan->keys.count + plan->rows.count);
}

/* Whether each row is that of a rank: others are zero. */
static bool holds_all_rows(const attn_mpi_plan *plan, const exchange_layout *at) {
  int64_t rows = 0;
  for (int64_t i = 0; i < plan->rows.count; i++) rows += part_length(&plan->rows.part[i]);
  return rows == at->rows;
}

static attn_status run_mode(attn_mpi_plan *plan, const attn_args *args, char *workspace) {
  const exchange_layout at = lay_out_run(plan);
  mpi_requests all = {.plan = plan, .last = mpi_now()};
  attn_status status = mpi_make_requests(&all, most_requests(plan, &at));
  if (status == ATTN_OK && !holds_all_rows(plan, &at)) memset(workspace + at.q, 0, (size_t)(at.o - at.q));
  if (status == ATTN_OK) status = gather(plan, args, &at, workspace, &all);
  if (status == ATTN_OK) status = compute(plan, args, &at, workspace);
  if (status == ATTN_OK) status = scatter(plan, args, &at, workspace, &all);
  mpi_free_requests(&all);
  return status;
}

const mpi_mode mpi_exchange = {"EXCHANGE", refuses, lay_out_mode, run_mode};
