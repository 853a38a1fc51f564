/* SPDX-License-Identifier: MIT */
/* Checks kernels that need not be registered by the very path that `attnbench check` uses: tensors, oracle, bench_check. */
#ifndef TESTS_KERNEL_CHECKS_H
#define TESTS_KERNEL_CHECKS_H

#include "cases/cases.h"
#include "check/check.h"
#include "check/structure.h"
#include "kernels/kernel.h"

/* The cases of a preset or suite by name, or of a text in the format of harness/cases/presets, without those that no
 * kernel could take. Exits with a message if it cannot be read. */
bench_case_list checks_suite(const char *name);
bench_case_list checks_cases(const char *text);

/* The oracle's answer; exits if memory is short. */
bench_expected *checks_expected(const bench_case *bench, const bench_tensors *tensors);

/* Plans with the case's threads (or one), runs on a workspace full of garbage, compares. SKIP where the kernel refuses. */
bench_verdict checks_kernel(const attn_kernel *kernel, int threads, bench_tensors *tensors, const bench_expected *expected);

/* One structural test on a case, whatever the verdict on its values. SKIP where the kernel refuses, DEGENERATE where the
 * test does not apply. */
bench_verdict checks_structure(const attn_kernel *kernel, bench_structure_test test, const bench_case *bench,
                               bench_tensors *tensors, const bench_expected *expected);

#endif
