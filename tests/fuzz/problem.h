/* SPDX-License-Identifier: MIT */
/* Makes a valid attention problem with its data of any bytes, small enough for thousands of runs per second. Every tensor
 * lies between inaccessible pages and touches one of them; inputs are read-only. */
#ifndef TESTS_FUZZ_PROBLEM_H
#define TESTS_FUZZ_PROBLEM_H

#include "attn/attn.h"
#include "fuzz.h"

/* One tensor, or one array of lengths. */
typedef struct fuzz_tensor {
  int64_t extent[4], stride[4]; /* elements */
  size_t element_bytes, bytes;  /* bytes of the span, gaps included */
  int64_t first;                /* index of element [0][0][0][0] in the span */
  unsigned char *data;          /* the span; NULL if the problem does not use the tensor */
} fuzz_tensor;

typedef enum fuzz_name {
  FUZZ_Q,
  FUZZ_K,
  FUZZ_V,
  FUZZ_BIAS,
  FUZZ_MASK,
  FUZZ_SCORES,
  FUZZ_SCORE_WEIGHT,
  FUZZ_KV_LEN,
  FUZZ_Q_LEN,
  FUZZ_ROW_LEN,
  FUZZ_CU_Q,
  FUZZ_CU_K,
  FUZZ_OFFSETS,
  FUZZ_PAGE_TABLE,
  FUZZ_SLOPES,
  FUZZ_SINKS,
  FUZZ_K_SCALE,
  FUZZ_V_SCALE,
  FUZZ_NUM_BLOCKS,
  FUZZ_INDICES,
  FUZZ_FULL_NUM_BLOCKS,
  FUZZ_FULL_INDICES,
  FUZZ_INPUTS,
  FUZZ_O = FUZZ_INPUTS,
  FUZZ_LSE,
  FUZZ_STATE,
  FUZZ_STATE_BEFORE, /* the contents of state before a run */
  FUZZ_TENSORS
} fuzz_name;

typedef struct fuzz_problem {
  attn_problem problem;
  attn_args args;
  fuzz_tensor tensor[FUZZ_TENSORS];
  bool state_alone; /* the state goes on without o and lse */
} fuzz_problem;

/* Valid until the next call. */
void fuzz_problem_read(fuzz_bytes *bytes, fuzz_problem *p);

enum { FUZZ_POISON = 0xb6 }; /* o and lse hold it before a run */

/* Sets o, lse and state to what they hold before a run. */
void fuzz_problem_renew(fuzz_problem *p);

#endif
