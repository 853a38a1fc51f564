/* SPDX-License-Identifier: MIT */
/* Buffers of tensors: tensors.c allocates them, tensors_fill.c fills them, tensors_output.c checks what kernels wrote. */
#ifndef BENCH_TENSORS_PRIVATE_H
#define BENCH_TENSORS_PRIVATE_H

#include "data/tensors.h"

/* Indices of bench_tensors.buffers. Every index has a buffer; present = false marks those that the problem does not use. */
typedef enum bench_tensor {
  BENCH_Q,
  BENCH_K,
  BENCH_V,
  BENCH_O,
  BENCH_LSE,
  BENCH_BIAS,
  BENCH_MASK,
  BENCH_SCORES,
  BENCH_SCORE_WEIGHT,
  BENCH_KV_LEN,
  BENCH_Q_LEN,
  BENCH_ROW_LEN,
  BENCH_CU_SEQLENS_Q,
  BENCH_CU_SEQLENS_K,
  BENCH_OFFSETS,
  BENCH_ALIBI_SLOPES,
  BENCH_SINKS,
  BENCH_TENSORS
} bench_tensor;

enum { BENCH_GUARD_BYTES = 256 }; /* four cache lines, so that tensors stay aligned to 64 */

/* INPUT_POISON fills gaps, padding that no row reads and guard zones of inputs: it is a NaN in every float type, -1 as a
 * length and "allowed" in a mask. */
enum { BENCH_INPUT_POISON = 0xff, BENCH_OUTPUT_GUARD = 0xb6 };

typedef struct bench_buffer {
  const char *name;
  bool present, output;
  size_t element_bytes;
  int64_t extent[4], stride[4]; /* elements */
  int64_t first;                /* place of element [0][0][0][0] in the span, in elements; negative strides make it > 0 */
  size_t bytes;                 /* the span: from the lowest to the highest element, gaps included */
  unsigned char *data;          /* start of the span */
  size_t guard_before, guard_after;
  unsigned char gap_byte; /* what gaps hold since the last filling or poisoning */
  void *memory;           /* to be freed or, if mapped_bytes > 0, unmapped */
  size_t mapped_bytes;
  char damage[120]; /* the sentence that bench_tensors_damage returns */
} bench_buffer;

/* Fills in the values of all inputs, lengths first because they decide what is padding. False if memory is short. */
bool bench_tensors_fill(const bench_case *bench, bench_tensors *tensors);

/* What V is multiplied by now. */
double bench_v_factor(const bench_tensors *tensors);

/* Elements of o (or lse) that the problem owns: everything but gaps and, with VARLEN, tokens of no sequence. */
typedef struct bench_owned {
  int64_t extent[4], stride[4];
  int64_t start; /* in elements from the span's start */
  int64_t count;
} bench_owned;
bench_owned bench_owned_elements(const bench_tensors *tensors, bench_tensor which);

#endif
