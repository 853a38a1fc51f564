/* SPDX-License-Identifier: MIT */
/* Gradients over ranks: pieces of keys travel with their dK and dV, rows stay with their dQ.
 *
 * Rows and keys are divided at multiples of plan->unit, whatever the shards are. Each pair of a block of rows and a piece of
 * keys is one call of libattn in float32, which adds to dQ, dK and dV. A piece passes the blocks of rows in their order, and
 * a block sees the pieces from the last to the first, so every sum has one order, and its bits do not depend on the ranks.
 * Under a causal mask all pieces can leave at once then: each begins with its own rows. One call of attn_plan_run() has
 * other bits: its sums are cut at other borders.
 *
 * Blocks of one rank side by side are a station. With P pieces, piece t is at station s in step P - 1 - t + s. */
#include <string.h>

#include "plan.h"

/* Offsets in the workspace. Rows are float32, block by block, [batch][head][row][column]. */
typedef struct backward_layout {
  int64_t q, o, d_o, lse, d_lse, d_q, own_items, buffers, k, v, call, bytes;
  int64_t box_bytes, item_bytes, own_count, buffer_count;
} backward_layout;

static int64_t own_pieces(const attn_mpi_plan *plan) {
  int64_t count = 0;
  for (int64_t t = 0; t < plan->pieces.count; t++) count += plan->pieces.part[t].owner == plan->rank;
  return count;
}

/* Stations: blocks [begin, end) that follow each other on one rank. */
static int64_t next_station(const attn_mpi_plan *plan, int64_t block) {
  const int owner = plan->blocks.part[block].owner;
  while (block < plan->blocks.count && plan->blocks.part[block].owner == owner) block++;
  return block;
}

static int64_t own_stations(const attn_mpi_plan *plan) {
  int64_t count = 0;
  for (int64_t block = 0; block < plan->blocks.count; block = next_station(plan, block))
    count += plan->blocks.part[block].owner == plan->rank;
  return count;
}

/* Bytes of dK and dV of a piece, as float32 in the order of its box. */
static int64_t d_k_bytes(const attn_mpi_plan *plan, int64_t keys) {
  return round_up(float_bytes(keys * plan->box.rows * plan->box.k_row), ATTN_MEMORY_ALIGN);
}
static int64_t d_v_bytes(const attn_mpi_plan *plan, int64_t keys) {
  return round_up(float_bytes(keys * plan->box.rows * plan->box.v_row), ATTN_MEMORY_ALIGN);
}

static int64_t bytes_of_item(const attn_mpi_plan *plan, int64_t keys) {
  return mpi_lay_out_box(plan, keys).bytes + d_k_bytes(plan, keys) + d_v_bytes(plan, keys);
}

static backward_layout lay_out_run(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  const int64_t rows = plan->own_rows * batch_of(p) * p->heads_q, keys = plan->pieces.most;
  backward_layout at = {.box_bytes = mpi_lay_out_box(plan, keys).bytes,
                        .item_bytes = bytes_of_item(plan, keys),
                        .own_count = own_pieces(plan),
                        .buffer_count = 2 * own_stations(plan) + 1};
  const memory_part parts[] = {{&at.q, rows, float_bytes(p->dim_qk)},
                               {&at.o, rows, float_bytes(p->dim_v)},
                               {&at.d_o, rows, float_bytes(p->dim_v)},
                               {&at.lse, rows, float_bytes(1)},
                               {&at.d_lse, rows, float_bytes(1)},
                               {&at.d_q, rows, float_bytes(p->dim_qk)},
                               {&at.own_items, at.own_count, at.item_bytes},
                               {&at.buffers, at.buffer_count, at.item_bytes},
                               {&at.k, 1, d_k_bytes(plan, keys)},
                               {&at.v, 1, d_v_bytes(plan, keys)},
                               {&at.call, 1, (int64_t)plan->call_bytes}};
  if (!LAY_OUT(parts, &at.bytes)) at.bytes = INT64_MAX;
  return at;
}

static const char *refuses(const attn_mpi_plan *plan) {
  return plan->overlaps ? "some rows are those of several ranks; gradients need each row once" : NULL;
}

static attn_status lay_out_mode(attn_mpi_plan *plan) {
  plan->keys_of_calls = plan->pieces.most;
  const attn_status status = mpi_find_calls(plan, &plan->pieces, OWN_PLACE, MESSAGE_PLACE);
  if (status != ATTN_OK) return status;
  const backward_layout at = lay_out_run(plan);
  return mpi_take_layout(plan, at.bytes, at.item_bytes, plan->pieces.most, "pieces of keys", "piece_keys");
}

/* ---- Rows and keys in float32 ---- */

/* Own rows of all blocks, to float32 or back. */
static void convert_rows(const attn_mpi_plan *plan, const attn_args *args, attn_dtype dtype, void *tensor,
                         const attn_strides *stride, int64_t columns, float *rows, bool to_tensor) {
  const attn_problem *p = &plan->whole;
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN);
  for (int64_t n = 0; n < plan->blocks.count; n++) {
    const mpi_part *block = &plan->blocks.part[n];
    const int64_t count = part_length(block);
    if (block->owner != plan->rank) continue;
    float *at = rows + block->at * batch_of(p) * p->heads_q * columns;
    for (int64_t r = 0; r < batch_of(p) * p->heads_q * count; r++, at += columns) {
      const int64_t i = r % count, h = r / count % p->heads_q, b = r / count / p->heads_q, token = block->begin + i;
      if (varlen && (token < args->cu_seqlens_q[0] || token >= args->cu_seqlens_q[p->batch])) continue;
      const int64_t from = attn_row_offset(&plan->own, stride, b, h, block->at + i);
      for (int64_t d = 0; d < columns; d++) {
        if (to_tensor)
          attn_store_f32(tensor, dtype, from + d * stride->d, at[d]);
        else
          at[d] = attn_load_f32((attn_storage){tensor, dtype}, from + d * stride->d);
      }
    }
  }
}

/* Gradients of own keys, to their tensor. */
static void store_keys(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *piece, void *tensor,
                       const attn_strides *stride, int64_t columns, const float *rows) {
  const attn_problem *p = &plan->whole;
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN);
  for (int64_t r = 0; tensor && r < part_length(piece) * plan->box.rows; r++, rows += columns) {
    const int64_t h = r % p->heads_kv, b = r / p->heads_kv % batch_of(p), j = r / plan->box.rows, token = piece->begin + j;
    if (varlen && (token < args->cu_seqlens_k[0] || token >= args->cu_seqlens_k[p->batch])) continue;
    const int64_t to = attn_row_offset(&plan->own, stride, b, h, piece->at + j);
    for (int64_t d = 0; d < columns; d++) attn_store_f32(tensor, p->dtype_kv, to + d * stride->d, rows[d]);
  }
}

static void widen(attn_dtype dtype, const void *from, int64_t count, float *to) {
  for (int64_t i = 0; i < count; i++) to[i] = attn_load_f32((attn_storage){from, dtype}, i);
}

/* ---- The way of a piece ---- */

static mpi_leg leg_out(const attn_mpi_plan *plan, int64_t item) {
  return (mpi_leg){0, mpi_lay_out_box(plan, part_length(&plan->pieces.part[item])).bytes};
}

static mpi_leg leg_on(const attn_mpi_plan *plan, int64_t item) {
  return (mpi_leg){0, bytes_of_item(plan, part_length(&plan->pieces.part[item]))};
}

static mpi_leg leg_back(const attn_mpi_plan *plan, int64_t item) {
  const int64_t keys = part_length(&plan->pieces.part[item]);
  return (mpi_leg){leg_out(plan, item).bytes, d_k_bytes(plan, keys) + d_v_bytes(plan, keys)};
}

typedef struct backward_run {
  backward_layout at;
  char *workspace;
} backward_run;

static attn_status see_piece(const mpi_journey *j, const mpi_visit *visit, char *item, mpi_requests *all) {
  attn_mpi_plan *plan = j->plan;
  const attn_problem *p = &plan->whole;
  const backward_run *run = j->context;
  const mpi_part *piece = &plan->pieces.part[visit->item];
  const int64_t keys = part_length(piece), heads = batch_of(p) * p->heads_q;
  const mpi_box_layout box = mpi_lay_out_box(plan, keys);
  float *k = floats_at(run->workspace, run->at.k), *v = floats_at(run->workspace, run->at.v);
  char *gradients = item + box.bytes;
  if (visit->first) memset(gradients, 0, (size_t)leg_back(plan, visit->item).bytes);
  widen(p->dtype_kv, item + box.k, keys * plan->box.rows * plan->box.k_row, k);
  widen(p->dtype_kv, item + box.v, keys * plan->box.rows * plan->box.v_row, v);
  for (int64_t n = visit->station; n < next_station(plan, visit->station); n++) {
    const mpi_part *block = &plan->blocks.part[n];
    if (!mpi_sees(plan, j->args, block, piece)) continue;
    const int64_t row = block->at * heads;
    attn_args a = *j->args;
    a.q = floats_at(run->workspace, run->at.q) + row * p->dim_qk;
    a.o = floats_at(run->workspace, run->at.o) + row * p->dim_v;
    a.d_o = floats_at(run->workspace, run->at.d_o) + row * p->dim_v;
    a.lse = floats_at(run->workspace, run->at.lse) + row;
    a.d_lse = attn_uses(p, ATTN_USE_D_LSE) ? floats_at(run->workspace, run->at.d_lse) + row : NULL;
    a.k = k, a.v = v;
    a.d_q = floats_at(run->workspace, run->at.d_q) + row * p->dim_qk;
    a.d_k = gradients;
    a.d_v = gradients + d_k_bytes(plan, keys);
    attn_status status = mpi_differentiate(plan, &a, block, piece, j->call_workspace);
    if (status == ATTN_OK) status = mpi_poll(all);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* Sets j->stops to the stations that the piece passes, by their first blocks, and returns their number. */
static int64_t find_stops(const mpi_journey *j, const mpi_part *piece, int64_t *first) {
  const attn_mpi_plan *plan = j->plan;
  const mpi_part *blocks = plan->blocks.part;
  int64_t count = 0, seen = 0, station = 0;
  for (int64_t block = 0; block < plan->blocks.count; block = next_station(plan, block), station++) {
    bool sees = false;
    for (int64_t n = block; n < next_station(plan, block); n++) sees |= mpi_sees(plan, j->args, &blocks[n], piece);
    if (!sees && count == 0) continue;
    if (count == 0) *first = station;
    j->stops[count++] = (mpi_stop){block, blocks[block].owner};
    if (sees) seen = count;
  }
  return seen;
}

static void plan_ways(mpi_journey *j, const backward_layout *at, char *workspace) {
  const attn_mpi_plan *plan = j->plan;
  for (int64_t t = 0; t < plan->pieces.count; t++) {
    const mpi_part *piece = &plan->pieces.part[t];
    char *item = workspace + at->own_items + j->own_count * at->item_bytes;
    const mpi_leg back = leg_back(plan, t);
    int64_t first = 0;
    const int64_t count = find_stops(j, piece, &first);
    if (piece->owner == plan->rank) {
      mpi_pack_keys(plan, j->args, piece, item);
      memset(item + back.at, 0, (size_t)back.bytes);
    }
    mpi_add_item(j, t, piece->owner, plan->pieces.count - 1 - t + first, count, item, item + back.at);
  }
}

static void load_rows(const attn_mpi_plan *plan, const attn_args *args, const backward_layout *at, char *workspace) {
  const attn_problem *p = &plan->whole, *own = &plan->own;
  memset(workspace + at->q, 0, (size_t)(at->own_items - at->q));
  convert_rows(plan, args, p->dtype_q, (void *)(uintptr_t)args->q, &own->q_stride, p->dim_qk, floats_at(workspace, at->q),
               false);
  convert_rows(plan, args, p->dtype_o, args->o, &own->o_stride, p->dim_v, floats_at(workspace, at->o), false);
  convert_rows(plan, args, p->dtype_o, (void *)(uintptr_t)args->d_o, &own->d_o_stride, p->dim_v,
               floats_at(workspace, at->d_o), false);
  convert_rows(plan, args, ATTN_F32, args->lse, &own->lse_stride, 1, floats_at(workspace, at->lse), false);
  if (attn_uses(p, ATTN_USE_D_LSE))
    convert_rows(plan, args, ATTN_F32, (void *)(uintptr_t)args->d_lse, &own->d_lse_stride, 1,
                 floats_at(workspace, at->d_lse), false);
}

static void store_gradients(const mpi_journey *j, const backward_layout *at, char *workspace) {
  const attn_mpi_plan *plan = j->plan;
  const attn_problem *own = &plan->own;
  const attn_args *args = j->args;
  if (args->d_q)
    convert_rows(plan, args, plan->whole.dtype_q, args->d_q, &own->d_q_stride, own->dim_qk, floats_at(workspace, at->d_q),
                 true);
  for (int64_t i = 0; i < j->own_count; i++) {
    const mpi_part *piece = &plan->pieces.part[j->own[i].item];
    const float *d_k = (const float *)(const void *)j->own[i].back;
    const float *d_v = (const float *)(const void *)(j->own[i].back + d_k_bytes(plan, part_length(piece)));
    store_keys(plan, args, piece, args->d_k, &own->d_k_stride, plan->box.k_row, d_k);
    store_keys(plan, args, piece, args->d_v, &own->d_v_stride, plan->box.v_row, d_v);
  }
}

static attn_status run_mode(attn_mpi_plan *plan, const attn_args *args, char *workspace) {
  backward_run run = {lay_out_run(plan), workspace};
  const backward_layout *at = &run.at;
  mpi_journey j = {.plan = plan,
                   .args = args,
                   .call_workspace = workspace + at->call,
                   .buffers = workspace + at->buffers,
                   .buffer_count = at->buffer_count,
                   .buffer_bytes = at->item_bytes,
                   .carries = true,
                   .out = leg_out,
                   .on = leg_on,
                   .back = leg_back,
                   .work = see_piece,
                   .context = &run};
  attn_status status = mpi_make_journey(&j, at->own_count, plan->pieces.count * own_stations(plan), plan->blocks.count);
  if (status == ATTN_OK) {
    plan_ways(&j, at, workspace);
    load_rows(plan, args, at, workspace);
    status = mpi_travel(&j);
  }
  if (status == ATTN_OK) store_gradients(&j, at, workspace);
  mpi_free_journey(&j);
  return status;
}

const mpi_mode mpi_backward = {"PASS_KV, gradients", refuses, lay_out_mode, run_mode};
