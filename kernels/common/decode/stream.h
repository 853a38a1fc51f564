/* SPDX-License-Identifier: MIT */
/* Streams: functions that take several rows, or one, through all whole blocks of keys of a split (group_rows.h, one_row.h).
 * Parameters: those of few_rows.h. */
#ifndef ATTN_COMMON_DECODE_STREAM_H
#define ATTN_COMMON_DECODE_STREAM_H

#include "few_rows.h"

/* The state of softmax for several rows side by side (group_rows.h). */
typedef struct group_softmax {
  float sum[VEC_LANES][VEC_LANES]; /* sums of P like row_sum, but in the order of scores; as many vectors as rows */
  float reference[VEC_LANES];      /* references of the rows, repeated as often as they fit */
  int64_t unset;                   /* rows that have no reference yet, and 0 as their sums */
} group_softmax;

/* Rows of a block that one function takes at once. */
typedef struct row_stream row_stream;

/* The blocks from `key` up to `end`, of one key run. */
typedef void stream_function(row_stream *stream, int64_t key, int64_t end);

struct row_stream {
  stream_function *run;
  const row_block *block; /* the whole block if they are its first, else `part` */
  row_block part;
  const float *q; /* from tile_queries() */
  int64_t rows;
  prefetch_policy policy;
  group_softmax state;
};

#endif
