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
  double ranks, macs, kv_bytes, q_bytes, o_bytes, state_bytes; /* those of the whole problem */
  double piece_bytes, block_bytes, blocks, stations;
} sizes;

static sizes sizes_of(const attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole;
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN);
  const double batch = varlen ? 1 : (double)p->batch, rows = (double)(varlen ? p->total_q : p->seq_q);
  const double keys = (double)(varlen && !attn_uses(p, ATTN_USE_PAGES) ? p->total_k : p->seq_k);
  const double heads = (double)p->heads_q, kv = (double)p->heads_kv, each = varlen ? fmin(keys, (double)p->seq_k) : keys;
  const double q_row = (double)attn_elements_bytes(p->dtype_q, p->dim_qk),
               o_row = (double)attn_elements_bytes(p->dtype_o, p->dim_v);
  double seen = each;
  if (p->window_left >= 0) seen = fmin(seen, (double)(p->window_left + 1 + (p->window_right > 0 ? p->window_right : 0)));
  if (p->window_right == 0 && rows >= each) seen = fmin(seen, each / 2); /* causal */
  sizes s = {.ranks = plan->ranks, .stations = (double)plan->keys.count};
  s.macs = batch * heads * rows * seen * (double)(p->dim_qk + p->dim_v);
  s.kv_bytes =
      batch * kv * keys * (double)(attn_elements_bytes(p->dtype_kv, p->dim_qk) + attn_elements_bytes(p->dtype_kv, p->dim_v));
  s.q_bytes = batch * heads * rows * q_row;
  s.o_bytes = batch * heads * rows * o_row;
  s.state_bytes = batch * heads * rows * (double)state_row_bytes(p);
  const double range = keys / fmax(1, s.stations);
  s.piece_bytes = s.kv_bytes * fmin(range, (double)mpi_piece_keys((int64_t)range)) / fmax(1, keys);
  s.blocks = fmax(1, 4 * (double)plan->rows.count);
  s.block_bytes = (s.q_bytes + s.state_bytes) / s.blocks;
  return s;
}

static void fill_model(attn_mpi_plan *plan) {
  const attn_mpi_network *n = &plan->network;
  const sizes s = sizes_of(plan);
  const attn_problem *p = &plan->whole;
  const double others = s.ranks - 1, work = fmax(s.macs / n->macs_per_s, s.kv_bytes / n->memory_per_s) / s.ranks;
  const double least = s.macs / s.ranks / n->macs_per_s;
  const double kv_time = others > 0 ? s.kv_bytes / n->bytes_per_s : 0, hop = n->latency_s + s.piece_bytes / n->bytes_per_s;
  plan->model_s[ATTN_MPI_PASS_KV] = fmax(least, kv_time) + others * hop;
  const double step = fmax(work * s.ranks / (s.blocks * fmax(1, s.stations)), n->latency_s + s.block_bytes / n->bytes_per_s);
  plan->model_s[ATTN_MPI_PASS_Q] = (s.blocks + s.stations) * step * fmax(1, s.stations / s.ranks);
  const double heads = (double)p->heads_q, most_heads = (double)ceil_div(p->heads_q, plan->ranks);
  plan->model_s[ATTN_MPI_EXCHANGE] =
      work * s.ranks * most_heads / heads +
      others * (3 * n->latency_s + (s.q_bytes + s.kv_bytes + s.o_bytes) / s.ranks / s.ranks / n->bytes_per_s);
  const double splits = s.state_bytes * (double)ceil_div(p->seq_k, plan->splits) / s.ranks;
  plan->model_s[ATTN_MPI_SPLIT] = work + mpi_seconds_of_rounds(n, plan->ranks, splits, NULL) +
                                  mpi_seconds_of_rounds(n, plan->ranks, 0, NULL) +
                                  (others > 0 ? s.state_bytes / n->bytes_per_s : 0);
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
    const int length = plan->refusal[mode] ? snprintf(text, bytes, "%-10s no: %s\n", name, plan->refusal[mode])
                                           : snprintf(text, bytes, "%-10s %.3g s by the model\n", name, plan->model_s[mode]);
    if (length < 0 || (size_t)length >= bytes) return;
    text += length;
    bytes -= (size_t)length;
  }
}

attn_status mpi_choose_mode(attn_mpi_plan *plan, const attn_mpi_network *network, attn_mpi_mode wanted) {
  struct {
    attn_mpi_network network;
    int best;
  } choice;
  memset(&choice, 0, sizeof choice);
  plan->network = *network;
  choice.best = best_mode(plan, wanted == ATTN_MPI_AUTO && plan->rank == 0);
  choice.network = plan->network; /* rounds go by it */
  MPI_Request request;
  MPI_TRY(plan, MPI_Ibcast, &choice, (int)sizeof choice, MPI_BYTE, 0, plan->comm, &request);
  const attn_status status = mpi_wait_one(plan, &request);
  plan->network = choice.network;
  plan->mode = wanted == ATTN_MPI_AUTO ? (attn_mpi_mode)choice.best : wanted;
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
