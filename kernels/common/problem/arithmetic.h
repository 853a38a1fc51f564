/* SPDX-License-Identifier: MIT */
/* Integer arithmetic on sizes, which are int64_t everywhere. Multiples and divisors are positive, x is not negative. */
#ifndef ATTN_COMMON_ARITHMETIC_H
#define ATTN_COMMON_ARITHMETIC_H

#include <stdint.h>

static inline int64_t min64(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t max64(int64_t a, int64_t b) { return a > b ? a : b; }
static inline int64_t ceil_div(int64_t x, int64_t divisor) { return (x + divisor - 1) / divisor; }
static inline int64_t round_up(int64_t x, int64_t multiple) { return (x + multiple - 1) / multiple * multiple; }
static inline int64_t round_down(int64_t x, int64_t multiple) { return x / multiple * multiple; }

#endif
