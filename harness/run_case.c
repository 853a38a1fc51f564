/* One case from tensors to results. */
#include "run_case.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bandwidth.h"
#include "clock.h"
#include "kernels/peak.h"
#include "select.h"
#include "work.h"

const attn_kernel_info bench_automatic = {
    .name = "auto", .algorithm = "auto", .isa = "", .library = "", .summary = "the library's own choice"};

/* What "auto" chose, by registry index: its row carries the name "auto" and the rest of the kernel. */
static attn_kernel_info automatic_choices[BENCH_MAX_KERNELS];

enum {
  MIN_ROUNDS = 11,
  FEW_ROUNDS = 4, /* a kernel that does not fit so often into the budget of its case is not timed */
  MAX_ROUNDS = 200,
  PLAN_REPEATS = 5,
  MAX_ROTATIONS = 64,
  BANDWIDTH_CLASSES = 64,
};

static const double MIN_SAMPLE_S = 2e-3;
static const double MEMORY_SHARE = 0.8;           /* of what is available, for one case */
static const double ROTATION_BYTES = 2147483648.0; /* most memory for the rotations of a cold cache */

/* One kernel of the case. */
typedef struct job {
  bench_result *result;
  attn_plan *plan;
  void *workspace;
  size_t workspace_bytes;
  double call_s; /* one call, roughly */
} job;

/* Everything that the kernels of the case share. */
typedef struct stage {
  const bench_case *bench;
  const bench_case_settings *settings;
  job jobs[BENCH_MAX_KERNELS + 1];
  int count;
  bench_tensors tensors[MAX_ROTATIONS];
  int rotations;
  bench_expected *expected;
  double flops, bytes;
} stage;

static void conclude(bench_result *result, bench_status status, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void conclude(bench_result *result, bench_status status, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  result->verdict = (bench_verdict){.status = status};
  vsnprintf(result->verdict.reason, sizeof result->verdict.reason, format, arguments);
  va_end(arguments);
}

static void warn(bench_result *result, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void warn(bench_result *result, const char *format, ...) {
  const size_t used = strlen(result->warnings);
  va_list arguments;
  va_start(arguments, format);
  if (used && used + 2 < sizeof result->warnings) strcat(result->warnings, "; ");
  vsnprintf(result->warnings + strlen(result->warnings), sizeof result->warnings - strlen(result->warnings), format, arguments);
  va_end(arguments);
}

static void conclude_all(stage *s, bench_status status, const char *reason) {
  for (int i = 0; i < s->count; i++) conclude(s->jobs[i].result, status, "%s", reason);
}

static void note(const stage *s, const char *what, const char *kernel) {
  if (s->settings->note) s->settings->note(s->settings->note_context, what, kernel);
}

/* ---- Plans ---------------------------------------------------------------------------------------------------------- */

static attn_options options_of(const stage *s, const job *j) {
  const bool automatic = j->result->kernel == &bench_automatic;
  return (attn_options){.kernel = automatic ? NULL : j->result->kernel->name, .threads = s->bench->threads};
}

/* The automatic choice gets a row of its own that says what was chosen. */
static void name_choice(job *j) {
  const char *chosen = attn_plan_kernel(j->plan);
  if (j->result->kernel != &bench_automatic) return;
  for (int i = 0; i < attn_kernel_count() && i < BENCH_MAX_KERNELS; i++)
    if (!strcmp(attn_kernel_get(i)->name, chosen)) {
      automatic_choices[i] = *attn_kernel_get(i);
      automatic_choices[i].name = bench_automatic.name;
      j->result->kernel = &automatic_choices[i];
    }
  warn(j->result, "chose %s", chosen);
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

static bool open_plan(stage *s, job *j) {
  const attn_options options = options_of(s, j);
  if (attn_plan_create(&s->bench->problem, &options, &j->plan) != ATTN_OK) {
    conclude(j->result, BENCH_ERROR, "%s", attn_last_error());
    return false;
  }
  if (s->settings->timed) j->result->plan_ns = time_plan(&s->bench->problem, &options);
  name_choice(j);
  j->workspace_bytes = attn_plan_workspace(j->plan);
  j->result->workspace_bytes = (double)j->workspace_bytes;
  if ((double)j->workspace_bytes > MEMORY_SHARE * bench_memory_available()) {
    conclude(j->result, BENCH_SKIP, "workspace of %.3g GB is more than %.0f %% of the memory that is free",
             (double)j->workspace_bytes * 1e-9, MEMORY_SHARE * 100);
    return false;
  }
  j->workspace = aligned_alloc(64, j->workspace_bytes ? j->workspace_bytes : 64);
  if (!j->workspace) conclude(j->result, BENCH_ERROR, "out of memory for a workspace of %zu bytes", j->workspace_bytes);
  return j->workspace;
}

static void close_job(job *j) {
  attn_plan_destroy(j->plan);
  free(j->workspace);
  j->plan = NULL;
  j->workspace = NULL;
}

/* ---- Checking ------------------------------------------------------------------------------------------------------- */

static void check_job(stage *s, job *j) {
  note(s, "checking", j->result->kernel->name);
  if (!open_plan(s, j)) return;
  j->result->verdict = bench_check(j->plan, &s->tensors[0], s->expected, &j->result->kernel->numerics, j->workspace, j->workspace_bytes);
  if (!s->settings->timed || j->result->verdict.status != BENCH_PASS) return;
  const double start = bench_now_ns();
  (void)attn_plan_run(j->plan, &s->tensors[0].args, j->workspace, j->workspace_bytes); /* bench_check saw it succeed */
  j->call_s = 1e-9 * (bench_now_ns() - start);
}

/* Why the kernel cannot run here, or NULL. */
static const char *refusal(const bench_planned *planned, const attn_kernel_info *kernel) {
  if (planned->invalid[0]) return planned->invalid;
  if (kernel == &bench_automatic) {
    for (int i = 0; i < attn_kernel_count(); i++)
      if (!attn_kernel_rejects(attn_kernel_get(i), &planned->bench.problem)) return NULL;
    return "no kernel takes it on this CPU";
  }
  return attn_kernel_rejects(kernel, &planned->bench.problem);
}

/* One job per kernel that takes the case; the others get their reason. */
static void open_jobs(stage *s, const bench_planned *planned, const attn_kernel_info *const *kernels, int count,
                      bench_result *results) {
  for (int i = 0; i < count; i++) {
    const char *reason = refusal(planned, kernels[i]);
    if (reason) conclude(&results[i], BENCH_SKIP, "%s", reason);
    else s->jobs[s->count++] = (job){.result = &results[i]};
    if (!reason) conclude(&results[i], BENCH_ERROR, "interrupted before its check");
  }
}

static bool open_tensors(stage *s) {
  char reason[160];
  const size_t bytes = bench_tensors_size(s->bench);
  const double available = bench_memory_available();
  if (!bytes || (double)bytes > MEMORY_SHARE * available) {
    snprintf(reason, sizeof reason, "its tensors need %.3g GB, more than %.0f %% of the %.3g GB of memory that are free",
             bytes ? (double)bytes * 1e-9 : INFINITY, MEMORY_SHARE * 100, available * 1e-9);
    conclude_all(s, BENCH_SKIP, reason);
    return false;
  }
  note(s, "making tensors", "");
  if (!bench_tensors_create(s->bench, &s->tensors[0])) {
    conclude_all(s, BENCH_ERROR, "out of memory for the tensors");
    return false;
  }
  s->rotations = 1;
  return true;
}

static bool ask_oracle(stage *s) {
  const attn_problem *problem = &s->bench->problem;
  const attn_args *args = &s->tensors[0].args;
  note(s, "asking the oracle", "");
  s->expected = bench_expected_create(problem, args, s->bench->seed, !s->bench->uniform_v);
  s->flops = bench_work_flops(problem, bench_work_pairs(problem, args));
  s->bytes = bench_work_bytes(problem, args);
  if (!s->expected) conclude_all(s, BENCH_ERROR, "out of memory for the oracle's answer");
  return s->expected;
}

/* ---- Timing --------------------------------------------------------------------------------------------------------- */

/* Several copies of the tensors, together larger than the last-level cache, so that none is in it when its turn comes. Where
 * only K and V are to be cold, the copies share q; outputs are checked one by one, so each copy keeps its own. */
static void rotate_tensors(stage *s) {
  if (s->bench->cache == BENCH_WARM) return;
  const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
  const double size = s->bytes > 1 ? s->bytes : 1, wanted = 4.0 * (cache > 0 ? (double)cache : 33554432.0);
  const double room = fmin(ROTATION_BYTES, 0.4 * bench_memory_available()) / ((double)s->tensors[0].bytes + 1);
  const int target = (int)fmax(1, fmin(MAX_ROTATIONS, fmin(ceil(wanted / size) + 1, room)));
  while (s->rotations < target && bench_tensors_clone(&s->tensors[0], &s->tensors[s->rotations])) {
    if (s->bench->cache == BENCH_COLD_KV) s->tensors[s->rotations].args.q = s->tensors[0].args.q;
    s->rotations++;
  }
  if (s->rotations * size < wanted)
    for (int i = 0; i < s->count; i++)
      warn(s->jobs[i].result, "cache: %d rotations of %.3g MB are less than 4 x the last-level cache", s->rotations, size * 1e-6);
}

/* Kernels that passed and are quick enough; the slow ones say so. Fills who[] with their jobs. */
static int choose_entrants(stage *s, bench_entrant *entrants, job **who) {
  int count = 0;
  for (int i = 0; i < s->count; i++) {
    job *j = &s->jobs[i];
    if (j->result->verdict.status != BENCH_PASS) continue;
    if (j->call_s * FEW_ROUNDS > s->settings->case_budget_s && !s->settings->rounds) {
      warn(j->result, "not timed: one call takes %.3g s, and --case-budget %.3g s has no room for %d", j->call_s,
           s->settings->case_budget_s, FEW_ROUNDS);
      continue;
    }
    who[count] = j;
    entrants[count++] = (bench_entrant){.plan = j->plan,
                                        .tensors = s->tensors,
                                        .tensor_count = s->rotations,
                                        .workspace = j->workspace,
                                        .workspace_bytes = j->workspace_bytes,
                                        .verdict = j->result->verdict,
                                        .peak = attn_peak_for(j->result->kernel->isa, bench_dtype_name(s->bench->problem.dtype_kv))};
  }
  return count;
}

/* The A/A control: the quickest kernel once more. */
static int add_control(bench_entrant *entrants, job *const *who, int count) {
  int quickest = 0;
  for (int i = 1; i < count; i++)
    if (who[i]->call_s < who[quickest]->call_s) quickest = i;
  entrants[count] = entrants[quickest];
  entrants[count].control = true;
  return quickest;
}

/* Bytes/s of the read loop over about as much memory as the case reads, measured once per size and thread count. */
static double read_bandwidth(const stage *s) {
  static struct { int size_class, threads; double rate; } known[BANDWIDTH_CLASSES];
  static int known_count;
  const double bytes = s->bytes * s->rotations / s->bench->threads;
  const int size_class = bytes > 16384 ? (int)ceil(log2(bytes)) : 14;
  for (int i = 0; i < known_count; i++)
    if (known[i].size_class == size_class && known[i].threads == s->bench->threads) return known[i].rate;
  note(s, "measuring read bandwidth", "");
  const double rate = bench_read_bandwidth((size_t)1 << size_class, s->bench->threads);
  if (known_count < BANDWIDTH_CLASSES) {
    known[known_count].size_class = size_class;
    known[known_count].threads = s->bench->threads;
    known[known_count++].rate = rate;
  }
  return rate;
}

/* Share of the peak, round by round: a ratio of neighbours. */
static void fill_peak(bench_result *r, const bench_entrant *e, double flops, int threads) {
  double *share = malloc(((size_t)e->rounds + 1) * sizeof *share);
  if (!share || !e->peak || !e->peak_flops || flops <= 0) {
    free(share);
    return;
  }
  for (int i = 0; i < e->rounds; i++) share[i] = flops / (e->time_ns[i] * 1e-9) / (e->peak_flops[i] * threads);
  r->peak_flops = threads * bench_median(e->peak_flops, e->rounds);
  r->peak_ratio = bench_median(share, e->rounds);
  if (r->peak_ratio > 1) warn(r, "faster than the measured peak: the peak loop was disturbed");
  free(share);
}

/* Moves the samples from the entrant to the result. `stop` is why the last rounds were the last. */
static void fill_times(const stage *s, bench_result *r, bench_entrant *e, bench_stop stop) {
  r->timed = true;
  r->time = bench_summarise(e->time_ns, e->rounds);
  r->flops = s->flops;
  r->bytes = s->bytes;
  r->stop = stop;
  r->iterations = e->iterations;
  fill_peak(r, e, s->flops, s->bench->threads);
  r->samples_ns = e->time_ns;
  r->positions = e->position;
  e->time_ns = NULL;
  e->position = NULL;
}

/* naive_c where it was timed, else the slowest. */
static const bench_result *choose_baseline(job *const *who, int count) {
  const bench_result *slowest = who[0]->result;
  for (int i = 0; i < count; i++) {
    if (!strcmp(who[i]->result->kernel->name, "naive_c")) return who[i]->result;
    if (who[i]->result->time.median > slowest->time.median) slowest = who[i]->result;
  }
  return slowest;
}

static const bench_result *choose_best(job *const *who, int count) {
  const bench_result *best = who[0]->result;
  for (int i = 1; i < count; i++)
    if (who[i]->result->time.median < best->time.median) best = who[i]->result;
  return best;
}

/* Slow kernels take part in the first rounds only; those are what a pair has in common. */
static int fewer(int a, int b) { return a < b ? a : b; }

static void fill_ratios(job *const *who, int count) {
  const bench_result *baseline = choose_baseline(who, count), *best = choose_best(who, count);
  for (int i = 0; i < count; i++) {
    bench_result *r = who[i]->result;
    r->baseline = baseline->kernel->name;
    r->ratio = bench_paired_ratio(baseline->samples_ns, r->samples_ns, fewer(baseline->time.n, r->time.n));
    r->ratio_best = bench_paired_ratio(best->samples_ns, r->samples_ns, fewer(best->time.n, r->time.n));
  }
}

static void fill_noise(const bench_entrant *control, const bench_result *same, job *const *who, int count) {
  const int rounds = fewer(control->rounds, same->time.n);
  const double noise = fabs(bench_paired_ratio(control->time_ns, same->samples_ns, rounds).median - 1);
  for (int i = 0; i < count; i++) who[i]->result->noise = noise;
}

static bench_timing_options timing_options(const stage *s) {
  const bench_case_settings *settings = s->settings;
  return (bench_timing_options){.precision = settings->rounds ? 0 : settings->precision,
                                .min_rounds = settings->rounds ? settings->rounds : MIN_ROUNDS,
                                .max_rounds = settings->rounds ? settings->rounds : MAX_ROUNDS,
                                .budget_s = settings->rounds ? 1e9 : settings->case_budget_s,
                                .min_sample_s = MIN_SAMPLE_S,
                                .threads = s->bench->threads,
                                .seed = s->bench->seed,
                                .stop = settings->stop};
}

static void fill_results(const stage *s, bench_entrant *entrants, job *const *who, int count, int same, bench_stop stop) {
  int rounds = 0;
  for (int i = 0; i < count; i++)
    if (entrants[i].rounds > rounds) rounds = entrants[i].rounds;
  for (int i = 0; i < count; i++)
    fill_times(s, who[i]->result, &entrants[i], entrants[i].rounds < rounds ? BENCH_STOP_BUDGET : stop);
  fill_ratios(who, count);
  fill_noise(&entrants[count], who[same]->result, who, count);
  const double bandwidth = read_bandwidth(s);
  for (int i = 0; i < count; i++) who[i]->result->read_bandwidth = bandwidth;
}

/* All kernels of the case in common rounds. An error of one spoils the times of all. */
static void time_jobs(stage *s) {
  bench_entrant entrants[BENCH_MAX_KERNELS + 2];
  job *who[BENCH_MAX_KERNELS + 1];
  bench_stop stop = BENCH_STOP_INTERRUPT;
  const char *error = "";
  rotate_tensors(s);
  const int count = choose_entrants(s, entrants, who);
  if (!count) return;
  const int same = add_control(entrants, who, count);
  const bench_timing_options options = timing_options(s);
  note(s, "timing", "");
  if (bench_time(entrants, count + 1, &options, &stop, &error))
    for (int i = 0; i < count; i++) conclude(who[i]->result, BENCH_ERROR, "timing: %s", error);
  else if (entrants[0].rounds > 0)
    fill_results(s, entrants, who, count, same, stop);
  for (int i = 0; i <= count; i++) bench_entrant_clear(&entrants[i]);
}

/* ---- The case ------------------------------------------------------------------------------------------------------- */

static bool stopped(const stage *s) { return s->settings->stop && *s->settings->stop; }

static bool run_stage(stage *s) {
  if (!open_tensors(s) || !ask_oracle(s)) return true;
  for (int i = 0; i < s->count && !stopped(s); i++) check_job(s, &s->jobs[i]);
  if (stopped(s)) return false;
  if (s->settings->timed) time_jobs(s);
  return true;
}

static void close_stage(stage *s) {
  for (int i = 0; i < s->count; i++) close_job(&s->jobs[i]);
  if (s->expected) bench_expected_destroy(s->expected);
  for (int i = 0; i < s->rotations; i++) bench_tensors_destroy(&s->tensors[i]);
  free(s);
}

bool bench_run_case(const bench_planned *planned, const attn_kernel_info *const *kernels, int count,
                    const bench_case_settings *settings, bench_result *results) {
  stage *s = calloc(1, sizeof *s);
  for (int i = 0; i < count; i++)
    results[i] = (bench_result){.bench = &planned->bench, .kernel = kernels[i], .baseline = "", .noise = -1};
  if (!s) {
    for (int i = 0; i < count; i++) conclude(&results[i], BENCH_ERROR, "out of memory");
    return true;
  }
  s->bench = &planned->bench;
  s->settings = settings;
  open_jobs(s, planned, kernels, count, results);
  const bool complete = !s->count || run_stage(s);
  close_stage(s);
  return complete;
}

double bench_case_guess(const bench_planned *planned, const attn_kernel_info *const *kernels, int count,
                        const bench_case_settings *settings) {
  const attn_problem *p = &planned->bench.problem;
  double calls = 0, samples = 0;
  for (int i = 0; i < count; i++) {
    if (refusal(planned, kernels[i])) continue;
    const double call = bench_work_guess(p, kernels[i], planned->bench.threads);
    calls += call;
    if (call * FEW_ROUNDS < settings->case_budget_s) samples += fmax(call, MIN_SAMPLE_S) + MIN_SAMPLE_S / 2;
  }
  if (calls <= 0) return 1e-4;
  const double work = (double)p->batch * (double)p->heads_q * (double)p->seq_q * (double)p->seq_k * (double)(p->dim_qk + p->dim_v);
  const double check = 1e-3 + 3 * calls + fmin(work, 1e8) * 6e-9;
  if (!settings->timed) return check;
  const double timing = settings->rounds ? settings->rounds * samples : fmin(settings->case_budget_s, 4 * MIN_ROUNDS * samples);
  return check + timing;
}
