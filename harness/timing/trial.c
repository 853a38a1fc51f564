/* SPDX-License-Identifier: MIT */
/* Trials: their calls, verdicts and samples. */
#include "timing/trial.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/float_mode.h"
#include "base/handlers.h"
#include "data/generate.h"
#include "kernels/common/problem/arithmetic.h"
#include "kernels/common/problem/indexing.h"
#include "machine/affinity.h"
#include "timing/core_share.h"
#include "timing/stats.h"

const attn_kernel_info bench_automatic = {
    .name = "auto", .algorithm = "auto", .isa = "", .library = "", .summary = "the library's own choice"};

void bench_warn(bench_trial *t, const char *format, ...) {
  size_t used = strlen(t->warnings);
  va_list arguments;
  va_start(arguments, format);
  if (used && used + 2 < sizeof t->warnings) used += (size_t)sprintf(t->warnings + used, "; ");
  vsnprintf(t->warnings + used, sizeof t->warnings - used, format, arguments);
  va_end(arguments);
}

static const char DIFFERS[] = "an output of the timed runs differs from the one that passed the check";

static bench_tensors *tensors_of(const bench_trial *t, int64_t turn) { return &t->tensors[turn % t->tensor_count]; }

const bench_build *bench_trial_build(const bench_trial *t) { return t->build ? t->build : &bench_own_build; }

static void widen(attn_numerics *to, const attn_numerics *by) {
  to->exp_error = fmax(to->exp_error, by->exp_error);
  to->p_rounding = fmax(to->p_rounding, by->p_rounding);
  to->input_flush = fmax(to->input_flush, by->input_flush);
  to->input_rounding = fmax(to->input_rounding, by->input_rounding);
  to->query_rounding = fmax(to->query_rounding, by->query_rounding);
}

/* Takes in the kernels that a plan has for the sequences. */
static void widen_by_plan(const bench_trial *t, const attn_plan *plan, attn_numerics *numerics) {
  const bench_build *build = bench_trial_build(t);
  if (t->layer || !t->automatic || !build->plan_kernel_of) return;
  const attn_problem *p = &t->tensors->problem;
  for (int64_t b = 0; b < p->batch; b++) {
    const int64_t queries = attn_sequence_of(p, &t->tensors->args, b).len_q;
    const attn_kernel_info *kernel = attn_kernel_find(build->plan_kernel_of(plan, queries));
    if (kernel) widen(numerics, &kernel->numerics);
  }
}

void bench_trial_declare(bench_trial *t) {
  t->numerics = t->kernel->numerics;
  widen_by_plan(t, t->plan, &t->numerics);
  if (!t->before) return;
  const attn_kernel_info *before = attn_kernel_find(bench_trial_build(t)->plan_kernel(t->before));
  t->before_numerics = before ? before->numerics : t->numerics;
  widen_by_plan(t, t->before, &t->before_numerics);
}

attn_status bench_trial_call_before(const bench_trial *t, int64_t turn) {
  const attn_args args = bench_forward_args(&tensors_of(t, turn)->args);
  return bench_trial_build(t)->plan_run(t->before, &args, t->workspace, t->workspace_bytes);
}

attn_status bench_trial_call(const bench_trial *t, int64_t turn) {
  if (t->layer) return bench_layer_call(t->layer, t->workspace, t->workspace_bytes);
  const attn_status status = t->before ? bench_trial_call_before(t, turn) : ATTN_OK;
  if (status != ATTN_OK) return status;
  return bench_trial_build(t)->plan_run(t->plan, &tensors_of(t, turn)->args, t->workspace, t->workspace_bytes);
}

void bench_trial_renew(const bench_trial *t, int64_t turn, int threads) {
  if (!t->layer) bench_tensors_renew_v(tensors_of(t, turn), threads);
}

void bench_trial_poison(const bench_trial *t, int64_t turn) {
  static const uint8_t poison[] = {0xff, 0x3e, 0xbd}; /* a NaN in every float type; 0.19 and -0.09 in two of them */
  if (t->layer)
    bench_layer_poison(t->layer);
  else
    bench_tensors_poison_output(tensors_of(t, turn), poison[t->samples.rounds % (int)sizeof poison], t->threads);
}

void bench_trial_restore(const bench_trial *t, int64_t turn) {
  if (!t->layer) bench_tensors_restore(tensors_of(t, turn), t->threads);
}

uint64_t bench_trial_output_hash(const bench_trial *t, int64_t turn) {
  return t->layer ? bench_layer_output_hash(t->layer) : bench_tensors_output_hash(tensors_of(t, turn));
}

void bench_trial_freshen(const bench_trial *t, int64_t turn, uint64_t *random) {
  if (!t->layer) {
    bench_tensors_freshen(tensors_of(t, turn), random, t->threads);
    return;
  }
  bench_layer_freshen(t->layer, random);
  bench_layer_poison(t->layer); /* inputs repeat where rows are few */
}

const char *bench_trial_look(const bench_trial *t, int64_t turn) {
  if (t->layer) return bench_layer_output_hash(t->layer) == t->verdict.output_hash ? NULL : DIFFERS;
  return bench_tensors_marks_are_overwritten(tensors_of(t, turn))
             ? NULL
             : "skips work: a timed call did not write all of its output";
}

static bench_verdict check_row(const bench_trial *t, const attn_problem *p, const attn_args *args,
                               const attn_numerics *numerics, uint64_t random) {
  return t->by_kernel ? bench_check_odd_row(p, args, numerics, t->zero_mean, random, t->kernel, t->threads)
                      : bench_check_row(p, args, numerics, t->zero_mean, random);
}

const char *bench_trial_look_closely(const bench_trial *t, int64_t turn, uint64_t random, char *text, size_t bytes) {
  if (t->layer) return NULL;
  const bench_tensors *tensors = tensors_of(t, turn);
  const attn_problem before = bench_forward_of(&tensors->problem);
  const attn_args args = bench_forward_args(&tensors->args);
  bench_verdict verdict = check_row(t, &tensors->problem, &tensors->args, &t->numerics, random);
  if (verdict.status == BENCH_PASS && t->before) verdict = check_row(t, &before, &args, &t->before_numerics, random);
  if (verdict.status == BENCH_PASS) return NULL;
  (void)bench_say(text, bytes, "skips work: wrong on inputs that no call has seen: %.250s", verdict.reason);
  return text;
}

bool bench_trial_allocate(bench_trial *t, int rounds) {
  t->samples = (bench_samples){.time_ns = malloc((size_t)rounds * sizeof(double)),
                               .loop_rate = calloc((size_t)rounds, sizeof(double)),
                               .busy = calloc((size_t)rounds, sizeof(double)),
                               .ran = calloc((size_t)rounds, sizeof(double)),
                               .late = calloc((size_t)rounds, sizeof(double)),
                               .core_share = calloc((size_t)rounds, sizeof(double)),
                               .position = malloc((size_t)rounds * sizeof(int))};
  const bench_samples *s = &t->samples;
  return s->time_ns && s->loop_rate && s->busy && s->ran && s->late && s->core_share && s->position;
}

void bench_trial_clear(bench_trial *t) {
  free(t->samples.time_ns);
  free(t->samples.loop_rate);
  free(t->samples.busy);
  free(t->samples.ran);
  free(t->samples.late);
  free(t->samples.core_share);
  free(t->samples.position);
  t->samples = (bench_samples){.rounds = 0};
}

static const double SLICE_NS = 0.25e6;      /* two before and two after each sample: a millisecond */
static const double REWARM_BELOW_NS = 20e6; /* a longer call hardly notices that others used the caches before it */

static const double CLOCKS_DIFFER = 2e-3, CLOCKS_APART_NS = 50e3;
static const double LOOKS_SHARE = 0.1;
static const double OWN_CLOCK_NS = 50e3; /* so long, a system call before and after the calls costs them nothing */
enum { MOST_ROWS = 8, SURE_ROUNDS = 8, KNOWN_EVERY = 8 };

static double read_rate(const bench_trial *t, int64_t turn, int threads) {
  return bench_read_rate(bench_widest_read(), (bench_read_span){t->tensors, t->tensor_count, turn, t->samples.iterations},
                         threads);
}

static double bandwidth(size_t bytes, int threads, bool copies) {
  return (copies ? bench_copy_bandwidth : bench_read_bandwidth)(bytes, threads);
}

const bench_meter bench_machine_meter = {
    .now_ns = bench_now_ns,
    .resolution_ns = bench_clock_resolution_ns,
    .clocks = bench_clocks_now,
    .cpu_now = bench_cpu_now,
    .own_cpu_ns = bench_own_cpu_ns,
    .team = bench_team_count,
    .dismiss = bench_team_dismiss,
    .stays = bench_team_stays,
    .call = bench_trial_call,
    .renew = bench_trial_renew,
    .poison = bench_trial_poison,
    .restore = bench_trial_restore,
    .freshen = bench_trial_freshen,
    .look = bench_trial_look,
    .look_closely = bench_trial_look_closely,
    .output_hash = bench_trial_output_hash,
    .peak_prepare = bench_peak_prepare,
    .peak_rate = bench_peak_rate,
    .read_rate = read_rate,
    .bandwidth = bandwidth,
    .core_share = bench_core_share,
};

/* Gets the trial's threads ready. Those of a larger team go: they would take CPU time beside the calls. */
static void gather_team(bench_sampler *s, const bench_trial *t) {
  if (t->threads < s->team) s->meter->dismiss();
  s->team = t->threads;
  bench_team_settle(t->threads);
  s->process = bench_process_now();
}

/* ---- Calls ----------------------------------------------------------------------------------------------------------- */

/* The turn of the next call, after which `calls` are taken. */
static int64_t take_turns(const bench_trial *t, int64_t calls) {
  if (!t->turn) return 0;
  const int64_t turn = *t->turn;
  *t->turn = (turn + calls) % t->tensor_count;
  return turn;
}

static bool fail_call(bench_sampler *s, const bench_trial *t) {
  (void)bench_keeps_float_mode(s->float_mode);
  return bench_sampler_fail(s, "%s: %s", t->kernel->name, bench_trial_build(t)->last_error());
}

bool bench_sample_keeps_float_mode(bench_sampler *s, const bench_trial *t) {
  return bench_keeps_float_mode(s->float_mode) || bench_sampler_fail(s, "%s: " BENCH_OTHER_FLOAT_MODE, t->kernel->name);
}

bool bench_sample_leaves_process(bench_sampler *s, const bench_trial *t) {
  const int number = bench_handlers_other();
  if (number) return bench_sampler_fail(s, "%s: " BENCH_OTHER_HANDLER, t->kernel->name, number);
  const char *changed = bench_process_keep(&s->process);
  if (changed) return bench_sampler_fail(s, "%s: " BENCH_OTHER_PROCESS, t->kernel->name, changed);
  return s->meter->stays(t->threads, s->float_mode) || bench_sampler_fail(s, "%s: " BENCH_OTHER_TEAM, t->kernel->name);
}

/* 0 .. below - 1. */
static int64_t draw(bench_sampler *s, int64_t below) {
  return bench_value_below(s->random++, BENCH_STREAM_ORDER, (uint64_t)below, below);
}

/* A call that is not timed, on inputs whose right output is known to the bit. */
static bool call_known(bench_sampler *s, const bench_trial *t) {
  const bench_meter *m = s->meter;
  const int64_t turn = t->cold ? take_turns(t, 1) : draw(s, t->tensor_count);
  m->restore(t, turn);
  m->poison(t, turn);
  if (m->call(t, turn) != ATTN_OK) return fail_call(s, t);
  if (!bench_sample_keeps_float_mode(s, t)) return false;
  const bool right = m->output_hash(t, turn) == t->verdict.output_hash;
  m->freshen(t, turn, &s->random);
  return right || bench_sampler_fail(s, "%s: %s", t->kernel->name, DIFFERS);
}

/* The plan of one sample, and how far it has come. Calls on inputs that no call has seen run in groups between two readings
 * of the clock. After some groups, chosen at random, an output is looked at closely, or a call runs on known inputs. The
 * time between groups does not count. */
typedef struct sample {
  int64_t calls, left;
  int looks, rows; /* groups that are looked at closely, and rows in each */
  int known;
  double timed_ns;
  double own_ns;           /* CPU time of the calling thread in the timed calls, at most */
  double late_ns;          /* CPU time of the same thread in the looks at their outputs */
  double look_ns;          /* time of the close looks, */
  bench_cpu_time look_cpu; /* and their CPU time */
  int64_t turn[BENCH_MOST_GROUP];
  int count; /* in the present group */
} sample;

/* Copies that are cold in their turn, others in random order. */
static void choose_group(bench_sampler *s, const bench_trial *t, sample *x) {
  x->count = (int)min64(x->left, t->group);
  x->left -= x->count;
  const int64_t first = t->cold ? take_turns(t, x->count) : draw(s, t->tensor_count);
  for (int i = 0; i < x->count; i++) {
    x->turn[i] = (first + i) % t->tensor_count;
    const int64_t other = t->cold ? i : draw(s, i + 1);
    const int64_t kept = x->turn[other];
    x->turn[other] = x->turn[i];
    x->turn[i] = kept;
  }
}

static bool time_group(bench_sampler *s, const bench_trial *t, sample *x) {
  const bench_meter *m = s->meter;
  attn_status status = ATTN_OK;
  const bool lasts = t->call_ns * x->count >= OWN_CLOCK_NS;
  const double own_ns = lasts ? m->own_cpu_ns() : 0, start = m->now_ns();
  for (int i = 0; i < x->count && status == ATTN_OK; i++) status = m->call(t, x->turn[i]);
  const double group_ns = fmax(m->now_ns() - start - s->clock_ns, 0);
  x->timed_ns += group_ns;
  x->own_ns += lasts ? fmax(m->own_cpu_ns() - own_ns - s->own_clock_ns, 0) : group_ns;
  return status == ATTN_OK ? bench_sample_keeps_float_mode(s, t) : fail_call(s, t);
}

/* Layers without attention and dense maps do little more with a number than write it. */
static bool mostly_writes(const bench_trial *t) {
  return t->layer && !bench_layer_has(t->layer->data->bench, BENCH_HAS_ATTENTION | BENCH_HAS_PROJECTIONS);
}

/* A call may return early and leave its work to a signal handler, which runs when its output is read first: here. To read an
 * output takes as long as to write it, so that this tells nothing of layers that mostly write. */
static bool look(bench_sampler *s, const bench_trial *t, sample *x) {
  const bench_meter *m = s->meter;
  const char *fault = NULL;
  const bool lasts = t->call_ns * x->count >= BENCH_GROUP_NS && !mostly_writes(t);
  const double from_ns = lasts ? m->own_cpu_ns() : 0;
  for (int i = 0; i < x->count && !fault; i++) fault = m->look(t, x->turn[i]);
  if (lasts) x->late_ns += fmax(m->own_cpu_ns() - from_ns - s->own_clock_ns, 0);
  return !fault || bench_sampler_fail(s, "%s: %s", t->kernel->name, fault);
}

static bool look_closely(bench_sampler *s, bench_trial *t, sample *x) {
  const bench_meter *m = s->meter;
  char text[350];
  const bench_cpu_time from = m->cpu_now();
  const double start = m->now_ns();
  const char *fault = NULL;
  for (int i = 0; i < x->rows && !fault; i++)
    fault = m->look_closely(t, x->turn[draw(s, x->count)], s->random++, text, sizeof text);
  t->row_ns = (m->now_ns() - start) / x->rows;
  const bench_cpu_time to = m->cpu_now();
  x->look_ns += m->now_ns() - start;
  x->look_cpu.all_ns += to.all_ns - from.all_ns;
  x->look_cpu.own_ns += to.own_ns - from.own_ns;
  x->look_cpu.waits += to.waits - from.waits;
  return !fault || bench_sampler_fail(s, "%s: %s", t->kernel->name, fault);
}

/* Whether this group is looked at: `wanted` of the `groups` to come are. */
static bool is_chosen(bench_sampler *s, int *wanted, int64_t groups) {
  if (*wanted <= 0 || draw(s, groups) >= *wanted) return false;
  --*wanted;
  return true;
}

static bool take_calls(bench_sampler *s, bench_trial *t, sample *x) {
  x->left = x->calls;
  for (int64_t groups = (x->calls + t->group - 1) / t->group; groups > 0; groups--) {
    choose_group(s, t, x);
    if (!time_group(s, t, x) || !look(s, t, x)) return false;
    if (is_chosen(s, &x->looks, groups) && !look_closely(s, t, x)) return false;
    for (int i = 0; i < x->count; i++) s->meter->freshen(t, x->turn[i], &s->random);
    if (is_chosen(s, &x->known, groups) && !call_known(s, t)) return false;
  }
  return true;
}

/* ---- One sample ------------------------------------------------------------------------------------------------------ */

/* The same span by all three clocks. Each may run a little fast or slow, and is read a moment after the other. */
static bool clocks_agree(bench_sampler *s, const bench_trial *t, bench_clocks from, bench_clocks to) {
  const double own_ns = to.own_ns - from.own_ns, limit_ns = CLOCKS_DIFFER * own_ns + CLOCKS_APART_NS;
  const double system_ns = to.system_ns - from.system_ns, libc_ns = to.libc_ns - from.libc_ns;
  if (!(fabs(system_ns - own_ns) > limit_ns || fabs(libc_ns - own_ns) > limit_ns)) return true;
  return bench_sampler_fail(s, "%s: clocks disagree about its sample: %.4g, %.4g and, by the C library, %.4g us",
                            t->kernel->name, 1e-3 * own_ns, 1e-3 * system_ns, 1e-3 * libc_ns);
}

/* Number of close looks: as many as take LOOKS_SHARE of the time of the sample and the loops beside it. The first
 * SURE_ROUNDS rounds have at least one each. Where the oracle takes longer for a row than all that, as for long sequences,
 * looks at later rounds begin with another kernel. */
static int choose_rows(bench_sampler *s, bench_trial *t) {
  const double sample_ns = bench_sample_guess_ns(t);
  t->by_kernel |= t->row_ns > sample_ns;
  const double rows = t->row_ns > 0 ? LOOKS_SHARE * sample_ns / t->row_ns : 0;
  const double chance = 1e-3 * (double)draw(s, 1000);
  return (int)fmin(MOST_ROWS, fmax(t->samples.rounds < SURE_ROUNDS, floor(rows + chance)));
}

/* Rows are looked at in as many groups of calls as there are rows, or in all groups where there are fewer. A sample has at
 * most one call on known inputs: one for the time of KNOWN_EVERY calls, on average. */
static sample plan_sample(bench_sampler *s, bench_trial *t) {
  const double as_calls = bench_sample_guess_ns(t) / fmax(t->call_ns, 1);
  const int64_t calls = t->samples.iterations, groups = (calls + t->group - 1) / t->group;
  const int rows = choose_rows(s, t), looks = (int)min64(rows, groups);
  return (sample){
      .calls = calls, .looks = looks, .rows = looks ? rows / looks : 0, .known = (double)draw(s, KNOWN_EVERY) < as_calls};
}

/* Runs the calls of a sample and stores them as round r. The number of busy threads is CPU time / wall time. The wall clock
 * starts earlier and stops later than the CPU clock, so that the quotient never exceeds the number of threads that ran. With
 * one thread, other processes and the work between its calls take a part of the wall time. There the other threads' CPU time
 * is divided by the smaller one of this thread's own CPU time and that of its calls. */
static bool time_round(bench_sampler *s, bench_trial *t, int r) {
  const bench_meter *m = s->meter;
  sample x = plan_sample(s, t);
  const int known = x.known;
  const double share = m->core_share(t->threads), before = m->now_ns();
  const bench_clocks first = m->clocks();
  const bench_cpu_time from = m->cpu_now();
  if (!take_calls(s, t, &x)) return false;
  const bench_cpu_time to = m->cpu_now();
  const bench_clocks last = m->clocks();
  const double whole_ns = m->now_ns() - before - x.look_ns;
  const double all_ns = to.all_ns - from.all_ns - x.look_cpu.all_ns, own_ns = to.own_ns - from.own_ns - x.look_cpu.own_ns;
  const double calls_ns = x.own_ns * (double)(x.calls + known) / (double)x.calls;
  t->samples.core_share[r] = fmin(share, m->core_share(t->threads));
  t->samples.busy[r] = t->threads > 1 ? all_ns / whole_ns : 1 + (all_ns - own_ns) / fmax(fmin(own_ns, calls_ns), 1);
  t->samples.ran[r] = (t->threads > 1 ? all_ns / t->threads : own_ns) / whole_ns;
  t->samples.waited += to.waits - from.waits - x.look_cpu.waits >= x.calls;
  t->samples.late[r] = x.late_ns / fmax(x.own_ns, 1);
  t->samples.time_ns[r] = x.timed_ns / (double)x.calls;
  return bench_sample_leaves_process(s, t) && clocks_agree(s, t, first, last);
}

/* Where caches are warm and calls short, a call on each of the tensors, which is not timed, brings them back into the
 * caches; V changes before the sample, and all that such a call has seen. Where caches are cold, V changes after the sample,
 * in one of the tensors that it used: it is cold again before its next turn. In all of them, the lines that wait to be
 * written back would slow what is timed next. */
static bool time_sample(bench_sampler *s, bench_trial *t) {
  for (int64_t i = 0; !t->cold && t->call_ns < REWARM_BELOW_NS && i < t->tensor_count; i++)
    if (s->meter->call(t, i) != ATTN_OK) return fail_call(s, t);
  if (!bench_sample_keeps_float_mode(s, t)) return false;
  for (int64_t i = 0; !t->cold && i < t->tensor_count; i++) {
    s->meter->renew(t, i, t->threads);
    s->meter->freshen(t, i, &s->random);
  }
  const int64_t first = t->cold ? take_turns(t, 0) : 0;
  if (!time_round(s, t, t->samples.rounds)) return false;
  if (t->cold) s->meter->renew(t, (first + draw(s, t->samples.iterations)) % t->tensor_count, t->threads);
  return true;
}

/* Reads as many tensors as a sample does, in every order, from the present place in the rotation on. */
double bench_sample_read(const bench_meter *m, const bench_trial *t) {
  if (t->layer) return bench_sample_read_layer(m, t->layer->data->bench, bench_layer_bytes(t->layer->data->bench));
  return m->read_rate(t, take_turns(t, BENCH_READ_ORDERS * t->samples.iterations), t->threads);
}

double bench_sample_read_layer(const bench_meter *m, const bench_case *bench, double bytes) {
  const double share = fmax(bytes / bench->threads, 1);
  return m->bandwidth((size_t)share, bench->threads, bench_layer_has(bench, BENCH_HAS_CACHE));
}

static bench_slices run_slices(const bench_sampler *s, bench_trial *t) {
  bench_slices slices = {.loop = t->slice.loop};
  const bench_meter *m = s->meter;
  for (int i = 0; i < BENCH_SLICES && (t->slice.loop || t->reads); i++)
    slices.rate[i] = t->reads ? bench_sample_read(m, t) : m->peak_rate(&t->slice);
  return slices;
}

/* ---- Samples --------------------------------------------------------------------------------------------------------- */

bool bench_sample_take(bench_sampler *s, bench_trial *t, int position, bench_slices *last) {
  bench_samples *samples = &t->samples;
  const int r = samples->rounds;
  gather_team(s, t);
  if (bench_place_take(t)) bench_pages_fill(t->workspace, 0, t->workspace_bytes, t->threads);
  const bench_slices before = last->loop && last->loop == t->slice.loop ? *last : run_slices(s, t);
  const bench_tasks tasks = bench_tasks_now();
  const bool fine = time_sample(s, t);
  t->leaves_threads |= bench_tasks_grew(&tasks, t->kernel);
  if (!fine) return false;
  *last = run_slices(s, t);
  double rates[2 * BENCH_SLICES]; /* their median: a slice that an interrupt disturbed does not count */
  memcpy(rates, before.rate, sizeof before.rate);
  memcpy(rates + BENCH_SLICES, last->rate, sizeof last->rate);
  samples->loop_rate[r] = bench_median(rates, 2 * BENCH_SLICES);
  samples->position[r] = position;
  samples->rounds++;
  return true;
}

bool bench_sample_is_undisturbed(const bench_trial *t, int round) {
  return t->samples.core_share[round] >= BENCH_UNDISTURBED;
}

bool bench_knows_disturbance(const bench_trial *t) { return t->samples.rounds > 0 && t->samples.core_share[0] > 0; }

/* Raises the number of calls by the factor that is missing and a fifth more, at most a hundred times. */
static int64_t more_calls(int64_t calls, double total_ns, double sample_ns) {
  const double factor = total_ns > 0 ? fmin(1.2 * sample_ns / total_ns, 100) : 100;
  return (int64_t)ceil((double)calls * fmax(factor, 1.2));
}

int bench_group_of(double call_ns) { return (int)fmin(BENCH_MOST_GROUP, fmax(1, ceil(BENCH_GROUP_NS / call_ns))); }

bool bench_sample_calibrate(bench_sampler *s, bench_trial *t) {
  int64_t calls = 1;
  t->slice = (bench_peak_slice){.loop = NULL};
  gather_team(s, t);
  if (t->peak) t->slice = s->meter->peak_prepare(t->peak, t->threads, SLICE_NS);
  const bench_tasks tasks = bench_tasks_now();
  for (int64_t i = 0; i < t->tensor_count; i++) s->meter->freshen(t, i, &s->random);
  for (t->group = 1;; calls = more_calls(calls, t->call_ns * (double)calls, s->sample_ns)) {
    sample x = {.calls = calls};
    const bool fine = take_calls(s, t, &x);
    t->leaves_threads |= bench_tasks_grew(&tasks, t->kernel);
    if (!fine || !bench_sample_leaves_process(s, t)) return false;
    t->samples.iterations = calls;
    t->call_ns = x.timed_ns / (double)calls;
    t->group = (int)fmin(t->tensor_count, bench_group_of(t->call_ns)); /* each call on tensors of its own */
    if (x.timed_ns >= s->sample_ns) return true;
  }
}

double bench_sample_guess_ns(const bench_trial *t) {
  const double calls_ns = t->call_ns * (double)t->samples.iterations;
  return calls_ns + 2 * BENCH_SLICES * (t->reads ? BENCH_READ_ORDERS * calls_ns : SLICE_NS);
}
