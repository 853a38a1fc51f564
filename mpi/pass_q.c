/* SPDX-License-Identifier: MIT */
/* PASS_Q: blocks of queries travel with their states, keys stay. A block goes from station to station in the order of keys;
 * a station is keys that one rank holds side by side. Many blocks are under way: block n is at station s in step n + s, so
 * all stations have work once the first blocks have got there. */
#include "plan.h"

typedef struct pass_q_layout {
  int64_t own_items, buffers, call, bytes;
  int64_t item_bytes, own_count, buffer_count;
} pass_q_layout;

static int64_t states_bytes(const attn_mpi_plan *plan, int64_t rows) {
  return round_up(batch_of(&plan->whole) * plan->whole.heads_q * rows * state_row_bytes(&plan->whole), ATTN_MEMORY_ALIGN);
}

/* An item is the packed rows of a block, then their states. */
static int64_t item_bytes(const attn_mpi_plan *plan, int64_t rows) {
  return mpi_query_bytes(plan, rows) + states_bytes(plan, rows);
}

/* Every station of a rank has the items of two steps, and one more is on its way. */
static pass_q_layout lay_out_run(const attn_mpi_plan *plan) {
  pass_q_layout at = {.item_bytes = item_bytes(plan, plan->blocks.most), .buffer_count = 2};
  for (int64_t i = 0; i < plan->blocks.count; i++) at.own_count += plan->blocks.part[i].owner == plan->rank;
  for (int64_t s = 0; s < plan->stations.count; s++) at.buffer_count += 2 * (plan->stations.part[s].owner == plan->rank);
  const memory_part parts[] = {{&at.own_items, at.own_count, at.item_bytes},
                               {&at.buffers, at.buffer_count, at.item_bytes},
                               {&at.call, 1, (int64_t)plan->call_bytes}};
  if (!LAY_OUT(parts, &at.bytes)) at.bytes = INT64_MAX;
  return at;
}

static attn_status lay_out_mode(attn_mpi_plan *plan) {
  plan->keys_of_calls = plan->stations.most;
  attn_status status = mpi_find_calls(plan, &plan->stations, MESSAGE_PLACE, OWN_PLACE);
  if (status == ATTN_OK) status = mpi_find_last_calls(plan);
  if (status != ATTN_OK) return status;
  const pass_q_layout at = lay_out_run(plan);
  return mpi_take_layout(plan, at.bytes, at.item_bytes, plan->blocks.most, "blocks of rows", "block_rows");
}

/* ---- The way of a block: from the first station that it sees to the last one ---- */

/* Sets j->stops to the stations that the block passes, and returns their number. */
static int64_t find_stops(const mpi_journey *j, int64_t item, int64_t *first) {
  const attn_mpi_plan *plan = j->plan;
  int64_t count = 0, seen = 0;
  for (int64_t s = 0; s < plan->stations.count; s++) {
    const mpi_part *station = &plan->stations.part[s];
    const bool sees = mpi_sees(plan, j->args, &plan->blocks.part[item], station);
    if (!sees && count == 0) continue;
    if (count == 0) *first = s;
    j->stops[count++] = (mpi_stop){s, station->owner};
    if (sees) seen = count;
  }
  return seen;
}

static mpi_leg leg_out(const attn_mpi_plan *plan, int64_t item) {
  return (mpi_leg){0, mpi_query_bytes(plan, part_length(&plan->blocks.part[item]))};
}

static mpi_leg leg_on(const attn_mpi_plan *plan, int64_t item) {
  return (mpi_leg){0, item_bytes(plan, part_length(&plan->blocks.part[item]))};
}

static mpi_leg leg_back(const attn_mpi_plan *plan, int64_t item) {
  const int64_t rows = part_length(&plan->blocks.part[item]);
  return (mpi_leg){mpi_query_bytes(plan, rows), states_bytes(plan, rows)};
}

static float *states_in(const attn_mpi_plan *plan, int64_t item, char *memory) {
  return (float *)(void *)(memory + mpi_query_bytes(plan, part_length(&plan->blocks.part[item])));
}

static attn_status see_station(const mpi_journey *j, const mpi_visit *visit, char *item, mpi_requests *all) {
  attn_mpi_plan *plan = j->plan;
  const mpi_part *block = &plan->blocks.part[visit->item], *station = &plan->stations.part[visit->station];
  const mpi_row_view rows = {.part = block, .place = MESSAGE_PLACE, .q = item, .state = states_in(plan, visit->item, item)};
  if (visit->first) mpi_start_states(plan, part_length(block), rows.state);
  const attn_status status = mpi_attend(plan, j->args, &rows, station, NULL, j->call_workspace);
  return status == ATTN_OK ? mpi_poll(all) : status;
}

static void plan_ways(mpi_journey *j, const pass_q_layout *at, char *workspace) {
  const attn_mpi_plan *plan = j->plan;
  for (int64_t i = 0; i < plan->blocks.count; i++) {
    const mpi_part *block = &plan->blocks.part[i];
    char *item = workspace + at->own_items + j->own_count * at->item_bytes;
    int64_t first = 0;
    const int64_t count = find_stops(j, i, &first);
    if (block->owner == plan->rank) {
      mpi_pack_rows(plan, j->args, block, item);
      mpi_start_states(plan, part_length(block), states_in(plan, i, item));
    }
    mpi_add_item(j, i, block->owner, i + first, count, item, (char *)states_in(plan, i, item));
  }
}

static attn_status run_mode(attn_mpi_plan *plan, const attn_args *args, char *workspace) {
  const pass_q_layout at = lay_out_run(plan);
  mpi_journey j = {.plan = plan,
                   .args = args,
                   .call_workspace = workspace + at.call,
                   .buffers = workspace + at.buffers,
                   .buffer_count = at.buffer_count,
                   .buffer_bytes = at.item_bytes,
                   .in_turn = true,
                   .carries = true,
                   .out = leg_out,
                   .on = leg_on,
                   .back = leg_back,
                   .work = see_station};
  attn_status status = mpi_make_journey(&j, at.own_count, plan->blocks.count * (at.buffer_count / 2), plan->stations.count);
  if (status == ATTN_OK) {
    plan_ways(&j, &at, workspace);
    status = mpi_travel(&j);
  }
  for (int64_t i = 0; i < j.own_count && status == ATTN_OK; i++) {
    const mpi_row_view rows = {
        .part = &plan->blocks.part[j.own[i].item], .place = OWN_PLACE, .state = (float *)(void *)j.own[i].back};
    status = mpi_finish(plan, args, &rows, workspace + at.call);
  }
  mpi_free_journey(&j);
  return status;
}

const mpi_mode mpi_pass_q = {"PASS_Q", mpi_rows_stay, lay_out_mode, run_mode};
