/* SPDX-License-Identifier: MIT */
/* Checks kernels, registered or not, in the way of `attnbench check`: tensors, oracle, bench_check(). */
#ifndef TESTS_KERNEL_CHECKS_H
#define TESTS_KERNEL_CHECKS_H

#include "attn/kernel.h"
#include "cases/cases.h"
#include "check/check.h"
#include "check/structure.h"

/* The cases of a preset or suite by its name, or of a text in the format of harness/cases/presets, without invalid ones.
 * Exits with a message if they cannot be read. */
bench_case_list checks_suite(const char *name);
bench_case_list checks_cases(const char *text);

/* The oracle's answer. Exits if there is no memory for it. */
bench_expected *checks_expected(const bench_case *bench, const bench_tensors *tensors);

/* Plans for `threads`, runs on a workspace full of NaN and compares. SKIP if the kernel refuses the case. */
bench_verdict checks_kernel(const attn_kernel *kernel, int threads, bench_tensors *tensors, const bench_expected *expected);

/* One structural test on a case, whatever the verdict on its values. SKIP if the kernel refuses the case, DEGENERATE if the
 * test does not apply to it. */
bench_verdict checks_structure(const attn_kernel *kernel, bench_structure_test test, const bench_case *bench,
                               bench_tensors *tensors, const bench_expected *expected);

#endif
