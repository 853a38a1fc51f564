/* SPDX-License-Identifier: MIT */
/* PASS_KV: keys and values travel, queries stay. Every rank sees the pieces of keys in their order, so the states of its
 * rows go on from piece to piece as in one call.
 *
 * A piece goes from its owner to the lowest rank that needs it, and then up, to each that needs it. With zigzag shards under
 * a causal mask rank r has two chunks of rows that see piece t while t <= r, and one later: it takes t + min(r, t) units of
 * time to get to piece t. So rank r + 1 is one unit behind rank r, and no rank waits for another but at the start.
 *
 * A rank receives one piece at a time from another one. Several would share the link and all come late, on each rank of the
 * way. The lowest rank gets pieces from their owners, whose links also carry others: it receives several. */
#include "plan.h"

enum { BUFFERS = 3 /* one is read, one arrives, one leaves */ };

typedef struct pass_kv_layout {
  int64_t states, own_pieces, buffers, call, bytes;
  int64_t piece_bytes, own_count, buffer_count;
} pass_kv_layout;

/* Buffers: a rank that is ahead by one chunk of the zigzag waits for nobody, so where chunks are cut into pieces, there is
 * room for a chunk more. */
static int64_t buffers_of(const attn_mpi_plan *plan) {
  if (plan->ranks == 1) return 0;
  return BUFFERS + ceil_div(plan->keys.most, max64(plan->pieces.most, 1)) - 1;
}

static pass_kv_layout lay_out_run(const attn_mpi_plan *plan) {
  pass_kv_layout at = {.piece_bytes = mpi_lay_out_box(plan, plan->pieces.most).bytes, .buffer_count = buffers_of(plan)};
  for (int64_t t = 0; plan->ranks > 1 && t < plan->pieces.count; t++)
    at.own_count += plan->pieces.part[t].owner == plan->rank;
  const int64_t row_bytes = batch_of(&plan->whole) * plan->whole.heads_q * state_row_bytes(&plan->whole);
  const memory_part parts[] = {{&at.states, plan->own_rows, row_bytes},
                               {&at.own_pieces, at.own_count, at.piece_bytes},
                               {&at.buffers, at.buffer_count, at.piece_bytes},
                               {&at.call, 1, (int64_t)plan->call_bytes}};
  if (!LAY_OUT(parts, &at.bytes)) at.bytes = INT64_MAX;
  return at;
}

static const char *refuses(const attn_mpi_plan *plan) {
  (void)plan;
  return NULL;
}

static attn_status lay_out_mode(attn_mpi_plan *plan) {
  plan->keys_of_calls = plan->pieces.most;
  attn_status status = mpi_find_calls(plan, &plan->pieces, OWN_PLACE, OWN_PLACE);
  if (status == ATTN_OK) status = mpi_find_calls(plan, &plan->pieces, OWN_PLACE, MESSAGE_PLACE);
  if (status == ATTN_OK) status = mpi_find_last_calls(plan);
  if (status != ATTN_OK) return status;
  const pass_kv_layout at = lay_out_run(plan);
  return mpi_take_layout(plan, at.bytes, at.piece_bytes, plan->pieces.most, "pieces of keys", "piece_keys");
}

/* ---- The way of a piece: up through the ranks that need it ---- */

static int next_rank(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *piece, int rank, int step) {
  for (rank += step; rank >= 0 && rank < plan->ranks; rank += step)
    if (rank != piece->owner && mpi_rank_sees(plan, args, rank, piece)) return rank;
  return -1;
}

static mpi_leg all_of_piece(const attn_mpi_plan *plan, int64_t item) {
  return (mpi_leg){0, mpi_lay_out_box(plan, part_length(&plan->pieces.part[item])).bytes};
}

static attn_status see_piece(const mpi_journey *j, const mpi_visit *visit, char *item, mpi_requests *all) {
  attn_mpi_plan *plan = j->plan;
  const mpi_part *piece = &plan->pieces.part[visit->item];
  const int64_t row_floats = batch_of(&plan->whole) * plan->whole.heads_q * attn_state_floats(plan->whole.dim_v);
  for (int64_t i = 0; i < plan->blocks.count; i++) {
    const mpi_part *block = &plan->blocks.part[i];
    if (block->owner != plan->rank || !mpi_sees(plan, j->args, block, piece)) continue;
    const mpi_row_view rows = {.part = block, .place = OWN_PLACE, .state = (float *)j->context + block->at * row_floats};
    attn_status status = mpi_attend(plan, j->args, &rows, piece, item, j->call_workspace);
    if (status == ATTN_OK) status = mpi_poll(all);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

/* Own pieces and visits of this run, in the order of keys. */
static void plan_ways(mpi_journey *j, const pass_kv_layout *at, char *workspace) {
  const attn_mpi_plan *plan = j->plan;
  const attn_args *args = j->args;
  for (int64_t t = 0; t < plan->pieces.count; t++) {
    const mpi_part *piece = &plan->pieces.part[t];
    const bool mine = piece->owner == plan->rank, needs = mpi_rank_sees(plan, args, plan->rank, piece);
    mpi_visit visit = {.item = t, .from = -1, .to = -1};
    if (mine && plan->ranks > 1) {
      mpi_own_item *own = &j->own[j->own_count];
      *own = (mpi_own_item){t, next_rank(plan, args, piece, -1, 1), -1, NULL, NULL};
      own->out = workspace + at->own_pieces + j->own_count * at->piece_bytes;
      if (own->to >= 0) mpi_pack_keys(plan, args, piece, own->out), j->own_count++;
    } else if (!mine && needs) {
      const int before = next_rank(plan, args, piece, plan->rank, -1);
      visit.first = before < 0;
      visit.from = before < 0 ? piece->owner : before;
      visit.to = next_rank(plan, args, piece, plan->rank, 1);
    }
    if (needs) j->visits[j->count++] = visit;
  }
}

static attn_status run_mode(attn_mpi_plan *plan, const attn_args *args, char *workspace) {
  const pass_kv_layout at = lay_out_run(plan);
  const int64_t row_floats = batch_of(&plan->whole) * plan->whole.heads_q * attn_state_floats(plan->whole.dim_v);
  float *states = floats_at(workspace, at.states);
  mpi_start_states(plan, plan->own_rows, states);
  mpi_journey j = {.plan = plan,
                   .args = args,
                   .call_workspace = workspace + at.call,
                   .buffers = workspace + at.buffers,
                   .buffer_count = at.buffer_count,
                   .buffer_bytes = at.piece_bytes,
                   .in_turn = true,
                   .out = all_of_piece,
                   .on = all_of_piece,
                   .back = all_of_piece,
                   .work = see_piece,
                   .context = states};
  attn_status status = mpi_make_journey(&j, at.own_count, plan->pieces.count, 0);
  if (status == ATTN_OK) {
    plan_ways(&j, &at, workspace);
    status = mpi_travel(&j);
  }
  for (int64_t i = 0; i < plan->blocks.count && status == ATTN_OK; i++) {
    const mpi_part *block = &plan->blocks.part[i];
    if (block->owner != plan->rank) continue;
    const mpi_row_view rows = {.part = block, .place = OWN_PLACE, .state = states + block->at * row_floats};
    status = mpi_finish(plan, args, &rows, workspace + at.call);
  }
  mpi_free_journey(&j);
  return status;
}

const mpi_mode mpi_pass_kv = {"PASS_KV", refuses, lay_out_mode, run_mode};
