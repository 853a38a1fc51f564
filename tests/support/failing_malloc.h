/* SPDX-License-Identifier: MIT */
/* Allocations fail when `allocations_left` have succeeded; `blocks_held` counts those that are not freed. For programs that
 * are linked with --wrap= for each function. */
#ifndef TESTS_FAILING_MALLOC_H
#define TESTS_FAILING_MALLOC_H

#include <errno.h>
#include <stdbool.h>
#include <stddef.h>

#ifndef TEST_SETUP
#define TEST_SETUP note_blocks
#endif
#ifndef TEST_TEARDOWN
#define TEST_TEARDOWN expect_no_blocks
#endif
#include "tests/support/support.h"

static int allocations_left = -1; /* -1: no limit */
static _Atomic int blocks_held;
static _Atomic size_t last_aligned_bytes; /* those of aligned_alloc */

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *old, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
int __real_posix_memalign(void **block, size_t alignment, size_t bytes);
void __real_free(void *block);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
int __wrap_posix_memalign(void **block, size_t alignment, size_t bytes);
void __wrap_free(void *block);

static bool may_allocate(void) { return allocations_left < 0 || (allocations_left > 0 && allocations_left--); }

static void *hold(void *block) {
  blocks_held += block != NULL;
  return block;
}

void *__wrap_malloc(size_t bytes) { return may_allocate() ? hold(__real_malloc(bytes)) : NULL; }
void *__wrap_calloc(size_t count, size_t bytes) { return may_allocate() ? hold(__real_calloc(count, bytes)) : NULL; }
void *__wrap_realloc(void *old, size_t bytes) {
  void *block = may_allocate() ? __real_realloc(old, bytes) : NULL;
  blocks_held += block && !old;
  return block;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  last_aligned_bytes = bytes;
  return may_allocate() ? hold(__real_aligned_alloc(alignment, bytes)) : NULL;
}

int __wrap_posix_memalign(void **block, size_t alignment, size_t bytes) {
  const int error = may_allocate() ? __real_posix_memalign(block, alignment, bytes) : ENOMEM;
  blocks_held += !error;
  return error;
}

void __wrap_free(void *block) {
  blocks_held -= block != NULL;
  __real_free(block);
}

static int blocks_before;

/* TEST_SETUP and TEST_TEARDOWN, unless a file has its own: no test keeps memory. */
static inline int note_blocks(void **state) { return (void)state, blocks_before = blocks_held, 0; }

static inline int expect_no_blocks(void **state) {
  if (blocks_held != blocks_before) print_error("%d blocks are kept\n", blocks_held - blocks_before);
  return (void)state, blocks_held != blocks_before;
}

#endif
