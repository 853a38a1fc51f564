/* SPDX-License-Identifier: MIT */
/* Checks of a tensor's strides. */
#include "src/api/strides.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "src/api/error.h"

/* The farthest offset from the first element, in elements; false on overflow. */
static bool reach(const attn_axis *axes, int64_t *farthest) {
  *farthest = 0;
  for (int i = 0; i < 4; i++) {
    int64_t steps, size = axes[i].size > 0 ? axes[i].size - 1 : 0, stride = axes[i].stride;
    if (stride == INT64_MIN || __builtin_mul_overflow(size, stride < 0 ? -stride : stride, &steps)) return false;
    if (__builtin_add_overflow(*farthest, steps, farthest)) return false;
  }
  return *farthest <= ATTN_ELEMENT_LIMIT;
}

static attn_status check_reach(const char *field, const attn_axis *axes) {
  int64_t farthest;
  if (reach(axes, &farthest)) return ATTN_OK;
  return attn_fail(ATTN_INVALID_ARGUMENT,
                   "%s = {%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64
                   "} reaches beyond 2^60 elements; shape and strides must describe an addressable tensor",
                   field, axes[0].stride, axes[1].stride, axes[2].stride, axes[3].stride);
}

/* Sorted by |stride|, each axis must step over all that the smaller ones reach. */
static attn_status check_overlap(const char *field, const attn_axis *axes) {
  for (int i = 0; i < 4; i++)
    if (axes[i].name && axes[i].size == 0) return ATTN_OK; /* no elements; dense strides are then 0 */
  attn_axis sorted[4];
  memcpy(sorted, axes, sizeof sorted);
  for (int i = 0; i < 4; i++)
    for (int j = i + 1; j < 4; j++)
      if (llabs(sorted[j].stride) < llabs(sorted[i].stride)) {
        attn_axis other = sorted[i];
        sorted[i] = sorted[j];
        sorted[j] = other;
      }
  int64_t covered = 0;
  for (int i = 0; i < 4; i++) {
    if (sorted[i].size <= 1) continue;
    if (llabs(sorted[i].stride) <= covered)
      return attn_fail(ATTN_INVALID_ARGUMENT, "%s.%c is %" PRId64 "; elements would overlap: it must be beyond +-%" PRId64,
                       field, sorted[i].name, sorted[i].stride, covered);
    covered += (sorted[i].size - 1) * llabs(sorted[i].stride);
  }
  return ATTN_OK;
}

/* Rows begin with a block, and blocks of a row adjoin. */
static attn_status check_blocks(const attn_tensor *t) {
  for (int i = 0; i < 3 && t->values > 1; i++)
    if (t->axes[i].size > 1 && t->axes[i].stride % t->values)
      return attn_fail(ATTN_INVALID_ARGUMENT,
                       "%s.%c is %" PRId64
                       "; it must be a multiple of %d, because a type of blocks of so many elements is "
                       "stored there",
                       t->field, t->axes[i].name, t->axes[i].stride, t->values);
  if (t->values > 1 && t->axes[3].size > 1 && t->axes[3].stride != 1)
    return attn_fail(ATTN_INVALID_ARGUMENT,
                     "%s.%c is %" PRId64 "; it must be 1, because a type of blocks of %d elements is stored there", t->field,
                     t->axes[3].name, t->axes[3].stride, t->values);
  return ATTN_OK;
}

attn_status attn_check_strides(const attn_tensor *tensor) {
  attn_status status = check_reach(tensor->field, tensor->axes);
  if (status == ATTN_OK) status = check_blocks(tensor);
  return status == ATTN_OK && tensor->output ? check_overlap(tensor->field, tensor->axes) : status;
}
