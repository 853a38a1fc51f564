/* SPDX-License-Identifier: MIT */
/* Errors: a status code for the program, one sentence for the person. */
#ifndef ATTN_ERROR_H
#define ATTN_ERROR_H

#include <stdint.h>

#include "attn/extend.h" /* attn_fail */
#include "attn/kernel.h" /* ATTN_MEMORY_ALIGN */

/* In a function that returns an attn_status: a condition on what the caller gave, and the sentence if it does not hold. */
#define REQUIRE(condition, ...) \
  if (!(condition)) return attn_fail(ATTN_INVALID_ARGUMENT, __VA_ARGS__)

/* The workspace of a run of `what`, whose size `what`_workspace tells. */
static inline attn_status attn_check_workspace(const char *what, const void *workspace, size_t bytes, size_t needed) {
  if (needed == 0) return ATTN_OK;
  if (!workspace || bytes < needed)
    return attn_fail(ATTN_WORKSPACE_TOO_SMALL, "workspace is %p with %zu bytes; %s needs %zu (%s_workspace)", workspace,
                     workspace ? bytes : 0, what, needed, what);
  if ((uintptr_t)workspace % ATTN_MEMORY_ALIGN)
    return attn_fail(ATTN_WORKSPACE_TOO_SMALL, "workspace is %p; it must be aligned to %d bytes", workspace,
                     ATTN_MEMORY_ALIGN);
  return ATTN_OK;
}

#endif
