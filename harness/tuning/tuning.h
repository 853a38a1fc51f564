/* SPDX-License-Identifier: MIT */
/* `attnbench tune`: what kernels cost on this machine, as lines of a tuning file, and how much time a choice loses (its
 * regret).
 *
 * Random problems are timed by the kernels that may be the quickest. The time of a kernel is taken as a sum of terms that
 * its loops give (attn_kernel.terms); what each term costs is fitted to all of its times at once. So every time says
 * something of all problems, those that were not timed included. */
#ifndef BENCH_TUNING_H
#define BENCH_TUNING_H

#include <stdio.h>

#include "attn/attn.h"
#include "base/cli.h"
#include "cases/case.h"
#include "kernels/common/problem/dtypes.h"
#include "src/choice/costs.h"

/* The mask, window or change of the scores that a problem has: one, or none. */
typedef enum bench_tune_mask {
  TUNE_FULL, /* nothing */
  TUNE_CAUSAL,
  TUNE_WINDOW, /* causal, of the last `window` keys */
  TUNE_MASK,
  TUNE_BIAS,
  TUNE_ALIBI,
  TUNE_SOFTCAP,
  TUNE_MASKS
} bench_tune_mask;
extern const char *const bench_tune_mask_name[TUNE_MASKS];

/* A problem to time: self-attention or few queries, dense, heads_kv groups of heads. */
typedef struct bench_tune_shape {
  attn_dtype dtype; /* K and V have it; Q and O, too, or they are float32 */
  bench_tune_mask mask;
  int64_t dim, group, heads_kv, seq_k, seq_q, window;
  bool threads;  /* with several numbers of threads; else with one */
  bool backward; /* gradients */
} bench_tune_shape;

enum {
  TUNE_KERNELS = 40, /* in the order of the registry; further ones are not looked at */
  TUNE_TYPES = ATTN_DTYPE_COUNT
};
typedef uint64_t bench_tune_set; /* kernels, a bit for each */
#define TUNE_ALL ((bench_tune_set)-1)

/* Where times come from. Tests pass scripted ones, and so know what must come out. The automatic choice is timed beside the
 * kernels of the set. */
typedef struct bench_tune_source {
  bool (*measure)(void *context, const bench_tune_shape *shape, bench_tune_set kernels, double seconds,
                  attn_tune_report *report);
  double (*now_s)(void *context);
  double (*core_share)(void *context); /* bench_core_share() of one thread; NULL or 0: every moment counts as undisturbed */
  int most_looks;                      /* so many are taken at most; 0: TUNE_LOOKS */
  void *context;
} bench_tune_source;

extern const bench_tune_source bench_tune_machine; /* measures on this machine: attn_tune() */

/* The type of the lines of costs that serve a problem. */
static inline attn_dtype bench_tune_type(const bench_tune_shape *shape) { return attn_costs_shared(shape->dtype); }

/* The type of Q and O beside K and V of this one. */
attn_dtype bench_tune_queries(attn_dtype dtype);

/* The problem of a shape, and the same as a case. */
void bench_tune_problem(const bench_tune_shape *shape, attn_problem *problem);
void bench_tune_case(const bench_tune_shape *shape, bench_case *bench);

/* The kernel's place in the registry; -1 if it is not looked at. */
int bench_tune_kernel(const char *name);

/* ---- Costs -------------------------------------------------------------------------------------------------------- */

/* The nanoseconds of each term of a kernel's time on one thread, fitted by least squares of relative errors. */
typedef struct bench_tune_cost {
  double sums[ATTN_MAX_TERMS][ATTN_MAX_TERMS], right[ATTN_MAX_TERMS], weight; /* the equations */
  int terms;                                                                  /* the kernel's number of terms */
  int count;                                                                  /* times */
  int leads; /* random problems of which the kernel was clearly the quickest; for a class, of kernels of no higher tier */
  int near;  /* how often it took about the least time on the first problems, on which all kernels are timed */
  double ns[ATTN_MAX_TERMS], error;
} bench_tune_cost;

/* A problem that was timed. Its kernels were timed in turns, so all of them met the same moment of the machine, which may
 * have been a slow one. */
enum { TUNE_NEAR = 12 /* the quickest kernels, of which times are kept */, TUNE_LOOKS = 1 << 16 };
typedef struct bench_tune_look {
  bench_tune_shape shape;
  int count, kernel[TUNE_NEAR];
  double time_ns[TUNE_NEAR]; /* the quickest's, times the median of the ratios with it */
  double slowness;           /* how slow the moment was: all of its kernels exceed their costs by this factor */
  bool undisturbed;          /* nobody else ran on the core before and after it */
} bench_tune_look;

typedef struct bench_tune_result {
  bench_tune_look look[TUNE_LOOKS];
  int looks;
  int points[TUNE_TYPES];                          /* looks of each bench_tune_type() */
  int random[TUNE_TYPES];                          /* those of random problems, not of unclear ones */
  bench_tune_cost costs[TUNE_KERNELS][TUNE_TYPES]; /* one for each bench_tune_type() */
  double least_ns;                                 /* time on one thread; 0 = not measured */
  const char *class;                               /* the class of CPUs that costs are to be of; NULL = this machine alone */
} bench_tune_result;

/* Problems of one operation, type, mask and head_dim, which are tuned together. */
typedef struct bench_tune_line {
  attn_dtype dtype;
  bool causal, backward;
  int64_t dim;
} bench_tune_line;

enum { TUNE_LINES = 1024 };
typedef struct bench_tune_lines {
  bench_tune_line item[TUNE_LINES];
  int count;
} bench_tune_lines;

/* The lines that values of -a ask for: "dtype=f32,bf16", head_dim, causal or pass. Returns 0, or an exit code, having said
 * why on stderr. */
int bench_tune_list(const cli_list *axes, bench_tune_lines *lines);

/* Checks every kernel on a problem of the line. Returns 0, or BENCH_EXIT_FAILED, having said which kernel fails. */
int bench_tune_check(const bench_tune_line *line);

/* Times random problems, of the lines in turn, and fits costs to them: first by all kernels, then by those that were clearly
 * the quickest of some, and at last more of those problems whose quickest kernel is not clear. */
void bench_tune_sample(const bench_tune_source *source, const bench_tune_lines *lines, double seconds,
                       bench_tune_result *result);

/* Adds a time of one thread, of a problem whose quickest kernel takes best_ns, which counts as a part (`trust`) of one; and
 * computes ns and error from all. */
void bench_tune_cost_add(bench_tune_cost *cost, const attn_kernel_info *kernel, const bench_tune_shape *shape,
                         double time_ns, double best_ns, double trust);
void bench_tune_cost_solve(bench_tune_cost *cost);

/* Fits costs and the slowness of moments to all looks. */
void bench_tune_fit(bench_tune_result *result);

/* Measures what a second thread costs. */
void bench_tune_threads(const bench_tune_source *source, double seconds, bench_tune_result *result);

/* Times a problem as source->measure() does, and says whether the measurement was undisturbed. */
bool bench_tune_look_at(const bench_tune_source *source, const bench_tune_shape *shape, bench_tune_set kernels,
                        double seconds, attn_tune_report *report, bool *undisturbed);

/* Whether any kernel was timed often enough, and is quick enough, to have a line of costs. */
bool bench_tune_has_costs(const bench_tune_result *result);

#define TUNE_WORTH_A_LINE 0.001 /* share of random problems of which a kernel is clearly the quickest */
enum { TUNE_FEWEST_TIMES = 80 /* a kernel needs so many for costs */ };

/* Whether this kernel was. */
bool bench_tune_has_line(const bench_tune_result *result, int kernel, attn_dtype dtype);

/* How many problems were timed. */
int bench_tune_points(const bench_tune_result *result);

/* Writes a tuning file. */
void bench_tune_write(const bench_tune_result *result, FILE *file);

/* ---- Regret ------------------------------------------------------------------------------------------------------- */

typedef struct bench_regret {
  const char *name;          /* the choice's: "built_in" */
  const attn_tuning *tuning; /* makes the choice; NULL = none */
  int count, above;          /* problems; those whose choice takes more than 1.1 times as long as the best */
  double sum, worst;
  bench_tune_shape where; /* the worst */
} bench_regret;
enum { BENCH_REGRETS = 3 /* choices that are compared, at most */ };

void bench_regret_add(bench_regret *regret, double ratio, const bench_tune_shape *shape);

/* Multiply-adds of a shape, and the most of a random one: milliseconds. */
double bench_tune_work(const bench_tune_shape *shape);
extern const double BENCH_REGRET_WORK;

enum { BENCH_REGRET_KEYS = 6 /* multiply-adds of a random shape, at least */ };

/* A random shape, from a seed. */
bench_tune_shape bench_regret_shape(uint64_t *seed);

/* Regret of some choices on `points` random shapes, of the lines' types if lines is not NULL: one line of CSV for each, if
 * csv is not NULL. */
bool bench_regret_measure(const bench_tune_source *source, const bench_tune_lines *lines, int points, double seconds,
                          uint64_t seed, FILE *csv, bench_regret *regrets, int count);

#endif
