/* SPDX-License-Identifier: MIT */
/* Argument checks and memory that all of libattn_nn shares. */
#define _DEFAULT_SOURCE /* MADV_HUGEPAGE */
#include "src/nn/check.h"

#include <inttypes.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "src/api/large_memory.h"
#include "src/api/wall_clock.h"

attn_status attn_nn_read(const attn_struct_layout *layout, const char *argument, const void *theirs, void *ours) {
  REQUIRE(theirs, "%s is NULL; it must point to an %s that %s has made", argument, layout->name, layout->maker);
  return attn_struct_read(layout, theirs, ours);
}

double attn_nn_now_ns(const void *profile) { return profile ? attn_wall_clock_ns() : 0; }

void attn_nn_add_times(attn_mha_profile *profile, const attn_nn_times *at) {
  if (!profile) return;
  profile->runs++;
  profile->projections_ns += (at->projected - at->begin) + (at->end - at->attended);
  profile->attention_ns += at->attended - at->projected;
  profile->total_ns += at->end - at->begin;
}

attn_status attn_nn_check_sizes(const attn_nn_size *sizes, int count) {
  const int64_t most = (int64_t)1 << 31, elements = (int64_t)1 << 58;
  for (int i = 0; i < count; i++) {
    REQUIRE(sizes[i].value >= sizes[i].least, "%s is %" PRId64 "; it must be at least %" PRId64, sizes[i].name,
            sizes[i].value, sizes[i].least);
    REQUIRE(sizes[i].value <= most, "%s is %" PRId64 "; it must be at most 2^31", sizes[i].name, sizes[i].value);
  }
  int64_t product = 1;
  for (int i = 0; i < count; i++) {
    const int64_t value = sizes[i].value > 0 ? sizes[i].value : 1;
    REQUIRE(!__builtin_mul_overflow(product, value, &product) && product <= elements,
            "%s is %" PRId64 "; multiplied with the sizes before it, it must be at most 2^58 elements", sizes[i].name,
            sizes[i].value);
  }
  return ATTN_OK;
}

attn_status attn_nn_check_pointers(const attn_nn_pointer *pointers, int count) {
  for (int i = 0; i < count; i++)
    REQUIRE(pointers[i].pointer, "%s is NULL; it must point to its elements", pointers[i].name);
  return ATTN_OK;
}

void *attn_nn_allocate(const char *purpose, size_t bytes) {
  void *memory = bytes <= SIZE_MAX / 2 ? attn_large_alloc(bytes + ATTN_MEMORY_ALIGN) : NULL;
  if (!memory) attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: %s needs %zu bytes", purpose, bytes);
  return memory;
}

void *attn_nn_new(const char *name, size_t bytes) {
  void *memory = calloc(1, bytes);
  if (!memory) attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: %s needs %zu bytes", name, bytes);
  return memory;
}

/* Before shared memory, on a line of its own. */
typedef struct owners {
  _Alignas(64) atomic_int count;
} owners;

static atomic_int *owners_of(void *memory) { return &((owners *)memory - 1)->count; }

void *attn_nn_allocate_shared(const char *purpose, size_t bytes) {
  owners *first = attn_nn_allocate(purpose, bytes <= SIZE_MAX / 2 ? sizeof *first + bytes : SIZE_MAX);
  if (!first) return NULL;
  atomic_init(&first->count, 1);
  return first + 1;
}

void *attn_nn_share(void *memory) {
  if (memory) atomic_fetch_add(owners_of(memory), 1);
  return memory;
}

void attn_nn_unshare(void *memory) {
  if (memory && atomic_fetch_sub(owners_of(memory), 1) == 1) attn_aligned_free((owners *)memory - 1);
}

attn_status attn_nn_run_once(const attn_problem *problem, const attn_args *args, const attn_options *options) {
  attn_plan *plan;
  attn_status status = attn_plan_create(problem, options, &plan);
  if (status != ATTN_OK) return status;
  const size_t bytes = attn_plan_workspace(plan);
  void *workspace = attn_nn_allocate("the workspace", bytes);
  status = workspace ? attn_plan_run(plan, args, workspace, bytes) : ATTN_OUT_OF_MEMORY;
  attn_aligned_free(workspace);
  attn_plan_destroy(plan);
  return status;
}
