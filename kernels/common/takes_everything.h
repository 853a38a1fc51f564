/* SPDX-License-Identifier: MIT */
/* `rejects` of kernels that take every problem. */
#ifndef ATTN_COMMON_TAKES_EVERYTHING_H
#define ATTN_COMMON_TAKES_EVERYTHING_H

#include "kernels/kernel.h"

static inline const char *takes_everything(const attn_problem *problem, char *buffer, size_t buffer_bytes) {
  (void)problem, (void)buffer, (void)buffer_bytes;
  return NULL;
}

#endif
