/* SPDX-License-Identifier: MIT */
/* SPLIT: queries are everywhere, keys stay. Each rank attends to its own keys as the decode kernels do: every split of the
 * keys leaves a state of each row. Those of all splits are joined in the order of keys by attn_partial_merge(), the rule of
 * the kernels, so rows have the bits of one process. Each rank joins a share of the rows, or of their columns; then all get
 * the joined states and divide. Both messages go in rounds (rounds.c), as they are small. */
#include <stdlib.h>
#include <string.h>

#include "plan.h"

typedef struct split_layout {
  int64_t q, own_q, states, slots, sent, received, joined, all, last, call, bytes;
  int64_t rows, columns, parts, cells; /* a cell is some columns of a row; a row has so many parts */
  int64_t own_splits, slot_bytes;
} split_layout;

enum { LEAST_COLUMNS = 16, CELL_SUM = 0, CELL_REFERENCE, CELL_LOW, CELL_FLOATS };
enum { ROW_TAG, STATE_TAG, JOINED_TAG };

static int64_t splits_in(const attn_mpi_plan *plan, const mpi_part *station) {
  return ceil_div(part_length(station), plan->splits);
}

/* Splits of the keys of each rank. */
static attn_status count_splits(attn_mpi_plan *plan) {
  plan->rank_splits = calloc((size_t)plan->ranks, sizeof *plan->rank_splits);
  if (!plan->rank_splits)
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan needs room for %d ranks", plan->ranks);
  for (int64_t s = 0; s < plan->stations.count; s++)
    plan->rank_splits[plan->stations.part[s].owner] += splits_in(plan, &plan->stations.part[s]);
  return ATTN_OK;
}

/* Cells [begin, end) that a rank joins. */
static mpi_heads share_of(const attn_mpi_plan *plan, const split_layout *at, int rank) {
  return (mpi_heads){at->cells * rank / plan->ranks, at->cells * (rank + 1) / plan->ranks};
}

static int64_t share_length(const attn_mpi_plan *plan, const split_layout *at, int rank) {
  const mpi_heads share = share_of(plan, at, rank);
  return share.end - share.begin;
}

static int64_t cell_bytes(const split_layout *at) { return float_bytes(at->columns + CELL_FLOATS); }

static split_layout lay_out_run(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  split_layout at = {.rows = p->batch * p->heads_q * p->seq_q, .own_splits = plan->rank_splits[plan->rank]};
  const int64_t ranks_of_row = max64(1, plan->ranks / max64(at.rows, 1));
  at.columns = min64(p->dim_v, max64(LEAST_COLUMNS, ceil_div(p->dim_v, ranks_of_row)));
  at.parts = ceil_div(p->dim_v, at.columns);
  at.cells = at.rows * at.parts;
  int64_t most_splits = 0;
  for (int rank = 0; rank < plan->ranks; rank++) most_splits = max64(most_splits, plan->rank_splits[rank]);
  at.slot_bytes = round_up(most_splits * ceil_div(at.cells, plan->ranks) * cell_bytes(&at), ATTN_MEMORY_ALIGN);
  const int64_t gathered = plan->holds_all ? 0 : 1;
  const int64_t q_bytes = p->batch * p->heads_q * attn_elements_bytes(p->dtype_q, p->dim_qk);
  const memory_part parts[] = {{&at.q, gathered * p->seq_q, q_bytes},
                               {&at.own_q, gathered * plan->own_rows, q_bytes},
                               {&at.states, at.own_splits * at.rows, state_row_bytes(p)},
                               {&at.slots, plan->ranks, at.slot_bytes},
                               {&at.sent, plan->ranks, at.slot_bytes},
                               {&at.received, plan->ranks, at.slot_bytes},
                               {&at.joined, at.cells, cell_bytes(&at)},
                               {&at.all, at.cells, cell_bytes(&at)},
                               {&at.last, plan->blocks.most * p->batch * p->heads_q, state_row_bytes(p)},
                               {&at.call, 1, (int64_t)plan->call_bytes}};
  if (!LAY_OUT(parts, &at.bytes)) at.bytes = INT64_MAX;
  return at;
}

static const char *refuses(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  if (strcmp(attn_kernel_find(plan->kernel)->algorithm, "decode") != 0)
    return "the kernel adds keys one after the other; take ATTN_MPI_PASS_Q, or a decode kernel";
  if (attn_uses(p, ATTN_USE_VARLEN)) return "it takes no packed sequences; take ATTN_MPI_PASS_Q";
  if (attn_uses(p, ATTN_USE_PAGES) && plan->splits % plan->own.page_tokens != 0)
    return "splits of the keys are no whole pages; take ATTN_MPI_PASS_Q";
  if (!plan->holds_all && attn_uses(p, ATTN_USE_BIAS | ATTN_USE_MASK | ATTN_USE_ROW_LEN))
    return "bias, mask and row_len stay with their rows; give each rank all rows, or take ATTN_MPI_PASS_KV";
  return NULL;
}

/* ---- Calls: the splits of a station side by side are the batch ---- */

static attn_problem problem_of_splits(const attn_mpi_plan *plan, int64_t splits, int64_t keys) {
  attn_problem p = plan->whole;
  const attn_problem *own = &plan->own;
  const int64_t rows = p.seq_q, heads = p.heads_q, floats = attn_state_floats(p.dim_v), split = plan->splits;
  p.batch = splits;
  p.seq_k = keys;
  p.align = ATTN_ALIGN_OFFSET;
  p.uses = (p.uses | ATTN_USE_STATE | ATTN_USE_KV_LEN | ATTN_USE_Q_LEN) & ~(uint32_t)(ATTN_USE_LSE | ATTN_USE_SINKS);
  p.q_stride = plan->holds_all ? own->q_stride : (attn_strides){0, p.dim_qk, plan->whole.batch * heads * p.dim_qk, 1};
  p.q_stride.b = 0;
  p.o_stride = (attn_strides){heads * rows * p.dim_v, rows * p.dim_v, p.dim_v, 1};
  p.state_stride = (attn_strides){heads * rows * floats, rows * floats, floats, 1};
  p.k_stride = own->k_stride, p.v_stride = own->v_stride;
  p.k_scale_stride = own->k_scale_stride, p.v_scale_stride = own->v_scale_stride;
  p.bias_stride = own->bias_stride, p.mask_stride = own->mask_stride;
  p.bias_stride.b = split * p.bias_stride.k, p.mask_stride.b = split * p.mask_stride.k;
  p.page_tokens = own->page_tokens;
  p.pages = own->pages;
  if (attn_uses(&p, ATTN_USE_PAGES)) {
    p.page_table_stride = split / own->page_tokens;
    return p;
  }
  p.k_stride.b = split * p.k_stride.s, p.v_stride.b = split * p.v_stride.s;
  p.k_scale_stride.b = split * p.k_scale_stride.s, p.v_scale_stride.b = split * p.v_scale_stride.s;
  return p;
}

/* Plans of own stations, two of each: whole splits, and what is left. */
static attn_status make_calls(attn_mpi_plan *plan) {
  for (int64_t s = 0; s < plan->stations.count; s++) {
    const mpi_part *station = &plan->stations.part[s];
    const int64_t whole = part_length(station) / plan->splits, rest = part_length(station) % plan->splits;
    if (station->owner != plan->rank) continue;
    plan->more_numbers = max64(plan->more_numbers, (whole + 1) * (3 + plan->whole.seq_q));
    for (int i = 0; i < 2; i++) {
      const mpi_call call = {.rows = -1,
                             .keys = i == 0 ? whole : rest,
                             .problem = problem_of_splits(plan, i == 0 ? whole : 1, i == 0 ? plan->splits : rest)};
      const attn_status status = mpi_add_call(plan, &call);
      if (status != ATTN_OK) return status;
    }
  }
  return ATTN_OK;
}

static attn_status lay_out_mode(attn_mpi_plan *plan) {
  attn_status status = count_splits(plan);
  if (status == ATTN_OK) status = make_calls(plan);
  if (status == ATTN_OK) status = mpi_find_last_calls(plan);
  if (status != ATTN_OK) return status;
  const split_layout at = lay_out_run(plan);
  if (at.bytes == INT64_MAX) return attn_fail(ATTN_UNSUPPORTED, "the workspace of ATTN_MPI_SPLIT exceeds the address space");
  plan->workspace = (size_t)at.bytes;
  return ATTN_OK;
}

/* Splits [first, first + call's batch) of a station, of sequence b. */
static attn_status see_splits(attn_mpi_plan *plan, const attn_args *args, const mpi_call *call, const mpi_part *station,
                              int64_t first, int64_t b, const char *q, float *states, void *workspace) {
  const attn_problem *p = &call->problem, *own = &plan->own;
  const attn_sequence seq = attn_sequence_of(&plan->whole, args, b);
  const int64_t skipped = first * plan->splits, at = station->at + skipped;
  int32_t *kv_len = plan->numbers, *q_len = kv_len + p->batch, *offsets = q_len + p->batch, *row_len = offsets + p->batch;
  for (int64_t n = 0; n < p->batch; n++) {
    const int64_t key = station->begin + skipped + n * plan->splits;
    kv_len[n] = (int32_t)max64(0, min64(seq.len_k - key, p->seq_k));
    q_len[n] = (int32_t)seq.len_q;
    offsets[n] = (int32_t)max64(INT32_MIN, min64(seq.offset - key, INT32_MAX));
    for (int64_t i = 0; attn_uses(p, ATTN_USE_ROW_LEN) && i < p->seq_q; i++)
      row_len[n * p->seq_q + i] = (int32_t)max64(0, min64(args->row_len[b * p->seq_q + i] - key, p->seq_k));
  }
  attn_args a = *args;
  const int64_t key = station->begin + skipped;
  a.q = q;
  a.o = NULL, a.lse = NULL, a.sinks = NULL;
  a.state = states;
  a.kv_len = kv_len, a.q_len = q_len, a.offsets = offsets;
  if (a.row_len) a.row_len = row_len;
  if (a.bias) a.bias += b * own->bias_stride.b + key * own->bias_stride.k;
  if (a.mask) a.mask += b * own->mask_stride.b + key * own->mask_stride.k;
  if (attn_uses(p, ATTN_USE_PAGES)) {
    a.page_table += b * own->page_table_stride + at / own->page_tokens;
  } else {
    a.k = attn_element_at(a.k, p->dtype_kv, b * own->k_stride.b + at * own->k_stride.s);
    a.v = attn_element_at(a.v, p->dtype_kv, b * own->v_stride.b + at * own->v_stride.s);
    if (a.k_scale) a.k_scale += b * own->k_scale_stride.b + at * own->k_scale_stride.s;
    if (a.v_scale) a.v_scale += b * own->v_scale_stride.b + at * own->v_scale_stride.s;
  }
  return mpi_run_call(plan, call, &a, workspace);
}

/* States of own splits, [batch][split][head][row]. */
static attn_status see_own_keys(attn_mpi_plan *plan, const attn_args *args, const split_layout *at, char *workspace) {
  const attn_problem *p = &plan->whole;
  const int64_t row_floats = p->heads_q * p->seq_q * attn_state_floats(p->dim_v);
  float *states = floats_at(workspace, at->states);
  mpi_start_states(plan, p->seq_q * at->own_splits, states);
  for (int64_t b = 0; b < p->batch; b++) {
    const mpi_call *call = plan->calls;
    const char *q = plan->holds_all ? attn_element_at(args->q, p->dtype_q, b * plan->own.q_stride.b)
                                    : workspace + at->q + b * p->heads_q * attn_elements_bytes(p->dtype_q, p->dim_qk);
    int64_t n = b * at->own_splits;
    for (int64_t s = 0; s < plan->stations.count; s++) {
      const mpi_part *station = &plan->stations.part[s];
      if (station->owner != plan->rank) continue;
      const int64_t whole = call[0].keys, rest = call[1].keys;
      attn_status status = ATTN_OK;
      if (whole > 0)
        status = see_splits(plan, args, &call[0], station, 0, b, q, states + n * row_floats, workspace + at->call);
      if (status == ATTN_OK && rest > 0)
        status =
            see_splits(plan, args, &call[1], station, whole, b, q, states + (n + whole) * row_floats, workspace + at->call);
      if (status != ATTN_OK) return status;
      n += splits_in(plan, station);
      call += 2;
    }
  }
  return ATTN_OK;
}

/* ---- Cells ---- */

/* Cell `cell` of a state row of its row: some columns, the sum, the reference and the rest of it. */
static void pack_cell(const attn_mpi_plan *plan, const split_layout *at, int64_t cell, const float *row, float *to) {
  const int64_t dim_v = plan->whole.dim_v, first = cell % at->parts * at->columns,
                columns = min64(at->columns, dim_v - first);
  float sum = row[dim_v];
  for (int i = 1; i < ATTN_STATE_SUMS; i++) sum += row[dim_v + i];
  memset(to, 0, (size_t)cell_bytes(at));
  to[at->columns + CELL_REFERENCE] = row[dim_v + ATTN_STATE_SUMS];
  if (row[dim_v + ATTN_STATE_SUMS] == -INFINITY) return; /* o and sum hold nothing */
  memcpy(to, row + first, (size_t)columns * sizeof *to);
  to[at->columns + CELL_SUM] = sum;
  to[at->columns + CELL_LOW] = row[dim_v + ATTN_STATE_SUMS + 1];
}

static void unpack_cell(const attn_mpi_plan *plan, const split_layout *at, int64_t cell, const float *from, float *row) {
  const int64_t dim_v = plan->whole.dim_v, first = cell % at->parts * at->columns,
                columns = min64(at->columns, dim_v - first);
  memcpy(row + first, from, (size_t)columns * sizeof *row);
  memset(row + dim_v, 0, ATTN_STATE_SUMS * sizeof *row);
  row[dim_v] = from[at->columns + CELL_SUM];
  row[dim_v + ATTN_STATE_SUMS] = from[at->columns + CELL_REFERENCE];
  row[dim_v + ATTN_STATE_SUMS + 1] = from[at->columns + CELL_LOW];
}

static attn_partial cells_as_partial(const split_layout *at, float *cells) {
  return ATTN_STRUCT(attn_partial, .o = cells, .sum = cells + at->columns + CELL_SUM,
                     .reference = cells + at->columns + CELL_REFERENCE, .reference_low = cells + at->columns + CELL_LOW,
                     .stride = at->columns + CELL_FLOATS, .sums = 1);
}

/* Own states in slots, one for each rank from this one on: [split][cell of its share]. */
static void pack_states(const attn_mpi_plan *plan, const split_layout *at, char *workspace) {
  const attn_problem *p = &plan->whole;
  const int64_t floats = attn_state_floats(p->dim_v), head_rows = p->heads_q * p->seq_q;
  const float *states = floats_at(workspace, at->states);
  for (int i = 0; i < plan->ranks; i++) {
    const mpi_heads share = share_of(plan, at, (plan->rank + i) % plan->ranks);
    float *to = floats_at(workspace, at->slots + i * at->slot_bytes);
    for (int64_t split = 0; split < at->own_splits; split++)
      for (int64_t cell = share.begin; cell < share.end; cell++, to += at->columns + CELL_FLOATS) {
        const int64_t row = cell / at->parts, b = row / head_rows;
        pack_cell(plan, at, cell, states + ((b * at->own_splits + split) * head_rows + row % head_rows) * floats, to);
      }
  }
}

/* Joins the own share of all splits, in the order of keys. */
static attn_status join_states(const attn_mpi_plan *plan, const split_layout *at, char *workspace) {
  const int64_t cells = share_length(plan, at, plan->rank), cell_floats = at->columns + CELL_FLOATS;
  float *joined = floats_at(workspace, at->joined);
  int64_t *seen = calloc((size_t)plan->ranks, sizeof *seen); /* splits of each rank */
  if (!seen) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_plan_run needs room for %d ranks", plan->ranks);
  for (int64_t i = 0; i < cells; i++) joined[i * cell_floats + at->columns + CELL_REFERENCE] = -INFINITY;
  const attn_partial whole = cells_as_partial(at, joined);
  attn_status status = ATTN_OK;
  for (int64_t s = 0; s < plan->stations.count; s++) {
    const mpi_part *station = &plan->stations.part[s];
    const int64_t slot = (plan->rank - station->owner + plan->ranks) % plan->ranks;
    float *received = floats_at(workspace, at->slots + slot * at->slot_bytes);
    for (int64_t n = 0; n < splits_in(plan, station) && status == ATTN_OK; n++) {
      const attn_partial piece = cells_as_partial(at, received + seen[station->owner]++ * cells * cell_floats);
      status = attn_partial_merge(cells, at->columns, &piece, &whole);
    }
  }
  free(seen);
  return status;
}

/* ---- Messages ---- */

static attn_status send_rows(attn_mpi_plan *plan, const attn_args *args, const split_layout *at, char *workspace,
                             mpi_requests *all) {
  const attn_problem *p = &plan->whole;
  const int64_t token = p->batch * p->heads_q * attn_elements_bytes(p->dtype_q, p->dim_qk);
  attn_status status = ATTN_OK;
  all->count = 0;
  memset(workspace + at->q, 0, (size_t)(p->seq_q * token));
  for (int64_t i = 0; i < plan->rows.count && status == ATTN_OK; i++) {
    const mpi_part *part = &plan->rows.part[i];
    bool taken = false; /* rows of several ranks come from the first */
    for (int64_t j = 0; j < i; j++) taken |= plan->rows.part[j].begin < part->end && part->begin < plan->rows.part[j].end;
    if (taken) continue;
    status = mpi_receive(all, workspace + at->q + part->begin * token, part_length(part) * token, part->owner, ROW_TAG);
  }
  for (int64_t i = 0; i < plan->rows.count && status == ATTN_OK; i++) {
    const mpi_part *part = &plan->rows.part[i];
    bool taken = false;
    for (int64_t j = 0; j < i; j++) taken |= plan->rows.part[j].begin < part->end && part->begin < plan->rows.part[j].end;
    if (taken || part->owner != plan->rank) continue;
    char *from = workspace + at->own_q + part->at * token;
    mpi_copy_tokens(plan, args, p->dtype_q, (void *)(uintptr_t)args->q, &plan->own.q_stride, p->dim_qk, part,
                    (mpi_heads){0, p->heads_q}, from, false);
    for (int rank = 0; rank < plan->ranks && status == ATTN_OK; rank++)
      status = mpi_send(all, from, part_length(part) * token, rank, ROW_TAG);
  }
  return status == ATTN_OK ? mpi_wait(all, -1, -1) : status;
}

typedef struct split_blocks {
  const attn_mpi_plan *plan;
  const split_layout *at;
} split_blocks;

static int64_t bytes_of_states(const void *context, int from, int to) {
  const split_blocks *c = context;
  return c->plan->rank_splits[from] * share_length(c->plan, c->at, to) * cell_bytes(c->at);
}

static int64_t bytes_of_joined(const void *context, int from, int to) {
  const split_blocks *c = context;
  (void)from;
  return share_length(c->plan, c->at, to) * cell_bytes(c->at);
}

/* Every rank sends each other one its share of own states. */
static attn_status exchange_states(attn_mpi_plan *plan, const split_layout *at, char *workspace, mpi_requests *all) {
  const split_blocks context = {plan, at};
  mpi_blocks blocks = {plan, 2, at->slot_bytes, bytes_of_states, &context};
  (void)mpi_seconds_of_rounds(&plan->network, plan->ranks, (double)(plan->ranks * at->slot_bytes), &blocks.radix);
  return mpi_swap_blocks(&blocks, workspace + at->slots, workspace + at->sent, workspace + at->received, all, STATE_TAG);
}

/* All joined states, in the order of cells. */
static attn_status gather_joined(attn_mpi_plan *plan, const split_layout *at, char *workspace, mpi_requests *all) {
  const split_blocks context = {plan, at};
  mpi_blocks blocks = {plan, 2, 0, bytes_of_joined, &context};
  (void)mpi_seconds_of_rounds(&plan->network, plan->ranks, 0, &blocks.radix);
  const attn_status status = mpi_gather_blocks(&blocks, workspace + at->joined, all, JOINED_TAG);
  const char *from = workspace + at->joined;
  for (int i = 0; i < plan->ranks && status == ATTN_OK; i++) {
    const mpi_heads share = share_of(plan, at, (plan->rank - i + plan->ranks) % plan->ranks);
    const int64_t bytes = (share.end - share.begin) * cell_bytes(at);
    memcpy(workspace + at->all + share.begin * cell_bytes(at), from, (size_t)bytes);
    from += bytes;
  }
  return status;
}

static attn_status finish_own_rows(attn_mpi_plan *plan, const attn_args *args, const split_layout *at, char *workspace) {
  const attn_problem *p = &plan->whole;
  const int64_t floats = attn_state_floats(p->dim_v);
  float *last = floats_at(workspace, at->last);
  for (int64_t i = 0; i < plan->blocks.count; i++) {
    const mpi_part *block = &plan->blocks.part[i];
    const int64_t rows = part_length(block);
    if (block->owner != plan->rank) continue;
    for (int64_t n = 0; n < p->batch * p->heads_q * rows * at->parts; n++) {
      const int64_t row = n / at->parts,
                    cell = (row / rows * p->seq_q + block->begin + row % rows) * at->parts + n % at->parts;
      unpack_cell(plan, at, cell, floats_at(workspace, at->all) + cell * (at->columns + CELL_FLOATS), last + row * floats);
    }
    const mpi_row_view view = {.part = block, .place = OWN_PLACE, .state = last};
    const attn_status status = mpi_finish(plan, args, &view, workspace + at->call);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

static attn_status run_mode(attn_mpi_plan *plan, const attn_args *args, char *workspace) {
  const split_layout at = lay_out_run(plan);
  mpi_requests all = {.plan = plan, .last = mpi_now()};
  attn_status status =
      mpi_make_requests(&all, 2 * plan->ranks + (plan->ranks + 1) * plan->rows.count + 4 * mpi_messages_of(at.bytes) + 4);
  if (status == ATTN_OK && !plan->holds_all) status = send_rows(plan, args, &at, workspace, &all);
  if (status == ATTN_OK) status = see_own_keys(plan, args, &at, workspace);
  if (status == ATTN_OK) {
    pack_states(plan, &at, workspace);
    status = exchange_states(plan, &at, workspace, &all);
  }
  if (status == ATTN_OK) status = join_states(plan, &at, workspace);
  if (status == ATTN_OK) status = gather_joined(plan, &at, workspace, &all);
  if (status == ATTN_OK) status = finish_own_rows(plan, args, &at, workspace);
  mpi_free_requests(&all);
  return status;
}

const mpi_mode mpi_split = {"SPLIT", refuses, lay_out_mode, run_mode};
