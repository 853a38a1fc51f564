/* The tensors of one case: allocated with guard zones, filled from a seed (or by `eval` from files), and the attn_args that
 * point into them. */
#ifndef BENCH_TENSORS_H
#define BENCH_TENSORS_H

#include "case.h"

typedef struct bench_tensors {
  attn_args args;
  /* what tensors.c needs to free, restore and check: opaque to others */
  struct bench_buffer *buffers;
  int buffer_count;
  size_t bytes;     /* allocated in all */
  size_t o_bytes;   /* span of o in bytes, gaps included; args.o points to its first element in stride order */
} bench_tensors;

/* Bytes that bench_tensors_create would allocate: tested against memory before a case starts. 0 on overflow. */
size_t bench_tensors_size(const bench_case *bench);

/* False if memory is short. Values: normal(0, magnitude) rounded to the storage type, from (seed, tensor, element) alone, so
 * that layout does not change them. Gaps, padding beyond lengths and guard zones hold NaN poison. */
bool bench_tensors_create(const bench_case *bench, bench_tensors *tensors);
void bench_tensors_destroy(bench_tensors *tensors);

/* Fills o and lse (gaps too) with the byte pattern `poison`, so that what a kernel does not write can be seen. */
void bench_tensors_poison_output(bench_tensors *tensors, uint8_t poison);

/* NULL, or which guard zone or stride gap was written ("o: guard after the tensor overwritten at byte 12"). */
const char *bench_tensors_damage(const bench_tensors *tensors);

#endif
