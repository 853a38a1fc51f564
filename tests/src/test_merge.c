/* SPDX-License-Identifier: MIT */
/* attn_merge: merging the results of parts of the keys gives attention over all keys; parts without keys change nothing; bad
 * arguments are refused. */
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
