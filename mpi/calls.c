/* SPDX-License-Identifier: MIT */
/* Calls of libattn on parts: some rows see some keys, and their states go on (ATTN_USE_STATE). Positions count from the
 * part's first row and key, so lengths and offsets are made anew for each call. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* ---- Problems of calls ---- */

static attn_strides dense_rows(int64_t heads, int64_t rows, int64_t columns) {
  return (attn_strides){heads * rows * columns, rows * columns, columns, 1};
}

static attn_problem problem_of(const attn_mpi_plan *plan, int64_t rows, int64_t keys, mpi_place of_rows, mpi_place of_keys) {
  attn_problem p = plan->whole;
  const attn_problem *own = &plan->own;
  const bool varlen = attn_uses(&p, ATTN_USE_VARLEN), paged = attn_uses(&p, ATTN_USE_PAGES);
  p.seq_q = varlen ? min64(p.seq_q, rows) : rows;
  p.seq_k = varlen && !paged ? min64(p.seq_k, keys) : keys;
  p.total_q = varlen ? rows : 0;
  p.total_k = varlen && !paged ? keys : 0;
  p.align = ATTN_ALIGN_OFFSET;
  p.uses |= ATTN_USE_STATE;
  if (!varlen || paged) p.uses |= ATTN_USE_KV_LEN;
  if (!varlen) p.uses |= ATTN_USE_Q_LEN;
  const bool home = of_rows == OWN_PLACE;
  p.q_stride = home ? own->q_stride : dense_rows(p.heads_q, rows, p.dim_qk);
  p.o_stride = home ? own->o_stride : dense_rows(p.heads_q, rows, p.dim_v);
  p.lse_stride = home ? own->lse_stride : dense_rows(p.heads_q, rows, 1);
  p.state_stride = dense_rows(p.heads_q, rows, attn_state_floats(p.dim_v));
  p.bias_stride = own->bias_stride;
  p.mask_stride = own->mask_stride;
  p.scores_stride = own->scores_stride;
  const bool boxed = of_keys == MESSAGE_PLACE;
  p.k_stride = boxed ? plan->box.k : own->k_stride;
  p.v_stride = boxed ? plan->box.v : own->v_stride;
  p.k_scale_stride = boxed && plan->box.k_factors ? plan->box.k_scale : own->k_scale_stride;
  p.v_scale_stride = boxed && plan->box.v_factors ? plan->box.v_scale : own->v_scale_stride;
  p.page_tokens = own->page_tokens;
  p.pages = boxed && paged ? p.batch * ceil_div(keys, own->page_tokens) : own->pages;
  p.page_table_stride = boxed ? ceil_div(keys, max64(own->page_tokens, 1)) : own->page_table_stride;
  return p;
}

/* Gradients: float32, whatever the types are, so that sums of parts are. */
static attn_problem gradients_of(const attn_mpi_plan *plan, int64_t rows, int64_t keys) {
  attn_problem p = problem_of(plan, rows, keys, MESSAGE_PLACE, MESSAGE_PLACE);
  p.operation = ATTN_BACKWARD;
  p.dtype_q = p.dtype_kv = p.dtype_o = ATTN_F32;
  p.uses = (p.uses & ~(uint32_t)ATTN_USE_STATE) | ATTN_USE_ACCUMULATE;
  p.d_q_stride = p.q_stride;
  p.d_o_stride = p.o_stride;
  p.d_lse_stride = p.lse_stride;
  p.d_k_stride = p.k_stride;
  p.d_v_stride = p.v_stride;
  return p;
}

attn_status mpi_find_call(attn_mpi_plan *plan, int64_t rows, int64_t keys, mpi_place of_rows, mpi_place of_keys,
                          const mpi_call **call) {
  for (int i = 0; i < plan->call_count; i++) {
    *call = &plan->calls[i];
    const bool same = (*call)->rows == rows && (*call)->keys == keys;
    if (same && (*call)->of_rows == of_rows && (*call)->of_keys == of_keys) return ATTN_OK;
  }
  mpi_call made = {.rows = rows, .keys = keys, .of_rows = of_rows, .of_keys = of_keys};
  made.problem = finds_gradients(plan) ? gradients_of(plan, rows, keys) : problem_of(plan, rows, keys, of_rows, of_keys);
  const attn_status status = mpi_add_call(plan, &made);
  *call = &plan->calls[plan->call_count - 1];
  return status;
}

attn_status mpi_add_call(attn_mpi_plan *plan, const mpi_call *like) {
  mpi_call *calls = realloc(plan->calls, ((size_t)plan->call_count + 1) * sizeof *calls);
  if (!calls) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan needs room for another plan");
  plan->calls = calls;
  mpi_call *made = &calls[plan->call_count];
  *made = *like;
  const attn_status status = attn_plan_create(&made->problem, &plan->compute, &made->plan);
  if (status != ATTN_OK) return status;
  plan->call_count++;
  const size_t bytes = attn_plan_workspace(made->plan);
  if (bytes > plan->call_bytes) plan->call_bytes = bytes;
  return ATTN_OK;
}

void mpi_free_calls(attn_mpi_plan *plan) {
  for (int i = 0; i < plan->call_count; i++) attn_plan_destroy(plan->calls[i].plan);
  free(plan->calls);
}

attn_status mpi_find_calls(attn_mpi_plan *plan, const mpi_parts *keys, mpi_place of_rows, mpi_place of_keys) {
  for (int64_t i = 0; i < plan->blocks.count; i++)
    for (int64_t j = 0; j < keys->count; j++) {
      const mpi_part *rows = &plan->blocks.part[i], *part = &keys->part[j];
      const mpi_call *call;
      if (of_rows == OWN_PLACE && rows->owner != plan->rank) continue;
      if (of_keys == OWN_PLACE && part->owner != plan->rank) continue;
      const attn_status status = mpi_find_call(plan, part_length(rows), part_length(part), of_rows, of_keys, &call);
      if (status != ATTN_OK) return status;
    }
  return ATTN_OK;
}

attn_status mpi_find_last_calls(attn_mpi_plan *plan) {
  mpi_part none = {0, 0, plan->rank, 0};
  return mpi_find_calls(plan, &(mpi_parts){&none, 1, 0}, OWN_PLACE, OWN_PLACE);
}

/* ---- Lengths and offsets of a call ---- */

typedef struct call_numbers {
  int32_t *kv_len, *q_len, *offsets, *cu_q, *cu_k, *table, *row_len;
} call_numbers;

static call_numbers numbers_of(attn_mpi_plan *plan) {
  const int64_t batch = plan->whole.batch;
  call_numbers n;
  n.kv_len = plan->numbers;
  n.q_len = n.kv_len + batch;
  n.offsets = n.q_len + batch;
  n.cu_q = n.offsets + batch;
  n.cu_k = n.cu_q + batch + 1;
  n.table = n.cu_k + batch + 1; /* [batch][pages of a box], */
  n.row_len = n.table;          /* or [batch][rows]: the two do not go together with rows that travel */
  if (attn_uses(&plan->whole, ATTN_USE_PAGES)) n.row_len += batch * ceil_div(plan->keys_of_calls, plan->own.page_tokens);
  return n;
}

static int32_t within(int64_t x, int64_t most) { return (int32_t)max64(0, min64(x, most)); }

static int32_t as_int32(int64_t x) { return (int32_t)max64(INT32_MIN, min64(x, INT32_MAX)); }

/* The part of each sequence that lies within the rows and the keys. */
static void fill_numbers(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, const mpi_part *keys,
                         const call_numbers *n) {
  const attn_problem *p = &plan->whole;
  const int64_t row_count = part_length(rows), key_count = part_length(keys);
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, args, b);
    const int64_t row = max64(rows->begin - seq.first_q, 0), key = max64(keys->begin - seq.first_k, 0);
    n->cu_q[b] = within(seq.first_q - rows->begin, row_count);
    n->cu_q[b + 1] = within(seq.first_q + seq.len_q - rows->begin, row_count);
    n->cu_k[b] = within(seq.first_k - keys->begin, key_count);
    n->cu_k[b + 1] = within(seq.first_k + seq.len_k - keys->begin, key_count);
    n->q_len[b] = within(seq.len_q - row, row_count);
    n->kv_len[b] = within(seq.len_k - key, key_count);
    n->offsets[b] = as_int32(attn_saturating_add(seq.offset, row - key));
    for (int64_t i = 0; attn_uses(p, ATTN_USE_ROW_LEN) && i < row_count; i++)
      n->row_len[b * row_count + i] = within(args->row_len[b * plan->own_rows + rows->at + i] - key, key_count);
  }
}

/* ---- Arguments ---- */

static const void *moved(const void *data, attn_dtype dtype, int64_t elements) {
  return data ? attn_element_at(data, dtype, elements) : NULL;
}

static const float *moved_floats(const float *data, int64_t elements) { return data ? data + elements : NULL; }

static void point_to_rows(const attn_mpi_plan *plan, const mpi_row_view *rows, const mpi_part *keys, attn_args *a) {
  const attn_problem *p = &plan->whole, *own = &plan->own;
  const int64_t at = rows->part->at, key = keys->begin;
  a->state = rows->state;
  if (rows->place == MESSAGE_PLACE) {
    a->q = rows->q;
    return;
  }
  a->q = moved(a->q, p->dtype_q, at * own->q_stride.s);
  if (a->o) a->o = (void *)(uintptr_t)moved(a->o, p->dtype_o, at * own->o_stride.s);
  if (a->lse) a->lse += at * own->lse_stride.s;
  a->bias = moved_floats(a->bias, at * own->bias_stride.q + key * own->bias_stride.k);
  a->scores = moved_floats(a->scores, at * own->scores_stride.q + key * own->scores_stride.k);
  if (a->mask) a->mask += at * own->mask_stride.q + key * own->mask_stride.k;
}

static void point_to_keys(const attn_mpi_plan *plan, const mpi_part *keys, const char *box, const call_numbers *n,
                          attn_args *a) {
  const attn_problem *p = &plan->whole, *own = &plan->own;
  const bool paged = attn_uses(p, ATTN_USE_PAGES);
  if (part_length(keys) == 0) {
    a->k = a->v = NULL;
    a->k_scale = plan->box.k_factors ? NULL : a->k_scale;
    a->v_scale = plan->box.v_factors ? NULL : a->v_scale;
    a->page_table = NULL;
    return;
  }
  if (!box) {
    if (paged) {
      a->page_table += keys->at / own->page_tokens;
      return;
    }
    a->k = moved(a->k, p->dtype_kv, keys->at * own->k_stride.s);
    a->v = moved(a->v, p->dtype_kv, keys->at * own->v_stride.s);
    a->k_scale = moved_floats(a->k_scale, keys->at * own->k_scale_stride.s);
    a->v_scale = moved_floats(a->v_scale, keys->at * own->v_scale_stride.s);
    return;
  }
  const mpi_box_layout at = mpi_lay_out_box(plan, part_length(keys));
  a->k = plan->box.k_row ? box + at.k : NULL;
  a->v = box + at.v;
  if (plan->box.k_factors) a->k_scale = (const float *)(const void *)(box + at.k_scale);
  if (plan->box.v_factors) a->v_scale = (const float *)(const void *)(box + at.v_scale);
  const int64_t pages = paged ? ceil_div(part_length(keys), own->page_tokens) : 0;
  for (int64_t i = 0; i < pages * p->batch; i++) n->table[i] = (int32_t)(i % pages * p->batch + i / pages);
  if (paged) a->page_table = n->table;
}

static void point_to_numbers(const attn_problem *p, const call_numbers *n, attn_args *a) {
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN), packed = varlen && !attn_uses(p, ATTN_USE_PAGES);
  a->kv_len = packed ? NULL : n->kv_len;
  a->q_len = varlen ? NULL : n->q_len;
  a->cu_seqlens_q = varlen ? n->cu_q : NULL;
  a->cu_seqlens_k = packed ? n->cu_k : NULL;
  a->row_len = attn_uses(p, ATTN_USE_ROW_LEN) ? n->row_len : NULL;
  a->offsets = n->offsets;
}

static attn_status run_call(attn_mpi_plan *plan, const attn_args *args, const mpi_row_view *rows, const mpi_part *keys,
                            const char *box, bool finishes, void *workspace) {
  const mpi_call *call;
  const mpi_place of_keys = box ? MESSAGE_PLACE : OWN_PLACE;
  attn_status status = mpi_find_call(plan, part_length(rows->part), part_length(keys), rows->place, of_keys, &call);
  if (status != ATTN_OK) return status;
  const call_numbers n = numbers_of(plan);
  attn_args a = *args;
  if (!finishes) a.o = NULL, a.lse = NULL;
  fill_numbers(plan, args, rows->part, keys, &n);
  point_to_rows(plan, rows, keys, &a);
  point_to_keys(plan, keys, box, &n, &a);
  point_to_numbers(&plan->whole, &n, &a);
  return mpi_run_call(plan, call, &a, workspace);
}

attn_status mpi_run_call(attn_mpi_plan *plan, const mpi_call *call, const attn_args *args, void *workspace) {
  return plan->run ? plan->run(plan->run_context, call->plan, &call->problem, args, workspace, plan->call_bytes)
                   : attn_plan_run(call->plan, args, workspace, plan->call_bytes);
}

attn_status mpi_differentiate(attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, const mpi_part *keys,
                              void *workspace) {
  const attn_problem *own = &plan->own;
  const mpi_call *call;
  const attn_status status = mpi_find_call(plan, part_length(rows), part_length(keys), OWN_PLACE, MESSAGE_PLACE, &call);
  if (status != ATTN_OK) return status;
  attn_args a = *args;
  const call_numbers n = numbers_of(plan);
  fill_numbers(plan, args, rows, keys, &n);
  point_to_numbers(&plan->whole, &n, &a);
  a.bias = moved_floats(a.bias, rows->at * own->bias_stride.q + keys->begin * own->bias_stride.k);
  if (a.mask) a.mask += rows->at * own->mask_stride.q + keys->begin * own->mask_stride.k;
  return mpi_run_call(plan, call, &a, workspace);
}

attn_status mpi_attend(attn_mpi_plan *plan, const attn_args *args, const mpi_row_view *rows, const mpi_part *keys,
                       const char *box, void *workspace) {
  return run_call(plan, args, rows, keys, box, false, workspace);
}

attn_status mpi_finish(attn_mpi_plan *plan, const attn_args *args, const mpi_row_view *rows, void *workspace) {
  const mpi_part none = {0, 0, plan->rank, 0};
  return run_call(plan, args, rows, &none, NULL, true, workspace);
}

void mpi_start_states(const attn_mpi_plan *plan, int64_t rows, float *state) {
  const attn_problem *p = &plan->whole;
  const int64_t floats = attn_state_floats(p->dim_v), all = batch_of(p) * p->heads_q * rows;
  for (int64_t i = 0; i < all; i++) {
    float *reference = state + i * floats + p->dim_v + ATTN_STATE_SUMS;
    reference[0] = -INFINITY;
    reference[1] = 0;
  }
}
