/* SPDX-License-Identifier: MIT */
/* Structural tests with other threads and other sizes, and the loop over all tests. */
#include "check/structure.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/structure_private.h"

/* ---- Threads --------------------------------------------------------------------------------------------------------- */

/* A pool that runs all tasks itself, the last one first, and names one worker after the other. So a result that depends
 * on how work is divided shows without starting a thread. (tests/test_bits.c runs real threads.) */
static void run_backwards(void *pool, int64_t tasks, int workers, attn_task_fn task, void *context) {
  (void)pool;
  for (int64_t i = tasks - 1; i >= 0; i--) task(context, i, (int)(i % workers));
}

static bench_outcome compare_threads(bench_structure *s, int threads, const unsigned char *before, unsigned char *after,
                                     size_t bytes) {
  const attn_options options = {.threads = threads, .parallel_for = run_backwards};
  bench_tensors_poison_output(s->tensors, 0xff);
  const attn_status status = bench_structure_run(s, &s->tensors->problem, &s->tensors->args, &options);
  if (status == ATTN_OUT_OF_MEMORY) return bench_structure_cannot_run(s, "out of memory");
  if (status != ATTN_OK) return bench_structure_cannot_run(s, attn_last_error());
  bench_tensors_gather_output(s->tensors, after);
  if (!memcmp(before, after, bytes)) return BENCH_HOLDS;
  snprintf(s->reason, sizeof s->reason, "other bits with %d threads that take the tasks backwards", threads);
  return BENCH_BROKEN;
}

/* Afterwards the tensors hold the case's output again, unless the test failed. */
static bench_outcome test_threads(bench_structure *s) {
  static const int counts[] = {1, 2, 3, 7};
  const size_t bytes = bench_tensors_output_bytes(s->tensors);
  unsigned char *packed = malloc(2 * bytes + 1);
  if (!packed) return bench_structure_cannot_run(s, "out of memory");
  bench_outcome outcome = BENCH_HOLDS;
  bench_tensors_gather_output(s->tensors, packed);
  for (size_t i = 0; i < sizeof counts / sizeof *counts && outcome == BENCH_HOLDS; i++)
    outcome = compare_threads(s, counts[i], packed, packed + bytes, bytes);
  free(packed);
  return outcome;
}

/* ---- Other sizes ----------------------------------------------------------------------------------------------------- */

static bench_outcome test_batch(bench_structure *s) {
  bench_view view = bench_view_of_sequence(s);
  return bench_view_check(s, &view, bench_likeness_of(s, &view), "as a sequence of its own");
}

static bench_outcome test_rows(bench_structure *s) {
  const int64_t first = bench_structure_pick(s, BENCH_PICK_ROW, s->seq.len_q);
  const int64_t count = 1 + bench_structure_pick(s, BENCH_PICK_ROWS, s->seq.len_q - first);
  if (count == s->seq.len_q) return BENCH_NOT_APPLICABLE;
  bench_view view = bench_view_of_sequence(s);
  bench_view_keep_rows(&view, first, count);
  return bench_view_check(s, &view, bench_likeness_of(s, &view), "without the other rows");
}

/* ---- All of them ----------------------------------------------------------------------------------------------------- */

#define NAME(name, what)  #name,
#define CLAIM(name, what) what,
static const char *const names[] = {BENCH_STRUCTURE_LIST(NAME)};
static const char *const claims[] = {BENCH_STRUCTURE_LIST(CLAIM)};

const char *bench_structure_name(bench_structure_test test) { return names[test]; }
const char *bench_structure_claim(bench_structure_test test) { return claims[test]; }

static bench_outcome (*const tests[])(bench_structure *) = {
    [BENCH_STRUCTURE_threads] = test_threads,
    [BENCH_STRUCTURE_batch] = test_batch,
    [BENCH_STRUCTURE_rows] = test_rows,
    [BENCH_STRUCTURE_poison] = bench_structure_poison,
    [BENCH_STRUCTURE_neighbours] = bench_structure_neighbours,
    [BENCH_STRUCTURE_probe] = bench_structure_probe,
    [BENCH_STRUCTURE_convex] = bench_structure_convex,
    [BENCH_STRUCTURE_permutation] = bench_structure_permutation,
    [BENCH_STRUCTURE_heads] = bench_structure_heads,
    [BENCH_STRUCTURE_partition] = bench_structure_partition,
};

/* A sequence with queries and keys, by seed; false if the case has none. */
static bool choose_sequence(bench_structure *s) {
  const int64_t batch = s->tensors->problem.batch;
  if (batch == 0) return false;
  const int64_t start = bench_structure_pick(s, BENCH_PICK_SEQUENCE, batch);
  for (int64_t n = 0; n < batch; n++) {
    s->seq = attn_sequence_of(&s->tensors->problem, &s->tensors->args, (start + n) % batch);
    if (s->seq.len_q > 0 && s->seq.len_k > 0) return true;
  }
  return false;
}

bench_verdict bench_structure_check(const bench_subject *subject, bench_tensors *tensors, const bench_expected *expected,
                                    uint64_t seed, unsigned set, unsigned *ran) {
  bench_structure s = {.subject = subject, .tensors = tensors, .expected = expected, .seed = seed};
  bench_verdict verdict = {.status = BENCH_PASS};
  *ran = 0;
  if (!choose_sequence(&s)) return verdict;
  for (int test = 0; test < BENCH_STRUCTURE_TESTS && verdict.status == BENCH_PASS; test++) {
    if (!(set >> test & 1)) continue;
    const bench_outcome outcome = tests[test](&s);
    if (outcome != BENCH_NOT_APPLICABLE) *ran |= 1u << test;
    if (outcome == BENCH_BROKEN || outcome == BENCH_CANNOT_RUN)
      bench_set_reason(&verdict, outcome == BENCH_BROKEN ? BENCH_FAIL : BENCH_ERROR, "structural test '%s': %s", names[test],
                       s.reason);
  }
  return verdict;
}
