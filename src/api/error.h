/* SPDX-License-Identifier: MIT */
/* Errors: a status code for the program, one sentence for the person. */
#ifndef ATTN_ERROR_H
#define ATTN_ERROR_H

#include "attn/extend.h" /* attn_fail */

/* In a function that returns an attn_status: a condition on what the caller gave, and the sentence if it does not hold. */
#define REQUIRE(condition, ...) \
  if (!(condition)) return attn_fail(ATTN_INVALID_ARGUMENT, __VA_ARGS__)

#endif
