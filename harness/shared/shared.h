/* SPDX-License-Identifier: MIT */
/* libattnbench: what the harness measures and checks with, for programs that are not attnbench. scripts/peers loads it into
 * the process of another library, so that both sides are checked, timed and compared as attnbench does. All functions take
 * numbers and arrays only, which suits a foreign-function interface. */
#ifndef ATTNBENCH_SHARED_H
#define ATTNBENCH_SHARED_H

#include <stddef.h>
#include <stdint.h>

#define ATTNBENCH_API __attribute__((visibility("default")))

/* ---- Statistics (timing/stats.h) --------------------------------------------------------------------------------- */

/* summary: minimum, median, median absolute deviation, low and high end of the median's 95 % interval (NaN if n < 6). */
ATTNBENCH_API void attnbench_summarise(const double *values, int n, double summary[5]);

/* The ratio of a / b over n rounds, of which round r is in placement r / length % places (0: each in its own). ran: which
 * part of its time each had its cores, or NULL; rounds in which other programs took them do not count.
 * summary: as before, but in place of the median the mean over the placements and its interval; then its p-value. */
ATTNBENCH_API void attnbench_paired_ratio(const double *a, const double *b, const double *ran_a, const double *ran_b, int n,
                                          int places, int length, double summary[6]);

/* Replaces the n p-values by those that Holm's method adjusts. 0 if memory is short. */
ATTNBENCH_API int attnbench_holm(double *p, int n);

/* Row r of square[n][n] is the order of round r (timing/stats.h). 0 if memory is short. */
ATTNBENCH_API int attnbench_latin_square(int *square, int n, uint64_t seed, int block);

/* ---- Handlers of signals (base/handlers.h) ----------------------------------------------------------------------- */

/* Those that are there now belong to no function that is timed. Then the number of a signal that has another one, and is
 * ignored from now on; 0: none has. */
ATTNBENCH_API void attnbench_handlers_note(void);
ATTNBENCH_API int attnbench_handlers_other(void);

/* ---- Cases (cases/case.h) ----------------------------------------------------------------------- */

enum { ATTNBENCH_ID = 480 };

/* Writes the values of "axis=values" (as for attnbench -a) with commas between, ranges written out. Returns 0 if the axis or
 * a value is wrong, or `bytes` are too few; `values` is then a sentence that says so. */
ATTNBENCH_API int attnbench_axis(const char *assignment, char *values, size_t bytes);

/* The case of `count` texts "axis=value". sizes: as in attnbench_problem. work: floating-point operations
 * and bytes of one call. 0 if an axis or a value is wrong, no kernel can take the case, or it has masks, offsets, or lengths
 * without pages; id is then the sentence that says so. */
ATTNBENCH_API int attnbench_case(const char *const *axes, int count, char id[ATTNBENCH_ID], int64_t sizes[7],
                                 double work[2]);

/* How many queries and keys each of the `batch` sequences of a case has. 0 if there is no such case. */
ATTNBENCH_API int attnbench_lengths(const char *const *axes, int count, int batch, int32_t *queries, int32_t *keys);

/* The name of an attn_dtype, NULL behind the last one. facts: bytes of an element, rounding unit. */
ATTNBENCH_API const char *attnbench_dtype(int dtype, double facts[2]);

/* ---- The oracle (check/check.h) ---------------------------------------------------------------------------------- */

/* The right output of one problem, in float64. */
typedef struct attnbench_expected attnbench_expected;

/* Dense zero-mean inputs [batch][heads][seq][dim], and the problem that they belong to. With v = k each row of V is the
 * beginning of K's (latent rows). */
typedef struct attnbench_problem {
  int64_t sizes[7];      /* batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v */
  int dtype, dtype_kv;   /* an attn_dtype, of Q and the output, and one of K and V */
  int align;             /* an attn_align of a causal problem; -1 if it is not causal */
  int with_lse;          /* whether attnbench_compare() will get an LSE */
  const void *q, *k, *v; /* must outlive the result of attnbench_expected_create() */
  uint64_t seed;         /* draws a part of the rows that are checked where a problem is large */
} attnbench_problem;

/* NULL if memory is short. */
ATTNBENCH_API attnbench_expected *attnbench_expected_create(const attnbench_problem *problem);
ATTNBENCH_API void attnbench_expected_destroy(attnbench_expected *expected);

/* Compares a dense output, and its dense LSE (NULL without). arithmetic: exp_error, p_rounding, input_flush,
 * input_rounding and query_rounding of attn_numerics, and the relative error of storing an output (0: it rounds to
 * nearest). Returns the largest error / limit: at most 1 passes. *abs_error: the largest error. where: batch, head, query
 * and column of the largest ratio, then the number of rows checked. */
ATTNBENCH_API double attnbench_compare(const attnbench_expected *expected, const void *o, const float *lse,
                                       const double arithmetic[6], double *abs_error, int64_t where[5]);

/* ---- Peaks (timing/rates.h) ---------------------------------------------------------------------------------- */

/* The multiply-add loop of the highest tier that this CPU runs, for inputs of `dtype` ("f32", "bf16", "f16"; its f32 loop
 * where the tier has no other), in slices of about slice_ns on `threads` threads at once. NULL without memory or without a
 * loop. */
typedef struct attnbench_peak attnbench_peak;
ATTNBENCH_API attnbench_peak *attnbench_peak_open(const char *dtype, int threads, double slice_ns);
ATTNBENCH_API void attnbench_peak_close(attnbench_peak *peak);

/* "avx2 f32: fma, 256 bit"; valid until attnbench_peak_close(). */
ATTNBENCH_API const char *attnbench_peak_name(const attnbench_peak *peak);

/* Flop/s of all threads together in one slice. */
ATTNBENCH_API double attnbench_peak_rate(const attnbench_peak *peak);

/* Bytes/s at which `threads` threads together read two arrays, such as K and V, in equal parts, with the widest loads of
 * this CPU, in one of three orders (timing/reading.h). 0 without a loop or such an order, or if memory is short. */
ATTNBENCH_API double attnbench_read_rate(const void *first, size_t first_bytes, const void *second, size_t second_bytes,
                                         int threads, int order);

#endif
