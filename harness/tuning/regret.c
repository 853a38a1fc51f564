/* SPDX-License-Identifier: MIT */
/* Regret: how much longer the kernel that was chosen takes than the best of all, on problems that no costs come from. */
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>

#include "cases/case.h"
#include "kernels/common/problem/arithmetic.h"
#include "timing/stats.h"
#include "tuning/tuning.h"

static const double MUCH = 1.1;

/* Among so many problems some have a disturbed sample, and the worst of all would be one of these. So a choice that looks
 * slow is looked at again, when all others have been: the machine may have been in another state. The median of these later
 * looks counts; the first one, which made it look slow, does not, because it errs to that side. If any of the later looks
 * were undisturbed, only these count: another program on the core slows some kernels more than others. */
enum { LOOKS = 7 };
static const double DOUBTFUL[LOOKS - 1] = {1.03, 1.05, 1.06, 1.07, 1.07, 1.07};
static const double LENGTHS[LOOKS] = {1, 4, 16, 16, 16, 16, 16}; /* times as long as in the first look */
static const double FIRST_LOOK = 0.4;                            /* share of the time: the others take the rest */

void bench_regret_add(bench_regret *r, double ratio, const bench_tune_shape *shape) {
  r->count++;
  r->sum += ratio - 1;
  r->above += ratio > MUCH;
  if (ratio - 1 <= r->worst) return;
  r->worst = ratio - 1;
  r->where = *shape;
}

/* ---- Shapes ---- */

static double share(uint64_t *seed) { return (double)(bench_random(seed) >> 11) * 0x1p-53; }

/* A random whole number whose logarithm is uniform between those of `least` and `most`. */
static int64_t spread(uint64_t *seed, double least, double most) {
  return (int64_t)(least * pow(most / least, share(seed)));
}

/* One query, a few, as many as keys, or any number. */
static int64_t queries(uint64_t *seed, int64_t keys) {
  switch (bench_random(seed) % 4) {
    case 0: return 1;
    case 1: return 2 + (int64_t)(bench_random(seed) % 7);
    case 2: return keys;
    default: return spread(seed, 1, 1000);
  }
}

const double BENCH_REGRET_WORK = 2e8;

double bench_tune_work(const bench_tune_shape *s) {
  const double products = s->backward ? 5 : 2;
  return products * (double)(s->dim * s->group * s->heads_kv) * (double)s->seq_k * (double)s->seq_q;
}

/* Half of the problems are full, a quarter is causal, all others share the rest. */
static bench_tune_mask mask_of(uint64_t number) {
  if (number % 4 < 2) return TUNE_FULL;
  return number % 4 == 2 ? TUNE_CAUSAL : (bench_tune_mask)(TUNE_WINDOW + number / 4 % (TUNE_MASKS - TUNE_WINDOW));
}

bench_tune_shape bench_regret_shape(uint64_t *seed) {
  static const int64_t dims[] = {20, 32, 40, 64, 72, 80, 96, 100, 128, 192, 256}, groups[] = {1, 1, 1, 2, 4, 8};
  enum { DIMS = sizeof dims / sizeof *dims };
  bench_tune_shape s;
  do {
    s = (bench_tune_shape){.dtype = (attn_dtype)(bench_random(seed) % ATTN_FLOAT_COUNT),
                           .dim = dims[bench_random(seed) % DIMS],
                           .group = groups[bench_random(seed) % 6],
                           .heads_kv = 1 << bench_random(seed) % 4,
                           .seq_k = spread(seed, BENCH_REGRET_KEYS, 5000),
                           .mask = mask_of(bench_random(seed))};
    s.seq_q = queries(seed, s.seq_k);
    s.window = spread(seed, 1, 1000);
    if (s.mask == TUNE_CAUSAL || s.mask == TUNE_WINDOW) s.seq_q = min64(s.seq_q, s.seq_k);
  } while (bench_tune_work(&s) > BENCH_REGRET_WORK);
  return s;
}

/* ---- Measuring ---- */

/* A problem and what was seen of it. */
typedef struct problem {
  bench_tune_shape shape;
  int chosen[BENCH_REGRETS]; /* kernels; -1 if it is none that is looked at */
  int looks;
  bool undisturbed[LOOKS];
  double ratio[LOOKS][TUNE_KERNELS]; /* time of a kernel / time of the best one in the same look; 0 */
  double best_ns;
} problem;

/* The kernel that a plan takes. */
static int choose(const bench_tune_shape *shape, const attn_tuning *tuning) {
  attn_problem p;
  attn_plan *plan;
  bench_tune_problem(shape, &p);
  if (attn_plan_create(&p, &ATTN_STRUCT(attn_options, .threads = 1, .tuning = tuning), &plan) != ATTN_OK) return -1;
  const int kernel = bench_tune_kernel(attn_plan_kernel(plan));
  attn_plan_destroy(plan);
  return kernel;
}

/* Time of one kernel over another's: the median of the looks that count. 0 if one was not timed in all of them. */
static double time_over(const problem *p, int kernel, int other) {
  double ratios[LOOKS];
  int count = 0;
  bool any_undisturbed = false;
  for (int look = p->looks > 1; look < p->looks; look++) any_undisturbed |= p->undisturbed[look];
  for (int look = p->looks > 1; look < p->looks; look++) {
    if (any_undisturbed && !p->undisturbed[look]) continue;
    const double *r = p->ratio[look];
    if (kernel < 0 || !(r[kernel] > 0 && r[other] > 0)) return 0;
    ratios[count++] = r[kernel] / r[other];
  }
  return bench_median(ratios, count);
}

/* The quickest kernel: none takes less of another's time than it does. */
static int best_of(const problem *p) {
  int best = p->chosen[0];
  for (int k = 0; k < TUNE_KERNELS; k++) {
    const double ratio = best < 0 ? 0 : time_over(p, k, best);
    if (best < 0 || (ratio > 0 && ratio < 1)) best = k;
  }
  return best;
}

static double ratio_of(const problem *p, int kernel) { return time_over(p, kernel, best_of(p)); }

static bool look_at(const bench_tune_source *source, double seconds, problem *p) {
  attn_tune_report report;
  if (!bench_tune_look_at(source, &p->shape, TUNE_ALL, seconds, &report, &p->undisturbed[p->looks])) return false;
  for (int i = 0; i < report.timed; i++) {
    const int kernel = bench_tune_kernel(report.entry[i].kernel);
    if (kernel >= 0) p->ratio[p->looks][kernel] = report.entry[i].ratio;
  }
  p->best_ns = report.entry[0].time_ns;
  p->looks++;
  return true;
}

static bool is_doubtful(const problem *p, int choices) {
  double ratio = 0;
  for (int i = 0; i < choices; i++) ratio = fmax(ratio, ratio_of(p, p->chosen[i]));
  return ratio > DOUBTFUL[p->looks - 1];
}

/* Looks at all problems, and again at those that need it. */
static bool look_at_all(const bench_tune_source *source, int count, int choices, double seconds, problem *problems) {
  for (int look = 0; look < LOOKS; look++)
    for (int i = 0; i < count; i++) {
      problem *p = &problems[i];
      if (look && (p->looks < look || !is_doubtful(p, choices))) continue;
      if (!look_at(source, LENGTHS[look] * seconds, p)) return false;
    }
  return true;
}

static const char *name_of(int kernel) { return attn_kernel_get(kernel)->name; }

static void write_head(FILE *csv, const bench_regret *regrets, int choices) {
  fprintf(csv, "dtype,mask,heads_kv,group,dim,seq_q,seq_k,best,best_ns");
  for (int i = 0; i < choices; i++) fprintf(csv, ",%s,%s_ratio", regrets[i].name, regrets[i].name);
  fputc('\n', csv);
}

static void write_csv(FILE *csv, const problem *p, int choices) {
  const bench_tune_shape *s = &p->shape;
  fprintf(csv, "%s,%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",", bench_dtype_name(s->dtype),
          bench_tune_mask_name[s->mask], s->heads_kv, s->group, s->dim, s->seq_q, s->seq_k);
  fprintf(csv, "%s,%.0f", name_of(best_of(p)), p->best_ns);
  for (int i = 0; i < choices; i++) fprintf(csv, ",%s,%.4f", name_of(p->chosen[i]), ratio_of(p, p->chosen[i]));
  fputc('\n', csv);
}

/* A problem counts if all choices were timed. */
static bool counts(const problem *p, int choices) {
  for (int i = 0; i < choices; i++)
    if (!(ratio_of(p, p->chosen[i]) > 0)) return false;
  return true;
}

static void conclude_regrets(const problem *problems, int count, FILE *csv, bench_regret *regrets, int choices) {
  if (csv) write_head(csv, regrets, choices);
  for (int i = 0; i < count; i++) {
    if (!counts(&problems[i], choices)) continue;
    for (int c = 0; c < choices; c++)
      bench_regret_add(&regrets[c], ratio_of(&problems[i], problems[i].chosen[c]), &problems[i].shape);
    if (csv) write_csv(csv, &problems[i], choices);
  }
}

bool bench_regret_measure(const bench_tune_source *source, const bench_tune_lines *lines, int points, double seconds,
                          uint64_t seed, FILE *csv, bench_regret *regrets, int count) {
  problem *problems = calloc((size_t)points, sizeof *problems);
  if (!problems) return false;
  for (int i = 0; i < points; i++) {
    problems[i].shape = bench_regret_shape(&seed);
    if (lines) problems[i].shape.dtype = lines->item[i % lines->count].dtype;
    if (lines) problems[i].shape.backward = lines->item[i % lines->count].backward;
    for (int c = 0; c < count; c++) problems[i].chosen[c] = choose(&problems[i].shape, regrets[c].tuning);
  }
  const bool fine = look_at_all(source, points, count, FIRST_LOOK * seconds / points, problems);
  if (fine) conclude_regrets(problems, points, csv, regrets, count);
  free(problems);
  return fine;
}
