/* SPDX-License-Identifier: MIT */
/* Edge cases of kernels/common: ties of the 16-bit types, windows as wide as an integer allows, sizes that overflow, a sink
 * above all scores, shapes that fill no block, and a reference that moves by an amount that float32 cannot store. */
#include "kernels/common/problem/convert.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

#include "check/check.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/memory/quantise.h"
#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/indexing.h"
#include "kernels/peak.h"
#include "kernels/ref/oracle_f64.h"
#include "tests/support/support.h"

/* ---- 16-bit types ---------------------------------------------------------------------------------------------------- */

/* The middle between two neighbours rounds to the even one, the float32 beside it to the nearer one; with both signs, and
 * for denormals too. */
static void check_rounding(uint16_t largest, float (*widen)(uint16_t), uint16_t (*narrow)(float)) {
  for (uint16_t low = 0; low < largest; low++) {
    const uint16_t high = (uint16_t)(low + 1), even = low % 2 ? high : low;
    const float middle = (float)(((double)widen(low) + (double)widen(high)) / 2);
    const struct {
      float value;
      uint16_t nearest;
    } tries[] = {{widen(low), low}, {middle, even}, {nextafterf(middle, 0), low}, {nextafterf(middle, 1e38f), high}};
    for (int i = 0; i < 4; i++) {
      assert_int_equal(narrow(tries[i].value), tries[i].nearest);
      assert_int_equal(narrow(-tries[i].value), tries[i].nearest | 0x8000);
    }
  }
}

TEST(float16_rounds_to_nearest_even) {
  check_rounding(0x7bff, attn_f32_of_f16, attn_f16_of_f32);
  assert_int_equal(attn_f16_of_f32(65519.996f), 0x7bff);
  assert_int_equal(attn_f16_of_f32(65520), 0x7c00);
}

/* Only values below 1e38, because check_rounding() steps upwards by nextafterf(middle, 1e38f). */
TEST(bfloat16_rounds_to_nearest_even) { check_rounding(0x7e00, attn_f32_of_bf16, attn_bf16_of_f32); }

/* ---- Windows --------------------------------------------------------------------------------------------------------- */

/* The widest possible window hides no key, whatever the offset of the queries is. */
TEST(widest_windows_hide_nothing) {
  const int64_t widths[] = {INT64_MAX, INT64_MAX - 1};
  const int32_t offsets[] = {INT32_MIN, -5, 0, 5, INT32_MAX};
  for (int w = 0; w < 2; w++)
    for (int o = 0; o < 5; o++) {
      attn_problem p;
      attn_problem_init(&p, 1, 1, 1, 4, 9, 1, 1);
      p.align = ATTN_ALIGN_OFFSET;
      p.window_left = p.window_right = widths[w];
      const attn_args args = ATTN_STRUCT(attn_args, .offsets = &offsets[o]);
      const attn_sequence seq = attn_sequence_of(&p, &args, 0);
      for (int64_t i = 0; i < 4; i++) {
        const attn_key_range keys = attn_allowed_keys(&p, &args, &seq, 0, i);
        assert_int_equal(keys.begin, 0);
        assert_int_equal(keys.end, 9);
      }
    }
}

/* ---- Memory ---------------------------------------------------------------------------------------------------------- */

TEST(layouts_beyond_the_largest_size_are_refused) {
  const int64_t most = INT64_MAX / 16 / 64 * 64;
  int64_t start[2], end = 0;
  assert_true(LAY_OUT(((memory_part[]){{&start[0], 3, 30}, {&start[1], most / 64 - 2, 64}}), &end));
  assert_true(start[0] == 0 && start[1] == 128 && end == most);
  const memory_part beyond[][2] = {{{&start[0], 1, 64}, {&start[1], most / 64, 64}},
                                   {{&start[0], 1, 1}, {&start[1], INT64_MAX / 4, 8}},
                                   {{&start[0], 1, 1}, {&start[1], INT64_MAX, 1}}};
  for (size_t i = 0; i < COUNT(beyond); i++) {
    end = 0;
    assert_false(LAY_OUT(beyond[i], &end));
  }
}

/* ---- The exact row --------------------------------------------------------------------------------------------------- */

TEST(sinks_above_all_scores_weigh_in_the_exact_row) {
  enum { KEYS = 7, DIM = 5 };
  const float sinks[] = {-INFINITY, -900, -3, 0, 2, 30, 900, INFINITY},
              scores[KEYS] = {-INFINITY, 0.3f, 1.1f, -INFINITY, -0.5f, 0.9f, -3};
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, 1, KEYS, DIM, DIM);
  p.uses = ATTN_USE_SINKS | ATTN_USE_LSE;
  p.score = ATTN_SCORE_PRECOMPUTED;
  const test_data data = test_data_create(&p, 3);
  for (size_t n = 0; n < COUNT(sinks); n++) {
    attn_args args = data.args;
    double o[DIM], m[DIM], w[DIM], score[KEYS];
    args.sinks = &sinks[n];
    args.scores = scores;
    attn_exact_row(&p, &args, 0, 0, 0);
    const attn_oracle_output exact = {.o = o, .m = m, .w = w, .p = score};
    const attn_oracle_row row = attn_oracle_f64_row(&p, &args, (attn_oracle_index){0, 0, 0}, &exact);
    for (int d = 0; d < DIM; d++) assert_true(fabs((double)((const float *)args.o)[d] - o[d]) <= 1e-7 * fabs(o[d]));
    assert_true(fabs((double)args.lse[0] - row.lse) <= 1e-7 * (1 + fabs(row.lse)));
  }
  test_data_destroy((test_data *)(uintptr_t)&data);
}

/* ---- Blocks, splits and tiles ------------------------------------------------------------------------------------------
 */

/* Problems with more than one split of keys, block of keys, tile of queries or vector of columns, and with a rest of each.
 */
typedef struct shape {
  int64_t heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v;
  uint32_t uses;
  attn_align align;
  int64_t window_left, q_apart, kv_apart; /* apart: from an element to the next */
  float scale;                            /* 0: the usual one */
  attn_score score;
} shape;

static const shape shapes[] = {
    {2, 1, 3, 2500, 8, 8, 0, ATTN_ALIGN_TOP_LEFT, -1, 1, 1, 0, ATTN_SCORE_DOT},
    {2, 1, 3, 2500, 8, 8, ATTN_USE_ROW_LEN | ATTN_USE_ALIBI, ATTN_ALIGN_TOP_LEFT, -1, 1, 1, 0, ATTN_SCORE_DOT},
    {8, 1, 2, 200, 40, 104, ATTN_USE_ROW_LEN, ATTN_ALIGN_TOP_LEFT, -1, 1, 1, 0, ATTN_SCORE_DOT},
    {16, 1, 2, 90, 200, 136, 0, ATTN_ALIGN_TOP_LEFT, -1, 1, 1, 0, ATTN_SCORE_DOT},
    {2, 2, 70, 150, 72, 40, ATTN_USE_BIAS, ATTN_ALIGN_TOP_LEFT, -1, 1, 1, 0, ATTN_SCORE_DOT},
    {1, 1, 40, 70, 32, 64, ATTN_USE_BIAS | ATTN_USE_ALIBI, ATTN_ALIGN_TOP_LEFT, 0, 1, 1, 0, ATTN_SCORE_DOT},
    {4, 2, 35, 150, 64, 32, 0, ATTN_ALIGN_TOP_LEFT, -1, 1, 1, 0, ATTN_SCORE_DOT},
    {4, 1, 3, 70, 72, 40, 0, ATTN_ALIGN_TOP_LEFT, -1, 2, 1, 0, ATTN_SCORE_DOT},
    {2, 2, 35, 70, 40, 72, ATTN_USE_ALIBI, ATTN_ALIGN_BOTTOM_RIGHT, 20, 3, 2, 0, ATTN_SCORE_DOT},
    {2, 1, 35, 330, 16, 40, 0, ATTN_ALIGN_TOP_LEFT, -1, 1, 1, 15, ATTN_SCORE_DOT},
    {2, 1, 3, 330, 16, 40, 0, ATTN_ALIGN_TOP_LEFT, -1, 1, 1, 15, ATTN_SCORE_DOT},
    {2, 1, 35, 70, 8, 8, 0, ATTN_ALIGN_BOTTOM_RIGHT, 20, 1, 1, 0, ATTN_SCORE_PRECOMPUTED},
};
enum { MOST_KEYS = 2500, MOST_ROWS = 140, MOST_DIM = 136 };

typedef struct answer {
  attn_oracle_row facts;
  double o[MOST_DIM], m[MOST_DIM], w[MOST_DIM];
} answer;

static void answer_all(const attn_problem *problem, const attn_args *args, answer *row) {
  static double p[MOST_KEYS];
  for (int64_t n = 0; n < problem->heads_q * problem->seq_q; n++)
    row[n].facts = attn_oracle_f64_row(problem, args, (attn_oracle_index){0, n / problem->seq_q, n % problem->seq_q},
                                       &(attn_oracle_output){.o = row[n].o, .m = row[n].m, .w = row[n].w, .p = p});
}

static void compare_with(const answer *row, const attn_problem *problem, const attn_kernel_info *kernel, const float *o) {
  const int64_t rows = problem->heads_q * problem->seq_q, dim = problem->dim_v;
  for (int64_t n = 0; n < rows; n++) {
    const bench_row_limits limits = bench_limits_of_row(problem, &kernel->numerics, &row[n].facts, true);
    for (int64_t d = 0; d < dim; d++) {
      const double ratio = bench_output_ratio(&limits, row[n].o[d], row[n].m[d], row[n].w[d], (double)o[n * dim + d]);
      if (!(ratio <= 1))
        fail_msg("%s, %d x %d keys of %d, %d: row %d, column %d is %.3g limits off", kernel->name, (int)rows,
                 (int)problem->seq_k, (int)problem->dim_qk, (int)dim, (int)n, (int)d, ratio);
    }
  }
}

static attn_strides spread(attn_strides s, int64_t times) {
  return (attn_strides){s.b * times, s.h * times, s.s * times, s.d * times};
}

/* Dense rows of K or V, of whole blocks. */
static attn_strides rows_of(const attn_problem *p, int64_t dim) {
  const int64_t row = attn_row_elements(p->dtype_kv, dim);
  return (attn_strides){p->heads_kv * p->seq_k * row, p->seq_k * row, row, 1};
}

static void check_shape(const shape *s, attn_dtype dtype) {
  static answer row[MOST_ROWS];
  static const float slopes[16] = {0.001f, 0.0005f};
  attn_problem p;
  attn_problem_init(&p, 1, s->heads_q, s->heads_kv, s->seq_q, s->seq_k, s->dim_qk, s->dim_v);
  p.dtype_q = attn_dtype_is_float(dtype) ? dtype : ATTN_F32;
  p.dtype_kv = dtype;
  p.uses = s->uses;
  p.window_left = s->window_left;
  p.align = s->align;
  p.score = s->score;
  p.q_stride = spread(p.q_stride, s->q_apart);
  p.k_stride = spread(rows_of(&p, p.dim_qk), s->kv_apart);
  p.v_stride = spread(rows_of(&p, p.dim_v), s->kv_apart);
  if (attn_dtype_of(dtype).values > 1) p.k_stride.d = p.v_stride.d = 1;
  if (s->scale > 0) p.scale = s->scale;
  assert_true(p.heads_q * p.seq_q <= MOST_ROWS && p.seq_k <= MOST_KEYS && p.dim_v <= MOST_DIM);
  test_data data = test_data_create(&p, 21);
  float *bias = test_allocate(sizeof(float) * (size_t)(p.heads_q * p.seq_q * p.seq_k));
  test_fill(bias, (size_t)(p.heads_q * p.seq_q * p.seq_k), 22);
  const int32_t row_len[] = {(int32_t)p.seq_k, (int32_t)p.seq_k - 21, 75};
  if (p.uses & ATTN_USE_BIAS) data.args.bias = bias;
  if (p.score == ATTN_SCORE_PRECOMPUTED) data.args.scores = bias;
  if (p.uses & ATTN_USE_ROW_LEN) data.args.row_len = row_len;
  if (p.uses & ATTN_USE_ALIBI) data.args.alibi_slopes = slopes;
  answer_all(&p, &data.args, row);
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (attn_kernel_rejects(kernel, &p)) continue;
    test_ok(test_run(&p, &data.args, &ATTN_STRUCT(attn_options, .kernel = kernel->name, .threads = 1)));
    compare_with(row, &p, kernel, data.args.o);
  }
  free(bias);
  test_data_destroy(&data);
}

TEST(every_block_of_every_shape_is_right) {
  for (size_t i = 0; i < COUNT(shapes); i++)
    for (int dtype = 0; dtype < ATTN_DTYPE_COUNT; dtype++) check_shape(&shapes[i], (attn_dtype)dtype);
}

/* ---- Types of 8 bits ------------------------------------------------------------------------------------------------- */

enum { BYTES = 256 };

/* One key has weight 1, so every value comes out as it is; and the score of a key of one element is that element. */
static void check_every_byte(const char *kernel) {
  static const attn_dtype dtypes[] = {ATTN_F8_E4M3, ATTN_F8_E5M2, ATTN_I8};
  uint8_t bytes[BYTES];
  float o[BYTES], lse[BYTES];
  const float one[1] = {1};
  for (int i = 0; i < BYTES; i++) bytes[i] = (uint8_t)i;
  for (size_t type = 0; type < COUNT(dtypes); type++) {
    attn_problem p;
    attn_problem_init(&p, 1, 1, 1, 1, 1, 1, BYTES);
    p.dtype_kv = dtypes[type];
    if (attn_kernel_rejects(attn_kernel_find(kernel), &p)) continue;
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
    const uint8_t zero[1] = {0};
    test_ok(test_run(&p, &ATTN_STRUCT(attn_args, .q = one, .k = zero, .v = bytes, .o = o), &options));
    for (int i = 0; i < BYTES; i++) {
      const double right = attn_oracle_load(bytes, dtypes[type], i);
      if (!((double)o[i] == right || (isnan(right) && isnan(o[i]))))
        fail_msg("%s: V of byte 0x%02x is %g, should be %g", kernel, (unsigned)i, (double)o[i], right);
    }
    attn_problem_init(&p, BYTES, 1, 1, 1, 1, 1, 1);
    p.dtype_kv = dtypes[type];
    p.q_stride.b = p.v_stride.b = 0;
    p.scale = 1;
    p.uses = ATTN_USE_LSE;
    test_ok(test_run(&p, &ATTN_STRUCT(attn_args, .q = one, .k = bytes, .v = zero, .o = o, .lse = lse), &options));
    for (int i = 0; i < BYTES; i++) {
      const double right = attn_oracle_load(bytes, dtypes[type], i);
      if (isfinite(right) && !(fabs((double)lse[i] - right) <= 1e-6 * fabs(right)))
        fail_msg("%s: K of byte 0x%02x scores %g, should be %g", kernel, (unsigned)i, (double)lse[i], right);
    }
  }
}

TEST(every_value_of_8_bits_is_loaded_as_it_is) { test_each_kernel(check_every_byte); }

/* ---- Types of blocks ------------------------------------------------------------------------------------------------- */

/* Blocks of known bytes: their values, as ggml defines them, come out of V and of scores. All integers of each place of a
 * block occur, and every scale of float16 that is finite is met by some block. */
static void check_every_block(const char *kernel) {
  enum { BLOCKS = 256, DIM = ATTN_BLOCK_VALUES };
  static attn_q8_0 q8[BLOCKS];
  static attn_q4_0 q4[BLOCKS];
  static float o[BLOCKS * DIM], lse[BLOCKS];
  static double right[2][BLOCKS][DIM];
  float q[DIM];
  const double query_rounding = attn_kernel_find(kernel)->numerics.query_rounding;
  for (int i = 0; i < DIM; i++) q[i] = i % 3 == 0 ? 1.0f : i % 3 == 1 ? -0.5f : 0.25f;
  for (int n = 0; n < BLOCKS; n++) {
    const uint16_t scale = (uint16_t)(n * 0x7bff / (BLOCKS - 1) ^ (n & 1) << 15);
    memcpy(q8[n].scale, &scale, 2), memcpy(q4[n].scale, &scale, 2);
    const double d = attn_oracle_load(&scale, ATTN_F16, 0);
    for (int i = 0; i < DIM; i++) {
      q8[n].values[i] = (int8_t)(n + 7 * i - 128);
      right[0][n][i] = d * (int8_t)(n + 7 * i - 128);
    }
    for (int i = 0; i < DIM / 2; i++) {
      const int low = (n + i) % 16, high = (n / 16 + 3 * i) % 16;
      q4[n].values[i] = (uint8_t)(low | high << 4);
      right[1][n][i] = d * (low - 8);
      right[1][n][i + DIM / 2] = d * (high - 8);
    }
  }
  for (int type = 0; type < 2; type++) {
    attn_problem p;
    attn_problem_init(&p, BLOCKS, 1, 1, 1, 1, DIM, DIM);
    p.dtype_kv = type ? ATTN_Q4_0 : ATTN_Q8_0;
    p.q_stride.b = 0;
    p.scale = 1;
    p.uses = ATTN_USE_LSE;
    const void *blocks = type ? (const void *)q4 : q8;
    if (attn_kernel_rejects(attn_kernel_find(kernel), &p)) return;
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1);
    test_ok(test_run(&p, &ATTN_STRUCT(attn_args, .q = q, .k = blocks, .v = blocks, .o = o, .lse = lse), &options));
    for (int n = 0; n < BLOCKS; n++) {
      double score = 0, size = 0, sum = 0;
      for (int i = 0; i < DIM; i++) {
        const double x = right[type][n][i];
        score += x * (double)q[i], size += fabs(x * (double)q[i]), sum += fabs(x);
        if (!((double)o[n * DIM + i] == x))
          fail_msg("%s: V of block %d, value %d is %.9g, should be %.9g", kernel, n, i, (double)o[n * DIM + i], x);
      }
      if (!(fabs((double)lse[n] - score) <= 1e-5 * size + query_rounding * sum)) /* the largest of q is 1 */
        fail_msg("%s: K of block %d scores %.9g, should be %.9g", kernel, n, (double)lse[n], score);
    }
  }
}

TEST(every_value_of_a_block_is_loaded_as_it_is) { test_each_kernel(check_every_block); }

/* The bytes are those of gguf.quants (PyPI, gguf 0.19.0) for the same numbers. */
TEST(blocks_are_quantised_as_ggml_does) {
  static const uint8_t gguf_q8_0[] = {0xd0, 0x27, 0xae, 0x46, 0xd7, 0x6f, 0x00, 0x91, 0x29, 0xba, 0x52, 0xe3,
                                      0x7b, 0x0c, 0x9e, 0x35, 0xc7, 0x5e, 0xf0, 0x81, 0x19, 0xaa, 0x42, 0xd3,
                                      0x6b, 0xfc, 0x8d, 0x25, 0xb6, 0x4e, 0xdf, 0x77, 0x08, 0x9a};
  static const uint8_t gguf_q4_0[] = {0xc0, 0x37, 0x73, 0x0c, 0xa5, 0x3f, 0xc8, 0x51, 0xfb,
                                      0x84, 0x1d, 0xa6, 0x3f, 0xd9, 0x62, 0xfb, 0x94, 0x2e};
  float x[ATTN_BLOCK_VALUES], back[ATTN_BLOCK_VALUES];
  for (int i = 0; i < ATTN_BLOCK_VALUES; i++) x[i] = (float)((i * 37 + 11) % 64 - 31) / 8;
  attn_q8_0 q8;
  attn_q4_0 q4;
  attn_store_row(&q8, ATTN_Q8_0, 0, x, ATTN_BLOCK_VALUES);
  attn_store_row(&q4, ATTN_Q4_0, 0, x, ATTN_BLOCK_VALUES);
  assert_memory_equal(&q8, gguf_q8_0, sizeof q8);
  assert_memory_equal(&q4, gguf_q4_0, sizeof q4);
  for (int i = 0; i < ATTN_BLOCK_VALUES; i++) {
    back[i] = attn_load_f32((attn_storage){&q8, ATTN_Q8_0}, i);
    assert_true(fabsf(back[i] - x[i]) <= 4.0f / 127 / 2 * 1.01f);
  }
  attn_store_row(&q8, ATTN_Q8_0, 0, (const float[3]){NAN, 1, 2}, 3);
  attn_store_row(&q4, ATTN_Q4_0, 0, (const float[3]){1, NAN, 2}, 3);
  assert_true(isnan(attn_oracle_load(&q8, ATTN_Q8_0, 1)) && isnan(attn_oracle_load(&q4, ATTN_Q4_0, 0)));
  attn_store_row(&q8, ATTN_Q8_0, 0, (const float[3]){0, 0, 0}, 3);
  attn_store_row(&q4, ATTN_Q4_0, 0, (const float[3]){0, 0, 0}, 3);
  for (int i = 0; i < ATTN_BLOCK_VALUES; i++)
    assert_true(attn_oracle_load(&q8, ATTN_Q8_0, i) == 0 && attn_oracle_load(&q4, ATTN_Q4_0, i) == 0);
}

/* ---- Rescaling ------------------------------------------------------------------------------------------------------- */

enum { ROWS = 16, LOW = 256, KEYS = 1024, FIRST = 8 };

/* LOW keys with one score, then keys with a higher one. References near 8192 are stored in steps of 2^-10, and the
 * difference of the two scores is no multiple of that. The first keys after the move must weigh as much as all later ones.
 */
static void check_equal_weights(const char *kernel) {
  static float q[ROWS], k[KEYS], v[KEYS], o[ROWS];
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, ROWS, KEYS, 1, 1);
  p.scale = 0.693147181f; /* log 2: scores are powers of 2 */
  if (attn_kernel_rejects(attn_kernel_find(kernel), &p)) return;
  for (int i = 0; i < ROWS; i++) q[i] = 1 + 0.0123457f * (float)i;
  for (int j = 0; j < KEYS; j++) {
    k[j] = j < LOW ? 8191.25f : 8205.5f;
    v[j] = j >= LOW && j < LOW + FIRST;
  }
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);
  test_ok(test_run(&p, &args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = 1)));
  for (int i = 0; i < ROWS; i++) {
    const double low = exp2(-(double)q[i] * (8205.5 - 8191.25)), expected = FIRST / (KEYS - LOW + LOW * low);
    if (fabs((double)o[i] / expected - 1) > 2e-5)
      fail_msg("%s: row %d weighs its first keys %.7g, should be %.7g", kernel, i, (double)o[i], expected);
  }
}

TEST(equal_scores_weigh_the_same_after_a_rescale) { test_each_kernel(check_equal_weights); }

/* ---- Peak loops ------------------------------------------------------------------------------------------------------ */

static double now_s(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* A loop that the compiler has left out would run at any rate. */
TEST(peak_loops_are_as_slow_as_a_core) {
  const attn_peak_loop *loop;
  for (int i = 0; (loop = attn_peak_get(i)); i++) {
    if (!attn_peak_usable(loop->isa)) continue;
    const double begin = now_s();
    loop->run(4096);
    assert_true(4096 * loop->flops / (now_s() - begin) < 2e13);
  }
}

/* Sums one after the other, side by side, and of the rest after steps of many vectors. */
TEST(read_loops_see_every_bit) {
  enum { WORDS = 19 * ATTN_READ_LINE / sizeof(uint64_t) };
  static _Alignas(64) uint64_t data[2 * WORDS];
  const attn_peak_loop *loop;
  for (int i = 0; (loop = attn_peak_get(i)); i++)
    for (size_t n = 0; loop->read && attn_peak_usable(loop->isa) && n < COUNT(data); n++) {
      data[n] = (uint64_t)1 << n % 64;
      for (size_t ahead = 0; ahead <= 8192; ahead += 8192) {
        assert_true(loop->read(data, NULL, sizeof data, ahead) == data[n]);
        assert_true(loop->read(data, data + WORDS, sizeof data / 2, ahead) == data[n]);
        assert_true(loop->read(data, NULL, sizeof data / 2, ahead) == (n < WORDS ? data[n] : 0));
      }
      data[n] = 0;
    }
}
