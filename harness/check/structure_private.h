/* SPDX-License-Identifier: MIT */
/* Declarations that the files of the structural tests share. structure.c has the tests on other sizes, on reordered and
 * divided keys, and the loop over all tests. structure_inputs.c has those with poison, NaN and equal scores in the inputs.
 * structure_pieces.c has the one with keys in pieces. structure_view.c makes, runs and compares views. */
#ifndef BENCH_STRUCTURE_PRIVATE_H
#define BENCH_STRUCTURE_PRIVATE_H

#include "check/check.h"
#include "check/structure.h"
#include "data/generate.h"
#include "kernels/common/problem/pieces.h"

typedef enum bench_outcome { BENCH_HOLDS, BENCH_BROKEN, BENCH_NOT_APPLICABLE, BENCH_CANNOT_RUN } bench_outcome;

/* A problem of its own on part of the case's data: one sequence or less, batch 1, not packed, with LSE. Outputs are dense
 * and its own; so are the inputs that bench_view_copy_... replaced. */
typedef struct bench_view {
  attn_problem problem;
  attn_args args;
  int32_t offset;    /* where query 0 stands among its keys */
  int64_t head, row; /* place in the sequence of the view's head 0 and row 0 */
  void *owned[14];
  int owned_count;
  bool out_of_memory;
} bench_view;

/* One case and the sequence of it that the tests look at. */
typedef struct bench_structure {
  const bench_subject *subject;
  bench_tensors *tensors;
  const bench_expected *expected;
  uint64_t seed;
  attn_sequence seq; /* has queries and keys */
  bench_view dense;  /* K and V of the sequence at one stride, where the case has them in pages; factors and lists */
  char reason[320];  /* why, for BROKEN and CANNOT_RUN */
} bench_structure;

/* Sets s->dense, if the case has pages, factors of keys or lists of key blocks: views can then leave out, reorder and change
 * keys, and the answers for them show whether pages change any. False if memory is short. */
bool bench_view_gather_keys(bench_structure *s);

/* The structure's sequence, whole; or one KV head of it with its queries, seeded. */
bench_view bench_view_of_sequence(const bench_structure *s);
bench_view bench_view_of_kv_head(const bench_structure *s);
void bench_view_clear(bench_view *view);

/* Cut a view down, with a mask in place of lists of key blocks: to rows first .. first + count - 1; to every step-th key
 * from first on, below end (a step above 1 only where keys have no positions). */
void bench_view_keep_rows(bench_view *view, int64_t first, int64_t count);
void bench_view_keep_keys(bench_view *view, int64_t first, int64_t end, int64_t step);

/* True if some mask, length or penalty depends on where a key stands, so that keys cannot change places. */
bool bench_view_is_positional(const bench_view *view);

/* Replaces K, V, bias, mask and scores by dense copies that may be written; key j of the copy is key order[j], or j if order
 * is NULL. */
void bench_view_copy_keys(bench_view *view, const int64_t *order);

/* Zeroed memory that is freed with the view. NULL if memory is short; the view's out_of_memory says so too. */
void *bench_view_allocate(bench_view *view, int64_t count, size_t bytes);

/* Replaces windows, lengths of rows and lists of key blocks by a bool mask of the same meaning, so that keys may change
 * places. ALiBi stays. */
void bench_view_forget_positions(bench_view *view);

/* May row i of head h see key j? */
bool bench_view_sees(const bench_view *view, int64_t h, int64_t i, int64_t j);
bool bench_view_sees_but_for_bias(const bench_view *view, int64_t h, int64_t i, int64_t j);

/* Runs the kernel on the view: HOLDS, NOT_APPLICABLE if it refuses the problem, CANNOT_RUN with a reason. */
bench_outcome bench_view_run(bench_structure *s, bench_view *view);

/* The same answer as the case's output in the view's heads and rows: in every bit, or within the limits, which with MERGED
 * have room for weights that went through rounded LSEs. SAME_VALUES: in every bit but the sign of a zero. BROKEN names the
 * first difference: "with <what>". */
typedef enum bench_likeness { BENCH_SAME_BITS, BENCH_SAME_VALUES, BENCH_WITHIN_LIMITS, BENCH_MERGED } bench_likeness;
bench_outcome bench_view_compare(bench_structure *s, const bench_view *view, bench_likeness likeness, const char *what);

/* Compares within the limits, without the rows that have a byte in leave_out[head][row]. */
bench_outcome bench_view_within_limits(bench_structure *s, const bench_view *view, const unsigned char *leave_out,
                                       bool merged, const char *what);

/* Runs the view, compares it, and clears it. */
bench_outcome bench_view_check(bench_structure *s, bench_view *view, bench_likeness likeness, const char *what);

/* SAME_BITS. Kernels of libraries are the exception where the view has another size than the case: they choose their code by
 * it. */
bench_likeness bench_likeness_of(const bench_structure *s, const bench_view *view);

/* Makes a plan and runs it in a poisoned workspace. */
attn_status bench_structure_run(const bench_structure *s, const attn_problem *problem, const attn_args *args,
                                const attn_options *options);

/* Says why a test is broken or cannot run; returns that. */
#define bench_outcome_of(s, outcome, ...) (bench_say((s)->reason, sizeof(s)->reason, __VA_ARGS__), outcome)

/* Which choice a pick makes. */
enum {
  BENCH_PICK_SEQUENCE,
  BENCH_PICK_ROW,
  BENCH_PICK_ROWS,
  BENCH_PICK_POISON,
  BENCH_PICK_HEAD = 16,
  BENCH_PICK_KEY,
  BENCH_PICK_TENSOR,
  BENCH_PICK_CUT,
  BENCH_PICK_CONVEX_ROW,
  BENCH_PICK_ORDER /* and all above: one for each key */
};

/* A seeded choice, the same at every call with the same `use`: 0 .. count - 1. */
int64_t bench_structure_pick(const bench_structure *s, int use, int64_t count);

/* The tests of structure_inputs.c. */
bench_outcome bench_structure_poison(bench_structure *s);
bench_outcome bench_structure_neighbours(bench_structure *s);
bench_outcome bench_structure_probe(bench_structure *s);

/* structure_limits.c */
bench_outcome bench_structure_convex(bench_structure *s);
bench_outcome bench_structure_permutation(bench_structure *s);
bench_outcome bench_structure_heads(bench_structure *s);
bench_outcome bench_structure_partition(bench_structure *s);

/* structure_pieces.c */
bench_outcome bench_structure_pieces(bench_structure *s);

#endif
