/* SPDX-License-Identifier: MIT */
/* Making the trials of a case, and checking them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/float_mode.h"
#include "base/handlers.h"
#include "base/process.h"
#include "cases/case.h"
#include "check/structure.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/pieces.h"
#include "machine/affinity.h"
#include "machine/environment.h"
#include "timing/setup.h"

enum { PLAN_REPEATS = 5, GUESSES = 5 };
static const double LONG_CALL_NS = 20e3;

static const double STRUCTURE_WORK = 1e8; /* multiply-adds: structural tests run a case about fifteen times */

/* ---- Plans ----------------------------------------------------------------------------------------------------------- */

static attn_options options_of(const bench_setup *s, const bench_trial *t) {
  return ATTN_STRUCT(attn_options, .kernel = t->automatic ? NULL : t->kernel->name, .threads = s->bench->threads,
                     .steady = s->bench->steady);
}

/* The row of the automatic choice keeps the name "auto" and says what was chosen. */
static void name_choice(const bench_setup *s, bench_trial *t) {
  const char *chosen = t->layer ? t->layer->kernel : bench_trial_build(t)->plan_kernel(t->plan);
  const attn_kernel_info *kernel = attn_kernel_find(chosen);
  if (t->automatic && kernel) t->kernel = kernel;
  bench_trial_declare(t);
  if (!t->automatic || !bench_layer_has(s->bench, BENCH_HAS_ATTENTION)) return;
  const char *(*kernel_of)(const attn_plan *, int64_t) = bench_trial_build(t)->plan_kernel_of;
  const char *of_one = t->plan && kernel_of ? kernel_of(t->plan, 1) : chosen;
  if (strcmp(of_one, chosen) == 0)
    bench_warn(t, "chose %s", chosen);
  else
    bench_warn(t, "chose %s, and %s for single queries", chosen, of_one);
}

/* Nanoseconds of the quickest of a few creations: the first one also fills caches of the library. */
static double time_plan(const bench_build *build, const attn_problem *problem, const attn_options *options) {
  double best = INFINITY;
  for (int i = 0; i < PLAN_REPEATS; i++) {
    attn_plan *plan;
    const double start = bench_now_ns();
    if (bench_build_plan(build, problem, options, &plan) != ATTN_OK) return 0;
    best = fmin(best, bench_now_ns() - start);
    build->plan_destroy(plan);
  }
  return best;
}

static bool open_workspace(bench_trial *t, size_t bytes) {
  t->workspace_bytes = bytes;
  if ((double)bytes > BENCH_MEMORY_SHARE * bench_memory_available(""))
    return bench_conclude(t, BENCH_SKIP, "workspace of %.3g GB is more than %.0f %% of the memory that is free",
                          (double)bytes * 1e-9, BENCH_MEMORY_SHARE * 100);
  t->workspace = attn_aligned_alloc(64, bytes ? bytes : 64);
  return t->workspace || bench_conclude(t, BENCH_ERROR, "out of memory for a workspace of %zu bytes", bytes);
}

static bool is_like(const attn_kernel_info *forward, const attn_kernel_info *gradients) {
  return !strncmp(forward->algorithm, gradients->algorithm,
                  strlen(forward->algorithm)); /* "flash_backward" is like "flash" */
}

/* The kernel for the pass before: of the tier of this one, and of its algorithm where there is such a one; NULL, which is
 * the library's choice, where there is none, or this one is chosen, too. */
static const char *choose_before(const bench_trial *t, const attn_problem *before) {
  const attn_kernel_info *chosen = NULL;
  for (int i = attn_kernel_count() - 1; i >= 0 && !t->automatic; i--) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    const bool fits = !strcmp(kernel->isa, t->kernel->isa) && !strcmp(kernel->library, t->kernel->library);
    const bool better = !chosen || is_like(kernel, t->kernel) || !is_like(chosen, t->kernel);
    if (fits && better && !attn_kernel_rejects(kernel, before)) chosen = kernel;
  }
  return chosen ? chosen->name : NULL;
}

/* The pass before gradients, in a case with both. */
static bool open_before(bench_setup *s, bench_trial *t) {
  const bench_build *build = bench_trial_build(t);
  const attn_problem before = bench_forward_of(&s->bench->problem);
  attn_options options = options_of(s, t);
  if (!s->bench->both) return true;
  options.kernel = choose_before(t, &before);
  if (bench_build_plan(build, &before, &options, &t->before) != ATTN_OK)
    return bench_conclude(t, BENCH_ERROR, "forward pass: %s", build->last_error());
  if (s->settings->timed) t->plan_ns += time_plan(build, &before, &options);
  bench_warn(t, "forward pass by %s", build->plan_kernel(t->before));
  return true;
}

static bool open_plan(bench_setup *s, bench_trial *t) {
  const attn_options options = options_of(s, t);
  const bench_build *build = bench_trial_build(t);
  const attn_status status = bench_build_plan(build, &s->bench->problem, &options, &t->plan);
  if (status != ATTN_OK)
    return bench_conclude(t, status == ATTN_UNSUPPORTED && options.steady ? BENCH_SKIP : BENCH_ERROR, "%s",
                          build->last_error());
  if (s->settings->timed) t->plan_ns = time_plan(build, &s->bench->problem, &options);
  if (!open_before(s, t)) return false;
  name_choice(s, t);
  const size_t before = t->before ? build->plan_workspace(t->before) : 0, bytes = build->plan_workspace(t->plan);
  return open_workspace(t, bytes > before ? bytes : before);
}

static bool open_layer(bench_setup *s, bench_trial *t) {
  const double start = bench_now_ns();
  const attn_status status = bench_layer_make(s->layer, t->automatic ? NULL : t->kernel, false, &t->layer);
  if (status != ATTN_OK)
    return bench_conclude(t, status == ATTN_UNSUPPORTED ? BENCH_SKIP : BENCH_ERROR, "%s", attn_last_error());
  if (s->settings->timed) t->plan_ns = bench_now_ns() - start;
  name_choice(s, t);
  return open_workspace(t, bench_layer_workspace(t->layer));
}

void bench_setup_close_plan(bench_trial *t) {
  bench_trial_build(t)->plan_destroy(t->plan);
  bench_trial_build(t)->plan_destroy(t->before);
  attn_aligned_free(t->workspace);
  t->plan = t->before = NULL;
  t->workspace = NULL;
}

void bench_setup_reopen_plan(bench_setup *s, bench_trial *t) { (void)open_plan(s, t); }

/* ---- Checking -------------------------------------------------------------------------------------------------------- */

static attn_status create_plan_by_name(const void *name, const attn_problem *problem, const attn_options *options,
                                       attn_plan **plan) {
  attn_options named = *options;
  named.kernel = name;
  return attn_plan_create(problem, &named, plan);
}

/* The structural tests replace the verdict only if theirs is worse. */
static void check_structure(const bench_setup *s, bench_trial *t) {
  if (!s->settings->structure || bench_multiply_adds(&s->bench->problem) > STRUCTURE_WORK) return;
  if (t->verdict.status != BENCH_PASS && t->verdict.status != BENCH_DEGENERATE) return;
  if (t->automatic && attn_shares_prefix(&s->bench->problem)) return; /* two kernels: one by name has other bits */
  const char *kernel = attn_plan_kernel(t->plan);
  const bench_subject subject = {.create_plan = create_plan_by_name,
                                 .context = kernel,
                                 .numerics = &t->numerics,
                                 .rows_stand_alone = !attn_kernel_find(kernel)->library[0]};
  const bench_verdict structure =
      bench_structure_check(&subject, &t->tensors[0], s->expected, s->bench->seed, ~0u, &t->verdict.structure);
  if (structure.status == BENCH_PASS) return;
  t->verdict.status = structure.status;
  memcpy(t->verdict.reason, structure.reason, sizeof t->verdict.reason);
}

static void guess_call_time(bench_trial *t) {
  t->call_ns = INFINITY;
  for (int i = 0; i < GUESSES && !(t->call_ns > LONG_CALL_NS && i); i++) { /* the check has seen that a call succeeds */
    const double start = bench_now_ns();
    (void)bench_trial_call(t, 0);
    t->call_ns = fmin(t->call_ns, bench_now_ns() - start);
  }
}

/* The outputs of the forward pass against the oracle. They are inputs of gradients: of other bits, these have another
 * answer.
 */
static bool check_before(bench_setup *s, bench_trial *t) {
  const attn_problem before = bench_forward_of(&s->bench->problem);
  const attn_args args = bench_forward_args(&t->tensors->args);
  for (int i = 0; i < BENCH_TENSORS; i++)
    if (bench_is_rewritten(t->tensors, (bench_tensor)i) && t->tensors->buffers[i].present)
      memset(t->tensors->buffers[i].data, BENCH_INPUT_POISON, t->tensors->buffers[i].bytes);
  if (bench_trial_call_before(t, 0) != ATTN_OK)
    return bench_conclude(t, BENCH_ERROR, "forward pass: %s", bench_trial_build(t)->last_error());
  bench_expected *expected = bench_expected_create(&before, &args, s->bench->seed, t->zero_mean);
  if (!expected) return bench_conclude(t, BENCH_ERROR, "out of memory for the oracle's answer");
  bench_verdict verdict = bench_check_values(expected, &args, &t->before_numerics);
  if (verdict.status == BENCH_PASS)
    verdict = bench_check_other_values(expected, &args, &t->before_numerics,
                                       attn_kernel_find(bench_trial_build(t)->plan_kernel(t->before)));
  bench_expected_destroy(expected);
  if (verdict.status != BENCH_PASS) return bench_conclude(t, verdict.status, "forward pass: %.350s", verdict.reason);
  return bench_tensors_rewritten_hash(t->tensors) == s->expected_of || bench_setup_ask_oracle(s);
}

static void check_output(bench_setup *s, bench_trial *t) {
  t->tensors = s->tensors;
  t->tensor_count = 1;
  t->zero_mean = s->expected && s->expected->zero_mean;
  if (!(s->layer ? open_layer(s, t) : open_plan(s, t))) return;
  if (t->before && !check_before(s, t)) return;
  if (t->layer) {
    t->verdict = bench_layer_check(t->layer, &t->numerics, t->workspace, t->workspace_bytes);
  } else {
    t->verdict = bench_check_build(bench_trial_build(t), t->plan, &t->tensors[0], s->expected, &t->numerics, t->workspace,
                                   t->workspace_bytes);
    check_structure(s, t);
  }
  if (!s->settings->timed || t->verdict.status != BENCH_PASS) return;
  if (!t->layer)
    bench_pages_forget(t->workspace, t->workspace_bytes); /* so that the threads that pack touch it first, not the check */
  guess_call_time(t);
}

/* Checks the kernel's output, and whether it leaves threads or another floating-point mode behind in the process. */
static void check_trial(bench_setup *s, bench_trial *t) {
  bench_note(s, "checking", t->kernel->name);
  bench_team_settle(t->threads);
  const bench_tasks tasks = bench_tasks_now();
  const uint64_t float_mode = bench_float_mode();
  bench_process process = bench_process_now();
  check_output(s, t);
  t->leaves_threads = bench_tasks_grew(&tasks, t->kernel);
  if (!bench_keeps_float_mode(float_mode)) bench_conclude(t, BENCH_FAIL, BENCH_OTHER_FLOAT_MODE);
  const int handled = bench_handlers_other();
  const char *changed = bench_process_keep(&process);
  if (handled && s->settings->timed) bench_conclude(t, BENCH_ERROR, BENCH_OTHER_HANDLER, handled);
  if (changed && s->settings->timed) bench_conclude(t, BENCH_ERROR, BENCH_OTHER_PROCESS, changed);
  if (!bench_team_stays(t->threads, float_mode) && s->settings->timed) bench_conclude(t, BENCH_ERROR, BENCH_OTHER_TEAM);
}

/* A kernel that failed may have damaged what all trials share. */
static bool renew_tensors(bench_setup *s) {
  bench_tensors_destroy(&s->tensors[0]);
  s->rotations = bench_tensors_create(s->bench, &s->tensors[0]);
  return s->rotations;
}

bool bench_setup_check(bench_setup *s) {
  static volatile const int never;
  volatile const int *stop = s->settings->stop ? s->settings->stop : &never;
  bool has_data = s->expected || s->layer;
  bool complete = true;
  for (int i = 0; i < s->count; i++) {
    if (s->trials[i].refused) continue;
    if (has_data && !*stop) check_trial(s, &s->trials[i]);
    if (s->expected && s->trials[i].verdict.status == BENCH_FAIL) has_data = renew_tensors(s);
    complete = !*stop;
  }
  return complete;
}
