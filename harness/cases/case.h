/* SPDX-License-Identifier: MIT */
/* One benchmark case: an attn_problem, how its inputs are made, and its name. The writers print these fields as CSV columns;
 * equal case ids mean equal problems, data and thread counts. */
#ifndef BENCH_CASE_H
#define BENCH_CASE_H

#include "attn/attn.h"
#include "cases/axes.h"

enum { BENCH_NAME = 480 };

typedef enum bench_cache { BENCH_WARM, BENCH_COLD_KV, BENCH_COLD_ALL } bench_cache;

typedef struct bench_case {
  bench_spec spec;   /* the axes asked for, without those that mean nothing here (the offset of another alignment); how the
                      * data is made stands here alone */
  char invalid[256]; /* one sentence if no kernel could ever take it (heads_kv not a divisor of heads, ...); "" = fine */
  attn_problem problem;
  int threads;
  bench_cache cache;
  bool steady;             /* attn_options.steady */
  bool both;               /* the problem's gradients, behind the attention that they are of */
  uint64_t seed;           /* for generated inputs; derived from --seed and the case id */
  char layout[BENCH_WORD]; /* for people: the strides of the problem are what counts */
  char layer[BENCH_WORD];  /* "" = attention alone; or a layer around it (layer_info.h) */
  int64_t width;           /* a layer's d_model; 0 where there is none */
  bool made_for_row;       /* a layer is made for one row, and reshaped for the case */
  char case_id[BENCH_NAME];
} bench_case;

/* Builds a case from text. `seed` is the run's; the case's own follows from it and the problem's name, so that thread
 * counts and cache modes share their data. */
void bench_case_build(const bench_spec *asked, uint64_t seed, bench_case *bench);

/* The same without name and seed, which take most of the time: for choosing among many. */
void bench_case_draft(const bench_spec *asked, bench_case *bench);

/* CPUs that this process may use. */
int bench_cpu_count(void);

/* Threads that a case may run on: bench_cpu_count(), or 1 in a build without OpenMP. */
int bench_usable_threads(void);

/* splitmix64: one step of a generator, and a good mixer of 64 bits (Steele, Lea, Flood 2014). */
#define BENCH_GOLDEN 0x9e3779b97f4a7c15u /* 2^64 / golden ratio */
static inline uint64_t bench_random(uint64_t *state) {
  uint64_t z = *state += BENCH_GOLDEN;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

/* ---- Case ids ----------------------------------------------------------------------------------------------------- */
/* The name of a case, as text that is a case again:
 *
 *     dtype:f32/B:1/Hq:8/Hkv:8/Sq:512/Sk:512/D:64/Dv:64/causal:none/threads:1/window:256..0/cache:cold
 *
 * The parts up to threads are always there; then follows every other axis that is not at its default. */

/* Sets case_id and seed of a case that is complete otherwise. */
void bench_case_name(bench_case *bench, uint64_t run_seed);

/* Appends the axes of `place` that are not at their defaults, such as "/magnitude:10/lse:on", without those that `skips` (or
 * NULL) is true of. text has room for BENCH_NAME characters. */
void bench_case_name_axes(const bench_case *bench, bench_axis_place place, bool (*skips)(bench_axis), char *text);

/* One part of an id. */
typedef struct bench_id_part {
  char name[2 * BENCH_WORD], value[2 * BENCH_WORD]; /* "Hq" and "8" */
} bench_id_part;

/* Reads the part at *at and moves *at behind it; false at the end. */
bool bench_id_next(const char **at, bench_id_part *part);

/* The specification that a case id stands for. False with a sentence in error. */
bool bench_spec_from_id(const char *case_id, bench_spec *spec, char *error, size_t error_bytes);

/* Sets the strides of q, k, v and o. `layout` is one of the words of the axis `layout`. False if the tensors have more
 * numbers than any memory holds; then nothing is set. */
bool bench_layout_apply(attn_problem *problem, const char *layout);

/* ---- Work: pairs, floating-point operations, bytes of one call; and how long it may take -------------------------- */

/* Allowed (query, key) pairs over all batches and query heads, exactly. */
double bench_work_pairs(const attn_problem *problem, const attn_args *args);

/* Floating-point operations. Of attention 2 (dim_qk + dim_v) per pair for dot scores, 2 dim_v for precomputed ones, 3 dim_qk
 * + 2 dim_v for additive and gaussian ones; exp and tanh count nothing, nor do masked pairs. Of gradients 3 times what the
 * scores take, and 4 dim_v. */
double bench_work_flops(const attn_problem *problem, double pairs);

/* The attention whose gradients a problem asks for, with LSE. */
attn_problem bench_forward_of(const attn_problem *gradients);

/* Operations of a case's call: of both passes where it has both. */
double bench_case_flops(const bench_case *bench, double pairs);

typedef double bench_operation_flops(const attn_problem *problem, double pairs);
extern bench_operation_flops *const bench_operations[]; /* one for each attn_operation */

/* Multiplications and additions of all pairs, masked ones too: what the oracle has to do. */
double bench_multiply_adds(const attn_problem *problem);

/* Bytes of the operation's rows, each once: Q, K, V and O of attention. Queries beyond the lengths do not count, nor do keys
 * that no row of their KV head sees (lengths, window, causal, mask, a bias of -inf). Precomputed scores count 4 bytes for
 * each pair, instead of Q and K. */
double bench_work_bytes(const attn_problem *problem, const attn_args *args);

/* An estimate of the seconds of one call, right within a factor of a few: for --dry-run and the time left only. */
double bench_work_guess(const attn_problem *problem, const attn_kernel_info *kernel, int threads);

/* About how many pairs of query and key a problem has, whatever its lengths. */
double bench_work_typical_pairs(const attn_problem *problem);

#endif
