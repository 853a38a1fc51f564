/* SPDX-License-Identifier: MIT */
/* Every kernel runs in a child process with an inaccessible page right behind the end, then right before the start, of every
 * tensor, so reading or writing one element too far faults. Broken kernels of mutants.def that do so must fail.
 *
 *     guard_pages [CASES]    default 240, with ATTN_TEST_FEW 60 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/peak.h"
#include "src/registry/registry.h"
#include "tests/mutants/mutants.h"
#include "tests/support/kernel_checks.h"

static const char cases_text[] =
    "[guard pages]\n"
    "pick = %s\n"
    "dtype = f32, bf16\n"
    "work = 2e6\n"
    "batch = 1, 2\n"
    "heads = 1, 2, 4\n"
    "heads_kv = heads, 1\n"
    "seq_q = 1, 2, 5, 7, 8, 13, 16, 17, 31, 33, 65, 97\n"
    "seq_k = 1, 2, 3, 7, 9, 15, 16, 17, 31, 33, 63, 65, 129, 257\n"
    "dim_qk = 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 64, 65, 129\n"
    "dim_v = 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 64, 65, 129\n"
    "causal = none, top-left, bottom-right\n"
    "window = none, none, none, 9.., ..4\n"
    "mask = none, none, random, padding\n"
    "bias = none, none, full, masking, heads, row\n"
    "alibi = off, off, on\n"
    "softcap = 0, 0, 20\n"
    "score = dot, dot, dot, dot, dot, additive, gaussian, precomputed\n"
    "sinks = off, off, on\n"
    "lengths = full, full, kv_len, q_len, row_len, varlen\n"
    "shared_prefix = 0, 0, 0, 3\n"
    "lse = off, on\n"
    "layout = bhsd, bshd, strided, transposed, reversed, broadcast\n"
    "[guard pages of gradients]\n"
    "pick = 60\n"
    "pass = backward\n"
    "gradients = qkv, all\n"
    "dtype = f32, bf16\n"
    "work = 2e6\n"
    "batch = 1, 2\n"
    "heads = 1, 2, 4\n"
    "heads_kv = heads, 1\n"
    "seq_q = 1, 2, 5, 7, 8, 13, 16, 17, 31, 33, 65, 97\n"
    "seq_k = 1, 2, 3, 7, 9, 15, 16, 17, 31, 33, 63, 65, 129\n"
    "dim_qk = 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 64, 65, 129\n"
    "dim_v = 1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 40, 63, 64, 65, 129\n"
    "causal = none, top-left, bottom-right\n"
    "mask = none, none, random, padding\n"
    "bias = none, none, full, masking, row\n"
    "alibi = off, off, on\n"
    "softcap = 0, 0, 20\n"
    "score = dot, dot, dot, additive, gaussian, precomputed\n"
    "sinks = off, off, on\n"
    "lengths = full, full, kv_len, q_len, row_len, varlen\n"
    "lse = off, on\n"
    "layout = bhsd, bshd, strided, transposed, reversed, broadcast\n"
    "[guard pages of integers]\n"
    "pick = 40\n"
    "dtype = f32+i8, f32+q8_0, f32+q4_0\n"
    "work = 2e6\n"
    "heads = 1, 2, 4, 8\n"
    "heads_kv = 1\n"
    "seq_q = 1, 2, 5\n"
    "seq_k = 1, 3, 15, 16, 17, 31, 33, 63, 65, 129, 257\n"
    "dim_qk = 1, 7, 15, 16, 17, 31, 33, 64, 65, 129\n"
    "dim_v = 1, 7, 15, 16, 17, 31, 33, 64, 65, 129\n"
    "causal = none, bottom-right\n"
    "window = none, 9.., ..4\n"
    "mask = none, random\n"
    "lengths = full, kv_len, varlen\n"
    "lse = off, on\n"
    "layout = bhsd, bshd, strided, reversed\n";

/* The cases and the oracle's answers, which the child processes share. */
static bench_case_list cases;
static bench_expected **expected;

static void compute_expected(void) {
  expected = calloc((size_t)cases.count, sizeof *expected);
  for (int i = 0; i < cases.count; i++) {
    bench_tensors tensors;
    if (!expected || !bench_tensors_create_guarded(&cases.item[i], &tensors, BENCH_GUARD_PAGE_AFTER)) exit(5);
    expected[i] = checks_expected(&cases.item[i], &tensors);
    bench_tensors_destroy(&tensors);
  }
}

static void destroy_cases(void) {
  for (int i = 0; i < cases.count; i++) bench_expected_destroy(expected[i]);
  free(expected);
  bench_cases_clear(&cases);
}

/* Shared with the child process: its progress, so that a fault can be reported with its case. */
typedef struct progress {
  int at, passed;
  bench_verdict failure; /* verdict on the first case that failed */
  bool failed;
} progress;

static void run_cases(const attn_kernel *kernel, bench_guard guard, progress *p) {
  for (p->at = 0; p->at < cases.count && !p->failed; p->at++) {
    bench_tensors tensors;
    if (!bench_tensors_create_guarded(&cases.item[p->at], &tensors, guard)) _exit(5);
    const bench_verdict verdict = checks_kernel(kernel, 1, &tensors, expected[p->at]);
    p->failed = verdict.status == BENCH_FAIL || verdict.status == BENCH_ERROR;
    p->passed += verdict.status == BENCH_PASS || verdict.status == BENCH_DEGENERATE;
    if (p->failed) {
      p->failure = verdict;
      break;
    }
    bench_tensors_destroy(&tensors);
  }
}

/* NULL if every case passed; else what happened, in words. */
static const char *run_in_child(const attn_kernel *kernel, bench_guard guard, progress *p) {
  static char what[1200];
  *p = (progress){0};
  fflush(stdout);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, SIG_DFL); /* otherwise a sanitizer would report it */
    signal(SIGBUS, SIG_DFL);
    run_cases(kernel, guard, p);
    _exit(0);
  }
  int status;
  if (child < 0 || waitpid(child, &status, 0) != child) exit(5);
  const char *side = guard == BENCH_GUARD_PAGE_AFTER ? "after" : "before";
  const char *id = p->at < cases.count ? cases.item[p->at].case_id : "the last case";
  if (WIFSIGNALED(status))
    snprintf(what, sizeof what, "signal %d with guard pages %s the tensors: %s", WTERMSIG(status), side, id);
  else if (WEXITSTATUS(status))
    snprintf(what, sizeof what, "exit code %d with guard pages %s the tensors: %s", WEXITSTATUS(status), side, id);
  else if (p->failed)
    snprintf(what, sizeof what, "FAIL with guard pages %s the tensors: %s: %s", side, id, p->failure.reason);
  else if (p->passed == 0)
    snprintf(what, sizeof what, "no case was taken");
  else
    return NULL;
  return what;
}

/* True if the kernel passed and must pass, or failed and must fail. */
static bool passes_as_it_must(const attn_kernel *kernel, bool must_pass, progress *p) {
  static const bench_guard guards[] = {BENCH_GUARD_PAGE_AFTER, BENCH_GUARD_PAGE_BEFORE};
  const char *what = NULL;
  for (int side = 0; side < 2 && !what; side++) what = run_in_child(kernel, guards[side], p);
  const bool as_it_must = must_pass == !what;
  printf("%-7s %-24s %s\n", as_it_must ? "ok" : "WRONG", kernel->info.name, kernel->info.summary);
  if (what)
    printf("        %s\n", what);
  else
    printf("        passed %d cases\n", p->passed);
  return as_it_must;
}

static bool goes_too_far(const mutant *m) { return m->guard_only || strncmp(m->kernel->info.name, "writes_lane", 11) == 0; }

int main(int argc, char **argv) {
  char text[sizeof cases_text + 10];
  snprintf(text, sizeof text, cases_text, argc > 1 ? argv[1] : getenv("ATTN_TEST_FEW") ? "60" : "240");
  progress *p = mmap(NULL, sizeof *p, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (p == MAP_FAILED) return 5;
  cases = checks_cases(text);
  compute_expected();
  int wrong = 0;
  const attn_kernel *kernel;
  for (int i = 0; (kernel = attn_registry_get(i)); i++) {
    (void)attn_peak_usable(kernel->info.isa); /* requests permission for AMX; until Linux refuses, it counts as usable */
    const char *why_not = attn_kernel_unusable(&kernel->info);
    if (why_not)
      printf("skipped %-24s %s\n", kernel->info.name, why_not);
    else
      wrong += !passes_as_it_must(kernel, true, p);
  }
  for (int i = 0; i < mutant_count; i++)
    if (i == 0 || goes_too_far(&mutants[i])) wrong += !passes_as_it_must(mutants[i].kernel, i == 0, p);
  printf("%d cases, %d kernels not as they must be\n", cases.count, wrong);
  destroy_cases();
  munmap(p, sizeof *p);
  return wrong ? 1 : 0;
}
