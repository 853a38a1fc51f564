/* SPDX-License-Identifier: MIT */
/* PASS_Q: blocks of queries travel with their states, keys stay. A block goes from station to station in the order of keys;
 * a station is keys that one rank holds side by side. Many blocks are under way: block n is at station s in step n + s, so
 * all stations have work once the first blocks have got there. */
#include <stdlib.h>

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

/* Every station of a rank has the items of two steps. */
static pass_q_layout lay_out_run(const attn_mpi_plan *plan) {
  pass_q_layout at = {.item_bytes = item_bytes(plan, plan->blocks.most), .buffer_count = 1};
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

static mpi_part stations_of(const attn_mpi_plan *plan, const attn_args *args, int64_t item) {
  const mpi_part *block = &plan->blocks.part[item];
  mpi_part seen = {0, 0, 0, 0};
  for (int64_t s = 0; s < plan->stations.count; s++) {
    if (!mpi_sees(plan, args, block, &plan->stations.part[s])) continue;
    if (seen.end == 0) seen.begin = s;
    seen.end = s + 1;
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

static int by_step(const void *a, const void *b) {
  const mpi_visit *x = a, *y = b;
  if (x->step != y->step) return x->step < y->step ? -1 : 1;
  return x->item < y->item ? -1 : x->item > y->item;
}

static attn_status run_mode(attn_mpi_plan *plan, const attn_args *args, char *workspace) {
  const pass_q_layout at = lay_out_run(plan);
  mpi_visit *visits = malloc((size_t)max64(plan->blocks.count * (at.buffer_count / 2), 1) * sizeof *visits);
  mpi_own_item *own = malloc((size_t)max64(at.own_count, 1) * sizeof *own);
  attn_status status = ATTN_OK;
  if (!visits || !own)
    status = attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan_run needs room for %lld blocks",
                       (long long)plan->blocks.count);
  mpi_journey j = {.plan = plan,
                   .args = args,
                   .call_workspace = workspace + at.call,
                   .own = own,
                   .visits = visits,
                   .buffers = workspace + at.buffers,
                   .buffer_count = at.buffer_count,
                   .buffer_bytes = at.item_bytes,
                   .carries = true,
                   .out = leg_out,
                   .on = leg_on,
                   .back = leg_back,
                   .work = see_station};
  for (int64_t i = 0; i < plan->blocks.count && status == ATTN_OK; i++) {
    const mpi_part *block = &plan->blocks.part[i], *station = plan->stations.part;
    const mpi_part seen = stations_of(plan, args, i);
    const bool any = seen.begin < seen.end;
    for (int64_t s = seen.begin; s < seen.end; s++)
      if (station[s].owner == plan->rank)
        visits[j.count++] = (mpi_visit){.item = i,
                                        .station = s,
                                        .step = i + s,
                                        .from = s > seen.begin ? station[s - 1].owner : block->owner,
                                        .to = s + 1 < seen.end ? station[s + 1].owner : block->owner,
                                        .first = s == seen.begin,
                                        .last = s + 1 == seen.end};
    if (block->owner != plan->rank) continue;
    char *item = workspace + at.own_items + j.own_count * at.item_bytes;
    mpi_pack_rows(plan, args, block, item);
    mpi_start_states(plan, part_length(block), states_in(plan, i, item));
    own[j.own_count++] = (mpi_own_item){.item = i,
                                        .to = any ? station[seen.begin].owner : -1,
                                        .from = any ? station[seen.end - 1].owner : -1,
                                        .out = item,
                                        .back = (char *)states_in(plan, i, item)};
  }
  if (status == ATTN_OK) {
    qsort(visits, (size_t)j.count, sizeof *visits, by_step);
    status = mpi_travel(&j);
  }
  for (int64_t i = 0; i < j.own_count && status == ATTN_OK; i++) {
    const mpi_row_view rows = {
        .part = &plan->blocks.part[own[i].item], .place = OWN_PLACE, .state = (float *)(void *)own[i].back};
    status = mpi_finish(plan, args, &rows, workspace + at.call);
  }
  free(visits);
  free(own);
  return status;
}

const mpi_mode mpi_pass_q = {"PASS_Q", mpi_rows_stay, lay_out_mode, run_mode};
