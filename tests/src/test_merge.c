/* SPDX-License-Identifier: MIT */
/* attn_merge and attn_partial_merge: merging the results of parts of the keys gives attention over all keys; pieces folded
 * in order give the same bits wherever the state is kept between; parts without keys change nothing; bad arguments are
 * refused. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

enum { ROWS = 13, KEYS = 97, DIM = 24, PARTS = 3 };

static float q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM];

static void fill(void) {
  unsigned state = 7;
  float *const arrays[] = {q, k, v};
  const size_t counts[] = {ROWS * DIM, KEYS * DIM, KEYS * DIM};
  for (int a = 0; a < 3; a++)
    for (size_t i = 0; i < counts[a]; i++) {
      state = state * 1664525u + 1013904223u;
      arrays[a][i] = (float)(state >> 8) / 4194304.0f - 2.0f;
    }
}

/* Attention over keys [first, first + count). */
static void attend(int64_t first, int64_t count, float *o, float *lse) {
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, ROWS, count, DIM, DIM);
  p.uses = ATTN_USE_LSE;
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k + first * DIM, .v = v + first * DIM, .o = o, .lse = lse);
  assert_int_equal(attn_sdpa(&p, &args), ATTN_OK);
}

TEST(merged_parts_are_the_whole) {
  static const int64_t cuts[][PARTS + 1] = {
      {0, 1, 2, KEYS}, {0, 32, 64, KEYS}, {0, 0, 50, KEYS}, {0, 0, 0, KEYS}, {0, 96, 97, 97}};
  static float whole[ROWS * DIM], whole_lse[ROWS], part[PARTS][ROWS * DIM], part_lse[PARTS][ROWS], o[ROWS * DIM], lse[ROWS];
  fill();
  attend(0, KEYS, whole, whole_lse);
  for (size_t c = 0; c < COUNT(cuts); c++) {
    for (int p = 0; p < PARTS; p++) attend(cuts[c][p], cuts[c][p + 1] - cuts[c][p], part[p], part_lse[p]);
    const float *parts[] = {part[0], part[1], part[2]}, *lses[] = {part_lse[0], part_lse[1], part_lse[2]};
    assert_int_equal(attn_merge(PARTS, ROWS, DIM, parts, lses, o, lse), ATTN_OK);
    for (int i = 0; i < ROWS * DIM; i++) assert_true(fabsf(o[i] - whole[i]) <= 2e-6f);
    for (int i = 0; i < ROWS; i++) assert_true(fabsf(lse[i] - whole_lse[i]) <= 1e-6f * (1 + fabsf(whole_lse[i])));
    assert_int_equal(attn_merge(PARTS, ROWS, DIM, parts, lses, part[1], part_lse[1]), ATTN_OK); /* in place */
    assert_memory_equal(part[1], o, sizeof o);
    assert_memory_equal(part_lse[1], lse, sizeof lse);
    assert_int_equal(attn_merge(1, ROWS, DIM, parts, lses, o, lse), ATTN_OK); /* one part: itself */
    for (int i = 0; i < ROWS * DIM; i++) assert_true(o[i] == part[0][i]);
  }
}

TEST(parts_without_keys_do_not_count) {
  const float o0[] = {NAN, INFINITY}, o1[] = {3, 4}, nothing[] = {-INFINITY}, some[] = {2.5f};
  float o[2], lse[1];
  const float *parts[] = {o0, o1}, *lses[] = {nothing, some};
  assert_int_equal(attn_merge(2, 1, 2, parts, lses, o, lse), ATTN_OK);
  assert_true(o[0] == 3 && o[1] == 4 && lse[0] == 2.5f);
  const float *empty[] = {nothing, nothing};
  assert_int_equal(attn_merge(2, 1, 2, parts, empty, o, NULL), ATTN_OK);
  assert_true(o[0] == 0 && o[1] == 0);
  assert_int_equal(attn_merge(2, 1, 2, parts, empty, o, lse), ATTN_OK);
  assert_true(lse[0] == -INFINITY);
  const float nan[] = {NAN}, *broken[] = {nan, some};
  assert_int_equal(attn_merge(2, 1, 2, parts, broken, o, lse), ATTN_OK);
  assert_true(isnan(o[0]) && isnan(o[1]) && isnan(lse[0]));
}

enum { PIECES = 7, STATE_ROWS = 5, STATE_DIM = 67 };

typedef struct piece {
  float o[STATE_ROWS * STATE_DIM], reference[STATE_ROWS], sum[STATE_ROWS];
} piece;

static attn_partial partial_of(piece *p) {
  return ATTN_STRUCT(attn_partial, .o = p->o, .reference = p->reference, .sum = p->sum);
}

static const piece no_keys = {.reference = {-INFINITY, -INFINITY, -INFINITY, -INFINITY, -INFINITY}};

static void fold(piece *from, piece *into) {
  const attn_partial part = partial_of(from), state = partial_of(into);
  assert_int_equal(attn_partial_merge(STATE_ROWS, STATE_DIM, &part, &state), ATTN_OK);
}

/* References rise, fall, repeat and lie far apart; row 3 lacks keys in some pieces, whose O and sums are NaN. */
static void fill_pieces(piece pieces[PIECES]) {
  static const float references[PIECES] = {-3.25f, 5.5f, 5.5f, -140, 900.125f, -1e-3f, 899};
  fill();
  for (int p = 0; p < PIECES; p++)
    for (int row = 0; row < STATE_ROWS; row++) {
      const bool empty = row == 3 && p % 3 == 0;
      pieces[p].reference[row] = empty ? -INFINITY : references[(p + row) % PIECES] + v[p * STATE_ROWS + row];
      pieces[p].sum[row] = empty ? NAN : 1 + fabsf(k[p * STATE_ROWS + row]);
      for (int c = 0; c < STATE_DIM; c++)
        pieces[p].o[row * STATE_DIM + c] = empty ? NAN : k[(p * 301 + row * STATE_DIM + c) % (KEYS * DIM)];
    }
}

/* The state goes to other memory, as to another process, after each of the pieces that `cuts` has a bit for. */
TEST(folding_in_order_gives_the_same_bits_over_any_pieces) {
  static piece pieces[PIECES], whole, kept, carried;
  fill_pieces(pieces);
  whole = no_keys;
  for (int p = 0; p < PIECES; p++) fold(&pieces[p], &whole);
  for (int cuts = 0; cuts < 1 << PIECES; cuts++) {
    kept = no_keys;
    for (int p = 0; p < PIECES; p++) {
      fold(&pieces[p], &kept);
      if (!(cuts >> p & 1)) continue;
      carried = no_keys;
      memset(carried.o, 0xff, sizeof carried.o); /* NaN */
      fold(&kept, &carried);
      kept = carried;
    }
    assert_memory_equal(&kept, &whole, sizeof whole);
  }
}

/* Against the sums in double. A weight errs by 2^-23 and each fold rounds twice. */
TEST(a_folded_state_is_the_sum_of_its_pieces) {
  static piece pieces[PIECES], kept;
  static float o[STATE_ROWS * STATE_DIM], lse[STATE_ROWS];
  const double limit = PIECES * 4 * 0x1p-24;
  fill_pieces(pieces);
  kept = no_keys;
  for (int p = 0; p < PIECES; p++) fold(&pieces[p], &kept);
  const attn_partial folded = partial_of(&kept);
  assert_int_equal(attn_partial_finish(STATE_ROWS, STATE_DIM, &folded, o, lse), ATTN_OK);
  for (int row = 0; row < STATE_ROWS; row++) {
    double total = 0, weights[PIECES] = {0};
    for (int p = 0; p < PIECES; p++) {
      if (pieces[p].reference[row] == -INFINITY) continue;
      weights[p] = exp2((double)pieces[p].reference[row] - (double)kept.reference[row]);
      total += weights[p] * (double)pieces[p].sum[row];
    }
    const double whole_lse = log(2) * (double)kept.reference[row] + log(total);
    assert_true(fabs((double)lse[row] - whole_lse) <= limit + 0x1p-23 * fabs(whole_lse));
    for (int c = 0; c < STATE_DIM; c++) {
      double sum = 0, size = 0;
      for (int p = 0; p < PIECES; p++) {
        const double x = weights[p] > 0 ? weights[p] * (double)pieces[p].o[row * STATE_DIM + c] : 0;
        sum += x, size += fabs(x);
      }
      assert_true(fabs((double)o[row * STATE_DIM + c] - sum / total) <= 2 * limit * size / total);
    }
  }
  assert_int_equal(attn_partial_finish(STATE_ROWS, STATE_DIM, &folded, kept.o, kept.sum), ATTN_OK); /* in place */
  assert_memory_equal(kept.o, o, sizeof o);
  assert_memory_equal(kept.sum, lse, sizeof lse);
}

/* Rows of one array, as in args.state: a reference is the sum of two floats, and a sum that of three. A reference that is
 * larger by `low` is a factor of 2^low on O and the sum. */
TEST(rows_with_gaps_have_references_and_sums_in_parts) {
  typedef struct row {
    float o[STATE_DIM], sum[3], reference, low, gap[5];
  } row;
  static piece pieces[PIECES], kept;
  static row rows[PIECES + 1][STATE_ROWS];
  static float o[2][STATE_ROWS * STATE_DIM], lse[2][STATE_ROWS];
  attn_partial at[PIECES + 1];
  fill_pieces(pieces);
  kept = no_keys;
  for (int p = 0; p <= PIECES; p++) {
    for (int r = 0; r < STATE_ROWS; r++) {
      row *to = &rows[p][r];
      *to = (row){.reference = -INFINITY, .low = 0.25f * (float)(p % 3), .gap = {7, 7, 7, 7, 7}};
      if (p == PIECES) continue;
      to->reference = pieces[p].reference[r];
      memcpy(to->o, pieces[p].o + r * STATE_DIM, sizeof to->o);
      for (int i = 0; i < 3; i++) to->sum[i] = pieces[p].sum[r] / (i == 1 ? 2 : 4);
      for (int c = 0; c < STATE_DIM; c++) pieces[p].o[r * STATE_DIM + c] *= exp2f(to->low);
      pieces[p].sum[r] *= exp2f(to->low);
    }
    row *first = rows[p];
    at[p] = ATTN_STRUCT(attn_partial, .o = first->o, .reference = &first->reference, .sum = first->sum,
                        .stride = sizeof *first / sizeof(float), .reference_low = &first->low, .sums = 3);
  }
  for (int p = 0; p < PIECES; p++) {
    fold(&pieces[p], &kept);
    test_ok(attn_partial_merge(STATE_ROWS, STATE_DIM, &at[p], &at[PIECES]));
  }
  at[0] = partial_of(&kept);
  for (int i = 0; i < 2; i++) test_ok(attn_partial_finish(STATE_ROWS, STATE_DIM, &at[i * PIECES], o[i], lse[i]));
  for (int r = 0; r < STATE_ROWS; r++) {
    assert_true(fabsf(lse[0][r] - lse[1][r]) <= 1e-6f * (1 + fabsf(lse[0][r])));
    for (int c = 0; c < STATE_DIM; c++) assert_true(fabsf(o[0][r * STATE_DIM + c] - o[1][r * STATE_DIM + c]) <= 1e-5f);
    for (int i = 0; i < 5; i++) assert_true(rows[PIECES][r].gap[i] == 7);
  }
}

/* An (O, LSE) pair is the state {O, LSE log2(e), 1}. These LSEs are whole numbers in log2 units to the last bit. */
TEST(attn_merge_folds_pairs_as_states) {
  const float o0[] = {1.5f, -2}, o1[] = {0.3f, 7}, lse0[] = {0}, lse1[] = {0x1.62e43p+0f}; /* 2 log(2) */
  const float *os[] = {o0, o1}, *lses[] = {lse0, lse1};
  float o[2], sum[] = {1}, reference[] = {0}, merged[2], lse[1], merged_lse[1], o_later[] = {0.3f, 7}, sum_later[] = {1};
  float reference_later[] = {2};
  memcpy(o, o0, sizeof o);
  const attn_partial kept = ATTN_STRUCT(attn_partial, .o = o, .reference = reference, .sum = sum);
  const attn_partial later = ATTN_STRUCT(attn_partial, .o = o_later, .reference = reference_later, .sum = sum_later);
  assert_int_equal(attn_partial_merge(1, 2, &later, &kept), ATTN_OK);
  assert_true(reference[0] == 2 && sum[0] == 1.25f);
  assert_int_equal(attn_partial_finish(1, 2, &kept, o, lse), ATTN_OK);
  assert_int_equal(attn_merge(2, 1, 2, os, lses, merged, merged_lse), ATTN_OK);
  assert_memory_equal(o, merged, sizeof o);
  assert_memory_equal(lse, merged_lse, sizeof lse);
}

TEST(states_without_keys_and_nan) {
  static piece kept, broken;
  static float o[STATE_ROWS * STATE_DIM], lse[STATE_ROWS];
  kept = broken = no_keys;
  broken.reference[1] = NAN, broken.sum[1] = 1;
  broken.reference[2] = 1, broken.sum[2] = 2, broken.o[2 * STATE_DIM] = 3;
  fold(&broken, &kept);
  broken.reference[1] = 4;
  fold(&broken, &kept);
  memset(kept.o, 0xff, STATE_DIM * sizeof(float)); /* NaN in row 0, which has no key */
  const attn_partial folded = partial_of(&kept);
  assert_int_equal(attn_partial_finish(STATE_ROWS, STATE_DIM, &folded, o, NULL), ATTN_OK);
  assert_int_equal(attn_partial_finish(STATE_ROWS, STATE_DIM, &folded, o, lse), ATTN_OK);
  assert_true(o[0] == 0 && lse[0] == -INFINITY);
  assert_true(isnan(o[STATE_DIM]) && isnan(lse[1]));
  assert_true(o[2 * STATE_DIM] == 1.5f && fabsf(lse[2] - 3 * logf(2)) <= 1e-6f);
}

TEST(bad_states_are_named) {
  static piece one, two;
  float o[1];
  const attn_partial good = partial_of(&one);
#define PARTIAL(o_, reference_, sum_) \
  { .struct_size = good.struct_size, .o = o_, .reference = reference_, .sum = sum_ }
  const struct {
    int64_t rows, dim_v;
    attn_partial piece, state;
    const char *word;
  } bad[] = {{-1, 1, good, good, "rows is -1"},
             {1, 0, good, good, "dim_v is 0"},
             {1, 1, PARTIAL(NULL, one.reference, one.sum), good, "piece.o is NULL"},
             {1, 1, PARTIAL(one.o, NULL, one.sum), good, "piece.reference is NULL"},
             {1, 1, good, PARTIAL(two.o, two.reference, NULL), "state.sum is NULL"},
             {1, 1, good, {.struct_size = 8, .o = two.o}, "attn_partial.struct_size is 8"},
             {1,
              1,
              {.struct_size = good.struct_size, .o = one.o, .reference = one.reference, .sum = one.sum, .stride = -1},
              good,
              "piece.stride is -1"}};
#undef PARTIAL
  for (size_t i = 0; i < COUNT(bad); i++) {
    assert_int_equal(attn_partial_merge(bad[i].rows, bad[i].dim_v, &bad[i].piece, &bad[i].state), ATTN_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), bad[i].word));
  }
  assert_int_equal(attn_partial_merge(1, 1, NULL, &good), ATTN_INVALID_ARGUMENT);
  assert_non_null(strstr(attn_last_error(), "piece is NULL"));
  assert_int_equal(attn_partial_finish(1, 1, NULL, o, NULL), ATTN_INVALID_ARGUMENT);
  assert_non_null(strstr(attn_last_error(), "state is NULL"));
  assert_int_equal(attn_partial_finish(1, 1, &good, NULL, NULL), ATTN_INVALID_ARGUMENT);
  assert_non_null(strstr(attn_last_error(), "o is NULL"));
  const attn_partial nothing = ATTN_STRUCT(attn_partial, .o = NULL);
  assert_int_equal(attn_partial_merge(0, 1, &nothing, &nothing), ATTN_OK);
  assert_int_equal(attn_partial_finish(0, 1, &nothing, NULL, NULL), ATTN_OK);
}

TEST(bad_arguments_are_named) {
  float o[2], lse[1] = {0};
  const float *parts[] = {o, NULL}, *lses[] = {lse, lse}, *all[] = {o, o};
  const struct {
    int parts;
    int64_t rows, dim_v;
    const float *const *o, *const *lse;
    float *out;
    const char *word;
  } bad[] = {{0, 1, 2, parts, lses, o, "parts is 0"},        {1, -1, 2, parts, lses, o, "rows is -1"},
             {1, 1, 0, parts, lses, o, "dim_v is 0"},        {1, 1, 2, NULL, lses, o, "o is NULL"},
             {1, 1, 2, parts, NULL, o, "lse is NULL"},       {1, 1, 2, parts, lses, NULL, "o_out is NULL"},
             {2, 1, 2, parts, lses, o, "o[1] is NULL"},      {2, 1, 2, parts + 1, lses, o, "o[0] is NULL"},
             {1, 1, 2, all, parts + 1, o, "lse[0] is NULL"}, {2, 1, 2, all, parts, o, "lse[1] is NULL"}};
  for (size_t i = 0; i < COUNT(bad); i++) {
    assert_int_equal(attn_merge(bad[i].parts, bad[i].rows, bad[i].dim_v, bad[i].o, bad[i].lse, bad[i].out, lse),
                     ATTN_INVALID_ARGUMENT);
    assert_non_null(strstr(attn_last_error(), bad[i].word));
  }
  assert_int_equal(attn_merge(1, 0, 2, NULL, NULL, NULL, NULL), ATTN_OK);
}
