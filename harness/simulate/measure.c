/* SPDX-License-Identifier: MIT */
/* Times of single tasks on this machine, and of whole calls beside them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "base/cli.h"
#include "base/clock.h"
#include "data/tensors.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/dtypes.h"
#include "machine/affinity.h"
#include "machine/environment.h"
#include "simulate/simulate.h"
#include "src/plan/plan.h"
#include "timing/reading.h"
#include "timing/stats.h"

enum { LEAST_ROUNDS = 5, MOST_ROUNDS = 25, MOST_SHAPES = 64 };
static const double ENOUGH_NS = 3e9;      /* all rounds of one plan */
static const double READ_BYTES = 1 << 29; /* beyond all caches */

/* The measured tasks of plans that cut the work alike. */
typedef struct task_times {
  attn_schedule schedule;
  double *task_ns; /* [tasks] */
} task_times;

struct sim_bench {
  const bench_case *bench;
  int cpus; /* CPUs for whole calls */
  bench_tensors tensors;
  task_times times[MOST_SHAPES];
  int shapes;
  double loop_ns, take_ns;   /* two threads'; a task's */
  double core_rate, wait_ns; /* bytes per ns of a core while all read; a byte takes so much longer then than alone */
  double one_ns;             /* one thread; 0: not known yet */
};

/* ---- Threads, and memory ---- */

static void do_nothing(void *context, int64_t i, int worker) { (void)context, (void)i, (void)worker; }

static double loop_of_two(void) {
  enum { LOOPS = 101 };
  const attn_options two = ATTN_STRUCT(attn_options, .threads = 2);
  double ns[LOOPS];
  for (int i = 0; i < LOOPS; i++) {
    const double start = bench_now_ns();
    attn_parallel_run(&two, 2, do_nothing, NULL);
    ns[i] = bench_now_ns() - start;
  }
  return bench_median(ns, LOOPS);
}

static double time_to_take(void) {
  enum { TASKS = 10000 };
  static attn_deal deal;
  _Atomic int64_t finished[1];
  attn_dealt next;
  const attn_schedule s = {.units = 1, .wave_units = 1, .phases = 2, .items = {TASKS / 2, TASKS / 2}};
  attn_deal_start(&deal, &s, 1, 2, 1, finished);
  const double start = bench_now_ns();
  while (attn_deal_take(&deal, 0, 0, &next)) {
    attn_deal_wait(&deal, &next);
    attn_deal_finish(&deal, &next);
  }
  return (bench_now_ns() - start) / TASKS;
}

/* Nanoseconds that a byte takes a core while so many read; INFINITY if memory is short. */
static double byte_ns(double bytes, int cpus) { return 1e9 * cpus / bench_read_bandwidth((size_t)(bytes / cpus), cpus); }

/* The case's bytes on one core, and divided among all: so those that caches hold come from there. False if memory is
 * short. */
static bool measure_reading(sim_bench *sim) {
  enum { TURNS = 5 };
  const double bytes = fmin(bench_work_bytes(&sim->bench->problem, &sim->tensors.args), READ_BYTES);
  double alone[TURNS], beside[TURNS];
  for (int i = 0; i < TURNS; i++) {
    alone[i] = byte_ns(bytes, 1), beside[i] = byte_ns(bytes, sim->cpus);
    if (isinf(alone[i] + beside[i])) return false;
  }
  sim->core_rate = 1 / bench_median(beside, TURNS);
  sim->wait_ns = fmax(0, 1 / sim->core_rate - bench_median(alone, TURNS));
  return true;
}

/* ---- Tasks ---- */

typedef struct watch {
  const attn_schedule *schedule;
  double *task_ns, start; /* [tasks] of this round */
} watch;

static void see_task(void *context, const attn_task *task, bool ended) {
  watch *w = context;
  if (ended)
    w->task_ns[sim_task_number(w->schedule, task)] = bench_now_ns() - w->start;
  else
    w->start = bench_now_ns();
}

typedef struct rounds {
  const attn_plan *plan;
  const attn_args *args;
  void *workspace;
  double *task_ns; /* [MOST_ROUNDS][tasks] */
  double call_ns[MOST_ROUNDS];
  bool calls;
  int count;
} rounds;

/* Tasks and whole calls in turns, so that both meet the same machine. The first of each is not timed: pages of the workspace
 * have no memory yet. */
static void run_rounds(rounds *r) {
  const attn_schedule *s = attn_plan_schedule(r->plan);
  const int64_t tasks = sim_task_count(s);
  const double begin = bench_now_ns();
  for (int i = -1; i < MOST_ROUNDS && !(i >= LEAST_ROUNDS && bench_now_ns() - begin > ENOUGH_NS); i++) {
    watch w = {.schedule = s, .task_ns = r->task_ns + (i < 0 ? 0 : i * tasks)};
    attn_plan_run_seen(r->plan, r->args, r->workspace, see_task, &w);
    const double start = bench_now_ns();
    if (r->calls) attn_plan_run_read(r->plan, r->args, r->workspace);
    r->call_ns[max64(i, 0)] = bench_now_ns() - start;
    r->count = i + 1;
  }
}

static bool same_tasks(const attn_schedule *a, const attn_schedule *b) {
  return a->phases == b->phases && a->row_block == b->row_block && a->key_block == b->key_block &&
         memcmp(a->items, b->items, sizeof a->items) == 0;
}

static task_times *times_of(sim_bench *sim, const attn_schedule *schedule) {
  for (int i = 0; i < sim->shapes; i++)
    if (same_tasks(&sim->times[i].schedule, schedule)) return &sim->times[i];
  return NULL;
}

/* A task counts as it runs undisturbed, for disturbances differ from round to round. */
static double *quartiles_of_tasks(const rounds *r, int64_t tasks) {
  double *quartile = malloc((size_t)tasks * sizeof *quartile), of_task[MOST_ROUNDS];
  for (int64_t task = 0; quartile && task < tasks; task++) {
    for (int i = 0; i < r->count; i++) of_task[i] = r->task_ns[i * tasks + task];
    quartile[task] = bench_lower_quartile(of_task, r->count);
  }
  return quartile;
}

/* Measures calls and the plan's tasks, where there are CPUs for its threads; else its tasks, unless they are known. NULL if
 * memory is short. The caller frees r->task_ns. */
static task_times *measure(sim_bench *sim, const attn_plan *plan, rounds *r) {
  const attn_schedule *schedule = attn_plan_schedule(plan);
  const int64_t tasks = sim_task_count(schedule);
  const size_t bytes = attn_plan_workspace(plan);
  const bool calls = attn_plan_threads(plan) <= sim->cpus;
  task_times *times = times_of(sim, schedule);
  const bool known = times && !calls;
  *r = (rounds){.plan = plan,
                .args = &sim->tensors.args,
                .workspace = attn_aligned_alloc(64, bytes ? bytes : 64),
                .task_ns = known ? NULL : malloc((size_t)(MOST_ROUNDS * tasks) * sizeof(double)),
                .calls = calls};
  bool there = r->workspace && (known || r->task_ns);
  if (there && !known) run_rounds(r);
  if (there && !times) {
    times = &sim->times[sim->shapes < MOST_SHAPES ? sim->shapes++ : MOST_SHAPES - 1];
    free(times->task_ns);
    *times = (task_times){.schedule = *schedule, .task_ns = quartiles_of_tasks(r, tasks)};
    there = times->task_ns;
  }
  attn_aligned_free(r->workspace);
  return there ? times : NULL;
}

/* ---- Predictions ---- */

/* Each tensor counts once: keys and values in the first phase of attention, queries and outputs in the last but merging. No
 * phase of gradients reads most. */
static void bytes_of_tasks(const sim_bench *sim, const attn_schedule *s, sim_work *work) {
  const attn_problem *p = &s->problem;
  const double all = bench_work_bytes(p, &sim->tensors.args), units = (double)s->units;
  const double rows = (double)attn_elements_bytes(p->dtype_q, p->dim_qk) + (double)attn_elements_bytes(p->dtype_o, p->dim_v);
  const double of_rows = fmin(all, rows * (double)p->heads_q * (double)p->batch * (double)p->seq_q);
  const bool packs = p->operation == ATTN_FORWARD && s->phases == 2 && s->items[1] > 1;
  for (int phase = 0; phase < s->phases; phase++) {
    double share = p->operation == ATTN_FORWARD ? (phase == 0 ? all : 0) : all / s->phases;
    if (packs) work->packed_bytes = (double)s->unit_bytes;
    if (packs) share = phase == 0 ? all - of_rows : of_rows;
    work->bytes[phase] = s->items[phase] ? share / (units * (double)s->items[phase]) : 0;
  }
}

static bool play(sim_bench *sim, const attn_plan *plan, const double *task_ns, const sim_machine *machine,
                 sim_result *result) {
  const attn_schedule *s = attn_plan_schedule(plan);
  const int threads = attn_plan_threads(plan);
  const double loop = machine->loop_ns > 0 ? machine->loop_ns : sim->loop_ns * ceil(log2(threads));
  sim_work work = {.schedule = s,
                   .task_ns = task_ns,
                   .take_ns = threads > 1 ? sim->take_ns : 0,
                   .loop_ns = loop,
                   .wait_ns = sim->wait_ns};
  bytes_of_tasks(sim, s, &work);
  return sim_play(&work, threads, machine, result);
}

/* The prediction of a round's tasks over the call of the same round: from round to round the machine itself differs. */
static double compare_rounds(sim_bench *sim, const rounds *r, const sim_machine *machine) {
  const int64_t tasks = sim_task_count(attn_plan_schedule(r->plan));
  double ratio[MOST_ROUNDS];
  sim_result result;
  for (int i = 0; i < r->count; i++) {
    if (!play(sim, r->plan, r->task_ns + i * tasks, machine, &result)) return NAN;
    ratio[i] = result.ns / r->call_ns[i];
  }
  return bench_median(ratio, r->count);
}

/* A plan for that many threads of the machine. */
static attn_status make_plan(const sim_bench *sim, int threads, const sim_machine *machine, attn_plan **plan) {
  const attn_options options = ATTN_STRUCT(attn_options, .threads = threads, .steady = sim->bench->steady);
  const attn_node_map map = sim_node_map(machine, threads);
  attn_nodes_pretend(&map);
  const attn_status status = attn_plan_create(&sim->bench->problem, &options, plan);
  attn_nodes_pretend(NULL);
  return status;
}

static bool predict(sim_bench *sim, int threads, const sim_machine *machine, sim_row *row, char *error, size_t error_bytes) {
  const sim_machine scaled = sim_machine_scaled(threads, threads == 1 ? INFINITY : sim->core_rate);
  attn_plan *plan;
  rounds r = {0};
  *row = (sim_row){.threads = threads};
  if (make_plan(sim, threads, machine ? machine : &scaled, &plan) != ATTN_OK)
    return bench_say(error, error_bytes, "no plan: %s", attn_last_error());
  const attn_schedule *s = attn_plan_schedule(plan);
  bool done = s || bench_say(error, error_bytes, "plans that consist of other plans are not simulated");
  const task_times *times = done ? measure(sim, plan, &r) : NULL;
  if (!machine) machine = &scaled;
  if (done) {
    done = (times && play(sim, plan, times->task_ns, machine, &row->result)) ||
           bench_say(error, error_bytes, "out of memory for the tasks of %d threads", threads);
    if (done && r.calls) {
      row->measured_ns = bench_lower_quartile(r.call_ns, r.count);
      row->of_measured = compare_rounds(sim, &r, machine);
    }
    row->planned = attn_plan_threads(plan);
    row->rows = s->row_block, row->keys = s->key_block, row->tasks = sim_task_count(s);
    snprintf(row->kernel, sizeof row->kernel, "%s", attn_plan_kernel(plan));
  }
  free(r.task_ns);
  attn_plan_destroy(plan);
  return done;
}

bool sim_bench_predict(sim_bench *sim, int threads, const sim_machine *machine, sim_row *row, char *error,
                       size_t error_bytes) {
  sim_row one;
  if (machine && threads > machine->cores)
    return bench_say(error, error_bytes, "threads is %d; the topology has %d cores", threads, machine->cores);
  if (sim->one_ns == 0) {
    if (!predict(sim, 1, NULL, &one, error, error_bytes)) return false;
    sim->one_ns = one.result.ns;
  }
  if (!predict(sim, threads, machine, row, error, error_bytes)) return false;
  row->one_ns = sim->one_ns;
  return true;
}

/* ---- Opening ---- */

sim_bench *sim_bench_open(const bench_case *bench, char *error, size_t error_bytes) {
  const int cpus = bench_usable_threads();
  const double room = bench_memory_available(""), bytes = bench->invalid[0] ? 0 : (double)bench_tensors_size(bench);
  sim_bench *sim = NULL;
  if (bench->invalid[0])
    bench_say(error, error_bytes, "%s", bench->invalid);
  else if (bench->layer[0])
    bench_say(error, error_bytes, "layers are not simulated");
  else if (bytes == 0 || bytes > room)
    bench_say(error, error_bytes, "its tensors need %.3g GB of %.3g GB of memory that are free", bytes * 1e-9, room * 1e-9);
  else if (!(sim = calloc(1, sizeof *sim)) || !bench_tensors_create(bench, &sim->tensors))
    bench_say(error, error_bytes, "out of memory for the tensors");
  else {
    sim->bench = bench;
    sim->cpus = cpus;
    bench_threads_hold(cpus);
    sim->loop_ns = cpus > 1 ? loop_of_two() : 0;
    sim->take_ns = time_to_take();
    if (measure_reading(sim)) return sim;
    bench_say(error, error_bytes, "out of memory for the bytes that are read to measure its rate");
    sim_bench_close(sim);
    return NULL;
  }
  free(sim);
  return NULL;
}

void sim_bench_close(sim_bench *sim) {
  if (!sim) return;
  bench_threads_release();
  for (int i = 0; i < sim->shapes; i++) free(sim->times[i].task_ns);
  bench_tensors_destroy(&sim->tensors);
  free(sim);
}
