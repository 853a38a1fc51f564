/* SPDX-License-Identifier: MIT */
/* How many queries and keys each sequence of a case has, as its axes `lengths` and `chunk` say. */
#ifndef BENCH_LENGTHS_H
#define BENCH_LENGTHS_H

#include "cases/case.h"

int32_t bench_key_count(const bench_case *bench, int64_t b);

/* The queries of a chunk, and those of mixed requests, are the last tokens of their keys: of mixed requests every eighth has
 * seq_q of them, the others one. */
int32_t bench_query_count(const bench_case *bench, int64_t b);

#endif
