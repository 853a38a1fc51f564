/* SPDX-License-Identifier: MIT */
/* Attention over the ranks of a simulated cluster: libattn_mpi as it is, on SimGrid's MPI (smpirun), where each call of
 * libattn takes the time that a node would take, and computes nothing. mpi/simulate/run.sh starts it.
 *
 *   attn_mpi_simulate mode=pass_kv shards=zigzag tokens=1048576 queries=1048576 gmacs=2400 memory_gb=300
 *
 * Prints a row of CSV (`columns`). Arguments are those of attn_mpi_explain, and:
 *   platform     a word for the first column
 *   mode         auto, pass_kv, pass_q, exchange, split
 *   shards       ring: keys and rows side by side; zigzag. A single query is on all ranks
 *   kernel       default: the automatic choice
 *   piece_keys   default: chosen
 *   group_ranks  of EXCHANGE; default: chosen
 *   gmacs        billions of multiply-adds a second of a node
 *   memory_gb    billions of bytes a second that a node reads */
#include <inttypes.h>
#include <math.h>
#include <simgrid/actor.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/mpi.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/indexing.h"
#include "mpi/explain/arguments.h"

static const char columns[] =
    "platform,ranks,mode,shards,tokens,queries,gmacs,memory_gb,kernel,latency_s,bytes_per_s,seconds,ideal_s,efficiency,"
    "compute_s,communication_s,hidden,model_s,group_ranks";

/* ---- A node: what a call of libattn takes on it ---- */

typedef struct node {
  double macs_per_s, memory_per_s;
  double busy_s; /* time of all calls */
  bool idle;     /* calls take no time: what is left is communication */
} node;

/* Where the first row sees the keys of the last one, all do. */
static double pairs_of(const attn_problem *p, const attn_args *args, const attn_sequence *seq, int64_t b) {
  double pairs = 0;
  if (seq->len_q == 0) return 0;
  const attn_key_range first = attn_allowed_keys(p, args, seq, b, 0),
                       last = attn_allowed_keys(p, args, seq, b, seq->len_q - 1);
  if (first.begin == last.begin && first.end == last.end) return (double)(seq->len_q * (last.end - last.begin));
  for (int64_t i = 0; i < seq->len_q; i++) {
    const attn_key_range keys = attn_allowed_keys(p, args, seq, b, i);
    pairs += (double)(keys.end - keys.begin);
  }
  return pairs;
}

/* Multiply-adds of the pairs that masks and lengths let through, or reading their keys and values, and reading and writing
 * the states of rows: the longer of the two. */
static double seconds_of(const node *n, const attn_problem *p, const attn_args *args) {
  const double key_bytes =
      (double)(attn_elements_bytes(p->dtype_kv, p->dim_qk) + attn_elements_bytes(p->dtype_kv, p->dim_v));
  const double state_bytes = attn_uses(p, ATTN_USE_STATE) ? 8.0 * (double)attn_state_floats(p->dim_v) : 0;
  double macs = 0, bytes = 0;
  for (int64_t b = 0; b < p->batch; b++) {
    const attn_sequence seq = attn_sequence_of(p, args, b);
    const attn_key_range keys = attn_keys_of_sequence(p, args, &seq, b);
    macs += pairs_of(p, args, &seq, b) * (double)p->heads_q * (double)(p->dim_qk + p->dim_v);
    bytes += (double)(keys.end - keys.begin) * (double)p->heads_kv * key_bytes;
    bytes += (double)seq.len_q * (double)p->heads_q * state_bytes;
  }
  return fmax(macs / n->macs_per_s, bytes / n->memory_per_s);
}

static attn_status take_time(void *context, const attn_plan *plan, const attn_problem *problem, const attn_args *args,
                             void *workspace, size_t workspace_bytes) {
  node *n = context;
  (void)plan, (void)workspace, (void)workspace_bytes;
  if (n->idle) return ATTN_OK;
  const double seconds = seconds_of(n, problem, args);
  n->busy_s += seconds;
  sg_actor_sleep_for(seconds);
  return ATTN_OK;
}

/* Memory that all ranks take for tensors and workspaces: nobody reads them, and SMPI does not copy messages there. */
static void *share_memory(int64_t bytes, int rank) {
  int64_t most;
  MPI_Allreduce(&bytes, &most, 1, MPI_INT64_T, MPI_MAX, MPI_COMM_WORLD);
  void *memory = rank == 0 ? SMPI_SHARED_MALLOC((size_t)most) : NULL;
  MPI_Bcast(&memory, sizeof memory, MPI_BYTE, 0, MPI_COMM_WORLD);
  return memory;
}

/* ---- The network, as a program sees it: between the first rank and the last ---- */

/* The time at which all ranks go on: a barrier would let them go one after the other. */
static double start_together(void) {
  const double margin_s = 1e-3, now = MPI_Wtime();
  double begin;
  MPI_Allreduce(&now, &begin, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  begin += margin_s;
  sg_actor_sleep_for(begin - MPI_Wtime());
  return begin;
}

static double seconds_of_message(void *data, int bytes, int rank, int ranks) {
  const double begin = start_together();
  if (rank == 0) MPI_Send(data, bytes, MPI_BYTE, ranks - 1, 0, MPI_COMM_WORLD);
  if (rank == ranks - 1) MPI_Recv(data, bytes, MPI_BYTE, 0, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
  double seconds = rank == ranks - 1 ? MPI_Wtime() - begin : 0;
  MPI_Bcast(&seconds, 1, MPI_DOUBLE, ranks - 1, MPI_COMM_WORLD);
  return seconds;
}

static attn_mpi_network measure_network(const node *n, int rank, int ranks) {
  enum { LARGE = 1 << 28 };
  attn_mpi_network network = ATTN_STRUCT(attn_mpi_network, .macs_per_s = n->macs_per_s, .memory_per_s = n->memory_per_s);
  if (ranks == 1) return network;
  void *data = share_memory(LARGE, rank);
  network.latency_s = seconds_of_message(data, 1, rank, ranks);
  network.bytes_per_s = LARGE / (seconds_of_message(data, LARGE, rank, ranks) - network.latency_s);
  if (rank == 0) SMPI_SHARED_FREE(data);
  return network;
}

/* ---- The problem, and the part of a rank ---- */

typedef struct part {
  attn_mpi_range range[2];
  int64_t count, tokens;
} part;

static part part_of(int64_t tokens, int64_t border, bool zigzag, int rank, int ranks) {
  part own = {.count = 1};
  const int64_t units = ceil_div(tokens, border);
  if (zigzag)
    own.count = attn_mpi_zigzag(tokens, border, rank, ranks, own.range);
  else
    own.range[0] =
        (attn_mpi_range){min64(units * rank / ranks * border, tokens), min64(units * (rank + 1) / ranks * border, tokens)};
  for (int64_t i = 0; i < own.count; i++) own.tokens += own.range[i].end - own.range[i].begin;
  return own;
}

static attn_mpi_mode mode_named(const char *name) {
  static const char *const names[] = {"auto", "pass_kv", "pass_q", "exchange", "split"};
  for (int i = 0; i <= ATTN_MPI_SPLIT; i++)
    if (!strcmp(name, names[i])) return (attn_mpi_mode)i;
  fprintf(stderr, "attn_mpi_simulate: mode is '%s'; it must be auto, pass_kv, pass_q, exchange or split\n", name);
  exit(2);
}

static void require(attn_status status) {
  if (status == ATTN_OK) return;
  fprintf(stderr, "attn_mpi_simulate: %s\n", attn_last_error());
  exit(2);
}

/* ---- A run ---- */

typedef struct times {
  double whole_s; /* the slowest rank's */
  double busy_s;  /* calls of libattn on the rank that computes most */
} times;

static times run(attn_mpi_plan *plan, const attn_args *args, void *workspace, node *n, bool idle) {
  n->idle = idle;
  n->busy_s = 0;
  const double begin = start_together();
  require(attn_mpi_plan_run(plan, args, workspace, attn_mpi_plan_workspace(plan)));
  const double own[] = {MPI_Wtime() - begin, n->busy_s};
  double most[2];
  MPI_Allreduce(own, most, 2, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
  return (times){most[0], most[1]};
}

/* Time that no division of the work beats: all of it at the rates of all nodes; for a single query reading the keys, and a
 * tree that sends a state to all. */
static double ideal_of(const attn_problem *p, const attn_mpi_network *network, int ranks) {
  const attn_sequence seq = attn_sequence_of(p, NULL, 0);
  const node all = {.macs_per_s = network->macs_per_s * ranks, .memory_per_s = network->memory_per_s * ranks};
  const double seconds = seconds_of(&all, p, NULL), depth = ceil(log2((double)ranks));
  const double state_bytes = (double)(p->heads_q * seq.len_q * attn_state_floats(p->dim_v) * 4);
  return p->seq_q > 1 || ranks == 1 ? seconds : seconds + depth * (network->latency_s + state_bytes / network->bytes_per_s);
}

/* The time of the plan's mode in attn_mpi_plan_describe(): the line that begins with its name. */
static double model_of(const attn_mpi_plan *plan) {
  static const char *const names[] = {"", "PASS_KV", "PASS_Q", "EXCHANGE", "SPLIT"};
  const char *name = names[attn_mpi_plan_mode(plan)], *line = attn_mpi_plan_describe(plan);
  while (line && strncmp(line, name, strlen(name)) != 0) line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL;
  return line ? atof(line + strlen(name)) : NAN;
}

/* Ranks among which the plan exchanges heads, or all. */
static int group_of(const attn_mpi_plan *plan, int ranks) {
  static const char words[] = ", in groups of ";
  const char *groups = strstr(attn_mpi_plan_describe(plan), words);
  return groups && attn_mpi_plan_mode(plan) == ATTN_MPI_EXCHANGE ? atoi(groups + strlen(words)) : ranks;
}

int main(int count, char **arguments) {
  static const char *const modes[] = {"auto", "PASS_KV", "PASS_Q", "EXCHANGE", "SPLIT"};
  int rank, ranks;
  MPI_Init(&count, &arguments);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  const attn_problem problem = problem_named(count, arguments);
  node n = {.macs_per_s = 1e9 * number(count, arguments, "gmacs", 2000),
            .memory_per_s = 1e9 * number(count, arguments, "memory_gb", 200)};
  const attn_mpi_network network = measure_network(&n, rank, ranks);
  const char *shards = word(count, arguments, "shards", "zigzag"), *kernel = word(count, arguments, "kernel", "");
  const attn_options compute = ATTN_STRUCT(attn_options, .kernel = *kernel ? kernel : NULL, .threads = 1);
  const attn_mpi_options options =
      ATTN_STRUCT(attn_mpi_options, .mode = mode_named(word(count, arguments, "mode", "auto")), .compute = &compute,
                  .piece_keys = (int64_t)number(count, arguments, "piece_keys", 0), .timeout_s = 1e9, .network = &network,
                  .run = take_time, .run_context = &n, .group_ranks = (int)number(count, arguments, "group_ranks", 0));

  int64_t border;
  require(attn_mpi_border(&problem, &compute, MPI_COMM_WORLD, &border));
  const bool zigzag = !strcmp(shards, "zigzag");
  const part keys = part_of(problem.seq_k, border, zigzag, rank, ranks);
  part rows = problem.seq_q == problem.seq_k ? keys : part_of(problem.seq_q, 1, zigzag, rank, ranks);
  if (problem.seq_q == 1) rows = (part){{{0, 1}}, 1, 1};
  const attn_mpi_shard shard =
      ATTN_STRUCT(attn_mpi_shard, .q = rows.range, .q_count = rows.count, .k = keys.range, .k_count = keys.count);
  attn_mpi_plan *plan;
  require(attn_mpi_plan_create(&problem, &shard, &options, MPI_COMM_WORLD, &plan));
  const int64_t own_bytes = max64(rows.tokens * problem.heads_q, keys.tokens * problem.heads_kv) *
                            attn_elements_bytes(ATTN_BF16, max64(problem.dim_qk, problem.dim_v));
  void *memory = share_memory(max64(own_bytes, (int64_t)attn_mpi_plan_workspace(plan)), rank);
  const attn_args args = ATTN_STRUCT(attn_args, .q = memory, .k = memory, .v = memory, .o = memory);

  const times communication = run(plan, &args, memory, &n, true), all = run(plan, &args, memory, &n, false);
  const double ideal_s = ideal_of(&problem, &network, ranks), shown = all.whole_s - all.busy_s;
  const double hidden = communication.whole_s > 0 ? fmax(0, 1 - shown / communication.whole_s) : 1;
  if (rank == 0 && number(count, arguments, "header", 0) > 0) puts(columns);
  if (rank == 0)
    printf("%s,%d,%s,%s,%" PRId64 ",%" PRId64 ",%g,%g,%s,%.3g,%.4g,%.5g,%.5g,%.3f,%.5g,%.5g,%.3f,%.3g,%d\n",
           word(count, arguments, "platform", ""), ranks, modes[attn_mpi_plan_mode(plan)], shards, problem.seq_k,
           problem.seq_q, n.macs_per_s / 1e9, n.memory_per_s / 1e9, attn_mpi_plan_kernel(plan), network.latency_s,
           network.bytes_per_s, all.whole_s, ideal_s, ideal_s / all.whole_s, all.busy_s, communication.whole_s, hidden,
           model_of(plan), group_of(plan, ranks));
  attn_mpi_plan_destroy(plan);
  MPI_Finalize();
  return 0;
}
