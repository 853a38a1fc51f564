/* SPDX-License-Identifier: MIT */
/* The kernel contract: what a kernel tells the plan, and what the plan promises the kernel.
 *
 * The work of one call is cut into units, one per KV head of one batch (unit = batch * heads_kv + kv_head), because all
 * query heads that share a KV head share its packed K and V. A wave of units is in memory at a time. Within a wave the
 * phases run one after the other, the tasks of one phase in any order on any thread:
 *
 *     for each wave: for each phase: for each unit of the wave, each item: run(schedule, args, task, unit_memory, scratch)
 *
 * so a phase may read what an earlier phase left in unit_memory (pack, then compute, then merge).
 *
 * A hand-written kernel is a pure function of its arguments: it allocates nothing, starts no threads, keeps no state, never
 * prints or aborts. For a fixed kernel and CPU each output row's bits depend on that row's inputs alone, so block borders
 * are absolute key indices fixed by (kernel, dtype, dims).
 *
 * A kernel on another library may need objects of that library: open() makes them once per plan and close() frees them with
 * the plan. In between they do not change, so that any number of threads may run the plan at once.
 */
#ifndef ATTN_KERNEL_H
#define ATTN_KERNEL_H

#include "attn/attn.h"

enum { ATTN_MAX_PHASES = 3, ATTN_MEMORY_ALIGN = 64 };

/* What plan() may use to decide, beside the problem. It steers speed only, never which keys go together. */
typedef struct attn_machine {
  int threads;
  const struct attn_score_steps *steps; /* of the highest tier that CPU and cap allow (kernels/library/score_steps.h) */
} attn_machine;

typedef struct attn_schedule {
  attn_problem problem;

  int64_t units;                  /* batch * heads_kv; set by the plan */
  int64_t wave_units;             /* units in memory at a time; set by the plan from unit_bytes and items */
  int phases;                     /* set by kernel->plan() */
  int64_t items[ATTN_MAX_PHASES]; /* tasks of one unit, by phase; longest first */
  size_t unit_bytes;              /* shared memory of one unit */
  size_t scratch_bytes;           /* private memory of one thread */

  int64_t row_block; /* query rows of one compute task */
  int64_t key_block; /* keys scored before P is used */

  int most_threads;                     /* that may work at once: the library's limit; 0 = any number */
  const struct attn_score_steps *steps; /* for kernels that stand on a library: what plan() took from the machine */

  void *library_state; /* what open() made: the plan's own, only read by run(); NULL for hand-written kernels */
} attn_schedule;

typedef struct attn_task {
  int phase;
  int64_t unit; /* batch * heads_kv + kv_head */
  int64_t item; /* 0 .. items[phase] - 1 */
} attn_task;

typedef struct attn_kernel {
  attn_kernel_info info;
  /* NULL = takes the problem (which is valid); else the reason in words: static text, or written to `buffer`. */
  const char *(*rejects)(const attn_problem *problem, char *buffer, size_t buffer_bytes);
  /* Fills in phases, items, unit_bytes, scratch_bytes and the blocks. Returns false if a size overflows. */
  bool (*plan)(const attn_problem *problem, const attn_machine *machine, attn_schedule *schedule);
  /* NULL for hand-written kernels. Makes library_state from what plan() filled in and may add to scratch_bytes what the
   * library wants to work in. On failure nothing is left behind and `reason` holds a sentence. */
  attn_status (*open)(attn_schedule *schedule, char *reason, size_t reason_bytes);
  /* Ends what open() made; called once after each open() that succeeded. */
  void (*close)(attn_schedule *schedule);
  /* The next four are NULL for hand-written kernels. Writes the library's version and what else results should name to the
   * text that info.library points to; called before info leaves the registry, by any thread, any number of times. */
  void (*identify)(void);
  /* Why the library cannot be used below `cap` (NULL = no cap) on this CPU, where it chooses its instructions itself; NULL
   * if it can. */
  const char *(*unusable)(const char *cap);
  /* Around the tasks of each attn_plan_run, on the thread that called it: holds what is global to the process and belongs to
   * the library, such as its number of threads, and puts it back when the last of several runs at once has ended. */
  void (*begin_run)(void);
  void (*end_run)(void);
  /* One task. unit_memory: the unit's shared bytes; scratch: this thread's bytes; both 64-byte aligned. */
  void (*run)(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch);
} attn_kernel;

#endif
