/* SPDX-License-Identifier: MIT */
/* Regret: how much longer the kernel that was chosen takes than the best of all, on problems that no rule was made from. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cases/case.h"
#include "tuning/tuning.h"

static const double MUCH = 1.08, MOST_WORK = 2e8;

/* A choice that looks so much slower is looked at again, each time LONGER times as long: among so many problems some have a
 * disturbed sample, and the worst of all would be one of these. */
static const double DOUBTFUL[] = {1.03, 1.06};
static const double LONGER = 4;
static const double FIRST_LOOK = 0.4; /* share of the time: second and third looks take the rest */

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

/* Whole numbers, as many below as above the middle of their logarithms. */
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

bench_tune_shape bench_regret_shape(uint64_t *seed) {
  static const int64_t dims[] = {32, 40, 64, 80, 96, 128, 192, 256}, groups[] = {1, 1, 1, 2, 4, 8};
  bench_tune_shape s;
  do {
    s = (bench_tune_shape){.dtype = (attn_dtype)(bench_random(seed) % 3),
                           .dim = dims[bench_random(seed) % 8],
                           .group = groups[bench_random(seed) % 6],
                           .heads_kv = 1 << bench_random(seed) % 4,
                           .seq_k = spread(seed, 6, 5000),
                           .causal = bench_random(seed) % 3 == 0};
    s.seq_q = queries(seed, s.seq_k);
    if (s.causal && s.seq_q > s.seq_k) s.seq_q = s.seq_k;
  } while (2.0 * (double)(s.dim * s.group * s.heads_kv) * (double)s.seq_k * (double)s.seq_q > MOST_WORK);
  return s;
}

/* ---- Measuring ---- */

/* The kernel that a plan with the file takes. */
static void choose_tuned(const bench_tune_shape *shape, const attn_tuning *tuning, char *kernel, size_t bytes) {
  attn_problem problem;
  attn_plan *plan;
  bench_tune_problem(shape, &problem);
  kernel[0] = 0;
  if (attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .threads = 1, .tuning = tuning), &plan) != ATTN_OK) return;
  snprintf(kernel, bytes, "%s", attn_plan_kernel(plan));
  attn_plan_destroy(plan);
}

/* Time of the kernel over the best's; 0 if it was not timed. */
static double ratio_of(const attn_tune_report *report, const char *kernel) {
  for (int i = 0; i < report->timed; i++)
    if (strcmp(report->entry[i].kernel, kernel) == 0) return report->entry[i].ratio;
  return 0;
}

typedef struct look {
  attn_tune_report report;
  char tuned[64];             /* the kernel that the file takes */
  double built_in, with_file; /* time of the choices over the best's; 0 if it was not timed */
} look;

/* The last look counts. False if the problem could not be measured. */
static bool look_at(const bench_tune_source *source, const attn_tuning *tuning, const bench_tune_shape *shape,
                    double seconds, look *l) {
  choose_tuned(shape, tuning, l->tuned, sizeof l->tuned);
  for (int again = 0;; again++, seconds *= LONGER) {
    if (!source->measure(source->context, shape, seconds, &l->report)) return false;
    l->built_in = ratio_of(&l->report, l->report.automatic);
    l->with_file = ratio_of(&l->report, l->tuned);
    if (again == sizeof DOUBTFUL / sizeof *DOUBTFUL || fmax(l->built_in, l->with_file) <= DOUBTFUL[again]) return true;
  }
}

static void write_csv(FILE *csv, const bench_tune_shape *s, const look *l) {
  if (!csv) return;
  fprintf(csv, "%s,%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",", bench_dtype_name(s->dtype),
          s->causal ? "causal" : "full", s->heads_kv, s->group, s->dim, s->seq_q, s->seq_k);
  fprintf(csv, "%s,%.0f,%s,%.4f,%s,%.4f\n", l->report.entry[0].kernel, l->report.entry[0].time_ns, l->report.automatic,
          l->built_in, l->tuned, l->with_file);
}

bool bench_regret_measure(const bench_tune_source *source, const attn_tuning *tuning, int points, double seconds,
                          uint64_t seed, FILE *csv, bench_regret regrets[2]) {
  if (csv)
    fprintf(csv, "dtype,mask,heads_kv,group,dim,seq_q,seq_k,best,best_ns,built_in,built_in_ratio,tuned,tuned_ratio\n");
  regrets[0] = regrets[1] = (bench_regret){.count = 0};
  for (int i = 0; i < points; i++) {
    const bench_tune_shape shape = bench_regret_shape(&seed);
    look l;
    if (!look_at(source, tuning, &shape, FIRST_LOOK * seconds / points, &l)) return false;
    if (!(l.built_in > 0 && l.with_file > 0)) continue;
    bench_regret_add(&regrets[0], l.built_in, &shape);
    bench_regret_add(&regrets[1], l.with_file, &shape);
    write_csv(csv, &shape, &l);
  }
  return true;
}
