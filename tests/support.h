/* SPDX-License-Identifier: MIT */
/* What the unit tests share: tensors of one problem with seeded values, and one call that plans and runs a kernel. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

/* cmocka.h needs these four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "attn/attn.h"

/* Defines a unit test: TEST(name) { ... }. main() of tests/unit_main.c runs those of a program in the order of definition,
 * each between TEST_SETUP and TEST_TEARDOWN, which a file may define. */
#define TEST(name)                                                               \
  static void name(void **state);                                                \
  __attribute__((constructor)) static void add_##name(void) {                    \
    test_add((struct CMUnitTest){#name, name, TEST_SETUP, TEST_TEARDOWN, NULL}); \
  }                                                                              \
  static void name(void **state __attribute__((unused)))
#ifndef TEST_SETUP
#define TEST_SETUP NULL
#endif
#ifndef TEST_TEARDOWN
#define TEST_TEARDOWN NULL
#endif
void test_add(struct CMUnitTest test);

/* Runs before the tests. A file may define it: any other code than 0 is the program's exit code; 77 means skipped. */
int test_begin(char **arguments);

/* Defines a unit test that calls check(kernel name) as test_each_kernel() does. */
#define KERNEL_TEST(check) \
  TEST(each_##check) { test_each_kernel(check); }

/* Float32 tensors of a problem with strides >= 0. o and lse start as a byte pattern no kernel writes. */
typedef struct test_data {
  attn_args args;
  size_t o_bytes, lse_bytes; /* what the strides reach */
} test_data;

test_data test_data_create(const attn_problem *problem, unsigned seed);
void test_data_destroy(test_data *data);

/* Fills `count` floats, uniform in -1..1, from the seed. */
void test_fill(float *values, size_t count, unsigned seed);

/* Another set of outputs for the same inputs: only o and lse are new. */
test_data test_data_share_inputs(const attn_problem *problem, const test_data *inputs);
void test_data_destroy_outputs(test_data *data);

/* Plans with `options`, allocates the workspace, runs; returns the first status that is not ATTN_OK. */
attn_status test_run(const attn_problem *problem, const attn_args *args, const attn_options *options);

/* Fails the test with attn_last_error() unless the status is ATTN_OK. */
void test_ok(attn_status status);

/* Fails the test unless `text` contains `part`. */
void test_contains(const char *text, const char *part);

/* Fails the test unless the call failed with this status and a sentence that contains every part (NULL: no more). */
void test_refused(attn_status status, attn_status expected, const char *const parts[4]);

/* Whether the kernel promises that a row's bits do not depend on where the row stands among others; says so if not. */
bool test_rows_stand_alone(const char *kernel);

/* Makes all types of the problem bfloat16 where the kernel takes no float32, as in tiers whose products are of bf16; true if
 * so. */
bool test_fit_types(const char *kernel, attn_problem *problem);

/* Whether the kernel stands on a library and refuses the problem, which our own must take; says so if it does. */
bool test_library_refuses(const char *kernel, const attn_problem *problem);

/* Calls check(kernel name) for every kernel this CPU can run; at least one must exist. */
void test_each_kernel(void (*check)(const char *kernel));

/* 64-byte aligned and zeroed; never NULL. free() it. */
void *test_allocate(size_t bytes);

#endif
