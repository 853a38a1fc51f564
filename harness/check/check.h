/* SPDX-License-Identifier: MIT */
/* Is this output right? The oracle's answer, the error limits of docs/numerics.md, and the verdict that timing asks for. */
#ifndef BENCH_CHECK_H
#define BENCH_CHECK_H

#include "base/build.h"
#include "base/cli.h"
#include "data/tensors.h"
#include "kernels/common/problem/operation.h"
#include "kernels/ref/oracle_f64.h"

/* The oracle's answer to one problem and its data, computed once and used for every kernel of the case. */
typedef struct bench_expected_row {
  int64_t b, h, i; /* with VARLEN, i counts from the start of sequence b */
  attn_oracle_row facts;
  bench_tensor of; /* the output that it is a row of, where outputs have rows of their own */
  int64_t at;      /* and its first value in `o`, `m` ... */
} bench_expected_row;

/* The right value of one element, with M and W where its limit needs them; of gradients also its inputs' errors. */
typedef struct bench_right {
  double value, m, w;
  double proven, sharp;
} bench_right;

/* Another kernel's answer, for the rows that the oracle does not compute. */
typedef struct bench_reference {
  const attn_kernel_info *kernel; /* NULL: none has run yet */
  uint64_t wrong;                 /* bit n: the oracle's rows refute kernel n */
  attn_problem problem;           /* the case's, with LSE and dense outputs in float32 */
  float *output[BENCH_TENSORS];   /* its answer; NULL for what is no output */
  float *m;                       /* M of docs/numerics.md: its answer with |V| instead of V, where that is M; else NULL */
  bool has_m;                     /* m is computed, and the oracle's rows are learnt */

  /* The largest value of each fact, ties as a share of n^2, and of W / M * sqrt(n), over the rows that the oracle has
   * computed so far. They stand for the facts of the other rows. */
  attn_oracle_row largest;
  double spread;
  bench_right most[BENCH_TENSORS]; /* the same of what a limit needs of an output with rows of its own */
} bench_reference;

typedef struct bench_expected {
  attn_problem problem;
  bool zero_mean; /* the sharp limit applies */
  bool complete;  /* `row` holds every row of the problem */
  int64_t rows;
  bench_expected_row *row;
  double *o, *m, *w;      /* [rows][dim_v], or row n from row[n].at on; M and W of docs/numerics.md */
  double *proven, *sharp; /* the same, of gradients */
  double *mean_v; /* [rows][dim_v]: plain mean of V over the row's allowed keys, the answer of a kernel without softmax */
  bench_reference *reference;
  double *const *given; /* [BENCH_TENSORS] values in place of the oracle's, in the order of the output; NULL = none */
} bench_expected;

/* Rows: all of them up to 1e8 multiply-adds, beyond that the edge rows and 64 seeded ones per head; or one. NULL if memory
 * is short. */
bench_expected *bench_expected_create(const attn_problem *problem, const attn_args *args, uint64_t seed, bool zero_mean);
bench_expected *bench_expected_of_row(const attn_problem *problem, const attn_args *args, const bench_expected_row *row,
                                      bool zero_mean);
void bench_expected_destroy(bench_expected *expected);

/* The rows to check, without their values: sets rows, row and complete. False if memory is short. */
bool bench_expected_choose(bench_expected *expected, const attn_args *args, uint64_t seed);

/* The sequences of an output, and the rows of a head and sequence. */
int64_t bench_sequences_of(const attn_problem *problem, bench_tensor output);
int64_t bench_rows_of(const attn_problem *problem, const attn_args *args, bench_tensor output, int64_t b);

/* Element offset of the row's first element in o or lse, which have these strides. */
int64_t bench_row_place(const attn_problem *problem, const attn_args *args, const attn_strides *stride,
                        const bench_expected_row *row);

/* Offset of the first element of key j's row in K or V, which has these strides, for a row of the output. */
int64_t bench_key_place(const attn_problem *problem, const attn_args *args, const attn_strides *stride,
                        const bench_expected_row *row, int64_t j);

/* The factor of column d of value j of the row's KV head; 1 in a problem without. */
double bench_v_scale(const attn_problem *problem, const attn_args *args, const bench_expected_row *row, int64_t j,
                     int64_t d);

/* ---- Error limits of docs/numerics.md, for one row and one of its outputs ----------------------------------------- */

/* The terms from which the error limits of a row's outputs are computed; docs/numerics.md explains each of them. */
typedef struct bench_row_limits {
  double proven, sharp; /* a_proven, a_sharp: relative error of the row's p */
  double lost, lse;     /* underflow; limit of the LSE's error */
  double max_v, p_rounding;
  double store_error; /* relative error of storing an output: u_o unless the caller raises it */
  double moved;       /* error, in units of W, from scores that rounded queries move; that of the LSE */
  attn_dtype dtype_o;
  bool both;  /* generated zero-mean data must meet the sharp limit as well */
  bool empty; /* no allowed key: o = 0 and lse = -inf exactly */
} bench_row_limits;

bench_row_limits bench_limits_of_row(const attn_problem *problem, const attn_numerics *numerics, const attn_oracle_row *row,
                                     bool zero_mean);

/* Limits of the difference between two answers that each have limits of their own. */
bench_row_limits bench_limits_sum(bench_row_limits limits, bench_row_limits other);

/* A declared error widens the kernel's limits, but only up to a cap: bf16's roundoff for the errors of exp and of rounding
 * P, and flushing of no more than denormal inputs. Returns the error that exceeds its cap ("an exp error"), or NULL. */
const char *bench_beyond_cap(const attn_numerics *numerics);

/* This kernel's unit roundoff of P. A kernel that narrows P narrows it to the type of V. */
double bench_p_rounding(const attn_problem *problem, const attn_numerics *numerics);

/* Does the kernel declare a larger error of exp than the rounding of K and V, or than 8 roundoffs of float32 where that is
 * more? */
bool bench_is_approximate(const attn_problem *problem, const attn_numerics *numerics);

/* error / limit of one output, with o, M and W of the oracle: <= 1 passes; INFINITY where only one of the two is finite,
 * or NaN. */
double bench_output_ratio(const bench_row_limits *limits, double o, double m, double w, double got);
double bench_lse_ratio(const bench_row_limits *limits, double lse, double got);
double bench_gradient_ratio(const bench_row_limits *limits, bench_right right, double got);

/* ---- What the check knows of each output -------------------------------------------------------------------------- */

/* One output: where its right values are (row n of `expected`, column d), and the error / limit of a kernel's value. */
typedef struct bench_output {
  bench_tensor tensor;
  bench_right (*right)(const bench_expected *expected, int64_t n, int64_t d);
  double (*ratio)(const bench_row_limits *limits, bench_right right, double got);
  /* NULL, or the answer of a kernel without softmax: the mean of V over all keys, or over those that the row sees. */
  double (*mean)(const bench_expected *expected, const attn_args *args, int64_t n, int64_t d, bool all);
} bench_output;

/* An operation: its outputs, and how their right values come about. */
typedef struct bench_answer {
  const bench_output *outputs; /* the first is the one that null answers are tried on; ended by right = NULL */
  /* Computes row n of `expected` in float64; `scratch` holds seq_k numbers. */
  void (*compute_row)(bench_expected *expected, const attn_args *args, int64_t n, double *scratch);
  bool by_output;     /* each output has rows of its own, of queries, keys or others */
  bool absolute_v;    /* M is the answer with |V|; else it is the magnitude of the value */
  unsigned structure; /* the tests of structure.h that its answers must pass: bit n is test n */
} bench_answer;

extern const bench_answer bench_answers[]; /* one for each attn_operation */

/* Whether the output has this row. */
static inline bool bench_has_row(const attn_problem *problem, bench_tensor output, const bench_expected_row *row) {
  return !bench_answers[problem->operation].by_output || row->of == output;
}

static inline const bench_output *bench_outputs_of(const attn_problem *problem) {
  return bench_answers[problem->operation].outputs;
}

/* Row n of attention, and of gradients. */
void bench_expected_differentiate(bench_expected *expected, const attn_args *args, int64_t n, double *scratch);
void bench_expected_attend(bench_expected *expected, const attn_args *args, int64_t n, double *scratch);

/* The right value of row n and column d: the oracle's, or the one that is given. */
bench_right bench_right_of(const bench_expected *expected, const attn_args *args, const bench_output *output,
                           const attn_operand *operand, int64_t n, int64_t d);

/* Column d of a row: where it stands, in elements from the first; and its value in args. */
int64_t bench_output_place(const attn_problem *problem, const attn_args *args, const attn_operand *output,
                           const bench_expected_row *row, int64_t d);
double bench_output_value(const attn_problem *problem, const attn_args *args, const attn_operand *output,
                          const bench_expected_row *row, int64_t d);

/* ---- The verdict -------------------------------------------------------------------------------------------------- */

typedef enum bench_status {
  BENCH_PASS,
  BENCH_FAIL,
  BENCH_SKIP,       /* not run: the reason says why */
  BENCH_DEGENERATE, /* right, but an answer without work would pass as well (zeros, ...): never timed */
  BENCH_ERROR,      /* the library returned an error, or memory ran out */
} bench_status;

extern const char *const bench_status_names[]; /* "PASS" ..., ended by NULL */
#define bench_status_name(status) bench_status_names[status]

typedef struct bench_verdict {
  bench_status status;
  int64_t rows_checked;
  double max_err_ratio; /* largest error / limit over all checked outputs and LSEs; > 1 fails; INFINITY where only one of
                           output and answer is finite, or NaN */
  double max_abs_err;
  int64_t err_index[4]; /* batch, head, query, column of max_err_ratio; column -1 is the LSE */
  uint64_t output_hash; /* bench_check: of the output that was checked; timing compares every later output with it */
  bool approximate;     /* the kernel declares larger errors than rounding: see bench_is_approximate */
  char reference[32];   /* the kernel whose answer all other elements were compared with; "" where the oracle computed all */
  unsigned structure;   /* structural tests that ran on the case: bit n is test n of structure.h */
  char reason[400];     /* one sentence; "" on PASS */
} bench_verdict;

/* Gives the verdict its status and its reason; false. */
#define bench_set_reason(verdict, how, ...) \
  ((verdict)->status = (how), bench_say((verdict)->reason, sizeof(verdict)->reason, __VA_ARGS__))

/* Compares o (and lse) in args with the expected rows under the kernel's declared numerics. Never SKIP. */
bench_verdict bench_check_values(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics);

/* The same for an implementation that stores outputs with the relative error store_error, if that is larger than the
 * error of rounding to nearest. */
bench_verdict bench_check_stored_values(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics,
                                        double store_error);

/* Runs the plan on poisoned output and checks it: error limits, guard zones, elements that nobody wrote, inputs, a second
 * run. `workspace` fits the plan. */
bench_verdict bench_check(const attn_plan *plan, bench_tensors *tensors, const bench_expected *expected,
                          const attn_numerics *numerics, void *workspace, size_t workspace_bytes);

/* The same with a plan of another build. */
bench_verdict bench_check_build(const bench_build *build, const attn_plan *plan, bench_tensors *tensors,
                                const bench_expected *expected, const attn_numerics *numerics, void *workspace,
                                size_t workspace_bytes);

/* Compares one row of o (and lse) in args, which `random` chooses, with the oracle: PASS, or FAIL, or ERROR if memory is
 * short. */
bench_verdict bench_check_row(const attn_problem *problem, const attn_args *args, const attn_numerics *numerics,
                              bool zero_mean, uint64_t random);

/* The same for the row that differs most from another kernel's answer, if it differs by more than rounding explains; PASS
 * without the oracle if none does. Quicker than one of the oracle's rows where a few rows see many keys. Where no other
 * kernel answers: for a row that `random` chooses. */
bench_verdict bench_check_odd_row(const attn_problem *problem, const attn_args *args, const attn_numerics *numerics,
                                  bool zero_mean, uint64_t random, const attn_kernel_info *kernel, int threads);

/* ---- The reference ------------------------------------------------------------------------------------------------ */
/* Rows that the oracle did not compute are compared with the answer of another kernel, the reference. Where the two differ,
 * the oracle computes the row and decides. */

/* Runs the plan in a workspace of its own, full of garbage. */
attn_status bench_run_once(const attn_plan *plan, const attn_args *args);

/* Compares the rows of o (and lse) in args that are not in `expected`, if there are any. PASS; FAIL with the oracle's value;
 * ERROR where there is no reference. kernel: the one that computed o, so that the reference is another; or NULL. */
bench_verdict bench_check_other_values(const bench_expected *expected, const attn_args *args, const attn_numerics *numerics,
                                       const attn_kernel_info *kernel);

#endif
