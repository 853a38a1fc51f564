/* SPDX-License-Identifier: MIT */
#include "src/plan/deal.h"

#include <string.h>

#include "kernels/common/problem/arithmetic.h"

#if defined(_OPENMP) || defined(ATTN_THREADS)
#include <sched.h>
#else
static void sched_yield(void) {} /* one thread waits for nothing */
#endif

enum { TASK_BITS = 40, MOST_STAGES = 1 << 23 };
#define TASK_MASK ((UINT64_C(1) << TASK_BITS) - 1)

int64_t attn_deal_counters(const attn_schedule *schedule) {
  return schedule->phases > 1 || schedule->wave_units < schedule->units ? schedule->wave_units : 0;
}

void attn_deal_start(attn_deal *deal, const attn_schedule *schedule, int64_t units, int threads, _Atomic int64_t *finished) {
  const int64_t waves = min64(ceil_div(units, schedule->wave_units), MOST_STAGES / schedule->phases);
  deal->phases = schedule->phases;
  deal->threads = threads;
  memcpy(deal->items, schedule->items, sizeof deal->items);
  deal->units = min64(units, waves * schedule->wave_units);
  deal->wave_units = schedule->wave_units;
  deal->stages = waves * schedule->phases;
  deal->finished = attn_deal_counters(schedule) ? finished : NULL;
  for (int64_t slot = 0; deal->finished && slot < schedule->wave_units; slot++) atomic_init(&finished[slot], 0);
  atomic_init(&deal->stage, 0);
  for (int s = 0; s < ATTN_MOST_SHARES && s < threads; s++) atomic_init(&deal->share[s].next, 0);
}

/* ---- Stages and shares ---- */

typedef struct stage_tasks {
  int64_t number, first_unit, tasks;
  int phase, shares;
  bool near; /* there are units for all threads */
} stage_tasks;

static stage_tasks stage_of(const attn_deal *deal, int64_t number) {
  const int64_t first = number / deal->phases * deal->wave_units, units = min64(deal->wave_units, deal->units - first);
  const int phase = (int)(number % deal->phases);
  return (stage_tasks){.number = number,
                       .first_unit = first,
                       .tasks = units * deal->items[phase],
                       .phase = phase,
                       .shares = units < deal->threads ? 1 : (int)min64(deal->threads, ATTN_MOST_SHARES),
                       .near = units >= deal->threads};
}

/* The next task of a share; -1 if all are taken. Where the share's last task was one of an earlier stage, none is. */
static int64_t take_of_share(attn_deal *deal, const stage_tasks *stage, int share) {
  const uint64_t tag = (uint64_t)(stage->number + 1);
  const int64_t begin = stage->tasks * share / stage->shares, end = stage->tasks * (share + 1) / stage->shares;
  uint64_t last = atomic_load_explicit(&deal->share[share].next, memory_order_relaxed);
  for (;;) {
    const int64_t next = last >> TASK_BITS == tag ? (int64_t)(last & TASK_MASK) : begin;
    if (last >> TASK_BITS > tag || next >= end) return -1;
    if (atomic_compare_exchange_weak_explicit(&deal->share[share].next, &last, tag << TASK_BITS | (uint64_t)(next + 1),
                                              memory_order_relaxed, memory_order_relaxed))
      return next;
  }
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

bool attn_deal_take(attn_deal *deal, int worker, attn_dealt *dealt) {
  int64_t open = atomic_load_explicit(&deal->stage, memory_order_relaxed);
  for (int64_t number = open; number < deal->stages; number++) {
    const stage_tasks stage = stage_of(deal, number);
    for (int n = 0; n < stage.shares; n++) {
      const int64_t index = take_of_share(deal, &stage, (worker + n) % stage.shares);
      if (index < 0) continue;
      const int64_t items = deal->items[stage.phase], units = stage.tasks / items;
      const int64_t slot = stage.near ? index / items : index % units;
      const int64_t item = stage.near ? index % items : index / units;
      dealt->task = (attn_task){.phase = stage.phase, .unit = stage.first_unit + slot, .item = item};
      dealt->slot = slot;
      dealt->waits_for = tasks_before(deal, &stage);
      return true;
    }
    if (open == number && atomic_compare_exchange_strong(&deal->stage, &open, number + 1)) open = number + 1;
  }
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
