/* SPDX-License-Identifier: MIT */
/* `attnbench tune`: where the built-in choice of kernels loses time on this machine, as rules of a tuning file, and how much
 * time a choice loses (its regret).
 *
 * A line is all problems of one type, mask, head_dim and group. On it stand rows, one for each number of keys, and on a row
 * points, one for each number of queries. At every point all kernels are timed. Neighbours on a row that one choice suits
 * belong together; the border between two that none suits is bisected, and so are the rows. A rule is only made where the
 * built-in choice does not suit: it is slower beyond doubt. */
#ifndef BENCH_TUNING_H
#define BENCH_TUNING_H

#include <stdio.h>

#include "attn/attn.h"
#include "base/cli.h"
#include "cases/case.h"

/* What is timed: self-attention or few queries, dense, heads_kv groups of heads. */
typedef struct bench_tune_shape {
  attn_dtype dtype;
  bool causal;
  int64_t dim, group, heads_kv, seq_k, seq_q;
  bool threads; /* with several numbers of threads; else with one */
} bench_tune_shape;

/* Where times come from. Tests pass scripted ones, and so know every rule that must come out. */
typedef struct bench_tune_source {
  bool (*measure)(void *context, const bench_tune_shape *shape, double seconds, attn_tune_report *report);
  double (*now_s)(void *context);
  void *context;
} bench_tune_source;

extern const bench_tune_source bench_tune_machine; /* this machine: attn_tune() */

/* The problem of a shape, and the same as a case. */
void bench_tune_problem(const bench_tune_shape *shape, attn_problem *problem);
void bench_tune_case(const bench_tune_shape *shape, bench_case *bench);

/* ---- Points, and what suits them ---------------------------------------------------------------------------------- */

enum {
  TUNE_KERNELS = 32, /* in the order of the registry; further ones are not looked at */
  TUNE_AUTO = TUNE_KERNELS - 1,
  TUNE_POINTS = 48, /* of a row */
  TUNE_ROWS = 24    /* of a line */
};

typedef struct bench_tune_point {
  int64_t seq_q;
  uint32_t fine;              /* kernels that are at most 3 % slower than the best here; TUNE_AUTO: the built-in choice */
  double ratio[TUNE_KERNELS]; /* time over the best's; 0 = not timed */
  int automatic;              /* the kernel that is the built-in choice */
  bool uncertain;             /* it had too few rounds for an interval */
} bench_tune_point;

/* The kernel's place in the registry; -1 if it is not looked at. */
int bench_tune_kernel(const char *name);

/* False if the built-in choice was not timed. */
bool bench_tune_point_read(const attn_tune_report *report, int64_t seq_q, bench_tune_point *point);

/* Whether a kernel, or TUNE_AUTO, suits the point. */
bool bench_tune_suits(const bench_tune_point *point, int kernel);

/* Joins another look at the point: kernels suit by the mean of both, the built-in choice if it suits one or the other look
 * is uncertain. */
void bench_tune_point_join(bench_tune_point *point, const bench_tune_point *other);

/* Points that one choice suits. */
typedef struct bench_tune_segment {
  int first, last, kernel; /* indices of points */
} bench_tune_segment;

/* Cuts points, sorted by seq_q, into the fewest segments; those of equal seq_q stay together. Returns how many, or count + 1
 * if points of equal seq_q have no choice in common. */
int bench_tune_cut(const bench_tune_point *const *points, int count, bench_tune_segment *segments);

/* ---- Rules -------------------------------------------------------------------------------------------------------- */

typedef struct bench_tune_rule {
  attn_dtype dtype;
  bool causal;
  int64_t dim[2], group[2], seq_k[2], seq_q[2]; /* INT64_MAX: open */
  int64_t step;                                 /* the largest of 8, 16 and 32 that divides head_dim */
  const char *kernel, *second;
  double margin, low, high; /* times that `second` took, the built-in choice: geometric mean, least and most */
} bench_tune_rule;

/* What a kernel takes on one thread: for a multiply-add, an element of K and V, a KV head. */
typedef struct bench_tune_cost {
  double sums[3][3], right[3]; /* of the least squares of relative errors */
  int count;
  double ns[3];
} bench_tune_cost;

typedef struct bench_tune_result {
  bench_tune_rule *rules;
  int rule_count, points;
  bench_tune_cost costs[TUNE_KERNELS][3]; /* by dtype */
  double least_ns;                        /* of one thread; 0 = not measured */
} bench_tune_result;

/* One line: its ranges of head_dim and group stand in the rules. */
typedef struct bench_tune_line {
  attn_dtype dtype;
  bool causal;
  int64_t dim, dims[2], step, group, groups[2];
} bench_tune_line;

enum { TUNE_LINES = 1024 };
typedef struct bench_tune_lines {
  bench_tune_line item[TUNE_LINES];
  int count;
} bench_tune_lines;

/* The lines that values of -a ask for: "dtype=f32,bf16", head_dim or causal. Returns 0, or an exit code, having said why on
 * stderr. */
int bench_tune_list(const cli_list *axes, bench_tune_lines *lines);

/* Checks every kernel on a problem of the line. Returns 0, or BENCH_EXIT_FAILED, having said which kernel fails. */
int bench_tune_check(const bench_tune_line *line);

/* False if memory is short. */
bool bench_tune_walk(const bench_tune_source *source, const bench_tune_line *line, double seconds,
                     bench_tune_result *result);

/* Adds a time of one thread, and computes ns from all. */
void bench_tune_cost_add(bench_tune_cost *cost, const bench_tune_shape *shape, double time_ns);
void bench_tune_cost_solve(bench_tune_cost *cost);

/* Measures what a second thread costs. */
void bench_tune_threads(const bench_tune_source *source, double seconds, bench_tune_result *result);

/* Writes a tuning file. */
void bench_tune_write(const bench_tune_result *result, FILE *file);
void bench_tune_clear(bench_tune_result *result);

/* ---- Regret ------------------------------------------------------------------------------------------------------- */

typedef struct bench_regret {
  int count, above; /* problems; those whose choice takes more than 1.08 times as long as the best */
  double sum, worst;
  bench_tune_shape where; /* the worst */
} bench_regret;

void bench_regret_add(bench_regret *regret, double ratio, const bench_tune_shape *shape);

/* A random shape, from a seed. */
bench_tune_shape bench_regret_shape(uint64_t *seed);

/* Regret of the built-in choice, and of the file's, on `points` random shapes: one line of CSV for each, if csv is not
 * NULL. */
bool bench_regret_measure(const bench_tune_source *source, const attn_tuning *tuning, int points, double seconds,
                          uint64_t seed, FILE *csv, bench_regret regrets[2]);

#endif
