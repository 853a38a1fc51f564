/* SPDX-License-Identifier: MIT */
/* NaN, infinities and signed zeros reach exactly the rows that see them. Elements that a row may not see, and the results of
 * its neighbours in a tile, change none of its bits. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/support.h"

enum { QUERIES = 16, KEYS = 640, DIM = 16 };

static attn_problem one_head(void) {
  attn_problem problem;
  attn_problem_init(&problem, 1, 1, 1, QUERIES, KEYS, DIM, DIM);
  problem.uses = ATTN_USE_LSE;
  return problem;
}

static void run(const char *kernel, const attn_problem *problem, const attn_args *args) {
  test_ok(test_run(problem, args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
}

/* Fails unless rows [first, end) of both have the same bits. */
static void assert_same_rows(const char *kernel, const char *what, const test_data *a, const test_data *b, int first,
                             int end) {
  const size_t rows = (size_t)(end - first);
  if (memcmp((float *)a->args.o + first * DIM, (float *)b->args.o + first * DIM, rows * DIM * sizeof(float)) ||
      memcmp(a->args.lse + first, b->args.lse + first, rows * sizeof(float)))
    fail_msg("%s: %s changes bits of rows %d..%d", kernel, what, first, end - 1);
}

static void set_key(float *rows, int64_t key, float value) {
  for (int d = 0; d < DIM; d++) rows[key * DIM + d] = value;
}

/* At one key the score of row 0 is NaN and that of the other rows -inf. One vector further, in the same lane, stands the
 * largest score of row 1: row 1 must move its reference for it, whatever row 0 does. */
static void neighbours_nan_hides_no_score(const char *kernel) {
  const attn_problem problem = one_head();
  for (int lanes = 4; lanes <= 16; lanes *= 2) {
    test_data data = test_data_create(&problem, 3);
    float *q = (float *)data.args.q, *k = (float *)data.args.k;
    for (int j = 0; j < KEYS * DIM; j++) k[j] *= 0.1f;
    for (int i = 0; i < QUERIES; i++) q[i * DIM] = -1;
    for (int j = 0; j < KEYS; j++) k[j * DIM] = 0;
    k[260 * DIM] = INFINITY;
    for (int d = 1; d < DIM; d++) k[(260 + lanes) * DIM + d] = 30 * q[DIM + d];
    test_data other = test_data_share_inputs(&problem, &data);
    run(kernel, &problem, &data.args);
    q[0] = 0; /* 0 times infinity */
    run(kernel, &problem, &other.args);
    assert_true(isnan(*(float *)other.args.o));
    assert_same_rows(kernel, "a NaN score of row 0", &data, &other, 1, QUERIES);
    test_data_destroy_outputs(&other);
    test_data_destroy(&data);
  }
}

/* Rows that see keys far apart, with rows between them that see none: no row sees the keys between. */
static void keys_between_rows_change_no_bit(const char *kernel) {
  attn_problem problem = one_head();
  attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  problem.window_left = 1;
  problem.uses |= ATTN_USE_ROW_LEN;
  int32_t row_len[QUERIES];
  bool seen[KEYS] = {false};
  for (int i = 0; i < QUERIES; i++) {
    row_len[i] = i % 6 == 0 || i % 6 == 5 ? KEYS : 0;
    if (row_len[i]) seen[i] = seen[i > 0 ? i - 1 : 0] = true;
  }
  test_data data = test_data_create(&problem, 5);
  data.args.row_len = row_len;
  test_data other = test_data_share_inputs(&problem, &data);
  run(kernel, &problem, &data.args);
  for (int j = 0; j < KEYS; j++)
    if (!seen[j]) set_key((float *)data.args.k, j, NAN), set_key((float *)data.args.v, j, NAN);
  run(kernel, &problem, &other.args);
  assert_same_rows(kernel, "NaN between the keys that rows see", &data, &other, 0, QUERIES);
  test_data_destroy_outputs(&other);
  test_data_destroy(&data);
}

/* Under a causal mask only rows from 10 on see V of key 10. */
static void later_keys_change_no_bit_of_earlier_rows(const char *kernel) {
  static const float poisons[] = {NAN, INFINITY, -INFINITY};
  attn_problem problem = one_head();
  attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  test_data data = test_data_create(&problem, 7);
  run(kernel, &problem, &data.args);
  for (size_t n = 0; n < COUNT(poisons); n++) {
    test_data other = test_data_share_inputs(&problem, &data);
    set_key((float *)data.args.v, 10, poisons[n]);
    run(kernel, &problem, &other.args);
    assert_same_rows(kernel, "V of a later key", &data, &other, 0, 10);
    for (int i = 10; i < QUERIES; i++) assert_true(!isfinite(((float *)other.args.o)[i * DIM]));
    test_data_destroy_outputs(&other);
  }
  test_data_destroy(&data);
}

/* An infinite V makes its column infinite for every weight that float64 can hold, and NaN for one that it cannot. All other
 * columns stay as they are. */
static void infinite_values_count_by_their_weight(const char *kernel) {
  static const struct {
    float score, value, expected;
  } cases[] = {{-50, INFINITY, INFINITY},    {-95, -INFINITY, -INFINITY}, {-200, INFINITY, INFINITY},
               {-730, -INFINITY, -INFINITY}, {-760, INFINITY, NAN},       {-3000, -INFINITY, NAN}};
  const attn_problem problem = one_head();
  test_data data = test_data_create(&problem, 19);
  float *q = (float *)data.args.q, *k = (float *)data.args.k, *v = (float *)data.args.v;
  for (int i = 0; i < QUERIES * DIM; i++) q[i] = i % DIM == 0;
  for (int j = 0; j < KEYS; j++) k[j * DIM] = 0;
  const float usual = v[300 * DIM + 3];
  for (size_t n = 0; n < COUNT(cases); n++) {
    test_data other = test_data_share_inputs(&problem, &data);
    k[300 * DIM] = cases[n].score / problem.scale;
    v[300 * DIM + 3] = usual;
    run(kernel, &problem, &data.args);
    v[300 * DIM + 3] = cases[n].value;
    run(kernel, &problem, &other.args);
    for (int i = 0; i < QUERIES * DIM; i++) {
      const float before = ((float *)data.args.o)[i], o = ((float *)other.args.o)[i], wanted = cases[n].expected;
      const bool good = i % DIM != 3 ? fabsf(o - before) < 1e-5f : isnan(wanted) ? isnan(o) : o == wanted;
      if (!good)
        fail_msg("%s: V of %g with a score of %g makes column %d of row %d %g", kernel, (double)cases[n].value,
                 (double)cases[n].score, i % DIM, i / DIM, (double)o);
    }
    test_data_destroy_outputs(&other);
  }
  test_data_destroy(&data);
}

/* Row 0 sees key 0, whose V is so small that P V vanishes, and key 1, whose V is -0. The sign of its zero must not depend on
 * other rows of its tile, which see positive V. */
static void sign_of_zero_is_the_rows_own(const char *kernel) {
  if (!test_rows_stand_alone(kernel)) return;
  attn_problem problem = one_head();
  attn_problem_set_causal(&problem, ATTN_ALIGN_OFFSET);
  const int32_t offset = 1;
  test_data data = test_data_create(&problem, 9);
  data.args.offsets = &offset;
  float *q = (float *)data.args.q, *k = (float *)data.args.k, *v = (float *)data.args.v;
  set_key(q, 0, 1);
  set_key(k, 0, 0);
  set_key(k, 1, 1); /* key 0 weighs exp(-4) of key 1 */
  set_key(v, 0, -0x1p-149f);
  set_key(v, 1, -0.0f);
  for (int j = 2; j < KEYS; j++) set_key(v, j, 1);
  run(kernel, &problem, &data.args);
  attn_problem alone = problem;
  alone.seq_q = 1;
  test_data other = test_data_share_inputs(&alone, &data);
  run(kernel, &alone, &other.args);
  assert_same_rows(kernel, "a neighbour in the tile", &data, &other, 0, 1);
  test_data_destroy_outputs(&other);
  test_data_destroy(&data);
}

static float nan_of(uint32_t bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

/* A bias of NaN, whatever its payload, does not mask its key, even if all keys around it are masked. */
static void nan_bias_reaches_its_row(const char *kernel) {
  attn_problem problem = one_head();
  problem.uses |= ATTN_USE_BIAS;
  if (attn_kernel_rejects(attn_kernel_find(kernel), &problem)) return;
  float *bias = test_allocate(sizeof(float) * QUERIES * KEYS);
  for (int i = 0; i < QUERIES * KEYS; i++) bias[i] = i % KEYS < 64 ? 0 : -INFINITY;
  test_data data = test_data_create(&problem, 11);
  data.args.bias = bias;
  static const uint32_t nans[] = {0x7fc00000, 0x7fc00001, 0x7fc00181, 0xffc00001, 0xffffffff};
  for (size_t n = 0; n < sizeof nans / sizeof *nans; n++) {
    bias[3 * KEYS + 500] = nan_of(nans[n]);
    run(kernel, &problem, &data.args);
    for (int i = 0; i < QUERIES; i++) {
      if (isnan(((float *)data.args.o)[i * DIM]) != (i == 3))
        fail_msg("%s: with the NaN 0x%x in row 3 of the bias, row %d is wrong", kernel, nans[n], i);
    }
  }
  test_data_destroy(&data);
  free(bias);
}

/* A bias of -inf masks its key, whose score may be NaN. */
static void biased_away_keys_change_no_bit(const char *kernel) {
  attn_problem problem = one_head();
  problem.uses |= ATTN_USE_BIAS;
  if (attn_kernel_rejects(attn_kernel_find(kernel), &problem)) return;
  float *bias = test_allocate(sizeof(float) * QUERIES * KEYS);
  for (int i = 0; i < QUERIES * KEYS; i++) bias[i] = i % KEYS % 7 ? 0 : -INFINITY;
  test_data data = test_data_create(&problem, 17);
  data.args.bias = bias;
  test_data other = test_data_share_inputs(&problem, &data);
  run(kernel, &problem, &data.args);
  for (int j = 0; j < KEYS; j += 7) set_key((float *)data.args.k, j, NAN), set_key((float *)data.args.v, j, INFINITY);
  run(kernel, &problem, &other.args);
  assert_same_rows(kernel, "NaN in keys that the bias masks", &data, &other, 0, QUERIES);
  test_data_destroy_outputs(&other);
  test_data_destroy(&data);
  free(bias);
}

/* ---- Rows that are computed again, in double ---------------------------------------------------------------------------
 */

static int exact_rows; /* calls of attn_exact_row() */

/* tests/CMakeLists.txt lets the kernels call this in its place. */
void __wrap_attn_exact_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i);
void __real_attn_exact_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i);
void __wrap_attn_exact_row(const attn_problem *problem, const attn_args *args, int64_t b, int64_t h, int64_t i) {
  exact_rows++;
  __real_attn_exact_row(problem, args, b, h, i);
}

/* A right answer that took twice the time is a fault. 2500 keys and two queries: three splits of the decode kernels. */
static void ordinary_rows_are_computed_once(const char *kernel) {
  for (int n = 0; n < 10; n++) {
    attn_problem problem = one_head();
    if (n >= 8) attn_problem_init(&problem, 1, 1, 1, 2, 2500, DIM, DIM);
    problem.dtype_q = problem.dtype_kv = n % 2 ? ATTN_F32 : ATTN_BF16;
    if (n / 2 == 1) attn_problem_set_causal(&problem, ATTN_ALIGN_BOTTOM_RIGHT);
    if (n / 2 == 2) attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
    if (n / 2 == 3) problem.softcap = 2;
    if (attn_kernel_rejects(attn_kernel_find(kernel), &problem)) continue;
    test_data data = test_data_create(&problem, 13);
    exact_rows = 0;
    run(kernel, &problem, &data.args);
    if (exact_rows) fail_msg("%s computes %d of %d ordinary rows again", kernel, exact_rows, (int)problem.seq_q);
    test_data_destroy(&data);
  }
}

/* The same for rows of low scores: a score of 0 that is read behind the last key would take all weight from the keys. */
static void low_rows_are_computed_once(const char *kernel) {
  for (int64_t keys = KEYS; keys > 0; keys -= 9) {
    attn_problem problem = one_head();
    problem.seq_k = keys;
    test_data data = test_data_create(&problem, 13);
    for (int i = 0; i < QUERIES * DIM; i++) ((float *)data.args.q)[i] = i % DIM == 0;
    for (int64_t j = 0; j < keys * DIM; j++) ((float *)data.args.k)[j] = -8192;
    exact_rows = 0;
    run(kernel, &problem, &data.args);
    if (exact_rows) fail_msg("%s computes %d rows of %d keys again", kernel, exact_rows, (int)keys);
    test_data_destroy(&data);
  }
}

/* Only the row that is not finite is computed again. */
static void a_nan_row_is_computed_again_alone(const char *kernel) {
  attn_problem problem = one_head();
  test_data data = test_data_create(&problem, 15);
  ((float *)data.args.q)[5 * DIM] = NAN;
  exact_rows = 0;
  run(kernel, &problem, &data.args);
  if (exact_rows != 1) fail_msg("%s computes %d rows again, not one", kernel, exact_rows);
  test_data_destroy(&data);
}

/* All keys of a run have scores of NaN, so that none of them is the run's largest: the row is NaN all the same. */
static void nan_scores_of_a_run_of_keys_reach_their_row(const char *kernel) {
  static const int first[] = {0, 1024, 2048}; /* where decode kernels divide keys */
  attn_problem problem = one_head();
  problem.seq_q = 1;
  problem.seq_k = 2500;
  if (attn_kernel_rejects(attn_kernel_find(kernel), &problem)) return;
  test_data data = test_data_create(&problem, 17);
  float *k = (float *)data.args.k;
  for (size_t n = 0; n < COUNT(first); n++) {
    const int end = first[n] + 1024 < 2500 ? first[n] + 1024 : 2500;
    for (int j = first[n]; j < end; j++) k[j * DIM] = NAN;
    run(kernel, &problem, &data.args);
    if (!isnan(data.args.lse[0]) || !isnan(*(float *)data.args.o))
      fail_msg("%s: o %g and lse %g beside scores of NaN from key %d on", kernel, (double)*(float *)data.args.o,
               (double)data.args.lse[0], first[n]);
    for (int j = first[n]; j < end; j++) k[j * DIM] = 0;
  }
  test_data_destroy(&data);
}

#define FOR_EACH_KERNEL(check)                                                   \
  static void check##_if_taken(const char *kernel) {                             \
    const attn_problem problem = one_head();                                     \
    if (!attn_kernel_rejects(attn_kernel_find(kernel), &problem)) check(kernel); \
  }                                                                              \
  KERNEL_TEST(check##_if_taken)
FOR_EACH_KERNEL(neighbours_nan_hides_no_score)
FOR_EACH_KERNEL(keys_between_rows_change_no_bit)
FOR_EACH_KERNEL(later_keys_change_no_bit_of_earlier_rows)
FOR_EACH_KERNEL(infinite_values_count_by_their_weight)
FOR_EACH_KERNEL(sign_of_zero_is_the_rows_own)
FOR_EACH_KERNEL(nan_bias_reaches_its_row)
FOR_EACH_KERNEL(biased_away_keys_change_no_bit)
KERNEL_TEST(ordinary_rows_are_computed_once)
KERNEL_TEST(nan_scores_of_a_run_of_keys_reach_their_row)
FOR_EACH_KERNEL(low_rows_are_computed_once)
FOR_EACH_KERNEL(a_nan_row_is_computed_again_alone)
