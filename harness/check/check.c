/* SPDX-License-Identifier: MIT */
/* Runs a kernel twice and watches it: both times the output is poisoned and lies between guard zones, the second time the
 * workspace lies elsewhere. compare.c compares the values. */
#include "check/check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/error_limits.h"
#include "check/reference.h"

/* The first is a NaN in every float type. The second is a large number in float32 and bfloat16. An element that holds one
 * of them after a run was not written. One that differs between the runs was not written, or is not repeatable. */
enum { FIRST_POISON = 0xff, SECOND_POISON = 0x7d };

typedef struct watched_kernel {
  const attn_plan *plan;
  bench_tensors *tensors;
  size_t workspace_bytes;
  size_t output_bytes;
  unsigned char *first, *second; /* the packed outputs of both runs */
  bench_verdict verdict;
} watched_kernel;

/* Names the element at a byte of the packed copy, which holds o and then lse. */
static void name_packed_byte(const bench_tensors *tensors, size_t byte, char *text, size_t bytes) {
  bench_owned owned = bench_owned_elements(tensors, BENCH_O);
  const size_t o_bytes = (size_t)owned.count * tensors->buffers[BENCH_O].element_bytes;
  const bool in_o = byte < o_bytes;
  long long n = (long long)((in_o ? byte : byte - o_bytes) / tensors->buffers[in_o ? BENCH_O : BENCH_LSE].element_bytes);
  long long at[4];
  if (!in_o) owned = bench_owned_elements(tensors, BENCH_LSE);
  for (int i = 3; i >= 0; n /= owned.extent[i--]) at[i] = n % owned.extent[i];
  snprintf(text, bytes, "%s[batch %lld, head %lld, %s %lld, column %lld]", in_o ? "o" : "lse", at[0], at[1],
           tensors->problem.uses & ATTN_USE_VARLEN ? "token" : "query", at[2], at[3]);
}

/* Runs on poisoned output. False: the verdict says what went wrong. */
static bool run(watched_kernel *w, int poison, void *workspace) {
  bench_tensors_poison_output(w->tensors, (uint8_t)poison);
  if (workspace) memset(workspace, poison, w->workspace_bytes);
  const attn_status status = attn_plan_run(w->plan, &w->tensors->args, workspace, w->workspace_bytes);
  if (status != ATTN_OK) {
    bench_set_reason(&w->verdict, BENCH_ERROR, "%s: %s", attn_status_name(status), attn_last_error());
    return false;
  }
  const char *damage = bench_tensors_damage(w->tensors);
  if (damage) bench_set_reason(&w->verdict, BENCH_FAIL, "%s", damage);
  return !damage;
}

static bool is_guard(const unsigned char *zone) {
  for (size_t i = 0; i < BENCH_GUARD_BYTES; i++)
    if (zone[i] != BENCH_OUTPUT_GUARD) return false;
  return true;
}

/* Runs in another workspace, between guard zones: memory[guard][workspace][guard]. */
static bool run_elsewhere(watched_kernel *w) {
  unsigned char *memory = aligned_alloc(64, (w->workspace_bytes + 63) / 64 * 64 + 2 * BENCH_GUARD_BYTES);
  if (!memory) {
    bench_set_reason(&w->verdict, BENCH_ERROR, "no memory for a second workspace of %zu bytes", w->workspace_bytes);
    return false;
  }
  unsigned char *workspace = memory + BENCH_GUARD_BYTES, *after = workspace + w->workspace_bytes;
  memset(memory, BENCH_OUTPUT_GUARD, BENCH_GUARD_BYTES);
  memset(after, BENCH_OUTPUT_GUARD, BENCH_GUARD_BYTES);
  const bool ran = run(w, SECOND_POISON, workspace), inside = is_guard(memory) && is_guard(after);
  if (ran && !inside)
    bench_set_reason(&w->verdict, BENCH_FAIL, "workspace: written outside its %zu bytes", w->workspace_bytes);
  free(memory);
  return ran && inside;
}

static void compare_outputs(watched_kernel *w) {
  char where[120];
  size_t at = 0;
  bench_tensors_gather_output(w->tensors, w->second);
  while (at < w->output_bytes && w->first[at] == w->second[at]) at++;
  if (at == w->output_bytes) return;
  name_packed_byte(w->tensors, at, where, sizeof where);
  bench_set_reason(&w->verdict, BENCH_FAIL,
                   "%s differs between two runs on the same inputs: it was not written, or depends on what "
                   "stood in output or workspace before",
                   where);
}

/* The oracle's rows, and then the others. */
static void compare(watched_kernel *w, const bench_expected *expected, const attn_numerics *numerics) {
  const attn_args *args = &w->tensors->args;
  w->verdict = bench_compare(expected, args, numerics);
  if (w->verdict.status == BENCH_FAIL) return;
  const bench_verdict others = bench_compare_others(expected, args, numerics, attn_kernel_find(attn_plan_kernel(w->plan)));
  if (others.status != BENCH_PASS) bench_set_reason(&w->verdict, others.status, "%s", others.reason);
}

/* Runs twice, the second time with the workspace elsewhere and after another poison: the output must have the same bits.
 * Neither run may change an input. */
static void check(watched_kernel *w, const bench_expected *expected, const attn_numerics *numerics, void *workspace) {
  const uint64_t inputs = bench_tensors_input_hash(w->tensors);
  if (!run(w, FIRST_POISON, workspace)) return;
  compare(w, expected, numerics);
  bench_tensors_gather_output(w->tensors, w->first);
  if (w->verdict.status != BENCH_FAIL && run_elsewhere(w)) compare_outputs(w);
  if (w->verdict.status != BENCH_FAIL && bench_tensors_input_hash(w->tensors) != inputs)
    bench_set_reason(&w->verdict, BENCH_FAIL, "an input was overwritten");
  w->verdict.output_hash = bench_tensors_output_hash(w->tensors);
}

bench_verdict bench_check(const attn_plan *plan, bench_tensors *tensors, const bench_expected *expected,
                          const attn_numerics *numerics, void *workspace, size_t workspace_bytes) {
  watched_kernel w = {.plan = plan, .tensors = tensors, .workspace_bytes = workspace_bytes};
  w.output_bytes = bench_tensors_output_bytes(tensors);
  w.first = malloc(2 * w.output_bytes + 1);
  if (!w.first) {
    bench_set_reason(&w.verdict, BENCH_ERROR, "no memory for two copies of the %zu bytes of output", w.output_bytes);
    return w.verdict;
  }
  w.second = w.first + w.output_bytes;
  const char *excess = bench_beyond_cap(numerics);
  if (excess)
    bench_set_reason(&w.verdict, BENCH_FAIL, "declares %s beyond the cap of docs/numerics.md", excess);
  else
    check(&w, expected, numerics, workspace);
  w.verdict.approximate = bench_is_approximate(&tensors->problem, numerics);
  free(w.first);
  return w.verdict;
}
