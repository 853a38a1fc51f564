/* SPDX-License-Identifier: MIT */
#include "src/plan/deal.h"

#include <string.h>

#include "kernels/common/problem/arithmetic.h"

#if defined(_OPENMP) || defined(ATTN_THREADS)
#include <sched.h>
#else
static void sched_yield(void) {} /* one thread waits for nothing */
#endif

enum { TASK_BITS = 40, MOST_STAGES = 1 << 22 };
#define TASK_MASK ((UINT64_C(1) << TASK_BITS) - 1)

int64_t attn_deal_counters(const attn_schedule *schedule) {
  return schedule->phases > 1 || schedule->wave_units < schedule->units ? schedule->wave_units : 0;
}

int attn_deal_parts(int64_t wave_units, int nodes) {
  return (int)max64(min64(min64(nodes, ATTN_MOST_PARTS), wave_units), 1);
}

static void start_part(attn_deal *deal, int n, int64_t wave_units) {
  attn_deal_part *part = &deal->part[n];
  part->first_unit = attn_deal_border(deal->units, deal->parts, n);
  part->units = attn_deal_border(deal->units, deal->parts, n + 1) - part->first_unit;
  part->first_slot = attn_deal_border(wave_units, deal->parts, n);
  part->wave_units = attn_deal_border(wave_units, deal->parts, n + 1) - part->first_slot;
  part->stages = ceil_div(part->units, part->wave_units) * deal->phases;
  atomic_init(&part->stage, 0);
  for (int s = 0; s < deal->part_shares && s < deal->threads; s++)
    atomic_init(&deal->share[n * deal->part_shares + s].next, 0);
}

void attn_deal_start(attn_deal *deal, const attn_schedule *schedule, int64_t units, int threads, int nodes,
                     _Atomic int64_t *finished) {
  const int64_t waves = min64(ceil_div(units, schedule->wave_units), MOST_STAGES / schedule->phases);
  deal->phases = schedule->phases;
  deal->nodes = nodes;
  deal->parts = attn_deal_parts(schedule->wave_units, nodes);
  deal->part_shares = ATTN_MOST_SHARES / deal->parts;
  deal->threads = (int)ceil_div(threads, deal->parts);
  memcpy(deal->items, schedule->items, sizeof deal->items);
  deal->units = min64(units, waves * schedule->wave_units);
  deal->finished = attn_deal_counters(schedule) ? finished : NULL;
  for (int64_t slot = 0; deal->finished && slot < schedule->wave_units; slot++) atomic_init(&finished[slot], 0);
  for (int n = 0; n < deal->parts; n++) start_part(deal, n, schedule->wave_units);
}

/* ---- Stages and shares ---- */

typedef struct stage_tasks {
  int64_t number, first_unit, first_slot, units, tasks;
  int phase, shares;
  attn_share *share;
  bool near; /* there are units for all threads of the part */
} stage_tasks;

static stage_tasks stage_of(attn_deal *deal, int n, int64_t number) {
  const attn_deal_part *part = &deal->part[n];
  const int64_t first = number / deal->phases * part->wave_units, units = min64(part->wave_units, part->units - first);
  const int phase = (int)(number % deal->phases);
  return (stage_tasks){.number = number,
                       .first_unit = part->first_unit + first,
                       .first_slot = part->first_slot,
                       .units = units,
                       .tasks = units * deal->items[phase],
                       .phase = phase,
                       .shares = units < deal->threads ? 1 : (int)min64(deal->threads, deal->part_shares),
                       .share = &deal->share[n * deal->part_shares],
                       .near = units >= deal->threads};
}

/* The next task of a share; -1 if all are taken. Where the share's last task was one of an earlier stage, none is. */
static int64_t take_of_share(const stage_tasks *stage, int number) {
  attn_share *share = &stage->share[number];
  const uint64_t tag = (uint64_t)(stage->number + 1);
  const int64_t begin = stage->tasks * number / stage->shares, end = stage->tasks * (number + 1) / stage->shares;
  uint64_t last = atomic_load_explicit(&share->next, memory_order_relaxed);
  for (;;) {
    const int64_t next = last >> TASK_BITS == tag ? (int64_t)(last & TASK_MASK) : begin;
    if (last >> TASK_BITS > tag || next >= end) return -1;
    if (atomic_compare_exchange_weak_explicit(&share->next, &last, tag << TASK_BITS | (uint64_t)(next + 1),
                                              memory_order_relaxed, memory_order_relaxed))
      return next;
  }
}

static int64_t take_of_stage(const stage_tasks *stage, int worker) {
  int64_t index = -1;
  for (int n = 0; n < stage->shares && index < 0; n++) index = take_of_share(stage, (worker + n) % stage->shares);
  return index;
}

/* Tasks that must have finished in the unit's memory: those of all units before in it, and of this one's earlier phases. */
static int64_t tasks_before(const attn_deal *deal, const stage_tasks *stage) {
  int64_t all = 0, earlier = 0;
  for (int phase = 0; phase < deal->phases; phase++) {
    all += deal->items[phase];
    if (phase < stage->phase) earlier += deal->items[phase];
  }
  return stage->number / deal->phases * all + earlier;
}

static attn_dealt dealt_of(const attn_deal *deal, const stage_tasks *stage, int part, int64_t index) {
  const int64_t items = deal->items[stage->phase];
  const int64_t unit = stage->near ? index / items : index % stage->units;
  const int64_t item = stage->near ? index % items : index / stage->units;
  return (attn_dealt){.task = {.phase = stage->phase, .unit = stage->first_unit + unit, .item = item},
                      .part = part,
                      .slot = stage->first_slot + unit,
                      .waits_for = tasks_before(deal, stage)};
}

static bool take_of_part(attn_deal *deal, int n, int worker, attn_dealt *dealt) {
  attn_deal_part *part = &deal->part[n];
  int64_t open = atomic_load_explicit(&part->stage, memory_order_relaxed);
  for (int64_t number = open; number < part->stages; number++) {
    const stage_tasks stage = stage_of(deal, n, number);
    const int64_t index = take_of_stage(&stage, worker);
    if (index >= 0) {
      *dealt = dealt_of(deal, &stage, n, index);
      return true;
    }
    if (open == number && atomic_compare_exchange_strong(&part->stage, &open, number + 1)) open = number + 1;
  }
  return false;
}

bool attn_deal_take(attn_deal *deal, int worker, int node, attn_dealt *dealt) {
  const int own = (int)((int64_t)node * deal->parts / deal->nodes);
  for (int n = 0; n < deal->parts; n++)
    if (take_of_part(deal, (own + n) % deal->parts, worker, dealt)) return true;
  return false;
}

/* ---- Waiting ---- */

bool attn_deal_is_ready(const attn_deal *deal, const attn_dealt *dealt) {
  return !deal->finished || atomic_load_explicit(&deal->finished[dealt->slot], memory_order_acquire) >= dealt->waits_for;
}

/* Whoever is waited for may need this CPU. */
void attn_deal_wait(const attn_deal *deal, const attn_dealt *dealt) {
  enum { LOOKS = 200 };
  for (int looks = 0; !attn_deal_is_ready(deal, dealt); looks++)
    if (looks >= LOOKS) sched_yield();
}

void attn_deal_finish(attn_deal *deal, const attn_dealt *dealt) {
  if (deal->finished) atomic_fetch_add_explicit(&deal->finished[dealt->slot], 1, memory_order_release);
}
