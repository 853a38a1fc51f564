/* SPDX-License-Identifier: MIT */
/* Which thread takes which task, and when the task may begin. The threads of a run ask here, and so does the simulator of
 * attnbench, which plays a run on any number of them.
 *
 * A stage is a phase of a wave of units (attn/kernel.h). Stages are handed out in order; a thread goes on to the next one
 * when all tasks of a stage are taken, not when they are finished. A task waits for its own unit's earlier phases alone, and
 * for the unit that used its memory before. Whatever it waits for has been taken by a thread that runs, so no thread waits
 * forever, however few there are.
 *
 * With units for all threads, each begins with a share of consecutive tasks, and so finds in its caches what it has packed;
 * then it takes those of others. With fewer units the first items of all units come first: they are the longest.
 *
 * On several NUMA nodes the units, and the memory for those at hand, are divided into as many parts, in their order and in
 * every run alike: with N parts, part n has the units from n * units / N on. A thread works for the part of its own node
 * until all tasks there are taken, and then for others. So the threads of one node pack what they read, and first write what
 * they use. */
#ifndef ATTN_DEAL_H
#define ATTN_DEAL_H

#include <stdatomic.h>
#include <stdbool.h>

#include "attn/kernel.h"

enum { ATTN_MOST_SHARES = 64, ATTN_MOST_PARTS = 16 };

typedef struct attn_share {
  _Alignas(ATTN_MEMORY_ALIGN) _Atomic uint64_t next; /* stage + 1 and task: 0 = none was taken */
} attn_share;

/* Units first_unit .. first_unit + units - 1, in memories first_slot .. first_slot + wave_units - 1. */
typedef struct attn_deal_part {
  int64_t first_unit, units, first_slot, wave_units, stages;
  _Alignas(ATTN_MEMORY_ALIGN) _Atomic int64_t stage; /* all before it are taken */
} attn_deal_part;

typedef struct attn_deal {
  int phases, nodes, parts, part_shares;
  int threads;                    /* a part has so many */
  int64_t items[ATTN_MAX_PHASES]; /* tasks of a unit */
  int64_t units;
  _Atomic int64_t *finished; /* [wave_units] tasks that were finished in this memory of a unit; NULL: none waits */
  attn_deal_part part[ATTN_MOST_PARTS];
  attn_share share[ATTN_MOST_SHARES]; /* [parts][part_shares] */
} attn_deal;

typedef struct attn_dealt {
  attn_task task;    /* its unit counts from the first of the deal */
  int part;          /* the part that it is of */
  int64_t slot;      /* which memory of a unit */
  int64_t waits_for; /* finished[slot] has to be so much */
} attn_dealt;

/* Room that a deal of the schedule needs for `finished`: 0 if no task waits. */
int64_t attn_deal_counters(const attn_schedule *schedule);

/* Parts of a deal over so many nodes: no more than there are units in memory at a time. */
int attn_deal_parts(int64_t wave_units, int nodes);

/* The first of `all` that a part has, and the part that has one of them: also the rule by which a program, or a cache, keeps
 * units in the nodes that their tasks are dealt to. */
static inline int64_t attn_deal_border(int64_t all, int parts, int part) {
  return all / parts * part + all % parts * part / parts;
}
static inline int attn_deal_part_of(int64_t all, int parts, int64_t index) { return (int)(((index + 1) * parts - 1) / all); }

/* Begins to deal out tasks of the first `units` units, or of as many as one deal can: deal->units. Of the schedule it reads
 * phases, items and wave_units. The threads run on `nodes` >= 1 NUMA nodes. */
void attn_deal_start(attn_deal *deal, const attn_schedule *schedule, int64_t units, int threads, int nodes,
                     _Atomic int64_t *finished);

/* The worker's next task; false if all are taken. Workers are 0 .. threads - 1; this one runs on node 0 .. nodes - 1. */
bool attn_deal_take(attn_deal *deal, int worker, int node, attn_dealt *dealt);

/* Whether it may begin; waiting until it may; and saying that it is finished. */
bool attn_deal_is_ready(const attn_deal *deal, const attn_dealt *dealt);
void attn_deal_wait(const attn_deal *deal, const attn_dealt *dealt);
void attn_deal_finish(attn_deal *deal, const attn_dealt *dealt);

#endif
