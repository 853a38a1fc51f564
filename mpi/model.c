/* SPDX-License-Identifier: MIT */
/* The time of each mode by a model, and the choice. Times are those of the slowest rank; docs/scale.md has the formulas.
 * Rank 0 chooses for all, so that measured speeds need not be the same. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"

/* Usual speeds: 100 Gbit/s, a server with two channels of memory for each core of ten. */
static const double LATENCY_S = 3e-6, BYTES_PER_S = 12e9, MEMORY_PER_S = 20e9, MACS_PER_S = 1e11;

/* ---- Measured: multiply-adds a second of a small call, with the kernel and the threads of the plan ---- */

static double measure_rate(const attn_mpi_plan *plan) {
  attn_problem p;
  const int64_t group = attn_group(&plan->whole), rows = max64(1, min64(plan->whole.seq_q, 128 / group));
  const int64_t keys = max64(plan->splits, 512), dim_qk = plan->whole.dim_qk, dim_v = plan->whole.dim_v;
  attn_problem_init(&p, 1, group, 1, rows, keys, dim_qk, dim_v);
  const size_t floats = (size_t)(group * rows * (dim_qk + dim_v) + keys * (dim_qk + dim_v));
  attn_options options = plan->compute;
  attn_plan *small = NULL;
  float *data = calloc(floats, sizeof *data);
  void *workspace = NULL;
  double rate = 0;
  options.kernel = NULL; /* the plan's own kernel may not take float32 */
  if (data && attn_plan_create(&p, &options, &small) == ATTN_OK) {
    const size_t bytes = attn_plan_workspace(small);
    workspace = aligned_alloc(ATTN_MEMORY_ALIGN, bytes ? bytes : ATTN_MEMORY_ALIGN);
    float *k = data + group * rows * dim_qk, *v = k + keys * dim_qk, *o = v + keys * dim_v;
    const attn_args args = ATTN_STRUCT(attn_args, .q = data, .k = k, .v = v, .o = o);
    for (int i = 0; workspace && i < 3; i++) {
      const double begin = mpi_now();
      if (attn_plan_run(small, &args, workspace, bytes) != ATTN_OK) break;
      const double macs = (double)(group * rows * keys * (dim_qk + dim_v));
      rate = fmax(rate, macs / fmax(mpi_now() - begin, 1e-7));
    }
  }
  attn_plan_destroy(small);
  free(workspace);
  free(data);
  return rate > 0 ? rate : 1e10;
}

/* ---- The model ---- */

typedef struct sizes {
  double macs, kv_bytes, q_bytes, o_bytes, state_bytes; /* those of the whole problem */
  double blocks, stations;                              /* parts of PASS_Q */
  bool causal;                                          /* rows see keys up to their own */
} sizes;

static sizes sizes_of(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN);
  const double batch = varlen ? 1 : (double)p->batch, rows = (double)(varlen ? p->total_q : p->seq_q);
  const double keys = (double)mpi_all_keys(p), heads = (double)p->heads_q, kv = (double)p->heads_kv;
  const double each = varlen ? fmin(keys, (double)p->seq_k) : keys;
  const double q_row = (double)attn_elements_bytes(p->dtype_q, p->dim_qk),
               o_row = (double)attn_elements_bytes(p->dtype_o, p->dim_v);
  double seen = each;
  if (p->window_left >= 0) seen = fmin(seen, (double)(p->window_left + 1 + (p->window_right > 0 ? p->window_right : 0)));
  sizes s = {.stations = fmax(1, (double)plan->keys.count), .causal = p->window_right == 0 && rows >= each};
  if (s.causal) seen = fmin(seen, each / 2);
  s.macs = batch * heads * rows * seen * (double)(p->dim_qk + p->dim_v);
  s.kv_bytes =
      batch * kv * keys * (double)(attn_elements_bytes(p->dtype_kv, p->dim_qk) + attn_elements_bytes(p->dtype_kv, p->dim_v));
  s.q_bytes = batch * heads * rows * q_row;
  s.o_bytes = batch * heads * rows * o_row;
  s.state_bytes = batch * heads * rows * (double)state_row_bytes(p);
  const double ranges = fmax(1, (double)plan->rows.count), block = (double)mpi_block_rows((int64_t)ceil(rows / ranges));
  s.blocks = ranges * fmax(1, ceil(rows / ranges / block));
  return s;
}

/* The time of the work of all ranks: multiply-adds, or reading keys and values. */
static double work_of(const attn_mpi_network *n, const sizes *s) {
  return fmax(s->macs / n->macs_per_s, s->kv_bytes / n->memory_per_s);
}

/* The share of the work of the ranks, or groups of ranks that follow each other, that the slowest one has. Under a causal
 * mask a row has as much work as it has rows before it. */
static double slowest_share(const attn_mpi_plan *plan, const sizes *s, int group) {
  const mpi_part *range = plan->rows.part;
  const double all = (double)plan->whole.seq_q * (double)plan->whole.seq_q;
  double most = (double)group / plan->ranks, own = 0;
  if (!s->causal || !range || attn_uses(&plan->whole, ATTN_USE_VARLEN)) return most;
  for (int64_t i = 0; i < plan->rows.count; i++, range++) {
    if (i > 0 && range->owner / group != range[-1].owner / group) own = 0;
    own += (double)part_length(range) * (double)(range->begin + range->end);
    most = fmax(most, own / all);
  }
  return most;
}

/* Ring of so many ranks, each of which has `share` of the KV heads. Who gets the first piece last also ends last; but under
 * a causal mask such a rank needs none of the last pieces. */
static double seconds_of_ring(const attn_mpi_plan *plan, const sizes *s, int ranks, double share) {
  const attn_mpi_network *n = &plan->network;
  const int64_t keys = mpi_all_keys(&plan->whole), ranges = mpi_even_ranges(plan) / plan->ranks * ranks;
  const double piece = fmin((double)mpi_piece_keys(keys, ranges), (double)keys) / fmax(1, (double)keys);
  const double hop = n->latency_s + share * s->kv_bytes * piece / n->bytes_per_s;
  const int group = plan->ranks / ranks;
  const double least = s->macs * slowest_share(plan, s, group) / group / n->macs_per_s,
               travel = share * s->kv_bytes / n->bytes_per_s;
  const double hops = (ranks - 1) * hop;
  return fmax(least + hops, ranks > 1 ? travel + (s->causal ? hop : hops) : 0);
}

static double seconds_of_queries(const attn_mpi_plan *plan, const sizes *s) {
  const attn_mpi_network *n = &plan->network;
  const double per_rank = fmax(1, s->stations / plan->ranks), pairs = s->blocks * s->stations;
  const double bytes = s->kv_bytes / s->stations + 2 * s->state_bytes / s->blocks;
  const double work = per_rank * fmax(s->macs / pairs / n->macs_per_s, bytes / n->memory_per_s);
  const double item = (s->q_bytes + s->state_bytes) / s->blocks;
  const double hop = plan->ranks > 1 ? per_rank * (n->latency_s + item / n->bytes_per_s) : 0;
  const double back = plan->ranks > 1 ? s->state_bytes / n->bytes_per_s : 0;
  return s->stations / per_rank * (work + hop) + fmax((s->blocks - 1) * work, (s->blocks - 1) * hop + back);
}

/* Heads exchanged within groups of so many ranks. */
static double seconds_of_exchange(const attn_mpi_plan *plan, const sizes *s, int group) {
  const attn_mpi_network *n = &plan->network;
  const double heads = (double)plan->whole.heads_q, kv = (double)plan->whole.heads_kv;
  const double share = 1 / fmin(group, kv), all = fmax(1, group / kv) * s->kv_bytes + s->q_bytes + s->o_bytes;
  const double exchange = (group - 1) * (3 * n->latency_s + all / plan->ranks / group / n->bytes_per_s);
  if (group < plan->ranks) return exchange + seconds_of_ring(plan, s, plan->ranks / group, share);
  return exchange + work_of(n, s) * (double)ceil_div(plan->whole.heads_q, group) / heads;
}

bool mpi_has_groups(const attn_mpi_plan *plan, int group) {
  const int64_t heads = plan->whole.heads_q, kv = plan->whole.heads_kv;
  if (group == plan->ranks) return true;
  if (group < 2 || plan->ranks % group || heads % group) return false;
  return kv % group == 0 || group % kv == 0;
}

static int best_group(const attn_mpi_plan *plan, const sizes *s) {
  int best = plan->ranks;
  for (int group = plan->ranks; group > 1; group--)
    if (mpi_has_groups(plan, group) && seconds_of_exchange(plan, s, group) < seconds_of_exchange(plan, s, best))
      best = group;
  return best;
}

static void fill_model(attn_mpi_plan *plan) {
  const attn_mpi_network *n = &plan->network;
  const sizes s = sizes_of(plan);
  const double splits = s.state_bytes * (double)ceil_div(plan->whole.seq_k, plan->splits) / plan->ranks;
  plan->group = plan->asked_group > 0 ? plan->asked_group : best_group(plan, &s);
  plan->model_s[ATTN_MPI_PASS_KV] = seconds_of_ring(plan, &s, plan->ranks, 1);
  plan->model_s[ATTN_MPI_PASS_Q] = seconds_of_queries(plan, &s);
  plan->model_s[ATTN_MPI_EXCHANGE] = seconds_of_exchange(plan, &s, plan->group);
  plan->model_s[ATTN_MPI_SPLIT] = work_of(n, &s) / plan->ranks + mpi_seconds_of_rounds(n, plan->ranks, splits, NULL) +
                                  mpi_seconds_of_rounds(n, plan->ranks, 0, NULL) +
                                  (plan->ranks > 1 ? s.state_bytes / n->bytes_per_s : 0);
}

/* The mode with the least time, from what plan->network holds. */
static int best_mode(attn_mpi_plan *plan, bool measured) {
  attn_mpi_network *n = &plan->network;
  if (n->latency_s <= 0) n->latency_s = LATENCY_S;
  if (n->bytes_per_s <= 0) n->bytes_per_s = BYTES_PER_S;
  if (n->memory_per_s <= 0) n->memory_per_s = MEMORY_PER_S;
  if (n->macs_per_s <= 0 && measured) n->macs_per_s = measure_rate(plan);
  if (n->macs_per_s <= 0) n->macs_per_s = MACS_PER_S;
  fill_model(plan);
  int best = ATTN_MPI_PASS_KV;
  for (int mode = ATTN_MPI_PASS_KV; mode <= ATTN_MPI_SPLIT; mode++) {
    plan->refusal[mode] = finds_gradients(plan) && mode != ATTN_MPI_PASS_KV
                              ? "it finds no gradients; take ATTN_MPI_PASS_KV"
                              : mpi_mode_of(plan, (attn_mpi_mode)mode)->refuses(plan);
    if (!plan->refusal[mode] && plan->model_s[mode] < plan->model_s[best]) best = mode;
  }
  return best;
}

void mpi_describe_modes(const attn_mpi_plan *plan, char *text, size_t bytes) {
  for (int mode = ATTN_MPI_PASS_KV; mode <= ATTN_MPI_SPLIT; mode++) {
    const char *name = mpi_mode_of(plan, (attn_mpi_mode)mode)->name;
    char groups[64] = "";
    if (mode == ATTN_MPI_EXCHANGE && plan->group < plan->ranks)
      snprintf(groups, sizeof groups, ", in groups of %d ranks that pass keys", plan->group);
    const int length = plan->refusal[mode]
                           ? snprintf(text, bytes, "%-10s no: %s\n", name, plan->refusal[mode])
                           : snprintf(text, bytes, "%-10s %.3g s by the model%s\n", name, plan->model_s[mode], groups);
    if (length < 0 || (size_t)length >= bytes) return;
    text += length;
    bytes -= (size_t)length;
  }
}

attn_status mpi_choose_mode(attn_mpi_plan *plan, const attn_mpi_network *network, attn_mpi_mode wanted) {
  struct {
    attn_mpi_network network;
    int best, group;
  } choice;
  memset(&choice, 0, sizeof choice);
  plan->network = *network;
  choice.best = best_mode(plan, wanted == ATTN_MPI_AUTO && plan->rank == 0);
  choice.network = plan->network; /* rounds go by it */
  choice.group = plan->group;
  MPI_Request request;
  MPI_TRY(plan, MPI_Ibcast, &choice, (int)sizeof choice, MPI_BYTE, 0, plan->comm, &request);
  const attn_status status = mpi_wait_one(plan, &request);
  plan->network = choice.network;
  plan->group = choice.group;
  plan->mode = wanted == ATTN_MPI_AUTO ? (attn_mpi_mode)choice.best : wanted;
  if (status == ATTN_OK && plan->mode == ATTN_MPI_EXCHANGE && !mpi_has_groups(plan, plan->group))
    return attn_fail(
        ATTN_INVALID_ARGUMENT,
        "attn_mpi_options.group_ranks is %d; it must be 0, the number of ranks, %d, or divide that and heads_q, "
        "%lld, and divide heads_kv, %lld, or be its multiple",
        plan->group, plan->ranks, (long long)plan->whole.heads_q, (long long)plan->whole.heads_kv);
  if (status == ATTN_OK && plan->refusal[plan->mode])
    return attn_fail(ATTN_UNSUPPORTED, "ATTN_MPI_%s does not take the problem: %s", mpi_mode_of(plan, plan->mode)->name,
                     plan->refusal[plan->mode]);
  return status;
}

attn_status attn_mpi_explain(const attn_problem *whole, const attn_options *compute, int ranks,
                             const attn_mpi_network *network, char *text, size_t bytes) {
  attn_mpi_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_mpi_explain needs %zu bytes", sizeof *plan);
  attn_status status = ATTN_OK;
  if (!whole || !text || bytes == 0 || ranks < 1)
    status = attn_fail(ATTN_INVALID_ARGUMENT, "%s; attn_mpi_explain() needs a problem, room for a text, and a rank or more",
                       !whole      ? "whole is NULL"
                       : ranks < 1 ? "ranks is below 1"
                                   : "text is NULL or has no bytes");
  if (status == ATTN_OK) status = mpi_read_problem(plan, whole, compute, network);
  if (status == ATTN_OK) status = mpi_find_kernel(plan);
  if (status == ATTN_OK) {
    plan->ranks = ranks;
    plan->rows.count = plan->keys.count = 2 * (int64_t)ranks; /* zigzag */
    plan->holds_all = plan->whole.seq_q == 1;
    const int best = best_mode(plan, true);
    const int length =
        snprintf(text, bytes,
                 "mode       %s with %d ranks\n"
                 "kernel     %s; shards of keys begin at multiples of %lld\n"
                 "speeds     %.3g s latency, %.3g bytes/s, %.3g multiply-adds/s, %.3g bytes/s of memory\n",
                 mpi_mode_of(plan, (attn_mpi_mode)best)->name, ranks, plan->kernel, (long long)plan->unit,
                 plan->network.latency_s, plan->network.bytes_per_s, plan->network.macs_per_s, plan->network.memory_per_s);
    if (length > 0 && (size_t)length < bytes) mpi_describe_modes(plan, text + length, bytes - (size_t)length);
  }
  free(plan);
  return status;
}
