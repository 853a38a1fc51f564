/* SPDX-License-Identifier: MIT */
/* One benchmark case: an attn_problem, how its inputs are made, and its name. The writers print these fields as CSV columns;
 * equal case_ids mean equal problems, data and thread counts. */
#ifndef BENCH_CASE_H
#define BENCH_CASE_H

#include "cases/axes.h"

enum { BENCH_NAME = 480 };

typedef enum bench_cache { BENCH_WARM, BENCH_COLD_KV, BENCH_COLD_ALL } bench_cache;

typedef struct bench_case {
  bench_spec spec;   /* what was asked for, without axes that mean nothing here (the offset of another alignment) */
  char invalid[256]; /* one sentence if no kernel could ever take it (heads_kv not a divisor of heads, ...); "" = fine */
  attn_problem problem;
  int threads;
  bench_cache cache;
  uint64_t seed;            /* of the generated inputs; derived from --seed and the case_id */
  char mask[BENCH_WORD];    /* "none", "random" (each key allowed with p = 1/2), "padding" (a random suffix off) */
  char bias[BENCH_WORD];    /* "none", "full", "masking" (full, with -inf for keys, tiles and rows), "heads" (broadcast over
                                batch), "row" (broadcast over heads and queries) */
  char lengths[BENCH_WORD]; /* "full", "kv_len", "q_len", "both", "row_len", "varlen" */
  char layout[BENCH_WORD];  /* "bhsd", "bshd", "packed" (varlen), and those of layout.c: the strides say it all */
  char alignment[BENCH_WORD]; /* of OFFSET: "" or the offset */
  int64_t offset;             /* generated args.offsets, for ATTN_ALIGN_OFFSET */
  bool alibi, sinks;          /* generated slopes, sinks */
  double magnitude;           /* inputs are normal with this standard deviation; 1 unless a suite says otherwise */
  bool uniform_v;             /* V without zero mean: only the proven bound applies */
  char layer[BENCH_WORD];     /* "" = attention alone; "mha": the whole layer around it (layer.h) */
  int64_t width;              /* of a layer: d_model; 0 where there is none */
  char case_id[BENCH_NAME];   /* dtype:f32/B:1/Hq:8/Hkv:8/Sq:512/Sk:512/D:64/Dv:64/causal:none/threads:1, then whatever axis
                                is not at its default */
} bench_case;

#endif
