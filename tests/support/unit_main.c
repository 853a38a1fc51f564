/* SPDX-License-Identifier: MIT */
/* main() of the unit tests that support.h's TEST defines. */
#include <stdlib.h>

#include "tests/support/support.h"

static struct CMUnitTest tests[96];
static size_t count;

void test_add(struct CMUnitTest test) {
  if (count == COUNT(tests)) abort();
  tests[count++] = test;
}

__attribute__((weak)) int test_begin(char **arguments) { return (void)arguments, 0; }

int main(int argument_count, char **arguments) {
  (void)argument_count;
  const int code = test_begin(arguments);
  return code ? code : _cmocka_run_group_tests("tests", tests, count, NULL, NULL);
}
