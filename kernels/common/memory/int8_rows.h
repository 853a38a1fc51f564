/* SPDX-License-Identifier: MIT */
/* Rows rounded to int8: an element is the nearest integer to x times int8_steps(), and stands for that times int8_scale().
 */
#ifndef ATTN_COMMON_INT8_ROWS_H
#define ATTN_COMMON_INT8_ROWS_H

#include <math.h>

/* `most` is the magnitude of a row's largest element: it becomes 127. Below 2^-120 the row is 0, because 127 / most would
 * be infinite; where an element is infinite or NaN, the scale is NaN. */
static inline float int8_steps(float most) { return most >= 0x1p-120f ? 127 / most : 0; }
static inline float int8_scale(float most) { return isfinite(most) ? most / 127 : NAN; }

#endif
