/* SPDX-License-Identifier: MIT */
/* Proof that each structural test of harness/check/structure.h can fail: it must FAIL each broken kernel named here on some
 * case of the suite, and PASS the unbroken original on all of them.
 *
 *     structure_mutants SUITE
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mutants/mutants.h"
#include "tests/support/kernel_checks.h"

typedef struct pair {
  bench_structure_test test;
  const char *kernel;
  int ran; /* cases up to the first FAIL, or all */
  bench_verdict verdict;
  char case_id[BENCH_NAME];
} pair;

#define ORIGINAL(name, what) {.test = BENCH_STRUCTURE_##name, .kernel = "none"},
static pair pairs[] = {
    BENCH_STRUCTURE_LIST(ORIGINAL){.test = BENCH_STRUCTURE_threads, .kernel = "bits_by_threads"},
    {.test = BENCH_STRUCTURE_batch, .kernel = "bits_by_batch"},
    {.test = BENCH_STRUCTURE_batch, .kernel = "leaks_padding_key"},
    {.test = BENCH_STRUCTURE_rows, .kernel = "bits_by_place"},
    {.test = BENCH_STRUCTURE_rows, .kernel = "skips_last_row"},
    {.test = BENCH_STRUCTURE_poison, .kernel = "multiplies_masked"},
    {.test = BENCH_STRUCTURE_poison, .kernel = "leaks_masked_key"},
    {.test = BENCH_STRUCTURE_neighbours, .kernel = "multiplies_masked"},
    {.test = BENCH_STRUCTURE_neighbours, .kernel = "swallows_nan"},
    {.test = BENCH_STRUCTURE_probe, .kernel = "faint_leak"},
    {.test = BENCH_STRUCTURE_probe, .kernel = "misses_tail_key"},
    {.test = BENCH_STRUCTURE_convex, .kernel = "no_division"},
    {.test = BENCH_STRUCTURE_convex, .kernel = "forgets_sum_rescale"},
    {.test = BENCH_STRUCTURE_permutation, .kernel = "misses_border_key"},
    {.test = BENCH_STRUCTURE_permutation, .kernel = "next_key_of_v"},
    {.test = BENCH_STRUCTURE_heads, .kernel = "heads_modulo"},
    {.test = BENCH_STRUCTURE_partition, .kernel = "lse_base_two"},
    {.test = BENCH_STRUCTURE_partition, .kernel = "lse_with_sink"},
    {.test = BENCH_STRUCTURE_partition, .kernel = "misses_first_key"},
    {.test = BENCH_STRUCTURE_pieces, .kernel = "forgets_state"},
    {.test = BENCH_STRUCTURE_pieces, .kernel = "bits_by_piece"},
};
enum { PAIRS = sizeof pairs / sizeof *pairs };

static bool is_original(const pair *c) { return strcmp(c->kernel, "none") == 0; }

/* A broken kernel may have damaged inputs and guards, so the next one gets new tensors. */
static void renew(const bench_case *bench, bench_tensors *tensors) {
  bench_tensors_destroy(tensors);
  if (!bench_tensors_create(bench, tensors)) exit(5);
}

static void try(pair *c, const bench_case *bench, bench_tensors *tensors, const bench_expected *expected) {
  if (c->verdict.status == BENCH_FAIL) return;
  const bench_verdict verdict = checks_structure(mutant_find(c->kernel), c->test, bench, tensors, expected);
  c->ran += verdict.status == BENCH_PASS || verdict.status == BENCH_FAIL;
  if (verdict.status == BENCH_FAIL) {
    c->verdict = verdict;
    snprintf(c->case_id, sizeof c->case_id, "%s", bench->case_id);
    renew(bench, tensors);
  } else if (verdict.status == BENCH_ERROR) {
    fprintf(stderr, "%s: %s\n", c->kernel, verdict.reason);
    exit(5);
  }
}

static void try_all(const bench_case *bench) {
  char buffer[400];
  bench_tensors tensors = {0};
  if (mutants[0].kernel->rejects(&bench->problem, buffer, sizeof buffer)) return; /* all mutants reject the same */
  renew(bench, &tensors);
  bench_expected *expected = checks_expected(bench, &tensors);
  for (int i = 0; i < PAIRS; i++) try(&pairs[i], bench, &tensors, expected);
  bench_expected_destroy(expected);
  bench_tensors_destroy(&tensors);
}

#define CLAIM(name, what) what,
static const char *const claims[] = {BENCH_STRUCTURE_LIST(CLAIM)};

static int report(void) {
  int wrong = 0;
  for (int i = 0; i < PAIRS; i++) {
    const pair *c = &pairs[i];
    const bool failed = c->verdict.status == BENCH_FAIL, as_it_must = failed != is_original(c) && c->ran > 0;
    wrong += !as_it_must;
    printf("%-7s %-12s %-20s %s\n", as_it_must ? "ok" : "WRONG", bench_structure_name(c->test), c->kernel,
           is_original(c) ? claims[c->test] : mutant_find(c->kernel)->info.summary);
    if (failed)
      printf("        FAIL after %d cases: %s\n          %s\n", c->ran, c->case_id, c->verdict.reason);
    else
      printf("        passed %d cases\n", c->ran);
  }
  printf("%d pairs of test and kernel, %d not as they must be\n", PAIRS, wrong);
  return wrong ? 1 : 0;
}

int main(int argc, char **argv) {
  if (argc != 2) {
    fprintf(stderr, "usage: structure_mutants SUITE\n");
    return 2;
  }
  bench_case_list cases = checks_suite(argv[1]);
  for (int n = 0; n < cases.count; n++) try_all(&cases.item[n]);
  bench_cases_clear(&cases);
  return report();
}
