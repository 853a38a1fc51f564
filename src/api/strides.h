/* SPDX-License-Identifier: MIT */
/* Checks of a tensor's strides: the tensor must be addressable, and an output must not overlap itself. */
#ifndef ATTN_STRIDES_H
#define ATTN_STRIDES_H

#include "attn/attn.h"

#define ATTN_SIZE_LIMIT    ((int64_t)1 << 31) /* size and stride of one axis */
#define ATTN_ELEMENT_LIMIT ((int64_t)1 << 60) /* elements that strides may reach */

typedef struct attn_axis {
  char name;
  int64_t size, stride;
} attn_axis;

typedef struct attn_tensor {
  const char *field; /* "attn_problem.q_stride", for the sentence */
  attn_axis axes[4]; /* those not used: all 0 */
  int values;        /* elements that are stored together (attn_dtype_info) */
  bool output;
} attn_tensor;

attn_status attn_check_strides(const attn_tensor *tensor);

#endif
