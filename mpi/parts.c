/* SPDX-License-Identifier: MIT */
/* Who holds which rows and keys: gathered from all ranks, checked, and cut into what messages and calls take. Every rank has
 * the same lists, so that all agree on who sends what to whom without a further message. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

static int64_t all_rows(const attn_problem *p) { return attn_uses(p, ATTN_USE_VARLEN) ? p->total_q : p->seq_q; }

static bool packs_keys(const attn_problem *p) { return attn_uses(p, ATTN_USE_VARLEN) && !attn_uses(p, ATTN_USE_PAGES); }

/* Whether borders are multiples of plan->unit: those of packed sequences are known to a run alone. */
static bool has_fixed_borders(const attn_problem *p) { return p->operation == ATTN_BACKWARD || !packs_keys(p); }

int64_t mpi_all_keys(const attn_problem *p) { return packs_keys(p) ? p->total_k : p->seq_k; }

/* ---- Gathering ---- */

static attn_status out_of_memory(size_t bytes) {
  return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan needs %zu bytes", bytes);
}

static attn_status new_parts(mpi_parts *parts, int64_t count) {
  const size_t bytes = (size_t)max64(count, 1) * sizeof *parts->part;
  *parts = (mpi_parts){.part = malloc(bytes)};
  return parts->part ? ATTN_OK : out_of_memory(bytes);
}

static void add_part(mpi_parts *parts, mpi_part part) {
  parts->part[parts->count++] = part;
  parts->most = max64(parts->most, part_length(&part));
}

/* Ranges of all ranks, as [begin, end) pairs in the order of ranks. */
static attn_status gather_ranges(attn_mpi_plan *plan, const attn_mpi_range *own, int64_t own_count, mpi_parts *parts,
                                 int64_t *first) {
  enum { ARRAYS = 3 };
  int *const counts = malloc((size_t)plan->ranks * ARRAYS * sizeof *counts), *const starts = counts + plan->ranks;
  if (!counts) return out_of_memory((size_t)plan->ranks * ARRAYS * sizeof *counts);
  const int count = (int)own_count * 2;
  MPI_Request request;
  int error = MPI_Iallgather(&count, 1, MPI_INT, counts, 1, MPI_INT, plan->comm, &request);
  attn_status status = error ? mpi_failed(plan, "MPI_Iallgather", error) : mpi_wait_one(plan, &request);
  int all = 0;
  for (int rank = 0; status == ATTN_OK && rank < plan->ranks; rank++) starts[rank] = all, all += counts[rank];
  int64_t *const pairs = malloc((size_t)max64(all, 1) * sizeof *pairs);
  if (status == ATTN_OK && !pairs) status = out_of_memory((size_t)all * sizeof *pairs);
  if (status == ATTN_OK) status = new_parts(parts, all / 2);
  if (status == ATTN_OK) {
    error = MPI_Iallgatherv(own, count, MPI_INT64_T, pairs, counts, starts, MPI_INT64_T, plan->comm, &request);
    status = error ? mpi_failed(plan, "MPI_Iallgatherv", error) : mpi_wait_one(plan, &request);
  }
  for (int rank = 0; status == ATTN_OK && rank < plan->ranks; rank++) {
    int64_t at = 0;
    if (first) first[rank] = parts->count;
    for (int i = starts[rank]; i < starts[rank] + counts[rank]; i += 2) {
      add_part(parts, (mpi_part){pairs[i], pairs[i + 1], rank, at});
      at += pairs[i + 1] - pairs[i];
    }
  }
  if (status == ATTN_OK && first) first[plan->ranks] = parts->count;
  free(pairs);
  free(counts);
  return status;
}

/* ---- Checks ---- */

/* Ranges of a rank ascend and lie within the sequence. */
static attn_status check_ranges(const char *name, const mpi_parts *parts, int64_t tokens) {
  for (int64_t i = 0; i < parts->count; i++) {
    const mpi_part *part = &parts->part[i];
    const bool follows = i > 0 && part[-1].owner == part->owner;
    if (part->begin < 0 || part->end < part->begin || part->end > tokens)
      return attn_fail(ATTN_INVALID_ARGUMENT,
                       "attn_mpi_shard.%s of rank %d has the range %" PRId64 " to %" PRId64
                       "; it must lie within 0 to %" PRId64,
                       name, part->owner, part->begin, part->end, tokens);
    if (follows && part[-1].end > part->begin)
      return attn_fail(ATTN_INVALID_ARGUMENT,
                       "attn_mpi_shard.%s of rank %d has %" PRId64 " to %" PRId64 " before %" PRId64 " to %" PRId64
                       "; ranges must ascend and be apart",
                       name, part->owner, part[-1].begin, part[-1].end, part->begin, part->end);
  }
  return ATTN_OK;
}

static int by_begin(const void *a, const void *b) {
  const mpi_part *x = a, *y = b;
  if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
  return x->owner < y->owner ? -1 : x->owner > y->owner;
}

/* In the order of tokens; empty ones are left out. */
static attn_status sort_parts(const mpi_parts *parts, int64_t most, int64_t unit, mpi_parts *sorted) {
  int64_t count = 0;
  for (int64_t i = 0; i < parts->count; i++) count += ceil_div(part_length(&parts->part[i]), most) + 1;
  const attn_status status = new_parts(sorted, count);
  if (status != ATTN_OK) return status;
  for (int64_t i = 0; i < parts->count; i++) {
    const mpi_part *part = &parts->part[i];
    for (int64_t begin = part->begin, end; begin < part->end; begin = end) {
      end = round_down(begin + most, unit);
      end = end <= begin ? part->end : min64(end, part->end);
      add_part(sorted, (mpi_part){begin, end, part->owner, part->at + begin - part->begin});
    }
  }
  qsort(sorted->part, (size_t)sorted->count, sizeof *sorted->part, by_begin);
  return ATTN_OK;
}

static attn_status check_keys(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  const int64_t keys = mpi_all_keys(p);
  mpi_parts sorted;
  attn_status status = sort_parts(&plan->keys, keys + 1, 1, &sorted);
  if (status != ATTN_OK) return status;
  int64_t end = 0;
  for (int64_t i = 0; i < sorted.count && status == ATTN_OK; i++) {
    const mpi_part *part = &sorted.part[i];
    if (part->begin != end)
      status = attn_fail(ATTN_INVALID_ARGUMENT,
                         "attn_mpi_shard.k: key %" PRId64 " is held %s; all ranks together must hold each key once",
                         min64(end, part->begin), part->begin > end ? "by no rank" : "twice");
    else if (has_fixed_borders(p) && part->begin % plan->unit != 0)
      status = attn_fail(ATTN_INVALID_ARGUMENT,
                         "attn_mpi_shard.k of rank %d begins at key %" PRId64
                         "; it must be a multiple of attn_mpi_border(), %" PRId64,
                         part->owner, part->begin, plan->unit);
    end = part->end;
  }
  free(sorted.part);
  if (status == ATTN_OK && end != keys)
    status =
        attn_fail(ATTN_INVALID_ARGUMENT,
                  "attn_mpi_shard.k: key %" PRId64 " is held by no rank; all ranks together must hold each key once", end);
  return status;
}

/* Gradients are sums over blocks of rows, too. */
static attn_status check_row_borders(const attn_mpi_plan *plan) {
  const int64_t rows = all_rows(&plan->whole), unit = plan->unit;
  for (int64_t i = 0; i < plan->rows.count; i++) {
    const mpi_part *part = &plan->rows.part[i];
    if (part->begin < part->end && (part->begin % unit || (part->end % unit && part->end != rows)))
      return attn_fail(ATTN_INVALID_ARGUMENT,
                       "attn_mpi_shard.q of rank %d has %" PRId64 " to %" PRId64
                       "; for gradients its borders must be multiples of piece_keys or attn_mpi_border(), %" PRId64,
                       part->owner, part->begin, part->end, unit);
  }
  return ATTN_OK;
}

/* Whether each rank holds all rows, or some rows are held by several. */
static attn_status compare_rows(attn_mpi_plan *plan) {
  mpi_parts sorted;
  const attn_status status = sort_parts(&plan->rows, INT64_MAX / 4, 1, &sorted);
  if (status != ATTN_OK) return status;
  for (int64_t i = 1; i < sorted.count; i++) plan->overlaps |= sorted.part[i - 1].end > sorted.part[i].begin;
  free(sorted.part);
  plan->holds_all = true;
  for (int rank = 0; rank < plan->ranks; rank++) {
    int64_t rows = 0;
    for (int64_t i = plan->first_rows[rank]; i < plan->first_rows[rank + 1]; i++) rows += part_length(&plan->rows.part[i]);
    plan->holds_all &= rows == all_rows(&plan->whole);
  }
  return ATTN_OK;
}

attn_status mpi_gather_parts(attn_mpi_plan *plan, const attn_mpi_shard *shard) {
  plan->first_rows = malloc(((size_t)plan->ranks + 1) * sizeof *plan->first_rows);
  if (!plan->first_rows) return out_of_memory(((size_t)plan->ranks + 1) * sizeof *plan->first_rows);
  attn_status status = gather_ranges(plan, shard->q, shard->q_count, &plan->rows, plan->first_rows);
  if (status == ATTN_OK) status = gather_ranges(plan, shard->k, shard->k_count, &plan->keys, NULL);
  if (status == ATTN_OK) status = check_ranges("q", &plan->rows, all_rows(&plan->whole));
  if (status == ATTN_OK) status = check_ranges("k", &plan->keys, mpi_all_keys(&plan->whole));
  if (status == ATTN_OK) status = check_keys(plan);
  if (status == ATTN_OK && finds_gradients(plan)) status = check_row_borders(plan);
  return status == ATTN_OK ? compare_rows(plan) : status;
}

/* ---- Cutting ---- */

/* Keys of one rank side by side. */
static attn_status join_pieces(const mpi_parts *pieces, mpi_parts *stations) {
  const attn_status status = new_parts(stations, pieces->count);
  if (status != ATTN_OK) return status;
  for (int64_t i = 0; i < pieces->count; i++) {
    const mpi_part *part = &pieces->part[i];
    mpi_part *before = &stations->part[stations->count - 1];
    if (stations->count > 0 && before->owner == part->owner && before->at + part_length(before) == part->at)
      before->end = part->end;
    else
      add_part(stations, *part);
  }
  for (int64_t i = 0; i < stations->count; i++) stations->most = max64(stations->most, part_length(&stations->part[i]));
  return ATTN_OK;
}

attn_status mpi_cut_parts(attn_mpi_plan *plan, int64_t piece_keys, int64_t block_rows) {
  const bool whole = !has_fixed_borders(&plan->whole);
  const int64_t row_unit = finds_gradients(plan) ? plan->unit : 1;
  attn_status status = sort_parts(&plan->keys, whole ? INT64_MAX / 4 : piece_keys, whole ? 1 : plan->unit, &plan->pieces);
  if (status == ATTN_OK) status = sort_parts(&plan->rows, block_rows, row_unit, &plan->blocks);
  if (status == ATTN_OK) status = join_pieces(&plan->pieces, &plan->stations);
  return status;
}

void mpi_free_parts(attn_mpi_plan *plan) {
  free(plan->rows.part);
  free(plan->keys.part);
  free(plan->pieces.part);
  free(plan->blocks.part);
  free(plan->stations.part);
  free(plan->first_rows);
  free(plan->rank_splits);
}

/* ---- Groups of ranks ---- */

static attn_status join_ranges(const mpi_parts *ranges, const attn_mpi_plan *plan, int groups, mpi_parts *joined,
                               int64_t *first) {
  mpi_parts sorted;
  attn_status status = new_parts(joined, ranges->count);
  if (status == ATTN_OK) status = sort_parts(ranges, INT64_MAX / 4, 1, &sorted);
  if (status != ATTN_OK) return status;
  for (int group = 0; group < groups; group++) {
    int64_t at = 0;
    first[group] = joined->count;
    for (int64_t i = 0; i < sorted.count; i++) {
      const mpi_part *part = &sorted.part[i];
      mpi_part *before = &joined->part[joined->count - 1];
      if (part->owner / plan->group != group) continue;
      if (joined->count > first[group] && before->end == part->begin)
        before->end = part->end;
      else
        add_part(joined, (mpi_part){part->begin, part->end, group, at});
      at += part_length(part);
    }
  }
  first[groups] = joined->count;
  for (int64_t i = 0; i < joined->count; i++) joined->most = max64(joined->most, part_length(&joined->part[i]));
  free(sorted.part);
  return ATTN_OK;
}

static int64_t own_tokens(const mpi_parts *parts, int rank) {
  int64_t tokens = 0;
  for (int64_t i = 0; i < parts->count; i++) tokens += parts->part[i].owner == rank ? part_length(&parts->part[i]) : 0;
  return tokens;
}

attn_status mpi_join_groups(const attn_mpi_plan *plan, attn_mpi_plan *ring) {
  const size_t bytes = ((size_t)ring->ranks + 1) * sizeof *ring->first_rows;
  ring->first_rows = malloc(bytes);
  if (!ring->first_rows) return out_of_memory(bytes);
  attn_status status = join_ranges(&plan->keys, plan, ring->ranks, &ring->keys, ring->first_rows);
  if (status == ATTN_OK) status = join_ranges(&plan->rows, plan, ring->ranks, &ring->rows, ring->first_rows);
  ring->own_rows = own_tokens(&ring->rows, ring->rank);
  ring->own_keys = own_tokens(&ring->keys, ring->rank);
  return status;
}

/* ---- Who sees what ---- */

bool mpi_sees(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, const mpi_part *keys) {
  const attn_problem *p = &plan->whole;
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, args, b);
    const int64_t row = max64(rows->begin - seq.first_q, 0), row_end = min64(rows->end - seq.first_q, seq.len_q);
    const int64_t key = max64(keys->begin - seq.first_k, 0), key_end = min64(keys->end - seq.first_k, seq.len_k);
    if (row >= row_end || key >= key_end) continue;
    const int64_t last = attn_saturating_add(attn_saturating_add(row_end - 1, seq.offset), max64(p->window_right, 0));
    const int64_t first = attn_saturating_add(attn_saturating_add(row, seq.offset), -max64(p->window_left, 0));
    if ((p->window_right < 0 || key <= last) && (p->window_left < 0 || key_end > first)) return true;
  }
  return false;
}

bool mpi_rank_sees(const attn_mpi_plan *plan, const attn_args *args, int rank, const mpi_part *keys) {
  for (int64_t i = plan->first_rows[rank]; i < plan->first_rows[rank + 1]; i++)
    if (mpi_sees(plan, args, &plan->rows.part[i], keys)) return true;
  return false;
}
