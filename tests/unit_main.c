/* SPDX-License-Identifier: MIT */
/* main() of the unit tests that support.h's TEST defines. */
#include <stdlib.h>

#include "support.h"

static struct CMUnitTest tests[64];
static size_t count;

void test_add(struct CMUnitTest test) {
  if (count == COUNT(tests)) abort();
  tests[count++] = test;
}

__attribute__((weak)) int test_begin(char **arguments) { return (void)arguments, 0; }

/* Leaves something else than zeros where a test may read what nobody has written. */
static __attribute__((noinline)) void fill_stack(void) {
  volatile unsigned char bytes[1 << 18];
  for (size_t i = 0; i < sizeof bytes; i++) bytes[i] = 0x7f;
}

int main(int argument_count, char **arguments) {
  (void)argument_count;
  const int code = test_begin(arguments);
  fill_stack();
  return code ? code : _cmocka_run_group_tests("tests", tests, count, NULL, NULL);
}
