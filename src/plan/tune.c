/* SPDX-License-Identifier: MIT */
/* attn_tune: which kernel is quickest for one problem, measured on the caller's own data.
 *
 * Candidates are pairs of a kernel and a number of threads. Those on one thread come first: beside other programs a call on
 * several threads waits for the slowest of them, and a few such calls use up the time. All run in turn, round by round, so
 * that a change of the clock meets all of them. What a candidate takes of the time is limited: one that is far behind leaves
 * after a few rounds, and those near the best share what is left. One workspace, as large as the largest plan's, serves them
 * all. */
#include "src/plan/tune.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/aligned.h"
#include "src/api/error.h"
#include "src/api/layouts.h"
#include "src/api/problem.h"
#include "src/api/process_usage.h"
#include "src/api/wall_clock.h"
#include "src/choice/dispatch.h"
#include "src/choice/paying_threads.h"
#include "src/plan/parallel.h"
#include "src/plan/plan.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"

enum {
  MOST_ROUNDS = 101,
  FEW_ROUNDS = 6, /* fewer values have no 95 % interval */
  MOST_CALLS = 4096
};

static const double SAMPLE_NS = 5e4;       /* a thousand times what reading the clock takes */
static const double REWARM_BELOW_NS = 1e6; /* a longer call hardly notices that others used the caches before it */
static const double NEAR_BEST = 1.3;       /* entries up to so many times the best time get more rounds */
static const double FIRST_CALLS = 0.5;     /* share of the time: rounds take the rest */
static const double BUSY = 0.75;           /* share of threads x time: CPU time of a call that had its CPUs */
static const size_t MOST_WORKSPACE = (size_t)1 << 30; /* unless the automatic choice needs more */

/* Why a candidate has no time. */
static const char WAITING[] = "no time was left for its first call";
static const char CALLED[] = "no time was left for a round after its first call";
static const char LARGE[] = "its workspace is above 1 GiB";
static const char FAILED[] = "a call of it failed";
static const char DISTURBED[] = "other programs took the CPUs of so many threads half of the time or more";

typedef struct candidate {
  const attn_kernel_info *kernel;
  attn_plan *plan;
  bool automatic; /* the library's choice */
  int threads, rounds;
  int timings, disturbed;     /* counts of calls: all, and those in which other programs took its CPUs */
  const char *not_timed;      /* why it has no rounds */
  int64_t calls;              /* calls in a sample; 0 = not called yet, or never to be called */
  double call_ns;             /* first a guess */
  double least_ns, median_ns; /* time of one call */
  double *sample_ns;          /* [MOST_ROUNDS] of one call; NaN where it was left out */
} candidate;

typedef struct session {
  const attn_tune_meter *meter;
  const attn_problem *problem;
  const attn_args *args;
  attn_options options;
  candidate candidates[ATTN_TUNE_ENTRIES]; /* first the automatic choice's kernel with the fewest threads */
  int count, left_out;
  double *samples, *scratch; /* samples of all candidates; room for those of one */
  void *workspace;
  size_t workspace_bytes;
  double start_ns, budget_ns;
  int rounds;
} session;

static double elapsed_ns(const session *s) { return s->meter->now_ns(s->meter->context) - s->start_ns; }

/* ---- Candidates ---- */

static void swap(candidate *a, candidate *b) {
  const candidate other = *a;
  *a = *b;
  *b = other;
}

static candidate *automatic_of(session *s) {
  candidate *c = s->candidates;
  while (!c->automatic) c++;
  return c;
}

/* Guesses the time of a call: by costs or, where nothing is known, by its multiply-adds and the usual speed of a core of the
 * kernel's tier. Right within a factor of a few. */
static double guess_ns(const session *s, const attn_kernel_info *info, int threads) {
  const attn_problem *p = s->problem;
  const attn_kernel *kernel = attn_registry_find(info->name);
  const double expected = attn_call_ns(s->options.tuning, kernel, p);
  if (expected > 0) return expected / threads;
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const double rows = varlen ? (double)p->total_q : (double)p->batch * (double)p->seq_q;
  const double flops = 2 * rows * (double)p->heads_q * (double)p->seq_k * (double)(p->dim_qk + p->dim_v);
  return 1e9 * flops / attn_tier_flops(attn_tier_find(info->isa)) / threads;
}

static bool is_there(const session *s, const attn_kernel_info *kernel, int threads) {
  for (int i = 0; i < s->count; i++)
    if (s->candidates[i].kernel == kernel && s->candidates[i].threads == threads) return true;
  return false;
}

/* Takes the plan, unless it is there already or the list is full. */
static void add_plan(session *s, attn_plan *plan) {
  const attn_kernel_info *kernel = attn_kernel_find(attn_plan_kernel(plan));
  const int threads = attn_plan_threads(plan);
  const bool twice = is_there(s, kernel, threads);
  if (!twice && s->count < ATTN_TUNE_ENTRIES) {
    s->candidates[s->count] = (candidate){.kernel = kernel,
                                          .plan = plan,
                                          .automatic = s->count == 0,
                                          .threads = threads,
                                          .not_timed = WAITING,
                                          .call_ns = guess_ns(s, kernel, threads)};
    s->count++;
    return;
  }
  s->left_out += !twice;
  attn_plan_destroy(plan);
}

static void add_kernel(session *s, const attn_kernel_info *kernel, int threads) {
  const attn_tune_meter *m = s->meter;
  attn_options options = s->options;
  attn_plan *plan;
  if (m->takes && !m->takes(m->context, kernel)) return;
  options.kernel = kernel->name;
  options.threads = threads;
  if (attn_plan_create(s->problem, &options, &plan) == ATTN_OK) add_plan(s, plan);
}

/* The kernels that the problem may run: one, where it is named. */
static void add_kernels(session *s, bool named, int threads) {
  const attn_kernel_info *only = named ? s->candidates[0].kernel : NULL;
  for (int i = 0; i < attn_kernel_count(); i++)
    if (only ? attn_kernel_get(i) == only : attn_is_automatic(attn_kernel_get(i)))
      add_kernel(s, attn_kernel_get(i), threads);
}

/* Orders candidates: fewer threads first; among these the automatic choice's kernel, then the quickest by guess, so that
 * slow ones leave time for all others. */
static bool is_called_before(const candidate *a, const candidate *b, const attn_kernel_info *automatic) {
  if ((a->threads == 1) != (b->threads == 1)) return a->threads == 1;
  if ((a->kernel == automatic) != (b->kernel == automatic)) return a->kernel == automatic;
  return a->call_ns < b->call_ns;
}

static void sort_by_guess(session *s) {
  const attn_kernel_info *automatic = s->candidates[0].kernel;
  for (int i = 1; i < s->count; i++)
    for (int j = i; j > 0 && is_called_before(&s->candidates[j], &s->candidates[j - 1], automatic); j--)
      swap(&s->candidates[j], &s->candidates[j - 1]);
}

/* Adds the library's own choice, then every kernel with all threads, with one, and with powers of two between. */
static attn_status add_candidates(session *s) {
  attn_plan *automatic;
  const attn_status status = attn_plan_create(s->problem, &s->options, &automatic);
  if (status != ATTN_OK) return status;
  add_plan(s, automatic);
  const bool named = s->options.kernel || attn_dispatch_names_kernel();
  const int most = s->options.threads ? s->options.threads : attn_parallel_default_threads();
  add_kernels(s, named, most);
  for (int threads = 1; threads < most && !s->options.threads; threads *= 2) add_kernels(s, named, threads);
  sort_by_guess(s);
  return ATTN_OK;
}

static void close_session(session *s) {
  for (int i = 0; i < s->count; i++) attn_plan_destroy(s->candidates[i].plan);
  attn_aligned_free(s->workspace);
  free(s->samples);
}

/* ---- Memory ---- */

/* Kernels that keep whole score matrices ask for very much; they are not timed rather than bring the system down. */
static bool has_modest_workspace(session *s, const candidate *c) {
  const size_t bytes = attn_plan_workspace(c->plan);
  return bytes <= MOST_WORKSPACE || bytes <= attn_plan_workspace(automatic_of(s)->plan);
}

static attn_status allocate(session *s) {
  for (int i = 0; i < s->count; i++) {
    const size_t bytes = attn_plan_workspace(s->candidates[i].plan);
    if (has_modest_workspace(s, &s->candidates[i]) && bytes > s->workspace_bytes) s->workspace_bytes = bytes;
  }
  const size_t samples = ((size_t)s->count + 1) * MOST_ROUNDS;
  if (s->workspace_bytes) s->workspace = attn_aligned_alloc(ATTN_MEMORY_ALIGN, s->workspace_bytes);
  s->samples = malloc(samples * sizeof *s->samples);
  if (!s->samples || (s->workspace_bytes && !s->workspace))
    return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_tune needs %zu bytes, most of it for the largest workspace",
                     s->workspace_bytes + samples * sizeof *s->samples);
  for (size_t i = 0; i < samples; i++) s->samples[i] = NAN;
  for (int i = 0; i < s->count; i++) s->candidates[i].sample_ns = s->samples + (size_t)i * MOST_ROUNDS;
  s->scratch = s->samples + (size_t)s->count * MOST_ROUNDS;
  return ATTN_OK;
}

/* ---- Statistics ---- */

static int compare_doubles(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* How many of n sorted values lie outside a 95 % interval of the median on each side, and one: the interval is from the
 * rank-th smallest to the rank-th largest. A value is below the median with probability 1/2 (David and Nagaraja, Order
 * Statistics, 2003, section 7.1). 0: there is no such interval. */
static int interval_rank(int n) {
  double term = pow(0.5, n), below = 0;
  int rank = 0;
  while (rank < n / 2 && (below += term) <= 0.025) {
    term = term * (n - rank) / (rank + 1);
    rank++;
  }
  return rank;
}

typedef struct summary {
  double median, low, high;
} summary;

static summary summarise(double *values, int n) {
  const int rank = interval_rank(n);
  qsort(values, (size_t)n, sizeof *values, compare_doubles);
  return (summary){.median = 0.5 * (values[(n - 1) / 2] + values[n / 2]),
                   .low = rank ? values[rank - 1] : 0,
                   .high = rank ? values[n - rank] : INFINITY};
}

static summary summarise_times(session *s, const candidate *c) {
  int n = 0;
  for (int r = 0; r < s->rounds; r++)
    if (!isnan(c->sample_ns[r])) s->scratch[n++] = c->sample_ns[r];
  return summarise(s->scratch, n);
}

/* The time of `c` / the time of `best`, in the rounds that both were in. */
static summary summarise_ratios(session *s, const candidate *c, const candidate *best) {
  int n = 0;
  for (int r = 0; r < s->rounds; r++)
    if (!isnan(c->sample_ns[r]) && !isnan(best->sample_ns[r])) s->scratch[n++] = c->sample_ns[r] / best->sample_ns[r];
  return n ? summarise(s->scratch, n) : (summary){.median = c->median_ns / best->median_ns, .high = INFINITY};
}

/* ---- Timing ---- */

/* Whether threads lost their CPUs: they were switched off them and also used less CPU time than there was. One sign alone
 * says nothing: the system switches threads for its own needs too, and threads wait where there is not work for all. */
static bool is_disturbed(attn_process_usage before, attn_process_usage after, double time_ns, int threads) {
  return after.preemptions > before.preemptions && after.cpu_ns - before.cpu_ns < BUSY * threads * time_ns;
}

static attn_process_usage usage(const session *s) {
  return s->meter->usage ? s->meter->usage(s->meter->context) : (attn_process_usage){.cpu_ns = 0};
}

/* Nanoseconds of one of `calls` calls; NaN if one failed. */
static double time_calls(const session *s, candidate *c, int64_t calls) {
  const attn_tune_meter *m = s->meter;
  attn_status status = ATTN_OK;
  const attn_process_usage before = usage(s);
  const double start = m->now_ns(m->context);
  for (int64_t i = 0; i < calls && status == ATTN_OK; i++)
    status = m->call(m->context, c->plan, s->args, s->workspace, s->workspace_bytes);
  const double time = m->now_ns(m->context) - start;
  c->timings++;
  c->disturbed += is_disturbed(before, usage(s), time, c->threads);
  return status == ATTN_OK ? time / (double)calls : NAN;
}

/* NaN if a call of either failed. */
static double shorter(double a_ns, double b_ns) { return isnan(a_ns) || isnan(b_ns) ? NAN : fmin(a_ns, b_ns); }

/* The first call of a candidate fetches its code and memory. The next ones say how many make a sample: two, because one may
 * be disturbed. A long call is a sample by itself, and is made once more only if it was disturbed. */
static void call_first(session *s, candidate *c) {
  c->call_ns = time_calls(s, c, 1);
  if (c->call_ns < REWARM_BELOW_NS)
    c->call_ns = shorter(time_calls(s, c, 1), time_calls(s, c, 1));
  else if (c->disturbed)
    c->call_ns = shorter(c->call_ns, time_calls(s, c, 1));
  c->least_ns = c->call_ns;
  const double calls = ceil(SAMPLE_NS / fmax(c->call_ns, 1));
  c->calls = isnan(c->call_ns) ? 0 : (int64_t)fmin(fmax(calls, 1), MOST_CALLS);
  c->not_timed = c->calls ? CALLED : FAILED;
}

/* The automatic choice is always called, and so is its kernel with the fewest threads, unless a call of that may take longer
 * than the whole time; others if they are guessed to take no more than their share of the time for first calls. */
static bool is_called(session *s, int index) {
  candidate *c = &s->candidates[index];
  const double share_ns = (FIRST_CALLS * s->budget_ns - elapsed_ns(s)) / (s->count - index);
  if (c->automatic) return true;
  if (!has_modest_workspace(s, c)) return c->not_timed = LARGE, false;
  return c->call_ns <= (index == 0 ? s->budget_ns : share_ns);
}

static void call_all_first(session *s) {
  candidate *fewest = &s->candidates[0];
  for (int i = 0; i < s->count; i++)
    if (is_called(s, i)) call_first(s, &s->candidates[i]);
  if (fewest->not_timed == WAITING && fewest->call_ns <= automatic_of(s)->call_ns) call_first(s, fewest);
}

/* The shortest median of all. */
static double best_ns(const session *s) {
  double best = INFINITY;
  for (int i = 0; i < s->count; i++)
    if (s->candidates[i].rounds && s->candidates[i].median_ns < best) best = s->candidates[i].median_ns;
  return best;
}

/* More threads than the fewest that can be timed, which lost their CPUs half of the time or more. */
static bool has_lost_threads(const session *s, const candidate *c) {
  return s->candidates[0].calls && c->threads > s->candidates[0].threads && 2 * c->disturbed >= c->timings;
}

/* Whether the candidate may still be near the best, or has not had its share of the time yet. Its shortest sample tells,
 * because one that was disturbed must not send it away. The automatic choice stays until it has an interval. Threads that
 * lose their CPUs are tried again when all others have intervals: their calls are long. */
static bool takes_part(const session *s, const candidate *c) {
  if (!c->calls || (s->rounds < FEW_ROUNDS && has_lost_threads(s, c))) return false;
  if (!c->rounds || c->least_ns <= NEAR_BEST * best_ns(s)) return true;
  const double spent_ns = (double)((c->rounds + 1) * (c->calls + 1)) * c->least_ns;
  return c->rounds < FEW_ROUNDS && (c->automatic || spent_ns <= 0.5 * s->budget_ns / s->count);
}

/* A kernel that fails once has no time. */
static void take_sample(session *s, candidate *c) {
  const double warm = c->call_ns < REWARM_BELOW_NS ? time_calls(s, c, 1) : 0;
  const double time = isnan(warm) ? NAN : time_calls(s, c, c->calls);
  c->sample_ns[s->rounds] = time;
  c->least_ns = fmin(c->least_ns, time);
  c->rounds++;
  if (isnan(time)) c->calls = c->rounds = 0, c->not_timed = FAILED;
}

/* Every round begins with another candidate, and every second one goes backwards. */
static void run_round(session *s) {
  const int r = s->rounds;
  bool is_in[ATTN_TUNE_ENTRIES];
  for (int i = 0; i < s->count; i++) is_in[i] = takes_part(s, &s->candidates[i]);
  for (int i = 0; i < s->count; i++) {
    const int place = r % 2 ? s->count - 1 - i : i, at = (place + r / 2) % s->count;
    candidate *c = &s->candidates[at];
    if (is_in[at] && (elapsed_ns(s) < s->budget_ns || (r == 0 && (at == 0 || c->automatic)))) take_sample(s, c);
  }
  s->rounds++;
  for (int i = 0; i < s->count; i++)
    if (s->candidates[i].rounds) s->candidates[i].median_ns = summarise_times(s, &s->candidates[i]).median;
}

static void measure_candidates(session *s) {
  call_all_first(s);
  do run_round(s);
  while (s->rounds < MOST_ROUNDS && elapsed_ns(s) < s->budget_ns);
}

/* ---- What other programs have disturbed ---- */

/* The quickest of those that were timed with the fewest threads; NULL if none was timed. */
static const candidate *quickest_of_fewest(const session *s) {
  const candidate *best = NULL;
  for (const candidate *c = s->candidates; c < s->candidates + s->count; c++)
    if (c->rounds &&
        (!best || c->threads < best->threads || (c->threads == best->threads && c->median_ns < best->median_ns)))
      best = c;
  return best;
}

/* Whether so many threads lost their CPUs half of the time or more, whatever the kernel. */
static bool is_lost_number(const session *s, int threads) {
  int timings = 0, disturbed = 0;
  for (const candidate *c = s->candidates; c < s->candidates + s->count; c++) {
    timings += c->threads == threads ? c->timings : 0;
    disturbed += c->threads == threads ? c->disturbed : 0;
  }
  return disturbed && 2 * disturbed >= timings;
}

/* Drops times of threads that lost their CPUs, unless they were beyond doubt shorter than those of fewer threads. */
static void leave_out_disturbed(session *s) {
  const candidate *fewest = quickest_of_fewest(s);
  for (candidate *c = s->candidates; fewest && c < s->candidates + s->count; c++) {
    if (!c->calls || c->threads == fewest->threads || !is_lost_number(s, c->threads)) continue;
    if (c->rounds && summarise_times(s, c).high < summarise_times(s, fewest).low) continue;
    c->rounds = 0;
    c->not_timed = DISTURBED;
  }
}

/* ---- The report ---- */

/* Quickest first; those that were not timed last, in their old order. */
static bool comes_before(const candidate *a, const candidate *b) {
  return a->rounds && (!b->rounds || a->median_ns < b->median_ns);
}

static void sort_candidates(session *s) {
  for (int i = 1; i < s->count; i++)
    for (int j = i; j > 0 && comes_before(&s->candidates[j], &s->candidates[j - 1]); j--)
      swap(&s->candidates[j], &s->candidates[j - 1]);
}

static attn_tune_entry entry_of(session *s, const candidate *c) {
  attn_tune_entry entry = {.kernel = c->kernel->name, .threads = c->threads, .rounds = c->rounds};
  if (!c->rounds) return entry;
  const summary time = summarise_times(s, c), ratio = summarise_ratios(s, c, &s->candidates[0]);
  entry.time_ns = time.median;
  entry.time_low_ns = time.low;
  entry.time_high_ns = time.high;
  entry.ratio = ratio.median;
  entry.ratio_low = ratio.low;
  entry.ratio_high = ratio.high;
  return entry;
}

static attn_status run_once(const session *s, const candidate *c) {
  return s->meter->call(s->meter->context, c->plan, s->args, s->workspace, s->workspace_bytes);
}

/* The last call is the winner's, so that o holds its answer. */
static attn_status conclude_tuning(session *s, attn_tune_report *report) {
  const candidate automatic = *automatic_of(s);
  leave_out_disturbed(s);
  sort_candidates(s);
  if (!s->candidates[0].rounds) return run_once(s, &automatic); /* which says what has failed */
  report->automatic = automatic.kernel->name;
  report->automatic_threads = automatic.threads;
  report->count = s->count;
  report->left_out = s->left_out;
  report->rounds = s->rounds;
  for (int i = 0; i < s->count; i++) {
    report->entry[i] = entry_of(s, &s->candidates[i]);
    report->not_timed[i] = s->candidates[i].rounds ? NULL : s->candidates[i].not_timed;
    report->timed += s->candidates[i].rounds > 0;
  }
  report->seconds = 1e-9 * elapsed_ns(s);
  return run_once(s, &s->candidates[0]);
}

static attn_status run_session(session *s, attn_tune_report *report) {
  attn_status status = add_candidates(s);
  if (status == ATTN_OK) status = allocate(s);
  if (status == ATTN_OK) measure_candidates(s);
  if (status == ATTN_OK) status = conclude_tuning(s, report);
  close_session(s);
  return status;
}

static const attn_struct_layout report_layout = {.name = "attn_tune_report",
                                                 .maker = "attn_tune",
                                                 .bytes = sizeof(attn_tune_report),
                                                 .least = offsetof(attn_tune_report, not_timed)};

attn_status attn_tune_by(const attn_tune_meter *meter, const attn_problem *problem, const attn_args *args,
                         const attn_options *options, double seconds, attn_tune_report *theirs) {
  attn_problem own;
  attn_args checked;
  attn_tune_report report = {.struct_size = sizeof report};
  session s = {.meter = meter, .problem = &own, .args = args};
  REQUIRE(theirs, "report is NULL; it must point to an attn_tune_report");
  REQUIRE(
      theirs->struct_size >= report_layout.least && theirs->struct_size % sizeof(int32_t) == 0,
      "attn_tune_report.struct_size is %zu; it must be sizeof(attn_tune_report), %zu in this library, as attn_tune sets it",
      theirs->struct_size, sizeof report);
  REQUIRE(seconds > 0 && seconds <= 1e6, "seconds is %g; it must be above 0 and at most 1000000", seconds);
  attn_status status = attn_problem_read(problem, &own);
  if (status == ATTN_OK) status = attn_options_read(options, &s.options);
  if (status == ATTN_OK) status = attn_args_read(&own, args, &checked);
  s.start_ns = meter->now_ns(meter->context);
  s.budget_ns = 1e9 * seconds;
  if (status == ATTN_OK) status = run_session(&s, &report);
  if (status == ATTN_OK) attn_struct_write(&report_layout, &report, theirs);
  return status;
}

/* ---- By this machine's clock ---- */

static double now_ns(void *context) { return (void)context, attn_wall_clock_ns(); }

static attn_process_usage usage_of_process(void *context) { return (void)context, attn_process_usage_now(); }

static attn_status call(void *context, const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes) {
  return (void)context, attn_plan_run(plan, args, workspace, bytes);
}

attn_status(attn_tune)(const attn_problem *problem, const attn_args *args, const attn_options *options, double seconds,
                       attn_tune_report *report) {
  REQUIRE(
      !problem || !(problem->uses & ATTN_USE_STATE),
      "attn_problem.uses has ATTN_USE_STATE; attn_tune calls again and again, and each call would add the keys once more");
  return attn_tune_by(&(attn_tune_meter){.now_ns = now_ns, .call = call, .usage = usage_of_process}, problem, args, options,
                      seconds, report);
}
