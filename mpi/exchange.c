/* SPDX-License-Identifier: MIT */
/* EXCHANGE: every rank gets all rows and keys of some heads, computes them as one process does, and sends the rows back.
 * Gathered rows lie token by token, [token][batch][head], so that each part of a rank is received at its place.
 *
 * Ranks may form groups that follow each other. Then a rank gets those rows and keys of its heads that its group holds. The
 * ranks with the same heads are a ring, and compute as PASS_KV does with as many ranks as there are groups. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* Offsets in the workspace: gathered tensors, and packed ones of this rank for its group, then of the group for this. */
typedef struct exchange_layout {
  int64_t q, o, lse, keys[BOX_TENSORS], own_q, own_o, own_lse, own_keys, call, bytes;
  int64_t rows, key_count; /* gathered: all of the group */
} exchange_layout;

static bool in_group(const attn_mpi_plan *plan, int rank) { return rank / plan->group == plan->rank / plan->group; }

static int first_of_group(const attn_mpi_plan *plan) { return plan->rank - plan->rank % plan->group; }

static mpi_heads heads_of(const attn_mpi_plan *plan, int rank) {
  const int64_t heads = plan->whole.heads_q, member = rank % plan->group;
  return (mpi_heads){heads * member / plan->group, heads * (member + 1) / plan->group};
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

/* Where a range of the group lies among the gathered tokens. */
static int64_t place_of(const attn_mpi_plan *plan, const mpi_parts *ranges, const mpi_part *range) {
  int64_t before = 0;
  if (!plan->ring) return range->begin;
  for (int64_t i = 0; i < ranges->count; i++)
    if (in_group(plan, ranges->part[i].owner) && ranges->part[i].begin < range->begin)
      before += part_length(&ranges->part[i]);
  return before;
}

static exchange_layout lay_out_run(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN), paged = attn_uses(p, ATTN_USE_PAGES);
  const int64_t heads = length(heads_of(plan, plan->rank)), kv = length(kv_heads_of(plan, plan->rank));
  const int64_t batch = batch_of(p), key_batch = plan->box.rows / p->heads_kv;
  exchange_layout at = {.rows = varlen ? p->total_q : p->seq_q, .key_count = varlen && !paged ? p->total_k : p->seq_k};
  if (plan->ring) at.rows = plan->ring->own_rows, at.key_count = plan->ring->own_keys;
  if (paged) at.key_count = round_up(at.key_count, plan->own.page_tokens);
  int64_t all_kv = 0, own_keys = 0, token = 0;
  for (int rank = 0; rank < plan->group; rank++) all_kv += length(kv_heads_of(plan, rank));
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
      {&at.call, 1, (int64_t)(plan->ring ? plan->ring->workspace : plan->call_bytes)},
  };
  if (!LAY_OUT(parts, &at.bytes)) at.bytes = INT64_MAX;
  return at;
}

static const char *refuses(const attn_mpi_plan *plan) {
  const char *stay = mpi_rows_stay(plan);
  if (stay) return stay;
  if (!mpi_has_groups(plan, plan->group)) return "attn_mpi_options.group_ranks does not divide ranks and heads evenly";
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

/* The plan of the ranks that have the same heads, one in each group: its tensors are the gathered ones. */
static attn_status make_ring(attn_mpi_plan *plan) {
  attn_mpi_plan *ring = plan->ring = malloc(sizeof *ring);
  if (!ring) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan needs %zu bytes", sizeof *ring);
  *ring = (attn_mpi_plan){.comm = plan->comm,
                          .rank = plan->rank / plan->group,
                          .ranks = plan->ranks / plan->group,
                          .tags = plan->tags,
                          .first = plan->rank % plan->group,
                          .stride = plan->group,
                          .compute = plan->compute,
                          .mode = ATTN_MPI_PASS_KV,
                          .run = plan->run,
                          .run_context = plan->run_context,
                          .timeout_s = plan->timeout_s,
                          .unit = plan->unit,
                          .splits = plan->splits,
                          .asked_piece_keys = plan->asked_piece_keys,
                          .asked_block_rows = plan->asked_block_rows};
  const attn_status status = mpi_join_groups(plan, ring);
  if (status != ATTN_OK) return status;
  const segment heads = segment_at(plan, 0);
  ring->whole = ring->own = problem_of_segment(plan, &heads, lay_out_run(plan).key_count);
  return mpi_lay_out_plan(ring);
}

static attn_status make_calls(attn_mpi_plan *plan) {
  for (int64_t n = 0; n < segments_of(plan); n++) {
    const segment s = segment_at(plan, n);
    const mpi_call call = {.problem = problem_of_segment(plan, &s, plan->keys_of_calls)};
    const attn_status status = mpi_add_call(plan, &call);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

static attn_status lay_out_mode(attn_mpi_plan *plan) {
  attn_status status = plan->group < plan->ranks ? make_ring(plan) : ATTN_OK;
  if (status != ATTN_OK) return status;
  plan->keys_of_calls = lay_out_run(plan).key_count;
  if (!plan->ring) status = make_calls(plan);
  if (status != ATTN_OK) return status;
  const exchange_layout at = lay_out_run(plan);
  if (at.bytes == INT64_MAX)
    return attn_fail(ATTN_UNSUPPORTED, "the workspace of ATTN_MPI_EXCHANGE exceeds the address space");
  plan->workspace = (size_t)at.bytes;
  return ATTN_OK;
}

static const float *shifted(const float *data, int64_t floats) { return data ? data + floats : NULL; }

/* Arguments of a segment: the gathered tensors from its heads on. */
static attn_args args_of_segment(const attn_mpi_plan *plan, const attn_args *args, const segment *s,
                                 const exchange_layout *at, char *workspace) {
  const attn_problem *p = &plan->whole, q = problem_of_segment(plan, s, at->key_count);
  const mpi_heads heads = heads_of(plan, plan->rank), kv = kv_heads_of(plan, plan->rank);
  const bool precomputed = p->score == ATTN_SCORE_PRECOMPUTED;
  attn_args a = *args;
  a.q = workspace + at->q + s->q.begin * q_row(plan);
  a.o = workspace + at->o + s->q.begin * o_row(plan);
  a.lse = attn_uses(p, ATTN_USE_LSE) ? floats_at(workspace, at->lse) + s->q.begin : NULL;
  a.k = precomputed ? NULL : attn_element_at(workspace + at->keys[0], p->dtype_kv, s->kv.begin * q.k_stride.h);
  a.v = attn_element_at(workspace + at->keys[1], p->dtype_kv, s->kv.begin * q.v_stride.h);
  a.k_scale = plan->box.k_factors ? floats_at(workspace, at->keys[2]) + s->kv.begin * q.k_scale_stride.h
                                  : shifted(a.k_scale, (kv.begin + s->kv.begin) * q.k_scale_stride.h);
  a.v_scale = plan->box.v_factors ? floats_at(workspace, at->keys[3]) + s->kv.begin * q.v_scale_stride.h
                                  : shifted(a.v_scale, (kv.begin + s->kv.begin) * q.v_scale_stride.h);
  a.alibi_slopes = shifted(a.alibi_slopes, heads.begin + s->q.begin);
  a.sinks = shifted(a.sinks, heads.begin + s->q.begin);
  a.score_weight = shifted(a.score_weight, (heads.begin + s->q.begin) * p->score_weight_stride_h);
  a.page_table = attn_uses(p, ATTN_USE_PAGES) ? plan->numbers : NULL;
  return a;
}

static attn_status compute(attn_mpi_plan *plan, const attn_args *args, const exchange_layout *at, char *workspace) {
  const attn_problem *p = &plan->whole;
  const int64_t pages = attn_uses(p, ATTN_USE_PAGES) ? at->key_count / plan->own.page_tokens : 0;
  for (int64_t i = 0; i < pages * p->batch; i++) plan->numbers[i] = (int32_t)(i % pages * p->batch + i / pages);
  for (int64_t n = 0; n < segments_of(plan); n++) {
    const segment s = segment_at(plan, n);
    const attn_args a = args_of_segment(plan, args, &s, at, workspace);
    const attn_status status = plan->ring ? mpi_pass_kv.run(plan->ring, &a, workspace + at->call)
                                          : mpi_run_call(plan, &plan->calls[n], &a, workspace + at->call);
    if (plan->ring) plan->broken |= plan->ring->broken; /* all ranks know then */
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
    if (!in_group(plan, part->owner)) continue;
    status = mpi_receive(all, workspace + at->q + place_of(plan, &plan->rows, part) * token, part_length(part) * token,
                         part->owner, ROW_TAG);
  }
  for (int64_t i = 0; i < plan->keys.count * BOX_TENSORS && status == ATTN_OK; i++) {
    const mpi_part *part = &plan->keys.part[i / BOX_TENSORS];
    const int64_t token = key_batch * kv * mpi_tensor_bytes(plan, (int)(i % BOX_TENSORS));
    if (!in_group(plan, part->owner)) continue;
    status = mpi_receive(all, workspace + at->keys[i % BOX_TENSORS] + place_of(plan, &plan->keys, part) * token,
                         sent_keys(plan, part) * token, part->owner, KEY_TAG);
  }
  char *rows = workspace + at->own_q, *keys = workspace + at->own_keys;
  for (int rank = first_of_group(plan); rank < first_of_group(plan) + plan->group; rank++) {
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
    for (int rank = first_of_group(plan); rank < first_of_group(plan) + plan->group; rank++)
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
      if (!in_group(plan, part->owner)) continue;
      status = mpi_send(all, workspace + tensors[t].from + place_of(plan, &plan->rows, part) * token,
                        part_length(part) * token, part->owner, RESULT_TAG);
    }
  }
  if (status == ATTN_OK) status = mpi_wait(all, -1, -1);
  if (status != ATTN_OK) return status;
  char *o = workspace + at->own_o, *sums = workspace + at->own_lse;
  for (int rank = first_of_group(plan); rank < first_of_group(plan) + plan->group; rank++)
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
  return parts * (1 + plan->group) + 2 * mpi_messages_of(at->bytes) + BOX_TENSORS * (plan->keys.count + plan->rows.count);
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
  if (status == ATTN_OK && !plan->ring && !holds_all_rows(plan, &at)) memset(workspace + at.q, 0, (size_t)(at.o - at.q));
  if (status == ATTN_OK) status = gather(plan, args, &at, workspace, &all);
  if (status == ATTN_OK) status = compute(plan, args, &at, workspace);
  if (status == ATTN_OK) status = scatter(plan, args, &at, workspace, &all);
  mpi_free_requests(&all);
  return status;
}

const mpi_mode mpi_exchange = {"EXCHANGE", refuses, lay_out_mode, run_mode};
