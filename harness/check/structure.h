/* SPDX-License-Identifier: MIT */
/* Structural tests: what must hold between several runs of one kernel, whatever the right answer is.
 *
 * Each runs a part of the case's problem, or the same problem in another form (other threads, one sequence alone, fewer
 * rows, keys in another order ...). It compares the answers bit by bit or within the limits of docs/numerics.md.
 * bench_check() already compares two runs on the same inputs. */
#ifndef BENCH_STRUCTURE_H
#define BENCH_STRUCTURE_H

#include "check/check.h"

/* STRUCTURE_TEST(name, what must hold) */
#define BENCH_STRUCTURE_LIST(STRUCTURE_TEST)                                                                    \
  STRUCTURE_TEST(threads, "other numbers of threads give the same bits")                                        \
  STRUCTURE_TEST(batch, "a sequence alone gives the bits it gives in its batch, however lengths are told")      \
  STRUCTURE_TEST(rows, "a few rows alone give what they give among all, our own kernels in every bit")          \
  STRUCTURE_TEST(poison, "what stands in elements that no row may see changes no bit")                          \
  STRUCTURE_TEST(neighbours, "a NaN reaches every row that may see it, and leaves the others within the limit") \
  STRUCTURE_TEST(probe, "equal scores give every allowed key 1 / count and every other key exactly 0")          \
  STRUCTURE_TEST(convex, "outputs lie between the least and the largest allowed value")                         \
  STRUCTURE_TEST(permutation, "keys in another order give the same answer")                                     \
  STRUCTURE_TEST(heads, "KV heads repeated for each query head give the answer of grouped heads")               \
  STRUCTURE_TEST(partition, "partial answers over disjoint keys merge into the whole")                          \
  STRUCTURE_TEST(pieces, "keys in pieces, one after the other, give the bits of one call")

#define BENCH_STRUCTURE_ENUM(name, what) BENCH_STRUCTURE_##name,
typedef enum bench_structure_test { BENCH_STRUCTURE_LIST(BENCH_STRUCTURE_ENUM) BENCH_STRUCTURE_TESTS } bench_structure_test;
#undef BENCH_STRUCTURE_ENUM

const char *bench_structure_name(bench_structure_test test);

/* The kernel under test: how to get a plan of it, and what it declares. */
typedef struct bench_subject {
  attn_status (*create_plan)(const void *context, const attn_problem *problem, const attn_options *options,
                             attn_plan **plan);
  const void *context; /* create_plan's, which adds the kernel to the options */
  const attn_numerics *numerics;
  /* A row's bits depend neither on the rows beside it nor on the size of the problem. True of all kernels but those of
   * libraries. */
  bool rows_stand_alone;
} bench_subject;

/* Runs the tests of the set (bit n: test n) on a case whose output in `tensors` the kernel has just computed. Tests that
 * mean nothing for the problem, or whose other problem the kernel refuses, are left out; *ran tells which were not. PASS,
 * or FAIL or ERROR with the name of the test in the reason. Inputs are only read; outputs hold their values again
 * afterwards. */
bench_verdict bench_structure_check(const bench_subject *subject, bench_tensors *tensors, const bench_expected *expected,
                                    uint64_t seed, unsigned set, unsigned *ran);

#endif
