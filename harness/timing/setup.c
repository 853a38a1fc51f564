/* SPDX-License-Identifier: MIT */
/* Opening and closing a case: which kernels can run it, its tensors and the oracle's answer. */
#include "timing/setup.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "cases/case.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/problem/operation.h"
#include "machine/affinity.h"
#include "machine/environment.h"

static const double ROTATION_BYTES = 2147483648.0; /* most memory for the rotations of a cold cache */
static const double ROTATED_CACHES = 4; /* all rotations of a cold cache together are so many times the last-level cache */
static const double LEVEL_SHARE = 0.75; /* share of a level of cache that tensors of warm calls may fill */
static const double PARTLY = 4;         /* times a level of cache: so much larger, it hardly helps */
static const double USUAL_CACHE = 33554432.0; /* where the system does not say how large it is */

void bench_note(const bench_setup *s, const char *what, const char *kernel) {
  if (s->settings->note) s->settings->note(s->settings->note_context, what, kernel);
}

double bench_last_cache_bytes(void) {
  const long long bytes = bench_cache_bytes(3);
  return bytes > 0 ? (double)bytes : USUAL_CACHE;
}

const char *bench_level_of(double bytes, int threads) {
  static const char *const names[] = {"L1", "L2", "L3"};
  bool known = false;
  for (int level = 1; level <= 3; level++) {
    const double size = (double)bench_cache_bytes(level);
    known |= size > 0;
    if (size > 0 && bytes * (level == 3 ? threads : 1) <= size) return names[level - 1]; /* cores share the last one */
  }
  return known ? "memory" : "";
}

/* ---- Which kernels can run it ---------------------------------------------------------------------------------------- */

/* Why the kernel cannot run here, or NULL. */
static const char *refusal_of_kernel(const bench_case *bench, const attn_kernel_info *kernel) {
  if (bench->invalid[0]) return bench->invalid;
  if (kernel != &bench_automatic) return attn_kernel_rejects(kernel, &bench->problem);
  for (int i = 0; i < attn_kernel_count(); i++)
    if (!attn_kernel_rejects(attn_kernel_get(i), &bench->problem)) return NULL;
  return "no kernel takes it on this CPU";
}

/* Layers without a kernel inside are measured once: in the row of the automatic choice, or in the first. */
const char *bench_refusal(const bench_case *bench, const attn_kernel_info *const *kernels, int count, int index) {
  int only = 0;
  if (bench->invalid[0] || bench_layer_has(bench, BENCH_HAS_ATTENTION | BENCH_HAS_PROJECTIONS))
    return refusal_of_kernel(bench, kernels[index]);
  for (int i = count - 1; i >= 0; i--)
    if (kernels[i] == &bench_automatic) only = i;
  return index == only ? NULL : "the layer runs no kernel: one row stands for all";
}

/* Returns whether any trial is not refused. */
static bool open_trials(bench_setup *s, const attn_kernel_info *const *kernels, int count) {
  bool any = false;
  for (int i = 0; i < count; i++) {
    const char *reason = bench_refusal(s->bench, kernels, count, i);
    s->trials[i] = (bench_trial){.kernel = kernels[i],
                                 .automatic = kernels[i] == &bench_automatic,
                                 .refused = reason,
                                 .threads = s->bench->threads,
                                 .steady = s->bench->steady};
    if (reason)
      bench_conclude(&s->trials[i], BENCH_SKIP, "%s", reason);
    else
      bench_conclude(&s->trials[i], BENCH_ERROR, "interrupted before its check");
    any |= !reason;
  }
  s->count = count;
  return any;
}

/* ---- Data ------------------------------------------------------------------------------------------------------------ */

static bool conclude_all(bench_setup *s, bench_status status, const char *reason) {
  for (int i = 0; i < s->count; i++)
    if (!s->trials[i].refused) bench_conclude(&s->trials[i], status, "%s", reason);
  return false;
}

/* False, with a verdict, if memory has no room for so much. */
static bool has_room(bench_setup *s, const char *what, double bytes) {
  const double available = bench_memory_available("");
  char reason[160];
  if (bytes <= BENCH_MEMORY_SHARE * available) return true;
  snprintf(reason, sizeof reason, "its %s need %.3g GB, more than %.0f %% of the %.3g GB of memory that are free", what,
           bytes * 1e-9, BENCH_MEMORY_SHARE * 100, available * 1e-9);
  return conclude_all(s, BENCH_SKIP, reason);
}

static bool open_tensors(bench_setup *s) {
  const size_t bytes = bench_tensors_size(s->bench); /* 0: more than can be counted */
  if (!has_room(s, "tensors", bytes ? (double)bytes : INFINITY)) return false;
  bench_note(s, "making tensors", "");
  if (!bench_tensors_create(s->bench, &s->tensors[0])) return conclude_all(s, BENCH_ERROR, "out of memory for the tensors");
  s->rotations = 1;
  return true;
}

bool bench_setup_ask_oracle(bench_setup *s) {
  const attn_problem *problem = &s->bench->problem;
  const attn_args *args = &s->tensors[0].args;
  const bool averages_out = !bench_spec_is(&s->bench->spec, AXIS_VALUES, "positive"); /* V has a mean of zero */
  bench_note(s, "asking the oracle", "");
  bench_expected_destroy(s->expected);
  s->expected = bench_expected_create(problem, args, s->bench->seed, averages_out);
  s->expected_of = bench_tensors_rewritten_hash(&s->tensors[0]);
  s->flops = bench_case_flops(s->bench, bench_work_pairs(problem, args));
  s->bytes = bench_work_bytes(problem, args);
  return s->expected || conclude_all(s, BENCH_ERROR, "out of memory for the oracle's answer");
}

static bool open_layer(bench_setup *s) {
  s->flops = bench_layer_flops(s->bench);
  s->bytes = bench_layer_bytes(s->bench);
  if (!has_room(s, "data", s->bytes)) return false;
  bench_note(s, "making the layer", "");
  s->layer = bench_layer_open(s->bench);
  return s->layer || conclude_all(s, BENCH_ERROR, "out of memory for the layer");
}

const bench_meter *bench_setup_meter(const bench_setup *s) {
  return s->settings->meter ? s->settings->meter : &bench_machine_meter;
}

bench_setup *bench_setup_open(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                              const bench_case_settings *settings) {
  bench_setup *s = calloc(1, sizeof *s);
  if (!s) return NULL;
  s->bench = bench;
  s->settings = settings;
  if (!open_trials(s, kernels, count)) return s;
  if (bench_layer_is(bench))
    (void)open_layer(s);
  else if (open_tensors(s))
    (void)bench_setup_ask_oracle(s);
  return s;
}

void bench_setup_close(bench_setup *s) {
  if (!s) return;
  for (int i = 0; i < s->count; i++) {
    bench_setup_close_plan(&s->trials[i]);
    bench_layer_unmake(s->trials[i].layer);
    bench_trial_clear(&s->trials[i]);
  }
  bench_trial_clear(&s->control);
  free(s->read_rates);
  bench_layer_close(s->layer);
  bench_expected_destroy(s->expected);
  for (int i = 0; i < s->rotations; i++) bench_tensors_destroy(&s->tensors[i]);
  free(s);
}

/* ---- Rotations ------------------------------------------------------------------------------------------------------- */

/* Where only K and V are to be cold, the copies share q. Each copy keeps its own output, as each output is checked. */
static bool add_rotation(bench_setup *s) {
  bench_tensors *copy = &s->tensors[s->rotations];
  if (!bench_tensors_clone(&s->tensors[0], copy)) return false;
  if (s->bench->cache == BENCH_COLD_KV) copy->args.q = s->tensors[0].args.q;
  s->rotations++;
  return true;
}

/* All copies together are larger than the last-level cache, so that none is in it when its turn comes, as far as memory
 * allows. */
static void rotate_cold(bench_setup *s) {
  const double size = s->bytes, wanted = ROTATED_CACHES * bench_last_cache_bytes();
  const double room = fmin(ROTATION_BYTES, 0.4 * bench_memory_available("")) / (double)s->tensors[0].bytes;
  const int target = (int)fmax(1, fmin(BENCH_MAX_ROTATIONS, fmin(ceil(wanted / size) + 1, room)));
  while (s->rotations < target && add_rotation(s)) continue;
  for (int i = 0; i < s->count && s->rotations * size < wanted; i++)
    if (!s->trials[i].refused)
      bench_warn(&s->trials[i], "cache: %d rotations of %.3g MB are less than 4 x the last-level cache", s->rotations,
                 size * 1e-6);
}

/* Bytes that the tensors of a group may fill: most of the smallest level of cache that has room for the tensors of one call
 * and more; 0: no level has. */
static double level_bytes(const bench_setup *s) {
  for (int level = 1; level <= 3; level++) {
    const double bytes = (double)bench_cache_bytes(level);
    if (s->bytes <= LEVEL_SHARE * bytes) return LEVEL_SHARE * bytes;
  }
  return 0;
}

/* Whether a level below holds a good part of one call's tensors: several would not lie there any more. */
static bool lies_partly_below(const bench_setup *s) {
  for (int level = 1; level < 3; level++) {
    const double bytes = (double)bench_cache_bytes(level);
    if (s->bytes > LEVEL_SHARE * bytes && s->bytes < PARTLY * bytes) return true;
  }
  return false;
}

/* Calls that share two readings of the clock, in the shortest samples. */
static double largest_group(const bench_setup *s) {
  double least_ns = INFINITY;
  for (int i = 0; i < s->count; i++)
    if (s->trials[i].verdict.status == BENCH_PASS) least_ns = fmin(least_ns, s->trials[i].call_ns);
  return bench_group_of(least_ns);
}

/* Each call of a group has another q, and what it writes for itself. */
static bool is_own(const bench_tensors *t, int which) {
  return which == BENCH_Q || t->buffers[which].output || bench_is_rewritten(t, (bench_tensor)which);
}

/* Lets args point to the inputs of another copy, but keep q. Where scores are given, they are the only inputs. */
static void share_inputs(bench_tensors *t, bench_tensors *of) {
  for (int i = 0; i < BENCH_TENSORS; i++) {
    const attn_operand operand = attn_operand_of(&t->problem, (attn_operand_id)i);
    if (!is_own(t, i)) attn_operand_point(&t->problem, (attn_operand_id)i, &t->args, attn_operand_at(&operand, &of->args));
  }
  t->kv_of = of;
}

/* Makes tensors for the calls of a group: inputs of their own where the level of cache holds so many, else only another q.
 */
static void add_warm(bench_setup *s) {
  bench_tensors *first = &s->tensors[0];
  const double wanted = largest_group(s), level = level_bytes(s);
  double own = 0;
  for (int i = 0; i < BENCH_TENSORS; i++) own += is_own(first, i) ? (double)first->buffers[i].bytes : 0;
  const double complete = lies_partly_below(s) ? 1 : fmin(wanted, floor(level / s->bytes));
  const double sharing = fmin(wanted, 1 + floor((level - s->bytes) / own));
  const bool shares = sharing > complete && s->bench->problem.score != ATTN_SCORE_PRECOMPUTED;
  while (s->rotations < (shares ? sharing : complete) && add_rotation(s))
    if (shares) share_inputs(&s->tensors[s->rotations - 1], first);
}

/* False if memory is short. */
static bool vary_inputs(bench_setup *s) {
  uint64_t random = s->bench->seed;
  s->input_hash = bench_tensors_input_hash(&s->tensors[0]);
  for (int i = 0; i < s->rotations; i++)
    if (!bench_tensors_vary(&s->tensors[i], i ? &s->tensors[0] : NULL, &random)) return false;
  return true;
}

void bench_setup_rotate(bench_setup *s) {
  const bool cold = s->bench->cache != BENCH_WARM, has_tensors = s->tensors[0].buffers;
  if (has_tensors && cold) rotate_cold(s);
  if (has_tensors && !cold) add_warm(s);
  const bool fine = !has_tensors || vary_inputs(s);
  for (int i = 0; i < s->count; i++) {
    bench_trial *t = &s->trials[i];
    t->tensor_count = s->layer ? 1 : s->rotations;
    t->turn = &s->turn;
    t->cold = cold && !s->layer;
    if (!fine && t->verdict.status == BENCH_PASS) bench_conclude(t, BENCH_ERROR, "timing: out of memory for changed inputs");
  }
}

enum { TYPICAL_ROUNDS = 45 };

bool bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                    const bench_case_settings *settings, bench_row *rows) {
  bench_setup *s = bench_setup_open(bench, kernels, count, settings);
  for (int i = 0; i < count && !s; i++) {
    rows[i] = bench_row_create(bench, kernels[i]);
    rows[i].verdict = (bench_verdict){.status = BENCH_ERROR, .reason = "out of memory"};
  }
  if (!s) return true;
  const bool held = settings->timed && bench_threads_hold(bench->threads), complete = bench_setup_check(s);
  if (complete && settings->timed) bench_setup_time(s);
  bench_setup_rows(s, rows);
  bench_setup_close(s);
  if (held) bench_threads_release();
  return complete;
}

/* How much more the case has to do than its problem: a layer, or the pass before. */
static double factor_of(const bench_case *bench) {
  if (bench->invalid[0]) return 1;
  const double pairs = bench_work_typical_pairs(&bench->problem), attention = bench_work_flops(&bench->problem, pairs);
  const double flops = bench_layer_is(bench) ? bench_layer_flops(bench) : bench_case_flops(bench, pairs);
  return attention > 0 && flops > 0 ? flops / attention : 1;
}

double bench_case_guess(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                        const bench_case_settings *settings) {
  const double factor = factor_of(bench);
  double calls_s = 0, samples_s = 0; /* for one call of each kernel that runs, and one sample of each that is timed */
  for (int i = 0; i < count; i++) {
    if (bench_refusal(bench, kernels, count, i)) continue;
    const double call_s = factor * bench_work_guess(&bench->problem, kernels[i], bench->threads);
    const bool is_timed = call_s * BENCH_FEW_ROUNDS <= settings->case_budget_s;
    calls_s += call_s;
    samples_s += is_timed ? fmax(call_s, BENCH_MIN_SAMPLE_S) + BENCH_MIN_SAMPLE_S / 2 : 0;
  }
  if (calls_s <= 0) return 1e-4;
  const double check_s = 1e-3 + 3 * calls_s + fmin(bench_multiply_adds(&bench->problem), 1e8) * 6e-9;
  if (!settings->timed) return check_s;
  if (settings->rounds) return check_s + settings->rounds * samples_s;
  return check_s + fmin(settings->case_budget_s, TYPICAL_ROUNDS * samples_s);
}

double bench_cases_guess(const bench_case *cases, int count, double case_budget_s, bool timed) {
  const bench_case_settings settings = {.timed = timed, .case_budget_s = case_budget_s};
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS];
  int usable = 0;
  double guess = 0;
  for (int i = 0; i < attn_kernel_count() && usable < BENCH_MAX_KERNELS; i++)
    if (!attn_kernel_unusable(attn_kernel_get(i))) kernels[usable++] = attn_kernel_get(i);
  for (int i = 0; i < count; i++) guess += bench_case_guess(&cases[i], kernels, usable, &settings);
  return guess;
}
