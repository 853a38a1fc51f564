/* SPDX-License-Identifier: MIT */
/* The rounding errors that each kernel declares are true, and at most about twice as large as the real ones. Two keys with
 * the scores 0 and -x and one-hot V give two outputs; their quotient is the kernel's exp(-x), rounded if the kernel rounds
 * P. And no weight is denormal. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "data/generate.h"
#include "kernels/ref/oracle_f64.h"
#include "tests/support/support.h"

enum { ROWS = 512, DIM = 8, PIECES = 3, HALVINGS = 26 };

/* The error of the quotient without any error of exp: roundings of the score, of the sum and of two stored outputs. */
static const double NOISE = 4 * 0x1p-24;

/* ROWS sequences with one query each, so that kernels for few queries take them too. All share two keys. */
static attn_problem probe_problem(attn_dtype dtype) {
  attn_problem p;
  attn_problem_init(&p, ROWS, 1, 1, 1, 2, DIM, DIM);
  p.scale = 1;
  p.k_stride.b = p.v_stride.b = 0;
  p.dtype_q = p.dtype_kv = dtype;
  return p;
}

/* Writes float32 x as a sum of pieces that the type holds. */
static void store_pieces(void *q, attn_dtype dtype, int64_t at, double x) {
  double left = (double)(float)x;
  for (int n = 0; n < PIECES; n++) {
    bench_store(q, dtype, at + n, left);
    left -= attn_oracle_load(q, dtype, at + n);
  }
}

/* The kernel's exp(-x) for the x of each row. */
static void weigh(const char *kernel, const attn_problem *p, const double *x, double *weight) {
  static float o[ROWS][DIM];
  char *q = test_allocate(ROWS * DIM * sizeof(float)), *k = test_allocate(2 * DIM * sizeof(float)),
       *v = test_allocate(2 * DIM * sizeof(float));
  for (int n = 0; n < ROWS; n++) store_pieces(q, p->dtype_q, n * DIM, x[n]);
  for (int n = 0; n < PIECES; n++) bench_store(k, p->dtype_kv, DIM + n, -1);
  bench_store(v, p->dtype_kv, 0, 1);
  bench_store(v, p->dtype_kv, DIM + 1, 1);
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);
  test_ok(test_run(p, &args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
  for (int n = 0; n < ROWS; n++) weight[n] = (double)o[n][1] / (double)o[n][0];
  free(q);
  free(k);
  free(v);
}

/* Largest relative error of the weights for x in 0 .. 2: more than two periods of exp2's polynomial. */
static double measure_weights(const char *kernel, const attn_problem *p) {
  double x[ROWS], weight[ROWS], worst = 0;
  for (int n = 0; n < ROWS; n++) x[n] = (double)(float)(2.0 * n / ROWS);
  weigh(kernel, p, x, weight);
  for (int n = 0; n < ROWS; n++) worst = fmax(worst, fabs(weight[n] * exp(x[n]) - 1));
  return worst;
}

/* The same for exp alone, where P is rounded to steps of 2 u_p: bisection finds the x at which a weight jumps; exp(-x)
 * should lie in the middle between two steps there. */
static double measure_exp(const char *kernel, const attn_problem *p, double p_rounding) {
  double middle[ROWS], low[ROWS], high[ROWS], x[ROWS], weight[ROWS], worst = 0;
  for (int n = 0; n < ROWS; n++) {
    middle[n] = 0.5 + p_rounding * (0.5 + n % (int)(0.5 / p_rounding));
    low[n] = -log(middle[n]) - p_rounding / 4;
    high[n] = -log(middle[n]) + p_rounding / 4;
  }
  for (int halving = 0; halving < HALVINGS; halving++) {
    for (int n = 0; n < ROWS; n++) x[n] = (low[n] + high[n]) / 2;
    weigh(kernel, p, x, weight);
    for (int n = 0; n < ROWS; n++) *(weight[n] > middle[n] ? &low[n] : &high[n]) = x[n];
  }
  for (int n = 0; n < ROWS; n++) worst = fmax(worst, fabs(middle[n] * exp((low[n] + high[n]) / 2) - 1));
  return worst;
}

/* Fails unless the declared error is at least the measured one and at most about twice as large. */
static void compare(const char *kernel, const char *what, double declared, double measured) {
  print_message("%-16s %-10s declared %.3g, measured %.3g\n", kernel, what, declared, measured);
  if (measured > declared + NOISE || declared > 2 * measured + NOISE)
    fail_msg("%s declares %s %.3g, but %.3g is measured", kernel, what, declared, measured);
}

static bool takes(const attn_kernel_info *info, attn_dtype dtype) {
  const attn_problem p = probe_problem(dtype);
  return !attn_kernel_rejects(info, &p);
}

/* Where products round their inputs: scores of at most 2, and two weights, err by that as well. */
static void check_rounded_inputs(const attn_kernel_info *info, const attn_problem *p) {
  const double measured = measure_weights(info->name, p), rounding = info->numerics.input_rounding;
  print_message("%-16s %-10s declared %.3g, measured %.3g\n", info->name, "inputs", rounding, measured);
  if (!(measured <= info->numerics.exp_error + 4 * rounding + NOISE) || !(measured >= rounding / 16))
    fail_msg("%s declares a rounding of inputs of %.3g, but weights are off by %.3g", info->name, rounding, measured);
}

/* For kernels that do not round P: the error of the weights is that of exp. */
static void check_exp(const attn_kernel_info *info, attn_dtype dtype) {
  const attn_problem p = probe_problem(dtype);
  if (takes(info, dtype) && info->numerics.input_rounding > 0)
    check_rounded_inputs(info, &p);
  else if (takes(info, dtype))
    compare(info->name, "exp error", info->numerics.exp_error, measure_weights(info->name, &p));
}

/* For kernels that round P. Libraries divide by the sum before they round, so both weights of a quotient are rounded. */
static void check_rounded(const attn_kernel_info *info, attn_dtype dtype) {
  const attn_problem p = probe_problem(dtype);
  const double rounding = fmin(info->numerics.p_rounding, attn_dtype_of(dtype).roundoff);
  if (!takes(info, dtype)) return;
  compare(info->name, "p rounding", rounding, measure_weights(info->name, &p) / (info->library[0] ? 2 : 1));
  if (!info->library[0]) compare(info->name, "exp error", info->numerics.exp_error, measure_exp(info->name, &p, rounding));
}

static void check_kernel(const char *kernel) {
  const attn_kernel_info *info = attn_kernel_find(kernel);
  check_exp(info, ATTN_F32);
  if (info->numerics.p_rounding > 0)
    check_rounded(info, ATTN_BF16), check_rounded(info, ATTN_F16);
  else
    check_exp(info, ATTN_BF16);
}

/* Where products take Q as integers: of two keys, one is 0, so the logarithm of the quotient is the other's score, which a
 * single element of Q makes. The first one, which its key does not read, is the largest of its row. */
static double measure_queries(const char *kernel) {
  static float q[ROWS][DIM], o[ROWS][DIM];
  static const int8_t k[2][DIM] = {{0, 1}}, v[2][DIM] = {{1, 0}, {0, 1}};
  attn_problem p = probe_problem(ATTN_F32);
  p.dtype_kv = ATTN_I8;
  double worst = 0;
  for (int n = 0; n < ROWS; n++) q[n][0] = 4, q[n][1] = (float)(4.0 * n / ROWS);
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);
  test_ok(test_run(&p, &args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
  for (int n = 0; n < ROWS; n++)
    worst = fmax(worst, fabs(log((double)o[n][0] / (double)o[n][1]) - (double)q[n][1]) / (double)q[n][0]);
  return worst;
}

static void check_queries(const char *kernel) {
  const double declared = attn_kernel_find(kernel)->numerics.query_rounding;
  if (declared > 0) compare(kernel, "queries", declared, measure_queries(kernel));
}

TEST(declared_errors_of_queries_are_true) { test_each_kernel(check_queries); }

TEST(declared_errors_are_true) { test_each_kernel(check_kernel); }

/* ---- Denormal weights ---- */

/* No weight is denormal: on some CPUs a product with one takes as long as a hundred others. Scores rise by 46, 66 in log2
 * units, from one panel of keys to the next, so the weights of the first panel end as 2^-132. V is so large there that O
 * would show them. That tells weights from shares of O only where a tile of keys is summed at once, as in flash and blocked.
 * The kernels in plain C call expf, tile units take denormals as 0, and libraries choose for themselves. */
static void check_small_weights(const char *name) {
  enum { QUERIES = 48, STEPS = 3, STEP = 64, KEYS = STEPS * STEP };
  static float q[QUERIES * DIM], k[KEYS * DIM], v[KEYS * DIM], o[QUERIES * DIM];
  const attn_kernel_info *kernel = attn_kernel_find(name);
  const bool by_tile = strcmp(kernel->algorithm, "flash") == 0 || strcmp(kernel->algorithm, "blocked") == 0;
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, QUERIES, KEYS, DIM, DIM);
  p.scale = 1;
  if (!by_tile || strcmp(kernel->isa, "c") == 0 || strcmp(kernel->isa, "amx") == 0 || kernel->library[0]) return;
  if (attn_kernel_rejects(kernel, &p)) return;
  for (int i = 0; i < QUERIES; i++) q[i * DIM] = 1;
  for (int j = 0; j < KEYS; j++) k[j * DIM] = (float)(46 * (j / STEP));
  for (int i = 0; i < STEP * DIM; i++) v[i] = 0x1p120f;
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);
  test_ok(test_run(&p, &args, &ATTN_STRUCT(attn_options, .kernel = name, .threads = 1)));
  for (int i = 0; i < QUERIES * DIM; i++)
    if (o[i] != 0) fail_msg("%s: o[%d] is %g", name, i, (double)o[i]);
}

TEST(no_weight_is_denormal) { test_each_kernel(check_small_weights); }
