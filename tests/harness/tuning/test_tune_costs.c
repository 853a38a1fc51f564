/* SPDX-License-Identifier: MIT */
/* `attnbench tune` with scripted times: costs that come of them, threads, the file, and regret. */
#define TEST_TEARDOWN clear
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/choice/machine_class.h"
#include "src/choice/tuning.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"
#include "tests/support/support.h"
#include "timing/core_share.h"
#include "timing/setup.h"
#include "timing/stats.h"
#include "tuning/tuning.h"

/* ---- Landscapes: decode_portable takes so many times as long as flash_portable ---- */

typedef double landscape(const bench_tune_shape *shape);

static struct {
  landscape *ratio;
  double now_s;
  int few_rounds; /* rounds of each kernel; 0: 11 */
  int measured;
  bench_tune_set kernels; /* kernels that the last measurement was to time */
} world;

static const char *name_of(int kernel) { return attn_kernel_get(kernel)->name; }

static int decode(void) { return bench_tune_kernel("decode_portable"); }
static int flash(void) { return bench_tune_kernel("flash_portable"); }

static attn_tune_entry entry(int kernel, double ns, double best_ns) {
  const double ratio = ns / best_ns;
  return (attn_tune_entry){.kernel = name_of(kernel),
                           .threads = 1,
                           .rounds = world.few_rounds ? world.few_rounds : 11,
                           .time_ns = ns,
                           .ratio = ratio,
                           .ratio_low = ratio,
                           .ratio_high = ratio};
}

static bool measure(void *context, const bench_tune_shape *shape, bench_tune_set kernels, double seconds,
                    attn_tune_report *report) {
  const double ratio = world.ratio(shape), best = fmin(ratio, 1);
  (void)context;
  world.now_s += seconds;
  world.kernels = kernels;
  world.measured++;
  *report = (attn_tune_report){.timed = 2, .count = 2, .automatic = name_of(decode()), .automatic_threads = 1};
  report->entry[ratio > 1] = entry(decode(), 1e4 * ratio, 1e4 * best);
  report->entry[!(ratio > 1)] = entry(flash(), 1e4, 1e4 * best);
  return true;
}

static double now_s(void *context) { return (void)context, world.now_s; }

static const bench_tune_source source = {.measure = measure, .now_s = now_s};
static const bench_tune_line line = {.dtype = ATTN_BF16, .causal = false, .dim = 64};
static bench_tune_result result;

static int clear(void **state) {
  memset(&result, 0, sizeof result);
  memset(&world, 0, sizeof world);
  return (void)state, 0;
}

/* ---- Costs and threads ---- */

static bench_tune_shape sized(int64_t heads_kv, int64_t group, int64_t seq_q, int64_t seq_k) {
  return (bench_tune_shape){.dim = 32, .heads_kv = heads_kv, .group = group, .seq_q = seq_q, .seq_k = seq_k};
}

static const attn_kernel_info *info_of(const char *name) { return attn_kernel_find(name); }

static double time_of(const attn_kernel_info *kernel, const bench_tune_shape *shape, const double ns[ATTN_MAX_TERMS]) {
  attn_problem problem;
  bench_tune_problem(shape, &problem);
  return attn_expected_ns(attn_registry_find(kernel->name), ns, &problem);
}

/* Reads the costs of a kernel's terms: "term=ns term=ns ...". */
static const double *costs_of(const char *kernel, const char *words, double ns[ATTN_MAX_TERMS]) {
  char name[40];
  double value;
  for (int used = 0; sscanf(words, " %39[a-z0-9_]=%lf%n", name, &value, &used) == 2; words += used)
    ns[attn_term_find(attn_registry_find(kernel), name)] = value;
  return ns;
}

static const double *decode_ns(void) {
  static double ns[ATTN_MAX_TERMS];
  return costs_of("decode_portable",
                  "pass_8=200 pass_4=100 pass_2=70 pass_1=60 key_8=0.3 key_4=0.2 key_2=0.1 key_1=0.08 head=40 key=0.1 "
                  "score=0.01 row=5 row_width=0.2 row_key=0.4 block_8=0.2 block_4=0.15 block_2=0.08 block_row_key=0.3 "
                  "block_key=0.1 masked=1 biased=2 sloped=0.5 capped=8",
                  ns);
}

static const double *flash_ns(void) {
  static double ns[ATTN_MAX_TERMS];
  return costs_of("flash_portable",
                  "head=10 pack_key=2 pack_width=0.1 task=50 tile=20 tile_width=1 tile_key_width=0.2 tile_vector=0.5 row=5 "
                  "row_width=0.2 masked=1 biased=1 sloped=0.6 capped=9",
                  ns);
}

/* The largest relative error of expected times of random shapes, after the times of as many shapes were given. */
static double worst_error(const char *name, const double ns[ATTN_MAX_TERMS], bench_tune_cost *cost) {
  const attn_kernel_info *kernel = info_of(name);
  uint64_t seed = 4;
  double worst = 0;
  for (int i = 0; i < 400; i++) {
    const bench_tune_shape s = bench_regret_shape(&seed);
    const double time = time_of(kernel, &s, ns);
    bench_tune_cost_add(cost, kernel, &s, time, i % 2 ? time : time / 2, 1);
  }
  bench_tune_cost_solve(cost);
  for (int i = 0; i < 100; i++) {
    const bench_tune_shape s = bench_regret_shape(&seed);
    worst = fmax(worst, fabs(time_of(kernel, &s, cost->ns) / time_of(kernel, &s, ns) - 1));
  }
  return worst;
}

TEST(costs_say_what_was_not_timed) {
  static bench_tune_cost decoded, flashed, none;
  assert_true(worst_error("decode_portable", decode_ns(), &decoded) < 0.02 && decoded.count == 400);
  assert_true(worst_error("flash_portable", flash_ns(), &flashed) < 0.02);
  assert_true(decoded.error < 0.005 && flashed.error < 0.005);
  bench_tune_cost_solve(&none);
  assert_true(none.ns[0] == 0 && none.error == 0);
}

/* A kernel that is far behind weighs less, and no cost is negative. */
TEST(costs_are_those_of_near_kernels) {
  static bench_tune_cost cost;
  const bench_tune_shape s = sized(1, 1, 1, 64);
  bench_tune_cost_add(&cost, info_of("flash_portable"), &s, 1000, 1000, 1);
  bench_tune_cost_add(&cost, info_of("flash_portable"), &s, 2000, 200, 1);
  bench_tune_cost_solve(&cost);
  const double time = time_of(info_of("flash_portable"), &s, cost.ns);
  assert_true(time > 1000 && time < 1030 && cost.count == 2);
  assert_true(cost.error > 0.04 && cost.error < 0.06); /* the root of 0.01 x 0.5^2 / 1.01 */
  for (int i = 0; i < ATTN_MAX_TERMS; i++) assert_true(cost.ns[i] >= 0);
}

/* ---- Slow moments ---- */

/* Time of decode over that of flash. */
static double true_ratio(const bench_tune_shape *s) {
  return time_of(info_of("decode_portable"), s, decode_ns()) / time_of(info_of("flash_portable"), s, flash_ns());
}

static double expected_ratio(const bench_tune_shape *s) {
  return time_of(info_of("decode_portable"), s, result.costs[decode()][s->dtype].ns) /
         time_of(info_of("flash_portable"), s, result.costs[flash()][s->dtype].ns);
}

/* Both kernels are slower by `factor`, and decode by `more`. */
static void add_uneven_look(const bench_tune_shape *s, double factor, double more) {
  const double decoded = factor * more * time_of(info_of("decode_portable"), s, decode_ns());
  const double flashed = factor * time_of(info_of("flash_portable"), s, flash_ns());
  const int first = decoded < flashed ? decode() : flash(), both = decode() + flash();
  result.points[s->dtype]++;
  result.look[result.looks++] = (bench_tune_look){
      .shape = *s, .count = 2, .kernel = {first, both - first}, .time_ns = {fmin(decoded, flashed), fmax(decoded, flashed)}};
}

static void add_look(const bench_tune_shape *s, double factor) { add_uneven_look(s, factor, 1); }

/* The mean error of the expected ratios between 0.7 and 1.4. */
static double mean_error(void) {
  uint64_t seed = 8;
  double sum = 0;
  int count = 0;
  for (int i = 0; i < 1000; i++) {
    const bench_tune_shape s = bench_regret_shape(&seed);
    const double ratio = true_ratio(&s);
    if (ratio < 0.7 || ratio > 1.4) continue;
    sum += fabs(expected_ratio(&s) / ratio - 1);
    count++;
  }
  assert_true(count > 50);
  return sum / count;
}

/* Fits the costs to the times as they are, without regard to other programs. */
static void fit_times_alone(void) {
  for (int i = 0; i < result.looks; i++)
    for (int j = 0; j < 2; j++) {
      const bench_tune_look *l = &result.look[i];
      bench_tune_cost_add(&result.costs[l->kernel[j]][l->shape.dtype], attn_kernel_get(l->kernel[j]), &l->shape,
                          l->time_ns[j], l->time_ns[0], 1);
    }
  for (int k = 0; k < TUNE_KERNELS; k++)
    for (int t = 0; t < 3; t++) bench_tune_cost_solve(&result.costs[k][t]);
}

/* Another program that makes two moments of three 1.8 times as slow changes little of what kernels differ by. */
TEST(slow_moments_do_not_change_what_kernels_differ_by) {
  uint64_t seed = 6;
  for (int i = 0; i < 1500; i++) {
    const bench_tune_shape s = bench_regret_shape(&seed);
    add_look(&s, bench_random(&seed) % 3 ? 1.8 : 1);
  }
  fit_times_alone();
  const double of_times = mean_error();
  bench_tune_fit(&result);
  const double of_looks = mean_error();
  double mean = 0, least = 1, most = 1;
  for (int i = 0; i < result.looks; i++) {
    const double slowness = result.look[i].slowness;
    mean += slowness / result.looks, least = fmin(least, slowness), most = fmax(most, slowness);
  }
  assert_true(fabs(mean - 1) < 1e-9 && most / least > 1.6 && most / least < 2.5);
  assert_true(of_looks < 0.015 && of_looks < of_times / 2);
}

/* Another program at every third look makes one kernel slower by a quarter. Such looks count for little beside undisturbed
 * ones.
 */
TEST(disturbed_looks_count_little) {
  double error[2];
  for (int known = 0; known < 2; known++) {
    uint64_t seed = 9;
    result.looks = 0;
    for (int i = 0; i < 1500; i++) {
      const bench_tune_shape s = bench_regret_shape(&seed);
      const bool undisturbed = bench_random(&seed) % 3;
      add_uneven_look(&s, 1, undisturbed ? 1 : 1.25);
      result.look[i].undisturbed = undisturbed || !known;
    }
    bench_tune_fit(&result);
    error[known] = mean_error();
  }
  assert_true(error[1] < 0.02 && error[1] < error[0] / 4);
}

/* One time of each kernel and type is met exactly. */
/* Kernels of other tiers count their terms with instructions that this CPU may lack. */
TEST(every_kernel_is_fitted_to_its_own_times) {
  for (int k = 0; k < attn_kernel_count() && k < TUNE_KERNELS; k++) {
    const attn_kernel *kernel = attn_registry_get(k);
    const bool counts = kernel->terms.count && !attn_tier_unusable(attn_tier_find(kernel->info.isa), NULL);
    for (attn_dtype dtype = ATTN_F32; dtype < 3 && counts; dtype++) {
      bench_tune_look look = {
          .shape = sized(2, 1, 3, 100), .count = 1, .kernel = {k}, .time_ns = {1000 + 10 * k + (int)dtype}};
      look.shape.dtype = dtype;
      result.look[result.looks++] = look;
      result.points[dtype]++;
    }
  }
  bench_tune_fit(&result);
  assert_true(result.looks > 6);
  for (int i = 0; i < result.looks; i++) {
    const bench_tune_look *look = &result.look[i];
    const bench_tune_cost *cost = &result.costs[look->kernel[0]][look->shape.dtype];
    const double time = time_of(attn_kernel_get(look->kernel[0]), &look->shape, cost->ns);
    assert_true(cost->count == 1 && fabs(time / look->time_ns[0] - 1) < 1e-3);
  }
}

TEST(types_that_share_lines_are_fitted_together) {
  static const attn_dtype types[] = {ATTN_F8_E4M3, ATTN_F8_E5M2, ATTN_Q8_0, ATTN_Q4_0, ATTN_I8};
  for (size_t i = 0; i < COUNT(types); i++) {
    bench_tune_shape s = sized(1, 1, 1, 100);
    s.dtype = types[i];
    result.look[result.looks++] = (bench_tune_look){.shape = s, .count = 1, .kernel = {decode()}, .time_ns = {1000}};
    result.points[bench_tune_type(&s)]++;
  }
  bench_tune_fit(&result);
  const bench_tune_cost *costs = result.costs[decode()];
  assert_true(costs[ATTN_F8_E4M3].count == 2 && costs[ATTN_Q8_0].count == 2 && costs[ATTN_I8].count == 1);
  assert_true(costs[ATTN_F8_E5M2].count == 0 && costs[ATTN_Q4_0].count == 0);
}

/* The time of one kernel alone does not tell how slow the moment was. */
TEST(a_single_kernel_is_not_slow) {
  uint64_t seed = 7;
  for (int i = 0; i < 60; i++) {
    const bench_tune_shape s = bench_regret_shape(&seed);
    add_look(&s, 1);
    result.look[i].count = 1;
  }
  bench_tune_fit(&result);
  for (int i = 0; i < result.looks; i++) assert_true(result.look[i].slowness == 1);
}

/* ---- The sample ---- */

static double by_keys(const bench_tune_shape *s) { return s->seq_k < 200 ? 0.5 : 2; }

TEST(a_sample_times_lines_in_turn) {
  static bench_tune_lines lines;
  lines.count = 2;
  lines.item[0] = line;
  lines.item[1] = (bench_tune_line){.dtype = ATTN_F32, .causal = true, .dim = 128};
  world.ratio = by_keys;
  bench_tune_sample(&source, &lines, 3.2, &result);
  assert_true(world.measured == 200 && result.points[ATTN_BF16] == 100 && result.points[ATTN_F32] == 100);
  assert_true(result.points[ATTN_F16] == 0);
  for (int k = 0; k < attn_kernel_count() && k < TUNE_KERNELS; k++)
    for (int dtype = 0; dtype < 3; dtype++)
      assert_int_equal(result.costs[k][dtype].count, dtype != ATTN_F16 && (k == decode() || k == flash()) ? 100 : 0);
  const int leads = result.costs[decode()][ATTN_F32].leads;
  const int drawn = result.random[ATTN_F32]; /* others were drawn because they are unclear */
  assert_true(drawn > 70 && leads > 15 && leads < 80 && result.costs[flash()][ATTN_F32].leads == drawn - leads);
}

static double legal_shape(const bench_tune_shape *s) {
  assert_true(s->dtype == ATTN_F32 && (s->mask == TUNE_CAUSAL || s->mask == TUNE_WINDOW) && s->dim == 72 &&
              s->seq_q <= s->seq_k);
  assert_true(bench_tune_work(s) <= BENCH_REGRET_WORK);
  return 1.01;
}

/* Two rounds tell no costs, and a lead of 1 % is none. */
TEST(few_rounds_say_nothing_of_costs) {
  static bench_tune_lines lines = {.item = {{.dtype = ATTN_F32, .causal = true, .dim = 72}}, .count = 1};
  world.ratio = legal_shape;
  for (world.few_rounds = 2; world.few_rounds < 4; world.few_rounds++) {
    memset(&result, 0, sizeof result);
    world.measured = 0;
    world.now_s = 0;
    bench_tune_sample(&source, &lines, 32, &result);
    assert_true(result.points[ATTN_F32] == world.measured && world.measured >= 2000 && world.measured <= 2001);
    assert_int_equal(result.costs[decode()][ATTN_F32].count, world.few_rounds > 2 ? world.measured : 0);
    assert_true(result.costs[decode()][ATTN_F32].leads == 0 && result.costs[flash()][ATTN_F32].leads == 0);
  }
}

static bool measure_two(void *context, const bench_tune_shape *s, bench_tune_set kernels, double seconds,
                        attn_tune_report *report) {
  const double decoded = time_of(info_of("decode_portable"), s, decode_ns());
  const double flashed = time_of(info_of("flash_portable"), s, flash_ns()), best = fmin(decoded, flashed);
  const bool all = result.points[s->dtype] < 300;
  const bench_tune_set both = 1u << decode() | 1u << flash();
  (void)context;
  assert_int_equal(kernels, all ? TUNE_ALL : both);
  assert_true(seconds >= (all ? 0.016 : 0.006));
  world.now_s += seconds;
  *report = (attn_tune_report){.timed = 2, .count = 2, .automatic = "flash_portable", .automatic_threads = 1};
  report->entry[decoded > flashed] = entry(decode(), decoded, best);
  report->entry[!(decoded > flashed)] = entry(flash(), flashed, best);
  return true;
}

static double share_of_unclear(int from, int to) {
  int unclear = 0;
  for (int i = from; i < to; i++) unclear += fabs(log(true_ratio(&result.look[i].shape))) < log(1.15);
  return (double)unclear / (to - from);
}

static double share_of_large(int from, int to) {
  int large = 0;
  for (int i = from; i < to; i++) {
    const bench_tune_shape *s = &result.look[i].shape;
    large += s->heads_kv * s->seq_k * s->dim >= 600000;
  }
  return (double)large / (to - from);
}

/* All kernels are timed at first, then only those that were the quickest of some problem; in the end every second problem is
 * one whose best kernel is unclear, but for some whose K and V are large. */
TEST(a_sample_narrows_down) {
  static bench_tune_lines lines = {.item = {{.dtype = ATTN_F32, .dim = 64}, {.dtype = ATTN_F32, .dim = 40}}, .count = 2};
  bench_tune_sample(&(bench_tune_source){.measure = measure_two, .now_s = now_s}, &lines, 40, &result);
  const int all = result.looks, last = all - 1000;
  assert_true(last > 500);
  assert_true(share_of_unclear(0, 300) < 0.3);
  assert_true(share_of_unclear(last, all) > share_of_unclear(0, 300) + 0.3);
  assert_true(share_of_large(last, all) > share_of_large(0, 300) + 0.03);
  assert_int_equal(result.points[ATTN_F32], all);
  assert_true(result.random[ATTN_F32] > 0.6 * all && result.random[ATTN_F32] < 0.9 * all);
}

static double slightly_more(const bench_tune_shape *s) { return (void)s, 1.04; }

/* Where there is too much time. Every problem is unclear, so that none is drawn twice. */
TEST(the_number_of_looks_ends_each_part) {
  static bench_tune_lines lines = {.item = {{.dtype = ATTN_F32, .dim = 64}}, .count = 1};
  world.ratio = slightly_more;
  bench_tune_source few = source;
  few.most_looks = 4000;
  bench_tune_sample(&few, &lines, 1e6, &result);
  assert_int_equal(result.looks, few.most_looks);
  assert_true(fabs(result.random[ATTN_F32] - 0.7 * few.most_looks) < 10); /* half of what comes after 40 % of all */
}

static int near_problems; /* the first ones, that decode takes 2 % longer for; all others take it half as long again */

static bool measure_near(void *context, const bench_tune_shape *s, bench_tune_set kernels, double seconds,
                         attn_tune_report *report) {
  const int problem = result.points[s->dtype];
  const bool expected = problem < 300 || (near_problems >= 3 && problem < 1500);
  (void)context;
  assert_int_equal(kernels >> decode() & 1, expected);
  assert_int_equal(kernels >> flash() & 1, 1);
  world.now_s += seconds;
  *report = (attn_tune_report){.timed = 2, .count = 2, .automatic = name_of(decode()), .automatic_threads = 1};
  report->entry[0] = entry(flash(), 1e4, 1e4);
  report->entry[1] = entry(decode(), problem < near_problems ? 1.02e4 : 1.5e4, 1e4);
  return true;
}

/* A kernel that leads none of the first problems may still lead some later, if it was near the quickest. */
TEST(near_kernels_are_timed_longer) {
  static bench_tune_lines lines = {.item = {{.dtype = ATTN_F32, .dim = 64}}, .count = 1};
  for (near_problems = 2; near_problems < 5; near_problems++) {
    clear(NULL);
    bench_tune_sample(&(bench_tune_source){.measure = measure_near, .now_s = now_s}, &lines, 16, &result);
    assert_true(result.looks > 1600);
    assert_int_equal(result.costs[decode()][ATTN_F32].near, near_problems);
  }
}

/* This machine times the kernel of the set, whichever may be chosen, and the automatic choice. */
TEST(the_machine_times_the_kernels_of_the_set) {
  const bench_tune_shape s = sized(2, 1, 3, 20);
  attn_problem problem;
  int timed = 0;
  bench_tune_problem(&s, &problem);
  for (int k = 0; k < TUNE_KERNELS && attn_kernel_get(k); k++) {
    const attn_kernel_info *kernel = attn_kernel_get(k);
    attn_tune_report report;
    int found = 0;
    if (attn_kernel_rejects(kernel, &problem) || kernel->library[0]) continue;
    assert_true(bench_tune_machine.measure(NULL, &s, 1u << k, 0.01, &report));
    for (int i = 0; i < report.count; i++) {
      const bool named = strcmp(report.entry[i].kernel, kernel->name) == 0;
      assert_true(named || strcmp(report.entry[i].kernel, report.automatic) == 0);
      found += named;
    }
    assert_int_equal(found, !(kernel->numerics.input_rounding > 0 || kernel->numerics.query_rounding > 0));
    timed += found;
  }
  assert_true(timed > 3);
}

/* Times of the shapes one after the other, on one thread and on four. Of every shape in `every` that is measured, shape n
 * takes n x cost_ns beyond a quarter of the time of one thread; the others cannot be measured, or have no entries. */
static int shapes_measured, every;
static double cost_ns;

static bool measure_threads(void *context, const bench_tune_shape *s, bench_tune_set kernels, double seconds,
                            attn_tune_report *report) {
  static const int64_t sizes[][2] = {{1, 64}, {1, 128}, {1, 256}, {1, 512}, {16, 16}, {24, 24}, {32, 32}, {48, 48}};
  const int n = shapes_measured++;
  assert_true(s->threads && s->dim == 64 && s->group == 1 && s->heads_kv == 8 && s->mask == TUNE_FULL &&
              s->dtype == ATTN_F32);
  assert_true(s->seq_q == sizes[n][0] && s->seq_k == sizes[n][1] && kernels == TUNE_ALL);
  (void)context;
  world.now_s += seconds;
  *report = (attn_tune_report){.timed = 0};
  if (n % every) return n % 4 == 1;
  report->entry[0] = (attn_tune_entry){.kernel = name_of(flash()), .threads = 1, .time_ns = 1};
  report->entry[1] = (attn_tune_entry){.kernel = name_of(decode()), .threads = 2, .time_ns = 9e9};
  report->entry[2] = (attn_tune_entry){.kernel = name_of(decode()), .threads = 4, .time_ns = 2500 + cost_ns * (n + 1)};
  report->entry[3] = (attn_tune_entry){.kernel = name_of(decode()), .threads = 1, .time_ns = 10000};
  report->entry[4] = (attn_tune_entry){.kernel = name_of(flash()), .threads = 4, .time_ns = 1};
  report->timed = 5;
  report->automatic = name_of(decode());
  return true;
}

static double least_of_threads(int share, double cost) {
  result.least_ns = shapes_measured = 0, every = share, cost_ns = cost;
  world.now_s = 0;
  bench_tune_threads(&(bench_tune_source){.measure = measure_threads}, 4, &result);
  assert_true(shapes_measured == 8 && world.now_s == 4);
  return result.least_ns;
}

TEST(the_cost_of_threads_is_the_median_of_shapes) {
  assert_true(least_of_threads(1, 1000) == 4500); /* the median of 1000 to 8000 */
  assert_true(least_of_threads(2, 1000) == 4000); /* the median of 1000, 3000, 5000 and 7000 */
  assert_true(least_of_threads(1, 0) == 0);       /* threads that cost nothing */
}

/* ---- Lines, and the check of their kernels ---- */

TEST(lines_are_all_types_masks_and_dims) {
  static const int64_t dims[] = {20, 32, 40, 64, 72, 80, 96, 100, 128, 192, 256};
  static const attn_dtype dtypes[] = {ATTN_F32,     ATTN_BF16, ATTN_F16,  ATTN_F8_E4M3,
                                      ATTN_F8_E5M2, ATTN_I8,   ATTN_Q8_0, ATTN_Q4_0};
  static bench_tune_lines lines;
  lines.count = 0;
  assert_int_equal(bench_tune_list(&(cli_list){.count = 0}, &lines), 0);
  int n = 0;
  for (size_t d = 0; d < COUNT(dims); d++)
    for (size_t t = 0; t < COUNT(dtypes); t++)
      for (int i = 0; i < (attn_dtype_is_float(dtypes[t]) ? 4 : 2); i++) { /* gradients of floats alone */
        const bench_tune_line *l = &lines.item[n++];
        assert_true(l->dim == dims[d] && l->dtype == dtypes[t] && l->causal == i % 2 && l->backward == i / 2);
      }
  assert_int_equal(lines.count, n);
}

TEST(lines_are_those_that_were_asked_for) {
  static const struct {
    const char *axes[2];
    const char *said; /* the refusal; "" where they are taken */
    int lines;
  } cases[] = {
      {{"head_dim=64", "causal=none"}, "", 1 * (8 + 3) * 1},
      {{"dtype=bf16,f32", "head_dim=40,80"}, "", 2 * 2 * 2 * 2},
      {{"dtype=bf16,f32", "pass=backward"}, "", 2 * 11 * 2},
      {{"seq=64", "head_dim=64"},
       "attnbench tune: -a seq=64: should be dtype, head_dim, causal or pass; tune takes all of the others\n",
       0},
      {{"head_dim=16666667", "causal=none"},
       "attnbench tune: -a head_dim=16666667: should be at most 16666666: the random problems that tune times",
       0},
      {{"head_dim=x", "causal=none"}, "attnbench tune: axis head_dim: 'x' ", 0},
      {{"dtype=f32+q4_0", "head_dim=40,80"}, "", 1 * 2 * 2},
      {{"dtype=f32+bf16", "causal=none"}, "attnbench tune: -a dtype=f32+bf16: should be f32, f16, bf16, or f32+", 0},
      {{"dtype=f16+i8", "causal=none"}, "attnbench tune: -a dtype=f16+i8: should be f32, f16, bf16, or f32+", 0},
      {{"dtype=f32+i8+f16", "causal=none"}, "attnbench tune: -a dtype=f32+i8+f16: should be f32, f16, bf16", 0}};
  static bench_tune_lines lines;
  for (size_t i = 0; i < COUNT(cases); i++) {
    const cli_list axes = {.count = 2, .item = {cases[i].axes[0], cases[i].axes[1]}};
    lines.count = 0;
    test_listen(stderr);
    const int code = bench_tune_list(&axes, &lines);
    assert_int_equal(strncmp(test_heard(), cases[i].said, strlen(cases[i].said)), 0);
    assert_int_equal(code, cases[i].said[0] ? BENCH_EXIT_USAGE : 0);
    assert_int_equal(lines.count, cases[i].lines);
  }
}

/* The linker's --wrap sends the checked case here. */
static struct {
  int runs, wrong; /* wrong: the kernel that fails; -1: none */
  char case_id[200];
} checked;

bool __wrap_bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                           const bench_case_settings *settings, bench_row *rows);
bool __wrap_bench_run_case(const bench_case *bench, const attn_kernel_info *const *kernels, int count,
                           const bench_case_settings *settings, bench_row *rows) {
  checked.runs++;
  snprintf(checked.case_id, sizeof checked.case_id, "%.199s", bench->case_id);
  assert_false(settings->timed);
  assert_int_equal(count, attn_kernel_count());
  for (int i = 0; i < count; i++) {
    assert_ptr_equal(kernels[i], attn_kernel_get(i));
    rows[i] = bench_row_create(bench, kernels[i]);
    bench_set_reason(&rows[i].verdict, i == checked.wrong ? BENCH_FAIL : BENCH_SKIP, "o is wrong");
  }
  return true;
}

TEST(every_kernel_is_checked_on_a_line) {
  for (checked.wrong = -1; checked.wrong < attn_kernel_count(); checked.wrong++) {
    char wanted[400] = "";
    test_listen(stderr);
    const int code = bench_tune_check(&line);
    if (checked.wrong >= 0)
      snprintf(wanted, sizeof wanted, "attnbench tune: %s fails its check on %s: o is wrong\n", name_of(checked.wrong),
               checked.case_id);
    assert_string_equal(test_heard(), wanted);
    assert_int_equal(code, checked.wrong < 0 ? BENCH_EXIT_OK : BENCH_EXIT_FAILED);
  }
  assert_int_equal(checked.runs, attn_kernel_count() + 1);
  test_contains(checked.case_id, "dtype:bf16/B:1/Hq:8/Hkv:2/Sq:9/Sk:70/D:64/Dv:64/causal:none");
}

/* ---- The file ---- */

static attn_tuning *read_file(const char *text, const bench_tune_result *written) {
  char path[] = "/tmp/attn_tune_XXXXXX";
  attn_tuning *tuning;
  const int descriptor = mkstemp(path);
  FILE *file = fdopen(descriptor, "w");
  assert_non_null(file);
  if (written) bench_tune_write(written, file);
  fputs(text, file);
  fclose(file);
  test_ok(attn_tuning_load(path, &tuning));
  remove(path);
  return tuning;
}

/* Costs of a kernel with which every row takes so long. */
static void set_cost(const char *kernel, attn_dtype dtype, double row_ns) {
  bench_tune_cost *cost = &result.costs[bench_tune_kernel(kernel)][dtype];
  *cost = (bench_tune_cost){.count = TUNE_FEWEST_TIMES, .leads = 1, .error = 0.042};
  cost->ns[attn_term_find(attn_registry_find(kernel), "row")] = row_ns;
}

/* The library reads the lines as a file of this machine, and as a file of a class. */
TEST(the_library_reads_what_is_written) {
  attn_problem problem;
  attn_plan *plan;
  result.points[ATTN_BF16] = result.random[ATTN_BF16] = 200;
  result.least_ns = 4800;
  set_cost("flash_portable", ATTN_BF16, 100);
  set_cost("decode_portable", ATTN_BF16, 250);
  set_cost("flash_portable", ATTN_Q8_0, 30);
  set_cost("decode_portable", ATTN_Q8_0, 20);
  for (int i = 0; i < 2; i++) {
    attn_tuning *tuning = read_file("", &result);
    attn_problem_init(&problem, 1, 8, 2, 7, 100, 64, 64); /* 28 rows of a KV head: flash packs K and V */
    problem.dtype_kv = i ? ATTN_Q4_0 : ATTN_Q8_0;         /* which share lines */
    test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .tuning = tuning), &plan));
    test_contains(attn_plan_describe(plan), "flash_portable takes 1.50 times as long, error of costs 4 %");
    attn_plan_destroy(plan);
    problem.dtype_q = problem.dtype_kv = ATTN_BF16;
    test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .tuning = tuning), &plan));
    assert_string_equal(attn_plan_kernel(plan), "flash_portable");
    test_contains(attn_plan_describe(plan), "decode_portable takes 2.50 times as long, error of costs 4 %");
    attn_plan_destroy(plan);
    assert_true(attn_tuning_least_ns(tuning) == 4800);
    if (i) assert_string_equal(attn_tuning_class(tuning), "cray-1");
    if (i) assert_string_equal(attn_tuning_tiers(tuning), "c portable"); /* those with lines */
    const attn_prefetch written = attn_tuning_prefetch(tuning), here = attn_class_prefetch();
    assert_true(written.none_up_to == (i ? here.none_up_to : 0) && written.twice_beyond == (i ? here.twice_beyond : 0));
    assert_int_equal(attn_tuning_caches(tuning).level2, i ? attn_class_caches().level2 : 0);
    attn_tuning_destroy(tuning);
    result.class = "cray-1";
  }
}

TEST(a_file_needs_a_line_of_costs) {
  assert_false(bench_tune_has_costs(&result));
  set_cost("decode_portable", ATTN_F16, 1);
  assert_true(bench_tune_has_costs(&result));
  result.random[ATTN_F16] = 1001;
  assert_false(bench_tune_has_costs(&result));
  result.random[ATTN_F16] = 1000, result.points[ATTN_F16] = 5000; /* unclear ones do not count */
  assert_true(bench_tune_has_costs(&result));
  result.costs[bench_tune_kernel("decode_portable")][ATTN_F16].count = TUNE_FEWEST_TIMES - 1;
  assert_false(bench_tune_has_costs(&result));
}

/* Kernels that were timed often enough, and are clearly the quickest of one of 1000 problems. */
TEST(the_file_is_text) {
  static char text[8000];
  result.points[ATTN_BF16] = result.random[ATTN_BF16] = 2000, result.points[ATTN_F32] = result.random[ATTN_F32] = 3;
  result.least_ns = 4800;
  set_cost("decode_portable", ATTN_BF16, 0.0312345);
  set_cost("flash_portable", ATTN_BF16, 1);
  set_cost("flash_portable", ATTN_F32, 2);
  set_cost("decode_portable", ATTN_F32, 2);
  result.costs[bench_tune_kernel("decode_portable")][ATTN_BF16].leads = 2;
  result.costs[bench_tune_kernel("decode_portable")][ATTN_F32].count = TUNE_FEWEST_TIMES - 1;
  for (int i = 0; i < 2; i++) {
    memset(text, 0, sizeof text);
    FILE *file = fmemopen(text, sizeof text, "w");
    bench_tune_write(&result, file);
    fclose(file);
    test_contains(text,
                  "# Made by attnbench tune: 2003 problems were timed.\ncost kernel=flash_portable f32 error=0.042 row=2\n"
                  "cost kernel=decode_portable bf16 error=0.042 row=0.03123\n");
    if (i)
      assert_null(strstr(text, "threads"));
    else
      test_contains(text, " row=0.03123\nthreads least_ns=4800\n");
    assert_null(strstr(text, "flash_portable bf16"));
    result.least_ns = 0.5; /* threads cost nothing: so nothing is known of them */
  }
}

/* ---- Regret ---- */

TEST(regret_is_mean_and_worst) {
  bench_regret r = {.count = 0};
  const bench_tune_shape small = sized(1, 1, 1, 1), large = sized(1, 1, 9, 9);
  bench_regret_add(&r, 1, &small);
  bench_regret_add(&r, 1.5, &large);
  bench_regret_add(&r, 1.06, &small);
  bench_regret_add(&r, 1.1, &small); /* no more than that is not much */
  r.count--, r.sum -= 1.1 - 1;
  assert_true(r.count == 3 && r.above == 1 && fabs(r.sum - 0.56) < 1e-12 && fabs(r.worst - 0.5) < 1e-12);
  assert_int_equal(r.where.seq_q, 9);
}

/* The first seed whose shapes rules hold for. */
static uint64_t seed_with_rules(int points) {
  for (uint64_t seed = 1;; seed++) {
    uint64_t state = seed;
    int held = 0;
    for (; held < points; held++) {
      const bench_tune_shape s = bench_regret_shape(&state);
      if (s.dim % 32 != 0 || s.mask > TUNE_CAUSAL) break;
    }
    if (held == points) return seed;
  }
}

/* A file whose rules take a kernel everywhere. */
static attn_tuning *everywhere(const char *kernel) {
  static const char *const types[] = {"f32", "f16", "bf16"}, *const masks[] = {"full", "causal"};
  static char text[16384];
  attn_tuning_head(text, sizeof text);
  for (int i = 0; i < 6; i++) {
    const size_t length = strlen(text);
    snprintf(text + length, sizeof text - length,
             "rule %s %s dim=1..* group=1..* seq_k=1..* seq_q=1..* kernel=%s second=flash_c margin=1 low=1 high=1\n",
             types[i / 2], masks[i % 2], kernel);
  }
  return read_file(text, NULL);
}

/* ---- Random looks ---- */

/* Each look times some kernels, and says whether it was undisturbed; the first choice is one of them or another one. A
 * choice that looks more than 3 % slow gets a second look, 4 times as long as the first. Above 5, 6 and 7 % it gets up to
 * five more, 16 times as long. */
enum { LOOKS = 7, KERNELS = 4 };

static struct {
  uint64_t seed;
  int kernels[KERNELS + 1]; /* the last one is never timed */
  double ratio[LOOKS][KERNELS + 1], best_ns, seconds[LOOKS], share;
  bool undisturbed[LOOKS], waits, fails; /* fails: the first look */
  int looks, first;
} looked;

static int draw(int below) { return (int)(bench_random(&looked.seed) % (uint64_t)below); }

static double drawn_share(void *context) {
  const double shares[] = {1, 1, BENCH_UNDISTURBED, 0.5, 0}, before = looked.share, share = shares[draw(5)];
  (void)context;
  looked.share = share;
  if (looked.waits) looked.undisturbed[looked.looks - 1] = before > 0.5 && share > 0.5;
  looked.waits = false;
  return share;
}

static bool measure_drawn(void *context, const bench_tune_shape *shape, bench_tune_set kernels, double seconds,
                          attn_tune_report *report) {
  static const double steps[] = {1, 1, 1.02, 1.04, 1.055, 1.065, 1.12, 1.5};
  const int look = looked.looks++, first = draw(KERNELS);
  assert_true(look < LOOKS && shape->dim > 0 && kernels == TUNE_ALL);
  (void)context;
  *report = (attn_tune_report){.automatic = name_of(0)};
  for (int i = 0; i < KERNELS; i++) {
    const int k = (first + i) % KERNELS; /* the first one is the quickest */
    looked.ratio[look][k] = 0;
    if (i && draw(12) == 0) continue;
    looked.ratio[look][k] = i ? steps[draw(8)] : 1;
    report->entry[report->timed++] = entry(looked.kernels[k], looked.ratio[look][k] * 1e4, 1e4);
  }
  report->entry[0].time_ns = looked.best_ns = 1000 + draw(1000);
  looked.seconds[look] = seconds;
  looked.undisturbed[look] = looked.share == 0; /* nothing is known */
  looked.waits = looked.share > 0;
  return !looked.fails;
}

/* Time of one kernel over another's, by the looks that count: later ones, and only undisturbed ones where there are any. */
static double model_ratio(int kernel, int other) {
  double ratios[LOOKS];
  int count = 0;
  for (int any_undisturbed = 1; any_undisturbed >= 0 && !count; any_undisturbed--)
    for (int look = looked.looks > 1; look < looked.looks; look++) {
      if (any_undisturbed && !looked.undisturbed[look]) continue;
      if (looked.ratio[look][kernel] == 0 || looked.ratio[look][other] == 0) return 0;
      ratios[count++] = looked.ratio[look][kernel] / looked.ratio[look][other];
    }
  return bench_median(ratios, count);
}

/* Over the quickest: none takes less of another's time. */
static double model_regret(int kernel, int *best) {
  *best = looked.first;
  for (int order = 0; order < TUNE_KERNELS; order++) /* in the order of the registry */
    for (int k = 0; k < KERNELS; k++)
      if (looked.kernels[k] == order && model_ratio(k, *best) > 0 && model_ratio(k, *best) < 1) *best = k;
  return model_ratio(kernel, *best);
}

/* Compares the regrets and the line of csv with those that the looks should have led to. */
static void expect_regret(const bench_regret regrets[2], const char *csv, const bench_tune_shape *s, int tuned) {
  static const double doubtful[] = {1.03, 1.05, 1.06, 1.07, 1.07, 1.07}, lengths[] = {1, 4, 16, 16, 16, 16, 16};
  const int looks = looked.looks;
  char row[300] = "";
  int best;
  for (looked.looks = 1; looked.looks < looks; looked.looks++)
    assert_true(fmax(model_regret(looked.first, &best), model_regret(tuned, &best)) > doubtful[looked.looks - 1]);
  const double worst = fmax(model_regret(looked.first, &best), model_regret(tuned, &best));
  assert_true(looks == LOOKS || worst <= doubtful[looks - 1]);
  for (int i = 0; i < looks; i++) assert_true(fabs(looked.seconds[i] - 0.4 * lengths[i]) < 1e-12);
  const double ratios[] = {model_regret(looked.first, &best), model_regret(tuned, &best)};
  const bool known = ratios[0] > 0 && ratios[1] > 0;
  for (int i = 0; i < 2; i++) {
    assert_int_equal(regrets[i].count, known);
    assert_true(fabs(regrets[i].sum - (known ? ratios[i] - 1 : 0)) < 1e-9 && regrets[i].above == (known && ratios[i] > 1.1));
  }
  if (known)
    snprintf(row, sizeof row, "%s,%s,%d,%d,%d,%d,%d,%s,%.0f,%s,%.4f,%s,%.4f\n", bench_dtype_name(s->dtype),
             bench_tune_mask_name[s->mask], (int)s->heads_kv, (int)s->group, (int)s->dim, (int)s->seq_q, (int)s->seq_k,
             name_of(looked.kernels[best]), looked.best_ns, name_of(looked.kernels[looked.first]), ratios[0],
             name_of(looked.kernels[tuned]), ratios[1]);
  test_contains(csv, "dtype,mask,heads_kv,group,dim,seq_q,seq_k,best,best_ns,built_in,built_in_ratio,tuned,tuned_ratio\n");
  assert_string_equal(strchr(csv, '\n') + 1, row);
}

/* Random kernels; those at the two places are the choices. */
static void draw_kernels(int first, int first_kernel, int tuned, int tuned_kernel) {
  int next = draw(20);
  for (int i = 0; i <= KERNELS; i++) {
    while (next % attn_kernel_count() == first_kernel || next % attn_kernel_count() == tuned_kernel) next++;
    looked.kernels[i] = next++ % attn_kernel_count();
  }
  looked.kernels[first] = first_kernel;
  looked.kernels[tuned] = tuned_kernel;
}

TEST(regret_is_that_of_a_model_on_random_looks) {
  const int kernels[] = {bench_tune_kernel("naive_c"), bench_tune_kernel("blocked_c")};
  attn_tuning *tunings[] = {everywhere("naive_c"), everywhere("blocked_c")};
  const uint64_t seed = seed_with_rules(1);
  const bench_tune_shape shape = bench_regret_shape(&(uint64_t){seed});
  for (int trial = 0; trial < 1000; trial++) {
    char csv[1000] = "";
    memset(&looked, 0, sizeof looked);
    looked.seed = (uint64_t)trial;
    const int tuned = draw(KERNELS), swapped = draw(2);
    looked.first = draw(KERNELS + 1);
    const int same = looked.first == tuned;
    draw_kernels(looked.first, kernels[same != swapped], tuned, kernels[!swapped]);
    bench_regret regrets[2] = {{.name = "built_in", .tuning = tunings[same != swapped]},
                               {.name = "tuned", .tuning = tunings[!swapped]}};
    FILE *file = fmemopen(csv, sizeof csv, "w");
    looked.fails = draw(20) == 0;
    const bench_tune_source drawn = {.measure = measure_drawn, .core_share = drawn_share};
    const bool fine = bench_regret_measure(&drawn, NULL, 1, 1, seed, file, regrets, 2);
    (void)fclose(file);
    assert_int_equal(fine, !looked.fails);
    if (fine) expect_regret(regrets, csv, &shape, tuned);
  }
  for (int i = 0; i < 2; i++) attn_tuning_destroy(tunings[i]);
}

/* Other problems lie between the looks at one. */
static double twice_in_turns(const bench_tune_shape *s) {
  static int64_t before;
  if (world.measured) assert_true(s->seq_k != before);
  assert_int_equal(s->dtype, world.measured % 3 % 2 ? ATTN_F16 : ATTN_BF16); /* the lines in turn */
  before = s->seq_k;
  return 0.5;
}

TEST(looks_at_a_problem_are_apart) {
  attn_tuning *tuning = everywhere("flash_portable");
  bench_regret regret = {.name = "tuned", .tuning = tuning};
  world.ratio = twice_in_turns;
  const bench_tune_lines lines = {.count = 2, .item = {{.dtype = ATTN_BF16}, {.dtype = ATTN_F16}}};
  assert_true(bench_regret_measure(&source, &lines, 3, 1, seed_with_rules(3), NULL, &regret, 1));
  assert_int_equal(world.measured, 3 * LOOKS);
  attn_tuning_destroy(tuning);
}

TEST(random_shapes_are_legal_and_differ) {
  uint64_t seed = 3;
  int64_t sum = 0, queries = 0;
  int masks[TUNE_MASKS] = {0};
  for (int i = 0; i < 300; i++) {
    bench_tune_shape s = bench_regret_shape(&seed);
    attn_problem problem;
    if (i % 2) s.dtype = (attn_dtype)(i / 2 % TUNE_TYPES);
    bench_tune_problem(&s, &problem);
    test_ok(attn_problem_validate(&problem));
    bench_case bench;
    bench_tune_case(&s, &bench);
    const attn_problem *same = &bench.problem;
    assert_true(!bench.invalid[0] && problem.window_right == same->window_right && problem.window_left == same->window_left);
    assert_true(problem.window_right == (s.mask == TUNE_CAUSAL || s.mask == TUNE_WINDOW ? 0 : -1));
    assert_true(problem.window_left == (s.mask == TUNE_WINDOW ? s.window : -1) && problem.softcap == same->softcap);
    assert_true(problem.align == same->align && (problem.uses & ~same->uses) == 0 && s.window >= 1);
    assert_true(problem.heads_q == same->heads_q && problem.heads_kv == same->heads_kv && problem.dim_v == same->dim_v);
    assert_true(problem.seq_q == same->seq_q && problem.seq_k == same->seq_k && problem.dim_qk == same->dim_qk);
    assert_true(problem.dtype_q == same->dtype_q && problem.dtype_kv == same->dtype_kv && problem.dtype_o == same->dtype_o);
    assert_true(problem.dtype_kv == s.dtype && problem.dtype_q == (attn_dtype_is_float(s.dtype) ? s.dtype : ATTN_F32));
    assert_true(((problem.uses & ATTN_USE_KV_SCALES) != 0) == (s.dtype == ATTN_I8));
    assert_memory_equal(&problem.k_stride, &same->k_stride, sizeof problem.k_stride);
    assert_memory_equal(&problem.v_stride, &same->v_stride, sizeof problem.v_stride);
    assert_memory_equal(&problem.k_scale_stride, &same->k_scale_stride, sizeof problem.k_scale_stride);
    assert_true(problem.batch == 1 && same->batch == 1 && problem.dim_v == s.dim);
    assert_true(problem.window_right < 0 || s.seq_q <= s.seq_k);
    assert_true(s.seq_k >= 6 && s.seq_k < 5000);
    sum += s.seq_k;
    queries += s.seq_q;
    masks[s.mask]++;
  }
  /* A seed stands for the same problems in every version; pow() of other C libraries may differ in the last bit. */
  assert_true(llabs(sum - 174019) < 5 && llabs(queries - 15548) < 5);
  assert_true(masks[TUNE_FULL] > 120 && masks[TUNE_CAUSAL] > 60);
  for (int i = TUNE_WINDOW; i < TUNE_MASKS; i++) assert_true(masks[i] > 5);
}

/* ---- The real source ------------------------------------------------------------------------------------------------- */

static struct {
  const attn_problem *problem; /* whose tensors its calls get; NULL: nobody looks */
  int calls;
} real;

attn_status __real_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes);
attn_status __wrap_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes);

enum { LOOKED = 64 /* values */ };

/* Data with a spread: no tensor repeats its first value, or begins like another. */
static void expect_spread(const float *x, const float *y, const float *other) {
  double sum = 0, squares = 0;
  for (int i = 0; i < LOOKED; i++) sum += (double)x[i], squares += (double)x[i] * (double)x[i];
  const double mean = sum / LOOKED, deviation = sqrt(squares / LOOKED - mean * mean);
  assert_true(fabs(mean) < 0.6 && deviation > 0.5 && deviation < 2);
  assert_true(x[0] != y[0] && x[0] != other[0]);
}

attn_status __wrap_attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes) {
  const attn_problem *p = real.problem;
  int kept = 0;
  real.calls++;
  if (!p) return __real_attn_plan_run(plan, args, workspace, bytes);
  expect_spread(args->q, args->k, args->v);
  expect_spread(args->k, args->v, args->q);
  expect_spread(args->v, args->q, args->k);
  expect_spread((const float *)args->v + p->seq_k * p->dim_v - LOOKED, args->q, args->k); /* and at its end */
  if (p->uses & ATTN_USE_BIAS) expect_spread(args->bias, args->q, args->k);
  for (int i = 0; p->uses & ATTN_USE_MASK && i < 70; i++) kept += args->mask[i] != 0;
  if (p->uses & ATTN_USE_MASK) assert_int_equal(kept, 60); /* six of seven */
  return __real_attn_plan_run(plan, args, workspace, bytes);
}

/* Problems with every mask are timed on data of their own; one that cannot be has no time. */
TEST(real_problems_have_data) {
  for (bench_tune_mask mask = 0; mask < TUNE_MASKS; mask++) {
    bench_tune_shape s = {.dtype = ATTN_F32, .mask = mask, .dim = 16, .group = 1, .heads_kv = 1, .seq_q = 8};
    attn_problem problem;
    attn_tune_report report;
    s.window = 5, s.seq_k = mask ? 24 : 5000; /* more values than are made */
    bench_tune_problem(&s, &problem);
    real.problem = &problem, real.calls = 0;
    assert_true(bench_tune_machine.measure(NULL, &s, TUNE_ALL, 1e-3, &report));
    assert_true(real.calls > 0 && report.timed > 0 && report.entry[0].time_ns > 0);
    s.heads_kv = 0;
    assert_false(bench_tune_machine.measure(NULL, &s, TUNE_ALL, 1e-3, &report));
  }
  real.problem = NULL;
}
