/* SPDX-License-Identifier: MIT */
/* What runs when ATTN_MAX_ISA caps the tier: the automatic choice must be the kernel of that tier, its answers must be
 * right, and kernels of higher tiers must be refused with a reason.
 *
 *     ATTN_MAX_ISA=avx2 tier avx2
 *
 * Exit code 77 (skipped) if this CPU lacks the tier.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cpu.h"
#include "kernel_checks.h"
#include "registry.h"

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

/* False if the kernel runs here but refuses the problem, as kernels for bf16 refuse float32. */
static bool takes(const char *kernel, const attn_problem *problem) {
  const attn_kernel_info *info = attn_kernel_find(kernel);
  return attn_kernel_unusable(info) || !attn_kernel_rejects(info, problem);
}

/* The name of the best kernel for the problem that is not above the tier: decode if a KV head has few query rows, else
 * flash, of the highest tier that has one. */
static const char *expected_kernel(const char *isa, const attn_problem *problem) {
  static char name[64];
  const bool few_rows = problem->heads_q / problem->heads_kv * problem->seq_q <= 16;
  for (int tier = attn_tier_find(isa); tier >= 0; tier--) {
    snprintf(name, sizeof name, "decode_%s", attn_tier_isa(tier));
    if (few_rows && attn_kernel_find(name) && takes(name, problem)) return name;
    snprintf(name, sizeof name, "flash_%s", attn_tier_isa(tier));
    if (attn_kernel_find(name) && takes(name, problem)) return name;
  }
  return "none";
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
    expect(strstr(attn_last_error(), info->name) && strstr(attn_last_error(), expected_kernel(isa, problem)),
           "the sentence does not name the kernel and what can run", attn_last_error());
    expect(attn_kernel_rejects(info, problem) != NULL, "attn_kernel_rejects takes a kernel above the cap", info->name);
  }
}

/* Runs the automatic choice and checks its output with the numerics of the kernel that it names. */
static void check_choice(const bench_case *bench, const char *isa) {
  const char *kernel = expected_kernel(isa, &bench->problem);
  attn_plan *plan;
  bench_tensors tensors;
  if (attn_plan_create(&bench->problem, &ATTN_STRUCT(attn_options, .threads = bench->threads), &plan) != ATTN_OK ||
      !bench_tensors_create(bench, &tensors)) {
    expect(false, "no plan or no memory", attn_last_error());
    return;
  }
  expect(!strcmp(attn_plan_kernel(plan), kernel), "another kernel was chosen", attn_plan_kernel(plan));
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
  check_refusals(cap, &cases.item[0].problem);
  const int step = getenv("ATTN_TEST_FEW") ? 2 : 1; /* meets every value, as some axes have an odd number */
  for (int i = 0; i < cases.count; i += step) check_choice(&cases.item[i], cap);
  printf("cap %s: %d cases, %d wrong\n", cap, (cases.count + step - 1) / step, wrong);
  bench_cases_clear(&cases);
  return wrong ? 1 : 0;
}
