/* SPDX-License-Identifier: MIT */
/* Proof that the checks can fail: every deliberately broken kernel of mutants.def must FAIL at least one case of the suites
 * named on the command line. The unbroken original must PASS, and so must those that only structural tests find: on every
 * case until the last broken kernel has failed, then on every eighth. The tests edge_c and conformance_c run plain C on all
 * cases.
 *
 *     value_mutants SUITE...
 */
#include <stdio.h>
#include <stdlib.h>

#include "kernel_checks.h"
#include "mutants.h"

enum { SAMPLE = 8 };

typedef struct outcome {
  bench_verdict verdict; /* of the case that killed it */
  char case_id[BENCH_NAME];
  bool killed;
  int survived; /* cases before that */
} outcome;

/* A broken kernel may have damaged inputs and guards: the next one gets fresh tensors. */
static void renew(const bench_case *bench, bench_tensors *tensors) {
  bench_tensors_destroy(tensors);
  if (bench_tensors_create(bench, tensors)) return;
  fprintf(stderr, "out of memory\n");
  exit(5);
}

static void check_case(const bench_case *bench, outcome *outcomes) {
  bench_tensors tensors = {0};
  renew(bench, &tensors);
  bench_expected *expected = checks_expected(bench, &tensors);
  for (int i = 0; i < mutant_count; i++) {
    if (outcomes[i].killed || mutants[i].guard_only) continue;
    const bench_verdict verdict = checks_kernel(&mutants[i].kernel, 1, &tensors, expected);
    outcomes[i].survived += verdict.status == BENCH_PASS;
    if (verdict.status == BENCH_FAIL) {
      outcomes[i].killed = true;
      outcomes[i].verdict = verdict;
      snprintf(outcomes[i].case_id, sizeof outcomes[i].case_id, "%s", bench->case_id);
      renew(bench, &tensors);
    } else if (verdict.status == BENCH_ERROR) {
      fprintf(stderr, "%s: %s\n", mutants[i].kernel.info.name, verdict.reason);
      exit(5);
    }
  }
  bench_expected_destroy(expected);
  bench_tensors_destroy(&tensors);
}

static bool all_killed(const outcome *outcomes) {
  for (int i = 1; i < mutant_count; i++)
    if (!outcomes[i].killed && !mutants[i].guard_only && !mutants[i].structure_only) return false;
  return true;
}

static int report(const outcome *outcomes) {
  int wrong = 0;
  for (int i = 0; i < mutant_count; i++) {
    const attn_kernel_info *info = &mutants[i].kernel.info;
    if (mutants[i].guard_only) continue;
    const bool must_pass = i == 0 || mutants[i].structure_only,
               as_it_must = outcomes[i].killed != must_pass && (!must_pass || outcomes[i].survived > 0);
    wrong += !as_it_must;
    printf("%-7s %-24s %s\n", as_it_must ? "ok" : "WRONG", info->name, info->summary);
    if (outcomes[i].killed)
      printf("        FAIL after %d passed: %s\n          %s\n", outcomes[i].survived, outcomes[i].case_id,
             outcomes[i].verdict.reason);
    else
      printf("        passed %d cases\n", outcomes[i].survived);
  }
  printf("%d kernels checked, %d not as they must be\n", mutant_count, wrong);
  return wrong ? 1 : 0;
}

int main(int argc, char **argv) {
  outcome *outcomes = calloc((size_t)mutant_count, sizeof *outcomes);
  if (!outcomes || argc < 2) {
    fprintf(stderr, "usage: value_mutants SUITE...\n");
    free(outcomes);
    return 2;
  }
  for (int suite = 1; suite < argc; suite++) {
    bench_case_list cases = checks_suite(argv[suite]);
    for (int i = 0; i < cases.count; i += all_killed(outcomes) ? SAMPLE : 1) check_case(&cases.item[i], outcomes);
    printf("%s: %d cases\n", argv[suite], cases.count);
    bench_cases_clear(&cases);
  }
  const int result = report(outcomes);
  free(outcomes);
  return result;
}
