/* SPDX-License-Identifier: MIT */
/* A run under watch: poisoned output, guard zones, a second run elsewhere in memory. compare.c judges the values. */
#include "check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check_private.h"
#include "data/tensors_private.h"

/* The first is a NaN in every float type; the second, in float32 and bfloat16, a large number. What holds either after a run
 * was not written, and what differs between the runs was not written or is not repeatable. */
enum { FIRST_POISON = 0xff, SECOND_POISON = 0x7d };

/* Names the output element at a byte of the packed copy. */
static void name_packed_byte(const bench_tensors *tensors, size_t byte, char *text, size_t bytes) {
  const bench_buffer *o = &tensors->buffers[BENCH_O], *lse = &tensors->buffers[BENCH_LSE];
  bench_owned owned = bench_owned_elements(tensors, BENCH_O);
  size_t o_bytes = (size_t)owned.count * o->element_bytes;
  bool in_o = byte < o_bytes;
  if (!in_o) owned = bench_owned_elements(tensors, BENCH_LSE);
  int64_t n = (int64_t)(in_o ? byte / o->element_bytes : (byte - o_bytes) / lse->element_bytes), at[4];
  for (int i = 3; i >= 0; i--) {
    at[i] = n % owned.extent[i];
    n /= owned.extent[i];
  }
  snprintf(text, bytes, "%s[batch %lld, head %lld, %s %lld, column %lld]", in_o ? "o" : "lse", (long long)at[0],
           (long long)at[1], tensors->problem.uses & ATTN_USE_VARLEN ? "token" : "query", (long long)at[2],
           (long long)at[3]);
}

/* Runs on poisoned output. False: verdict says what went wrong. */
static bool run_watched(const attn_plan *plan, bench_tensors *tensors, int poison, void *workspace, size_t workspace_bytes,
                        bench_verdict *verdict) {
  bench_tensors_poison_output(tensors, (uint8_t)poison);
  if (workspace) memset(workspace, poison, workspace_bytes);
  attn_status status = attn_plan_run(plan, &tensors->args, workspace, workspace_bytes);
  if (status != ATTN_OK) {
    bench_set_reason(verdict, BENCH_ERROR, "%s: %s", attn_status_name(status), attn_last_error());
    return false;
  }
  const char *damage = bench_tensors_damage(tensors);
  if (damage) bench_set_reason(verdict, BENCH_FAIL, "%s", damage);
  return !damage;
}

/* Runs again in a workspace elsewhere, with guard zones of its own, after another poison: the same bits must come out. */
static void run_again(const attn_plan *plan, bench_tensors *tensors, const unsigned char *first, unsigned char *second,
                      size_t workspace_bytes, bench_verdict *verdict) {
  unsigned char *memory = aligned_alloc(64, (workspace_bytes + 63) / 64 * 64 + 2 * BENCH_GUARD_BYTES);
  if (!memory) {
    bench_set_reason(verdict, BENCH_ERROR, "no memory for a second workspace of %zu bytes", workspace_bytes);
    return;
  }
  unsigned char *workspace = memory + BENCH_GUARD_BYTES;
  memset(memory, BENCH_OUTPUT_GUARD, BENCH_GUARD_BYTES);
  memset(workspace + workspace_bytes, BENCH_OUTPUT_GUARD, BENCH_GUARD_BYTES);
  bool fine = run_watched(plan, tensors, SECOND_POISON, workspace, workspace_bytes, verdict);
  for (size_t i = 0; i < BENCH_GUARD_BYTES && fine; i++) {
    fine = memory[i] == BENCH_OUTPUT_GUARD && workspace[workspace_bytes + i] == BENCH_OUTPUT_GUARD;
    if (!fine) bench_set_reason(verdict, BENCH_FAIL, "workspace: written outside its %zu bytes", workspace_bytes);
  }
  free(memory);
  if (!fine) return;

  size_t bytes = bench_tensors_output_bytes(tensors), at = 0;
  bench_tensors_gather_output(tensors, second);
  while (at < bytes && first[at] == second[at]) at++;
  if (at == bytes) return;
  char where[120];
  name_packed_byte(tensors, at, where, sizeof where);
  bench_set_reason(verdict, BENCH_FAIL,
                   "%s differs between two runs on the same inputs: it was not written, or depends on what "
                   "stood in output or workspace before",
                   where);
}

bench_verdict bench_check(const attn_plan *plan, bench_tensors *tensors, const bench_expected *expected,
                          const attn_numerics *numerics, void *workspace, size_t workspace_bytes) {
  bench_verdict verdict = {.status = BENCH_PASS};
  size_t bytes = bench_tensors_output_bytes(tensors);
  unsigned char *packed = malloc(2 * bytes + 1);
  if (!packed) {
    bench_set_reason(&verdict, BENCH_ERROR, "no memory for two copies of the %zu bytes of output", bytes);
    return verdict;
  }
  uint64_t inputs = bench_tensors_input_hash(tensors);
  if (run_watched(plan, tensors, FIRST_POISON, workspace, workspace_bytes, &verdict)) {
    verdict = bench_compare(expected, &tensors->args, numerics);
    bench_tensors_gather_output(tensors, packed);
    if (verdict.status != BENCH_FAIL) run_again(plan, tensors, packed, packed + bytes, workspace_bytes, &verdict);
    if (verdict.status != BENCH_FAIL && bench_tensors_input_hash(tensors) != inputs)
      bench_set_reason(&verdict, BENCH_FAIL, "an input was overwritten");
    verdict.output_hash = bench_tensors_output_hash(tensors);
  }
  free(packed);
  return verdict;
}
