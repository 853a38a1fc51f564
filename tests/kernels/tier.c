/* SPDX-License-Identifier: MIT */
/* Tests the library while ATTN_MAX_ISA caps the tier. The automatic choice must not be above it, its answers must be right,
 * kernels of higher tiers must be refused with a reason, and a kernel of the tier must have costs in the class of this CPU.
 *
 *     ATTN_MAX_ISA=avx2 tier avx2
 *
 * Exit code 77 (skipped) if this CPU lacks the tier.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/choice/machine_class.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"
#include "tests/support/kernel_checks.h"

enum { SKIPPED = 77 };

static const char cases_text[] =
    "[automatic choice]\n"
    "batch = 2\n"
    "heads = 2\n"
    "heads_kv = 2, 1\n"
    "seq = 1, 17, 70, 97\n"
    "head_dim = 8, 33, 64\n"
    "causal = none, top-left, bottom-right\n"
    "lse = on\n"
    "threads = 2\n";

static int wrong;

static void expect(bool holds, const char *what, const char *detail) {
  if (holds) return;
  wrong++;
  printf("WRONG: %s (%s)\n", what, detail ? detail : "no reason");
}

/* Else the tier would never be chosen. Plain C comes behind all that have costs. */
static void check_costs(const char *isa) {
  int count, found = 0;
  char tiers[140], word[40];
  const attn_class *class;
  if (attn_class_here(&class) != ATTN_OK) exit(5);
  const attn_kernel_costs *costs = attn_tuning_costs(class->costs, &count);
  for (int i = 0; i < count; i++) found += strcmp(costs[i].kernel->info.isa, isa) == 0;
  snprintf(tiers, sizeof tiers, " %s ", attn_tuning_tiers(class->costs));
  snprintf(word, sizeof word, " %s ", isa);
  const bool measured = strstr(tiers, word) && strcmp(isa, "c") != 0;
  expect(!measured || found > 0, "no kernel of the tier has costs", isa);
}

static void check_refusals(const char *isa, const attn_problem *problem) {
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *info = attn_kernel_get(i);
    const bool above = attn_tier_find(info->isa) > attn_tier_find(isa);
    const char *reason = attn_kernel_unusable(info);
    const bool library_above =
        info->library[0] && reason && strstr(reason, "above the cap"); /* a library chooses its code itself */
    expect((above || library_above) == (reason != NULL),
           above ? "a kernel above the cap is usable" : "a kernel below the cap is refused", info->name);
    if (reason) printf("  %-16s refused: %s\n", info->name, reason);
    if (!reason) continue;
    attn_plan *plan;
    const attn_status status =
        attn_plan_create(problem, &ATTN_STRUCT(attn_options, .kernel = info->name, .threads = 1), &plan);
    expect(status == ATTN_UNSUPPORTED && !plan, "a named kernel above the cap is not an error", info->name);
    expect(strstr(attn_last_error(), info->name) && strstr(attn_last_error(), "flash_c"),
           "the sentence does not name the kernel and what can run", attn_last_error());
    expect(attn_kernel_rejects(info, problem) != NULL, "attn_kernel_rejects takes a kernel above the cap", info->name);
  }
}

/* Runs the automatic choice and checks its output with the numerics of the kernel that it names. */
static void check_choice(const bench_case *bench, const char *isa) {
  attn_plan *plan;
  bench_tensors tensors;
  if (attn_plan_create(&bench->problem, &ATTN_STRUCT(attn_options, .threads = bench->threads), &plan) != ATTN_OK ||
      !bench_tensors_create(bench, &tensors)) {
    expect(false, "no plan or no memory", attn_last_error());
    return;
  }
  const char *kernel = attn_plan_kernel(plan);
  expect(attn_tier_find(attn_kernel_find(kernel)->isa) <= attn_tier_find(isa), "a kernel above the cap was chosen", kernel);
  expect(strstr(attn_plan_describe(plan), kernel) != NULL, "the description names another kernel", attn_plan_describe(plan));
  bench_expected *expected = checks_expected(bench, &tensors);
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = aligned_alloc(64, bytes ? bytes : 64);
  if (!workspace) exit(5);
  const bench_verdict verdict =
      bench_check(plan, &tensors, expected, &attn_kernel_find(attn_plan_kernel(plan))->numerics, workspace, bytes);
  expect(verdict.status == BENCH_PASS || verdict.status == BENCH_DEGENERATE, bench->case_id, verdict.reason);
  free(workspace);
  bench_expected_destroy(expected);
  bench_tensors_destroy(&tensors);
  attn_plan_destroy(plan);
}

int main(int argc, char **argv) {
  const char *cap = getenv("ATTN_MAX_ISA");
  if (argc != 2 || !cap || strcmp(cap, argv[1])) {
    fprintf(stderr, "usage: ATTN_MAX_ISA=TIER tier TIER\n");
    return 2;
  }
  const int tier = attn_tier_find(cap);
  const char *why_not = tier < 0 ? "this architecture has no such tier" : attn_tier_unusable(tier, NULL);
  if (!why_not) why_not = attn_tier_claim(tier);
  if (why_not) {
    printf("skipped: %s: %s\n", cap, why_not);
    return SKIPPED;
  }
  bench_case_list cases = checks_cases(cases_text);
  check_costs(cap);
  check_refusals(cap, &cases.item[0].problem);
  const int step = getenv("ATTN_TEST_FEW") ? 2 : 1; /* meets every value, as some axes have an odd number */
  for (int i = 0; i < cases.count; i += step) check_choice(&cases.item[i], cap);
  printf("cap %s: %d cases, %d wrong\n", cap, (cases.count + step - 1) / step, wrong);
  bench_cases_clear(&cases);
  return wrong ? 1 : 0;
}
