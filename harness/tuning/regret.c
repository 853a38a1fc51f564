/* SPDX-License-Identifier: MIT */
/* Regret: how much longer the kernel that was chosen takes than the best of all, on problems that no rule was made from. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "cases/case.h"
#include "tuning/tuning.h"

static const double MUCH = 1.08, MOST_WORK = 2e8;

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

static void write_csv(FILE *csv, const bench_tune_shape *s, const attn_tune_report *report, const char *tuned) {
  if (!csv) return;
  fprintf(csv, "%s,%s,%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",%" PRId64 ",", bench_dtype_name(s->dtype),
          s->causal ? "causal" : "full", s->heads_kv, s->group, s->dim, s->seq_q, s->seq_k);
  fprintf(csv, "%s,%.0f,%s,%.4f,%s,%.4f\n", report->entry[0].kernel, report->entry[0].time_ns, report->automatic,
          ratio_of(report, report->automatic), tuned, ratio_of(report, tuned));
}

bool bench_regret_measure(const bench_tune_source *source, const attn_tuning *tuning, int points, double seconds,
                          uint64_t seed, FILE *csv, bench_regret regrets[2]) {
  if (csv)
    fprintf(csv, "dtype,mask,heads_kv,group,dim,seq_q,seq_k,best,best_ns,built_in,built_in_ratio,tuned,tuned_ratio\n");
  regrets[0] = regrets[1] = (bench_regret){.count = 0};
  for (int i = 0; i < points; i++) {
    const bench_tune_shape shape = bench_regret_shape(&seed);
    attn_tune_report report;
    char tuned[64];
    if (!source->measure(source->context, &shape, seconds / points, &report)) return false;
    choose_tuned(&shape, tuning, tuned, sizeof tuned);
    const double built_in = ratio_of(&report, report.automatic), with_file = ratio_of(&report, tuned);
    if (!(built_in > 0 && with_file > 0)) continue;
    bench_regret_add(&regrets[0], built_in, &shape);
    bench_regret_add(&regrets[1], with_file, &shape);
    write_csv(csv, &shape, &report, tuned);
  }
  return true;
}
