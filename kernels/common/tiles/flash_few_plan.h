/* SPDX-License-Identifier: MIT */
/* Which units flash computes by flash_few.h, and the memory for it. */
#ifndef ATTN_COMMON_FLASH_FEW_PLAN_H
#define ATTN_COMMON_FLASH_FEW_PLAN_H

#include "kernels/common/problem/terms.h"
#include "row_block.h"

/* Rows with those beyond the last that are computed beside them. */
static inline int64_t few_capacity(int64_t rows) { return round_up(rows, 4); }

/* Memory for the rows of a unit, whose vectors hold `lanes` floats. False if a size overflows. */
static inline bool few_scratch_of(const attn_problem *p, int64_t key_block, int64_t lanes, scratch_layout *at) {
  const int64_t capacity = few_capacity(MOST_FEW_ROWS);
  return scratch_layout_for(p, capacity, capacity, key_block + lanes, lanes, at);
}

/* Adds to a plan of flash: if all units have few rows, there is nothing to pack. False if a size overflows. */
static inline bool plan_few(const attn_problem *p, int64_t lanes, attn_schedule *schedule) {
  scratch_layout at;
  if (!few_take(p)) return true;
  if (!few_scratch_of(p, schedule->key_block, lanes, &at)) return false;
  if (schedule->scratch_bytes < (size_t)at.total) schedule->scratch_bytes = (size_t)at.total;
  if (!few_rows_in(p, p->seq_q)) return true;
  schedule->phases = 1;
  schedule->items[0] = 1;
  schedule->row_block = attn_group(p) * p->seq_q;
  schedule->unit_bytes = 0;
  schedule->scratch_bytes = (size_t)at.total;
  return true;
}

typedef void few_run_function(const attn_schedule *schedule, const attn_args *args, int64_t unit, void *scratch);

/* True if the task is of a unit with few rows; then it is done: the last phase's first does all of it. */
static inline bool ran_few(few_run_function *run, const attn_schedule *schedule, const attn_args *args, attn_task task,
                           void *scratch) {
  const attn_problem *p = &schedule->problem;
  if (!few_take(p)) return false;
  const attn_sequence seq = attn_sequence_of(p, args, attn_batch_of_unit(p, task.unit));
  if (!few_rows_in(p, attn_rows(p, &seq))) return false;
  if (task.phase + 1 == schedule->phases && task.item == 0) run(schedule, args, task.unit, scratch);
  return true;
}

/* flash's plan and tasks for a tier whose flash_few_<isa>.c has the other ones. */
#define FLASH_OF_ANY_ROWS(isa)                                                                                      \
  extern few_run_function attn_flash_few_##isa;                                                                     \
  static bool plan_any_rows(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {          \
    return flash_plan(p, machine, schedule) && plan_few(p, VEC_LANES, schedule);                                    \
  }                                                                                                                 \
  static void run_any_rows(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, \
                           void *scratch) {                                                                         \
    if (!ran_few(attn_flash_few_##isa, schedule, args, task, scratch))                                              \
      flash_run(schedule, args, task, unit_memory, scratch);                                                        \
  }

#endif
