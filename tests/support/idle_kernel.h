/* SPDX-License-Identifier: MIT */
/* A kernel for tests of what stands around kernels: it takes every problem, in one task. */
#ifndef TESTS_IDLE_KERNEL_H
#define TESTS_IDLE_KERNEL_H

#include "attn/kernel.h"

static const char *idle_rejects(const attn_problem *problem, char *buffer, size_t bytes) {
  (void)problem, (void)buffer, (void)bytes;
  return NULL;
}

static bool idle_plan(const attn_problem *problem, const attn_machine *machine, attn_schedule *schedule) {
  (void)machine;
  schedule->phases = 1;
  schedule->items[0] = 1;
  schedule->row_block = problem->seq_q;
  schedule->key_block = problem->seq_k;
  return true;
}

#endif
