/* SPDX-License-Identifier: MIT */
/* Shared by the unit tests: tensors of one problem with seeded values, and one call that plans and runs a kernel. */
#ifndef TESTS_SUPPORT_H
#define TESTS_SUPPORT_H

/* cmocka.h needs these four before it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "attn/attn.h"

/* Defines a unit test: TEST(name) { ... }. main() in tests/support/unit_main.c runs a program's tests in the order of
 * definition. A file may define TEST_SETUP and TEST_TEARDOWN before it includes this one; they run before and after each
 * test. */
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

/* Fewer or smaller cases are wanted: under sanitizers and on imitated machines, unless with `scripts/test.sh --long`. */
bool test_few(void);

/* Runs before the tests; a file may define its own. A result other than 0 ends the program with that exit code (77:
 * skipped). */
int test_begin(char **arguments);

/* Defines a unit test that calls check(kernel name) as test_each_kernel() does. */
#define KERNEL_TEST(check) \
  TEST(each_##check) { test_each_kernel(check); }

/* Tensors of a problem with strides >= 0. o and lse begin as a byte pattern that no kernel writes. */
typedef struct test_data {
  attn_args args;
  size_t o_bytes, lse_bytes; /* from the first to the last element that the strides reach */
} test_data;

test_data test_data_create(const attn_problem *problem, unsigned seed);
void test_data_destroy(test_data *data);

/* Fills `count` floats, uniform in -1..1, from the seed. */
void test_fill(float *values, size_t count, unsigned seed);

/* Every tier of this CPU, lowest first: their number. */
int test_tiers(char names[16][16]);

/* `count` elements of the type from floats, freed by the caller; back to floats; and both, in place. */
void *test_narrow(const float *floats, size_t count, attn_dtype dtype);
void test_widen(const void *elements, size_t count, attn_dtype dtype, float *floats);
void test_round(float *floats, size_t count, attn_dtype dtype);

/* New outputs o and lse for the same inputs. */
test_data test_data_share_inputs(const attn_problem *problem, const test_data *inputs);
void test_data_destroy_outputs(test_data *data);

/* Plans with `options`, allocates the workspace, runs; returns the first status that is not ATTN_OK. */
attn_status test_run(const attn_problem *problem, const attn_args *args, const attn_options *options);

/* Fails the test with attn_last_error() unless the status is ATTN_OK. */
void test_ok(attn_status status);

/* Fails the test unless `text` contains `part`. */
void test_contains(const char *text, const char *part);

/* Fails the test unless the status is the expected one and attn_last_error() contains every part in this order (up to the
 * first NULL). */
void test_refused_by_parts(attn_status status, attn_status expected, const char *const parts[4]);

/* The same, with one to four parts as arguments. test_invalid expects ATTN_INVALID_ARGUMENT. */
#define test_refused(status, expected, ...) test_refused_by_parts(status, expected, (const char *const[4]){__VA_ARGS__})
#define test_invalid(status, ...)           test_refused(status, ATTN_INVALID_ARGUMENT, __VA_ARGS__)

/* Changes `bad`, a copy of `good`; fails unless `call` refuses it by a sentence with `part` and leaves `result` NULL. */
#define TEST_REFUSES(type, good, change, call, result, part) \
  do {                                                       \
    type bad = good;                                         \
    change;                                                  \
    test_invalid(call, part);                                \
    assert_null(result);                                     \
  } while (0)

/* The number of elements of an array. */
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* True if the kernel promises that the bits of a row do not depend on its neighbours. If not, prints that it is skipped. */
bool test_rows_stand_alone(const char *kernel);

/* Changes types of the problem if the kernel does not take float32: all to bfloat16, or those of K and V to int8. Returns
 * whether it did. */
bool test_fit_types(const char *kernel, attn_problem *problem);

/* True if the kernel belongs to a library and rejects the problem; prints why. Our own kernels must take it. */
bool test_library_refuses(const char *kernel, const attn_problem *problem);

/* Calls check(kernel name) for every kernel of attention, or of an operation, that this CPU runs. Fails if there is none. */
void test_each_kernel(void (*check)(const char *kernel));
void test_each_kernel_of(attn_operation operation, void (*check)(const char *kernel));

/* Keeps what is written to stdout or stderr from now on, until test_heard() returns it: up to 3999 bytes, valid until the
 * next call. */
void test_listen(FILE *stream);
const char *test_heard(void);

/* Fails unless each part of a time is above 0, their sum is at most the whole, and this what the program has run so far. */
#define test_times(whole_ns, ...) \
  test_times_of(whole_ns, COUNT(((const double[]){__VA_ARGS__})), (const double[]){__VA_ARGS__})
void test_times_of(double whole_ns, size_t count, const double *parts_ns);

/* From now on the machine has eight CPUs in NUMA nodes of consecutive ones, and worker w runs on CPU w modulo 8; 0 nodes: it
 * is this machine. */
void test_pretend_nodes(int nodes);

/* 64-byte aligned and zeroed; never NULL. free() it. */
void *test_allocate(size_t bytes);

#endif
