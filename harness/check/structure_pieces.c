/* SPDX-License-Identifier: MIT */
/* Structural test with keys in pieces (attn_args.state). */
#include "check/structure_private.h"

/* Rows go on from a dense state. Returns its floats. */
static int64_t use_state(attn_problem *p) {
  p->uses |= ATTN_USE_STATE;
  if (p->align == ATTN_ALIGN_BOTTOM_RIGHT) p->align = ATTN_ALIGN_OFFSET;
  return attn_operand_set_dense(p, ATTN_OPERAND_STATE);
}

/* A piece of the sequence's keys, for rows that go on from a state. The last key is another one than the sequence's. */
static bench_view piece_of(const bench_structure *s, int64_t first, int64_t end) {
  bench_view v = bench_view_of_sequence(s);
  bench_view_keep_keys(&v, first, end, 1);
  (void)use_state(&v.problem);
  return v;
}

/* Sets how many keys a piece has at least, but for the last. NOT_APPLICABLE: the kernel takes none. */
static bench_outcome find_keys(bench_structure *s, const attn_problem *p, int64_t *keys) {
  const attn_options options = ATTN_STRUCT(attn_options, .threads = 1);
  attn_plan *plan = NULL;
  const attn_status status = s->subject->create_plan(s->subject->context, p, &options, &plan);
  if (status == ATTN_UNSUPPORTED) return BENCH_NOT_APPLICABLE;
  if (status != ATTN_OK)
    return bench_outcome_of(s, BENCH_CANNOT_RUN, "%s", status == ATTN_OUT_OF_MEMORY ? "out of memory" : attn_last_error());
  *keys = attn_plan_piece_keys(plan);
  attn_plan_destroy(plan);
  return BENCH_HOLDS;
}

/* Runs the keys in three pieces, of which some may be empty, and compares what the last one leaves. Sums of a piece start
 * from a state's, those of a whole call may start from a product: so a zero may have another sign. */
static bench_outcome run_pieces(bench_structure *s, float *state, int64_t keys) {
  enum { PIECES = 3 };
  const int64_t all = s->seq.len_k, borders = all / keys, first = bench_structure_pick(s, BENCH_PICK_CUT, borders + 1);
  const int64_t second = first + bench_structure_pick(s, BENCH_PICK_KEY, borders - first + 1);
  const int64_t cuts[PIECES + 1] = {0, first * keys, second * keys, all};
  bench_outcome outcome = BENCH_HOLDS;
  for (int n = 0; n < PIECES && outcome == BENCH_HOLDS; n++) {
    bench_view piece = piece_of(s, cuts[n], cuts[n + 1]);
    piece.args.state = state;
    outcome = bench_view_run(s, &piece);
    if (outcome == BENCH_HOLDS && n == PIECES - 1)
      outcome = bench_view_compare(s, &piece, BENCH_SAME_VALUES, "with keys in pieces");
    bench_view_clear(&piece);
  }
  return outcome;
}

bench_outcome bench_structure_pieces(bench_structure *s) {
  bench_view whole = bench_view_of_sequence(s);
  attn_problem *p = &whole.problem;
  if (!s->subject->rows_stand_alone || p->window_first > 0 || p->shared_prefix > 0) return BENCH_NOT_APPLICABLE;
  if (attn_v_channel_step(p)) return BENCH_NOT_APPLICABLE; /* refused with a state */
  /* A sink far above a row's scores: a whole call computes the row in double precision, which pieces cannot. */
  if (attn_uses(p, ATTN_USE_SINKS)) return BENCH_NOT_APPLICABLE;
  const int64_t floats = use_state(p);
  int64_t keys;
  bench_outcome outcome = find_keys(s, p, &keys);
  if (outcome != BENCH_HOLDS) return outcome;
  float *state = bench_view_allocate(&whole, floats, sizeof *state);
  if (!state) return bench_outcome_of(s, BENCH_CANNOT_RUN, "out of memory");
  outcome = BENCH_CANNOT_RUN;
  if (attn_state_start(p, state) == ATTN_OK)
    outcome = run_pieces(s, state, keys);
  else
    (void)bench_outcome_of(s, outcome, "%s", attn_last_error());
  bench_view_clear(&whole);
  return outcome;
}
