/* SPDX-License-Identifier: MIT */
/* malloc() fails when `allocations_left` have succeeded. For programs that are linked with --wrap=malloc. */
#ifndef TESTS_FAILING_MALLOC_H
#define TESTS_FAILING_MALLOC_H

#include <stddef.h>

static int allocations_left = -1; /* -1: no limit */

void *__real_malloc(size_t bytes);
void *__wrap_malloc(size_t bytes);

void *__wrap_malloc(size_t bytes) {
  if (allocations_left == 0) return NULL;
  if (allocations_left > 0) allocations_left--;
  return __real_malloc(bytes);
}

#endif
