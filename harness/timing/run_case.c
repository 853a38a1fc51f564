/* SPDX-License-Identifier: MIT */
/* One case: tensors, oracle, plans, checks. time_case.c does the timing. */
#include "timing/run_case.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "cases/work.h"
#include "check/structure.h"
#include "machine/affinity.h"
#include "machine/first_touch.h"
#include "timing/run_case_private.h"

const attn_kernel_info bench_automatic = {
    .name = "auto", .algorithm = "auto", .isa = "", .library = "", .summary = "the library's own choice"};

enum { PLAN_REPEATS = 5, TYPICAL_ROUNDS = 45 };

static const double MEMORY_SHARE = 0.8;   /* of what is available, for one case */
static const double STRUCTURE_WORK = 1e8; /* multiply-adds: structural tests run a case some fifteen times over */

void bench_conclude(bench_row *row, bench_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  row->verdict = (bench_verdict){.status = status};
  vsnprintf(row->verdict.reason, sizeof row->verdict.reason, format, arguments);
  va_end(arguments);
}

void bench_warn(bench_row *row, const char *format, ...) {
  const size_t used = strlen(row->warnings);
  va_list arguments;
  va_start(arguments, format);
  if (used && used + 2 < sizeof row->warnings) strcat(row->warnings, "; ");
  vsnprintf(row->warnings + strlen(row->warnings), sizeof row->warnings - strlen(row->warnings), format, arguments);
  va_end(arguments);
}

void bench_note(const bench_stage *s, const char *what, const char *kernel) {
  if (s->settings->note) s->settings->note(s->settings->note_context, what, kernel);
}

static void conclude_all(bench_stage *s, bench_status status, const char *reason) {
  for (int i = 0; i < s->count; i++) bench_conclude(s->jobs[i].row, status, "%s", reason);
}

/* ---- Plans ---------------------------------------------------------------------------------------------------------- */

static attn_options options_of(const bench_stage *s, const bench_job *j) {
  const bool automatic = j->kernel == &bench_automatic;
  return (attn_options){.kernel = automatic ? NULL : j->kernel->name, .threads = s->bench->threads};
}

/* The row of the automatic choice keeps the name "auto" and says what was chosen. */
static void name_choice(const bench_stage *s, bench_job *j) {
  if (j->kernel != &bench_automatic) return;
  const char *chosen = j->layer ? bench_layer_kernel(j->layer) : attn_plan_kernel(j->plan);
  const attn_kernel_info *kernel = attn_kernel_find(chosen);
  if (kernel) j->kernel = kernel;
  bench_row_set_origin(j->row, j->kernel);
  if (bench_layer_has_attention(s->bench)) bench_warn(j->row, "chose %s", chosen);
}

/* Nanoseconds of the shortest of a few creations: the first also fills caches of the library. */
static double time_plan(const attn_problem *problem, const attn_options *options) {
  double best = INFINITY;
  for (int i = 0; i < PLAN_REPEATS; i++) {
    attn_plan *plan;
    const double start = bench_now_ns();
    if (attn_plan_create(problem, options, &plan) != ATTN_OK) return 0;
    const double elapsed = bench_now_ns() - start;
    attn_plan_destroy(plan);
    if (elapsed < best) best = elapsed;
  }
  return best;
}

static bool open_workspace(bench_job *j, size_t bytes) {
  j->workspace_bytes = bytes;
  if ((double)j->workspace_bytes > MEMORY_SHARE * bench_memory_available()) {
    bench_conclude(j->row, BENCH_SKIP, "workspace of %.3g GB is more than %.0f %% of the memory that is free",
                   (double)j->workspace_bytes * 1e-9, MEMORY_SHARE * 100);
    return false;
  }
  j->workspace = aligned_alloc(64, j->workspace_bytes ? j->workspace_bytes : 64);
  if (!j->workspace) bench_conclude(j->row, BENCH_ERROR, "out of memory for a workspace of %zu bytes", j->workspace_bytes);
  return j->workspace;
}

static bool open_plan(bench_stage *s, bench_job *j) {
  const attn_options options = options_of(s, j);
  if (attn_plan_create(&s->bench->problem, &options, &j->plan) != ATTN_OK) {
    bench_conclude(j->row, BENCH_ERROR, "%s", attn_last_error());
    return false;
  }
  if (s->settings->timed) j->plan_ns = time_plan(&s->bench->problem, &options);
  name_choice(s, j);
  return open_workspace(j, attn_plan_workspace(j->plan));
}

static void close_job(bench_job *j) {
  attn_plan_destroy(j->plan);
  bench_layer_unmake(j->layer);
  free(j->workspace);
  j->plan = NULL;
  j->layer = NULL;
  j->workspace = NULL;
}

/* ---- Checking ------------------------------------------------------------------------------------------------------- */

static attn_status create_plan_by_name(const void *name, const attn_problem *problem, const attn_options *options,
                                       attn_plan **plan) {
  attn_options named = *options;
  named.kernel = name;
  return attn_plan_create(problem, &named, plan);
}

static double multiply_adds(const attn_problem *p) {
  return (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k * (double)(p->dim_qk + p->dim_v);
}

/* What the structural tests say replaces the verdict only if it is worse. */
static void check_structure(bench_stage *s, bench_job *j) {
  bench_verdict *verdict = &j->row->verdict;
  if (!s->settings->structure || multiply_adds(&s->bench->problem) > STRUCTURE_WORK) return;
  if (verdict->status != BENCH_PASS && verdict->status != BENCH_DEGENERATE) return;
  const char *kernel = attn_plan_kernel(j->plan);
  const bench_subject subject = {.create_plan = create_plan_by_name,
                                 .context = kernel,
                                 .numerics = &j->kernel->numerics,
                                 .rows_stand_alone = !attn_kernel_find(kernel)->library[0]};
  const bench_verdict structure =
      bench_structure_check(&subject, &s->tensors[0], s->expected, s->bench->seed, ~0u, &verdict->structure);
  if (structure.status == BENCH_PASS) return;
  verdict->status = structure.status;
  memcpy(verdict->reason, structure.reason, sizeof verdict->reason);
}

/* The same for a layer. The automatic choice of a kernel stands for itself. */
static void check_layer(bench_stage *s, bench_job *j) {
  const attn_kernel_info *kernel = j->kernel;
  const double start = bench_now_ns();
  const attn_status status = bench_layer_make(s->layer, kernel == &bench_automatic ? NULL : kernel, &j->layer);
  if (status != ATTN_OK) {
    bench_conclude(j->row, status == ATTN_UNSUPPORTED ? BENCH_SKIP : BENCH_ERROR, "%s", attn_last_error());
    return;
  }
  if (s->settings->timed) j->plan_ns = bench_now_ns() - start;
  name_choice(s, j);
  if (!open_workspace(j, bench_layer_workspace(j->layer))) return;
  snprintf(j->row->product, sizeof j->row->product, "%s", bench_layer_product(j->layer));
  j->row->verdict = bench_layer_check(j->layer, &j->kernel->numerics, j->workspace, j->workspace_bytes);
  if (!s->settings->timed || j->row->verdict.status != BENCH_PASS) return;
  const double call = bench_now_ns();
  (void)bench_layer_call(j->layer, j->workspace, j->workspace_bytes); /* the check saw it succeed */
  j->call_s = 1e-9 * (bench_now_ns() - call);
}

static void check_job(bench_stage *s, bench_job *j) {
  bench_note(s, "checking", j->kernel->name);
  if (s->layer) {
    check_layer(s, j);
    return;
  }
  if (!open_plan(s, j)) return;
  j->row->verdict =
      bench_check(j->plan, &s->tensors[0], s->expected, &j->kernel->numerics, j->workspace, j->workspace_bytes);
  check_structure(s, j);
  if (!s->settings->timed || j->row->verdict.status != BENCH_PASS) return;
  bench_pages_forget(j->workspace, j->workspace_bytes); /* the check wrote all of it; now whoever packs does */
  const double start = bench_now_ns();
  (void)attn_plan_run(j->plan, &s->tensors[0].args, j->workspace, j->workspace_bytes); /* bench_check saw it succeed */
  j->call_s = 1e-9 * (bench_now_ns() - start);
}

/* Why the kernel cannot run here, or NULL. */
static const char *refusal(const bench_case *bench, const attn_kernel_info *kernel) {
  if (bench->invalid[0]) return bench->invalid;
  if (kernel == &bench_automatic) {
    for (int i = 0; i < attn_kernel_count(); i++)
      if (!attn_kernel_rejects(attn_kernel_get(i), &bench->problem)) return NULL;
    return "no kernel takes it on this CPU";
  }
  return attn_kernel_rejects(kernel, &bench->problem);
}

/* Layers without a kernel inside are measured once: in the row of the automatic choice, or in the first. */
static int only_row(const bench_case *bench, const attn_kernel_info *const *kernels, int count) {
  if (bench_layer_has_attention(bench) || bench_layer_has_projections(bench)) return -1;
  for (int i = 0; i < count; i++)
    if (kernels[i] == &bench_automatic) return i;
  return 0;
}

static const char *refusal_of_row(const bench_case *bench, const attn_kernel_info *const *kernels, int only, int i) {
  if (only < 0 || bench->invalid[0]) return refusal(bench, kernels[i]);
  return i == only ? NULL : "the layer runs no kernel: one row stands for all";
}

/* One job per kernel that takes the case; the others get their reason. */
static void open_jobs(bench_stage *s, const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                      bench_row *rows) {
  const int only = only_row(bench, kernels, count);
  for (int i = 0; i < count; i++) {
    const char *reason = refusal_of_row(bench, kernels, only, i);
    if (reason)
      bench_conclude(&rows[i], BENCH_SKIP, "%s", reason);
    else
      s->jobs[s->count++] = (bench_job){.row = &rows[i], .kernel = kernels[i]};
    if (!reason) bench_conclude(&rows[i], BENCH_ERROR, "interrupted before its check");
  }
}

static bool open_tensors(bench_stage *s) {
  char reason[160];
  const size_t bytes = bench_tensors_size(s->bench);
  const double available = bench_memory_available();
  if (!bytes || (double)bytes > MEMORY_SHARE * available) {
    snprintf(reason, sizeof reason, "its tensors need %.3g GB, more than %.0f %% of the %.3g GB of memory that are free",
             bytes ? (double)bytes * 1e-9 : INFINITY, MEMORY_SHARE * 100, available * 1e-9);
    conclude_all(s, BENCH_SKIP, reason);
    return false;
  }
  bench_note(s, "making tensors", "");
  if (!bench_tensors_create(s->bench, &s->tensors[0])) {
    conclude_all(s, BENCH_ERROR, "out of memory for the tensors");
    return false;
  }
  s->rotations = 1;
  return true;
}

/* Whether the sharp limit applies: it presumes V of mean zero and scores that differ, or addends of equal size all round the
 * same way (docs/numerics.md: a standard deviation below 0.05). Scores of default scale have the square of the inputs'
 * magnitude. */
static bool errors_average_out(const bench_case *bench) {
  return !bench->uniform_v && bench->magnitude * bench->magnitude >= 0.05;
}

static bool ask_oracle(bench_stage *s) {
  const attn_problem *problem = &s->bench->problem;
  const attn_args *args = &s->tensors[0].args;
  bench_note(s, "asking the oracle", "");
  s->expected = bench_expected_create(problem, args, s->bench->seed, errors_average_out(s->bench));
  s->flops = bench_work_flops(problem, bench_work_pairs(problem, args));
  s->bytes = bench_work_bytes(problem, args);
  if (!s->expected) conclude_all(s, BENCH_ERROR, "out of memory for the oracle's answer");
  return s->expected;
}

static bool open_layer(bench_stage *s) {
  char reason[160];
  const double available = bench_memory_available();
  s->flops = bench_layer_flops(s->bench);
  s->bytes = bench_layer_bytes(s->bench);
  if (s->bytes > MEMORY_SHARE * available) {
    snprintf(reason, sizeof reason, "its data need %.3g GB, more than %.0f %% of the %.3g GB of memory that are free",
             s->bytes * 1e-9, MEMORY_SHARE * 100, available * 1e-9);
    conclude_all(s, BENCH_SKIP, reason);
    return false;
  }
  bench_note(s, "making the layer", "");
  s->layer = bench_layer_open(s->bench);
  if (!s->layer) conclude_all(s, BENCH_ERROR, "out of memory for the layer");
  return s->layer;
}

/* Inputs and right answers, of attention or of a layer. */
static bool open_data(bench_stage *s) {
  if (bench_layer_is(s->bench)) return open_layer(s);
  return open_tensors(s) && ask_oracle(s);
}

/* ---- The case ------------------------------------------------------------------------------------------------------- */

static bool stopped(const bench_stage *s) { return s->settings->stop && *s->settings->stop; }

bench_stage *bench_stage_open(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                              const bench_case_settings *settings, bench_row *rows) {
  bench_stage *s = calloc(1, sizeof *s);
  for (int i = 0; i < count; i++) rows[i] = bench_row_create(bench, kernels[i]);
  if (!s) {
    for (int i = 0; i < count; i++) bench_conclude(&rows[i], BENCH_ERROR, "out of memory");
    return NULL;
  }
  s->bench = bench;
  s->settings = settings;
  open_jobs(s, bench, kernels, count, rows);
  if (!s->count || !open_data(s)) return s;
  for (int i = 0; i < s->count && !stopped(s); i++) check_job(s, &s->jobs[i]);
  return s;
}

void bench_stage_close(bench_stage *s) {
  if (!s) return;
  for (int i = 0; i < s->count; i++) close_job(&s->jobs[i]);
  bench_layer_close(s->layer);
  if (s->expected) bench_expected_destroy(s->expected);
  for (int i = 0; i < s->rotations; i++) bench_tensors_destroy(&s->tensors[i]);
  free(s);
}

bool bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                    const bench_case_settings *settings, bench_row *rows) {
  const bool held = settings->timed && bench_threads_hold(bench->threads);
  bench_stage *s = bench_stage_open(bench, kernels, count, settings, rows);
  const bool complete = !s || !s->count || !stopped(s);
  if (s && (s->expected || s->layer) && complete && settings->timed) bench_time_jobs(s);
  bench_stage_close(s);
  if (held) bench_threads_release();
  return complete;
}

/* How much more a layer has to do than its attention. */
static double layer_factor(const bench_case *bench) {
  const attn_args none = {0};
  if (bench->invalid[0] || !bench_layer_is(bench)) return 1;
  const double attention = bench_work_flops(&bench->problem, bench_work_pairs(&bench->problem, &none));
  const double flops = bench_layer_flops(bench);
  return attention > 0 && flops > 0 ? flops / attention : 1;
}

double bench_case_guess(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                        const bench_case_settings *settings) {
  const attn_problem *p = &bench->problem;
  double calls = 0, samples = 0;
  const double more = layer_factor(bench);
  const int only = only_row(bench, kernels, count);
  for (int i = 0; i < count; i++) {
    if (refusal_of_row(bench, kernels, only, i)) continue;
    const double call = bench_work_guess(p, kernels[i], bench->threads) * more;
    calls += call;
    if (call * BENCH_FEW_ROUNDS < settings->case_budget_s)
      samples += fmax(call, BENCH_MIN_SAMPLE_S) + BENCH_MIN_SAMPLE_S / 2;
  }
  if (calls <= 0) return 1e-4;
  const double work = multiply_adds(p);
  const double check = 1e-3 + 3 * calls + fmin(work, 1e8) * 6e-9;
  if (!settings->timed) return check;
  const double timing =
      settings->rounds ? settings->rounds * samples : fmin(settings->case_budget_s, TYPICAL_ROUNDS * samples);
  return check + timing;
}
