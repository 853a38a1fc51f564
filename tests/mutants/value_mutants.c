/* SPDX-License-Identifier: MIT */
/* Proof that attnbench fails broken kernels. The registry of this program has the kernels of mutants.def, and
 * bench_run_case() runs them like all others. Each must FAIL some case of the suites named on the command line. Then it runs
 * once more on that case as in `attnbench run`: it must FAIL again and get no time. The unbroken original must PASS every
 * case until the last broken kernel has failed, then every eighth; the tests edge_c and conformance_c run plain C on all
 * cases.
 *
 *     value_mutants SUITE...
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/mutants/mutants.h"
#include "tests/support/kernel_checks.h"
#include "timing/setup.h"

enum { SAMPLE = 8, PATIENCE = 100 /* cases that a broken kernel may pass; today all fail within 20 */ };

typedef struct outcome {
  bench_verdict verdict; /* verdict on the case that killed it */
  bench_case killer;
  bool killed;
  int survived; /* cases before that */
} outcome;

static void stop(const char *name, const char *why) {
  fprintf(stderr, "%s: %s\n", name, why);
  exit(5);
}

static void take_verdict(outcome *o, const char *name, const bench_case *bench, const bench_verdict *verdict) {
  if (verdict->status == BENCH_ERROR) stop(name, verdict->reason);
  o->survived += verdict->status == BENCH_PASS;
  if (verdict->status != BENCH_FAIL) return;
  o->killed = true;
  o->verdict = *verdict;
  o->killer = *bench;
}

static bool is_done(const outcome *outcomes, int i) {
  return outcomes[i].killed || mutants[i].guard_only || (i > 0 && outcomes[i].survived >= PATIENCE);
}

/* Checks all kernels that have not failed yet on a case, in one call. The original comes last, so that it fails if a broken
 * kernel spoils later ones. `structure`: the kernels that only a structural test can fail. */
static void check_living(const bench_case *bench, outcome *outcomes, bool structure) {
  static bench_row rows[BENCH_MAX_KERNELS];
  const bench_case_settings settings = {.structure = structure};
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS];
  int which[BENCH_MAX_KERNELS], count = 0;
  for (int i = mutant_count - 1; i >= 0; i--) {
    if (is_done(outcomes, i) || mutants[i].structure_only != structure) continue;
    which[count] = i;
    kernels[count++] = attn_kernel_find(mutants[i].kernel->info.name);
  }
  if (count) bench_run_case(bench, kernels, count, &settings, rows);
  for (int n = 0; n < count; n++) {
    take_verdict(&outcomes[which[n]], kernels[n]->name, bench, &rows[n].verdict);
    bench_row_clear(&rows[n]);
  }
}

/* Times a failed kernel together with the original. True unless only the original gets a time. */
static bool is_timed(const outcome *o, const attn_kernel_info *kernel) {
  static const bench_case_settings settings = {.timed = true, .case_budget_s = 60, .rounds = 1};
  const attn_kernel_info *kernels[] = {kernel, attn_kernel_find("none")};
  bench_row rows[2];
  bench_run_case(&o->killer, kernels, 2, &settings, rows);
  const bool right = rows[0].verdict.status == BENCH_FAIL && rows[0].time.n == 0 &&
                     (rows[1].time.n == 1 || rows[1].verdict.status == BENCH_DEGENERATE);
  for (int i = 0; i < 2; i++) bench_row_clear(&rows[i]);
  return !right;
}

static bool all_done(const outcome *outcomes) {
  for (int i = 1; i < mutant_count; i++)
    if (!is_done(outcomes, i)) return false;
  return true;
}

static bool is_as_it_must(const outcome *o, const mutant *m) {
  const bool structural = strstr(o->verdict.reason, "structural test") != NULL;
  if (m == mutants) return !o->killed && o->survived > 0;
  return o->killed && structural == m->structure_only && (structural || !is_timed(o, &m->kernel->info));
}

static int report(const outcome *outcomes) {
  int wrong = 0;
  for (int i = 0; i < mutant_count; i++) {
    const attn_kernel_info *info = &mutants[i].kernel->info;
    if (mutants[i].guard_only) continue;
    const bool as_it_must = is_as_it_must(&outcomes[i], &mutants[i]);
    wrong += !as_it_must;
    printf("%-7s %-24s %s\n", as_it_must ? "ok" : "WRONG", info->name, info->summary);
    if (outcomes[i].killed)
      printf("        FAIL after %d passed: %s\n          %s\n", outcomes[i].survived, outcomes[i].killer.case_id,
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
    for (int i = 0; i < cases.count; i += all_done(outcomes) ? SAMPLE : 1)
      for (int structure = 0; structure < 2; structure++) check_living(&cases.item[i], outcomes, structure);
    printf("%s: %d cases\n", argv[suite], cases.count);
    bench_cases_clear(&cases);
  }
  const int result = report(outcomes);
  free(outcomes);
  return result;
}
