/* SPDX-License-Identifier: MIT */
/* Plays tasks on threads: from each moment at which a task ends to the next. */
#include <math.h>
#include <stdlib.h>

#include "kernels/common/problem/arithmetic.h"
#include "simulate/simulate.h"

typedef enum worker_state { IDLE, WAITING, RUNNING, OVER } worker_state;

typedef struct sim_worker {
  worker_state state;
  attn_dealt dealt;
  int node, cache;
  double left_ns;                     /* its task's, as it goes alone */
  double bytes_per_ns, packed_per_ns; /* it reads tensors, and what was packed */
  int tensor_node, packed_node;       /* -1: of all alike */
  double slowness;
  bool worked;
} sim_worker;

typedef struct player {
  const sim_work *work;
  const sim_machine *machine;
  int threads;
  attn_deal *deal;
  sim_worker *worker;
  int64_t first_unit;
  int *slot_node;    /* [wave_units] where the memory of a unit lies; -1: nobody has written there */
  int64_t *in_cache; /* [wave_units][caches] 1 + the unit that a cache has read there */
  int caches;
  sim_result *result;
} player;

int64_t sim_task_count(const attn_schedule *s) {
  int64_t items = 0;
  for (int phase = 0; phase < s->phases; phase++) items += s->items[phase];
  return items * s->units;
}

int64_t sim_task_number(const attn_schedule *s, const attn_task *task) {
  int64_t before = 0;
  for (int phase = 0; phase < task->phase; phase++) before += s->items[phase] * s->units;
  return before + task->unit * s->items[task->phase] + task->item;
}

static int caches_of(const sim_machine *m, int node) { return m->node[node].caches > 0 ? m->node[node].caches : 1; }

static void place_worker(const sim_machine *m, sim_worker *w, int thread) {
  w->node = sim_node_of(m, thread);
  for (int n = 0; n < w->node; n++) w->cache += caches_of(m, n), thread -= m->node[n].cores;
  w->cache += thread * caches_of(m, w->node) / m->node[w->node].cores;
}

/* ---- One moment ---- */

static int node_of_tensors(const player *p, const sim_worker *w, int64_t unit) {
  const sim_machine *m = p->machine;
  const int heads = attn_deal_part_of(p->work->schedule->units, m->nodes, unit);
  const int nodes[] = {[SIM_SPREAD] = -1, [SIM_LOCAL] = w->node, [SIM_FIRST] = 0, [SIM_HEADS] = heads};
  return nodes[m->memory];
}

/* Memory lies where it is first written. Returns the bytes that the worker's cache reads for the task. */
static double bytes_of_packed(player *p, sim_worker *w, const attn_task *task) {
  int *node = &p->slot_node[w->dealt.slot];
  int64_t *in_cache = &p->in_cache[w->dealt.slot * p->caches + w->cache];
  if (*node < 0) *node = w->node;
  w->packed_node = *node;
  if (task->phase == 0 || *in_cache == task->unit + 1) return 0;
  *in_cache = task->unit + 1;
  return p->work->packed_bytes;
}

static void begin_task(player *p, sim_worker *w) {
  const attn_schedule *s = p->work->schedule;
  attn_task task = w->dealt.task;
  task.unit += p->first_unit;
  w->tensor_node = node_of_tensors(p, w, task.unit);
  const double packed_bytes = bytes_of_packed(p, w, &task);
  const double ns = p->work->task_ns[sim_task_number(s, &task)];
  w->state = RUNNING;
  w->left_ns = ns + p->work->take_ns;
  w->bytes_per_ns = w->left_ns > 0 ? p->work->bytes[task.phase] / w->left_ns : 0;
  w->packed_per_ns = w->left_ns > 0 ? packed_bytes / w->left_ns : 0;
  w->worked = true;
  p->result->work_ns += w->left_ns;
  p->result->longest_ns = fmax(p->result->longest_ns, ns);
  p->result->tasks++;
}

static void give_work(player *p) {
  for (int i = 0; i < p->threads; i++) {
    sim_worker *w = &p->worker[i];
    if (w->state == IDLE) w->state = attn_deal_take(p->deal, i, p->machine->flat ? 0 : w->node, &w->dealt) ? WAITING : OVER;
    if (w->state == WAITING && attn_deal_is_ready(p->deal, &w->dealt)) begin_task(p, w);
  }
}

/* Bytes per nanosecond that a worker wants of a node's memory. */
static double wants(const player *p, const sim_worker *w, int node) {
  const double share = w->tensor_node < 0 ? 1.0 / p->machine->nodes : w->tensor_node == node;
  return w->state == RUNNING ? share * w->bytes_per_ns + (w->packed_node == node) * w->packed_per_ns : 0;
}

/* Bytes per nanosecond that all want of each node's memory, and that each node wants of others'. */
typedef struct demand {
  double memory[SIM_MOST_NODES], remote[SIM_MOST_NODES];
} demand;

static demand demand_now(const player *p) {
  const sim_machine *m = p->machine;
  demand d = {{0}, {0}};
  for (const sim_worker *w = p->worker; w < p->worker + p->threads; w++)
    for (int n = 0; n < m->nodes; n++) {
      d.memory[n] += wants(p, w, n);
      if (n != w->node) d.remote[w->node] += wants(p, w, n);
    }
  return d;
}

/* How busy others keep a memory: 1 if it gives all but one core's share, or more is wanted. */
static double busy(const sim_node *node, double others) {
  return others > 0 ? fmin(1, others * node->cores / (node->bytes_per_ns * (node->cores - 1))) : 0;
}

/* Where more is wanted than there is, all wait for their share; before that, each byte comes the later the more others
 * read. */
static double slowness_of(const player *p, const demand *d, const sim_worker *w) {
  const sim_machine *m = p->machine;
  double slowness = 1, later = 1;
  for (int n = 0; n < m->nodes; n++) {
    const double own = wants(p, w, n), remote = n == w->node ? 0 : m->node[w->node].remote;
    if (!(own > 0)) continue;
    slowness = fmax(slowness, d->memory[n] / m->node[n].bytes_per_ns);
    if (remote > 0) slowness = fmax(slowness, d->remote[w->node] / remote);
    later += own * p->work->wait_ns * busy(&m->node[n], d->memory[n] - own);
  }
  return fmax(slowness, later);
}

static void find_slowness(player *p) {
  const demand d = demand_now(p);
  for (sim_worker *w = p->worker; w < p->worker + p->threads; w++) w->slowness = slowness_of(p, &d, w);
}

/* The time until the next task ends; INFINITY where none runs. */
static double next_end(const player *p) {
  double ns = INFINITY;
  for (const sim_worker *w = p->worker; w < p->worker + p->threads; w++)
    if (w->state == RUNNING) ns = fmin(ns, w->left_ns * w->slowness);
  return ns;
}

static void pass_time(player *p, double ns) {
  sim_result *r = p->result;
  r->ns += ns;
  for (sim_worker *w = p->worker; w < p->worker + p->threads; w++) {
    if (w->state == WAITING) r->waiting_ns += ns;
    if (w->state == OVER) r->over_ns += ns;
    if (w->state != RUNNING) continue;
    const bool ends = w->left_ns * w->slowness <= ns * (1 + 1e-12);
    r->memory_ns += ns - ns / w->slowness;
    w->left_ns -= ns / w->slowness;
    if (!ends) continue;
    attn_deal_finish(p->deal, &w->dealt);
    w->state = IDLE;
  }
}

static void play_deal(player *p) {
  for (int i = 0; i < p->threads; i++) p->worker[i].state = IDLE;
  for (;;) {
    give_work(p);
    find_slowness(p);
    const double ns = next_end(p);
    if (ns == INFINITY) return;
    pass_time(p, ns);
  }
}

/* ---- A run ---- */

/* False if memory is short. */
static bool place_memory(player *p) {
  const int64_t slots = p->work->schedule->wave_units;
  for (int n = 0; n < p->machine->nodes; n++) p->caches += caches_of(p->machine, n);
  p->slot_node = malloc((size_t)slots * sizeof *p->slot_node);
  p->in_cache = calloc((size_t)(slots * p->caches), sizeof *p->in_cache);
  for (int64_t slot = 0; p->slot_node && slot < slots; slot++) p->slot_node[slot] = -1;
  return p->slot_node && p->in_cache;
}

bool sim_play(const sim_work *work, int threads, const sim_machine *machine, sim_result *result) {
  const attn_schedule *s = work->schedule;
  attn_deal *deal = malloc(sizeof *deal);
  sim_worker *worker = calloc((size_t)threads, sizeof *worker);
  _Atomic int64_t *finished = malloc((size_t)max64(attn_deal_counters(s), 1) * sizeof *finished);
  player p = {.work = work, .machine = machine, .threads = threads, .deal = deal, .worker = worker, .result = result};
  const bool there = place_memory(&p) && deal && worker && finished;
  *result = (sim_result){0};
  for (int i = 0; there && i < threads; i++) place_worker(machine, &worker[i], i);
  for (; there && p.first_unit < s->units; p.first_unit += deal->units) {
    attn_deal_start(deal, s, s->units - p.first_unit, threads, machine->flat ? 1 : machine->nodes, finished);
    play_deal(&p);
    result->ns += threads > 1 ? work->loop_ns : 0;
    result->loop_ns += threads > 1 ? work->loop_ns * threads : 0;
  }
  for (int i = 0; there && i < threads; i++) result->working += worker[i].worked;
  free(p.slot_node);
  free(p.in_cache);
  free(deal);
  free(worker);
  free(finished);
  return there;
}

static int largest_of(const double *values, int count) {
  int largest = 0;
  for (int i = 1; i < count; i++)
    if (values[i] > values[largest]) largest = i;
  return largest;
}

const char *sim_limit(const sim_result *r, int threads) {
  const double lost[] = {r->memory_ns, r->waiting_ns, r->over_ns, r->loop_ns};
  const char *const names[] = {"bandwidth", "earlier phases", r->working < threads ? "too few tasks" : "longest task",
                               "starting threads"};
  const int most = largest_of(lost, (int)(sizeof lost / sizeof *lost));
  return lost[most] < r->ns * threads / 20 ? "work" : names[most];
}
