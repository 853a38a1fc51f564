/* SPDX-License-Identifier: MIT */
/* Plays tasks on threads: from each moment at which a task ends to the next. */
#include <assert.h>
#include <math.h>
#include <stdlib.h>

#include "kernels/common/problem/arithmetic.h"
#include "simulate/simulate.h"

typedef enum worker_state { IDLE, WAITING, RUNNING, OVER } worker_state;

typedef struct sim_worker {
  worker_state state;
  attn_dealt dealt;
  int node;
  double left_ns, bytes_per_ns; /* its task's, as it goes alone */
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

static int node_of(const sim_machine *m, int thread) {
  int node = 0;
  for (int cores = m->node[0].cores; thread >= cores; cores += m->node[++node].cores) assert(node + 1 < m->nodes);
  return node;
}

/* ---- One moment ---- */

static void begin_task(player *p, sim_worker *w) {
  const attn_schedule *s = p->work->schedule;
  attn_task task = w->dealt.task;
  task.unit += p->first_unit;
  const double ns = p->work->task_ns[sim_task_number(s, &task)];
  w->state = RUNNING;
  w->left_ns = ns + p->work->take_ns;
  w->bytes_per_ns = w->left_ns > 0 ? p->work->bytes[task.phase] / w->left_ns : 0;
  w->worked = true;
  p->result->work_ns += w->left_ns;
  p->result->longest_ns = fmax(p->result->longest_ns, ns);
  p->result->tasks++;
}

static void give_work(player *p) {
  for (int i = 0; i < p->threads; i++) {
    sim_worker *w = &p->worker[i];
    if (w->state == IDLE) w->state = attn_deal_take(p->deal, i, &w->dealt) ? WAITING : OVER;
    if (w->state == WAITING && attn_deal_is_ready(p->deal, &w->dealt)) begin_task(p, w);
  }
}

/* How many times longer the tasks take that read in each node. */
static void find_slowness(player *p) {
  const sim_machine *m = p->machine;
  double wanted[SIM_MOST_NODES] = {0}, slowness[SIM_MOST_NODES], most = 1;
  for (const sim_worker *w = p->worker; w < p->worker + p->threads; w++)
    for (int n = 0; w->state == RUNNING && n < m->nodes; n++)
      wanted[n] += m->memory == SIM_SPREAD                       ? w->bytes_per_ns / m->nodes
                   : n == (m->memory == SIM_LOCAL ? w->node : 0) ? w->bytes_per_ns
                                                                 : 0;
  for (int n = 0; n < m->nodes; n++) {
    slowness[n] = fmax(1, wanted[n] / m->node[n].bytes_per_ns);
    most = fmax(most, slowness[n]);
  }
  for (sim_worker *w = p->worker; w < p->worker + p->threads; w++)
    w->slowness = w->bytes_per_ns == 0 ? 1 : m->memory == SIM_LOCAL ? slowness[w->node] : most;
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

bool sim_play(const sim_work *work, int threads, const sim_machine *machine, sim_result *result) {
  const attn_schedule *s = work->schedule;
  attn_deal *deal = malloc(sizeof *deal);
  sim_worker *worker = calloc((size_t)threads, sizeof *worker);
  _Atomic int64_t *finished = malloc((size_t)max64(attn_deal_counters(s), 1) * sizeof *finished);
  player p = {.work = work, .machine = machine, .threads = threads, .deal = deal, .worker = worker, .result = result};
  const bool there = deal && worker && finished;
  *result = (sim_result){0};
  for (int i = 0; there && i < threads; i++) worker[i].node = node_of(machine, i);
  for (; there && p.first_unit < s->units; p.first_unit += deal->units) {
    attn_deal_start(deal, s, s->units - p.first_unit, threads, finished);
    play_deal(&p);
    result->ns += threads > 1 ? work->loop_ns : 0;
    result->loop_ns += threads > 1 ? work->loop_ns * threads : 0;
  }
  for (int i = 0; there && i < threads; i++) result->working += worker[i].worked;
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
