/* SPDX-License-Identifier: MIT */
/* Proof that the checks can fail: every deliberately broken kernel of mutants.def must FAIL at least one case of the suites
 * named on the command line; the unbroken original must PASS them all, and so must those that only structural tests can tell.
 *
 *     judge_mutants SUITE...
 */
#include <stdio.h>
#include <stdlib.h>

#include "judge.h"
#include "mutants.h"

typedef struct fate {
  bench_verdict verdict; /* of the case that killed it */
  char case_id[BENCH_NAME];
  bool killed;
  int survived; /* cases before that */
} fate;

/* A broken kernel may have damaged inputs and guards: the next one gets fresh tensors. */
static void renew(const bench_case *bench, bench_tensors *tensors) {
  bench_tensors_destroy(tensors);
  if (bench_tensors_create(bench, tensors)) return;
  fprintf(stderr, "out of memory\n");
  exit(5);
}

static void judge_case(const bench_case *bench, fate *fates) {
  bench_tensors tensors = {0};
  renew(bench, &tensors);
  bench_expected *expected = judge_expected(bench, &tensors);
  for (int i = 0; i < mutant_count; i++) {
    if (fates[i].killed || mutants[i].guard_only) continue;
    const bench_verdict verdict = judge_kernel(&mutants[i].kernel, 1, &tensors, expected);
    fates[i].survived += verdict.status == BENCH_PASS;
    if (verdict.status == BENCH_FAIL) {
      fates[i].killed = true;
      fates[i].verdict = verdict;
      snprintf(fates[i].case_id, sizeof fates[i].case_id, "%s", bench->case_id);
      renew(bench, &tensors);
    } else if (verdict.status == BENCH_ERROR) {
      fprintf(stderr, "%s: %s\n", mutants[i].kernel.info.name, verdict.reason);
      exit(5);
    }
  }
  bench_expected_destroy(expected);
  bench_tensors_destroy(&tensors);
}

static int report(const fate *fates) {
  int wrong = 0;
  for (int i = 0; i < mutant_count; i++) {
    const attn_kernel_info *info = &mutants[i].kernel.info;
    if (mutants[i].guard_only) continue;
    const bool must_pass = i == 0 || mutants[i].structure_only,
               as_it_must = fates[i].killed != must_pass && (!must_pass || fates[i].survived > 0);
    wrong += !as_it_must;
    printf("%-7s %-24s %s\n", as_it_must ? "ok" : "WRONG", info->name, info->summary);
    if (fates[i].killed)
      printf("        FAIL after %d passed: %s\n          %s\n", fates[i].survived, fates[i].case_id,
             fates[i].verdict.reason);
    else
      printf("        passed %d cases\n", fates[i].survived);
  }
  printf("%d kernels judged, %d not as they must be\n", mutant_count, wrong);
  return wrong ? 1 : 0;
}

int main(int argc, char **argv) {
  fate *fates = calloc((size_t)mutant_count, sizeof *fates);
  if (!fates || argc < 2) {
    fprintf(stderr, "usage: judge_mutants SUITE...\n");
    free(fates);
    return 2;
  }
  for (int suite = 1; suite < argc; suite++) {
    bench_case_list cases = judge_suite(argv[suite]);
    for (int i = 0; i < cases.count; i++) judge_case(&cases.item[i], fates);
    printf("%s: %d cases\n", argv[suite], cases.count);
    bench_cases_clear(&cases);
  }
  const int result = report(fates);
  free(fates);
  return result;
}
