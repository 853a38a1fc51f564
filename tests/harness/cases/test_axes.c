/* SPDX-License-Identifier: MIT */
/* Axes, case ids and work: values beyond the type of an axis are refused, an id gives the case that it names, and the
 * operations and bytes of a case are those counted by hand. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "cases/case.h"
#include "cases/cases.h"
#include "data/tensors.h"
#include "layers/layer.h"
#include "tests/support/layer_support.h"

static bool set(const char *assignment, char error[300]) {
  bench_grid grid = {0};
  const bool fine = bench_grid_set(&grid, assignment, error, 300);
  bench_grid_clear(&grid);
  return fine;
}

TEST(values_beyond_their_type_are_refused) {
  static const struct {
    const char *assignment, *part;
  } bad[] = {{"window=9223372036854775807", "at most 2147483647"},
             {"window=4..4294967300", "at most 2147483647"},
             {"offset=4294967300", "at most 2147483647"},
             {"offset=-2147483649", "at least -2147483648"},
             {"seq=4294967297", "at most 2147483647"},
             {"seq=1:4294967297:*2", "at most 2147483647"},
             {"seq=9223372036854775808", "a whole number"},
             {"threads=4294967297", "at most 4096"},
             {"width=4294967297", "at most 2147483647"},
             {"softcap=1e-300", "as float32 holds"},
             {"softcap=1e39", "as float32 holds"},
             {"scale=-1e39", "as float32 holds"},
             {"magnitude=1e-60", "as float32 holds"}};
  for (size_t i = 0; i < COUNT(bad); i++) {
    char error[300] = "";
    if (set(bad[i].assignment, error)) fail_msg("%s is taken", bad[i].assignment);
    test_contains(error, bad[i].part);
  }
}

/* Fails unless the value is refused on the command line, in a case id and in a preset. */
static void assert_refused(const bench_axis_info *axis, const char *value) {
  char text[400], error[300];
  bench_spec spec;
  bench_grids grids = {0};
  snprintf(text, sizeof text, "%s=%s", axis->name, value);
  if (set(text, error)) fail_msg("%s is taken", text);
  snprintf(text, sizeof text, "%s:%s", axis->name, value);
  if (!strchr(value, '/') && bench_spec_from_id(text, &spec, error, sizeof error)) fail_msg("%s is taken", text);
  snprintf(text, sizeof text, "[title]\n%s = %s\n", axis->name, value);
  if (bench_preset_read(text, &grids, error, sizeof error)) fail_msg("%s is taken", text);
  test_contains(error, axis->name);
  bench_grids_clear(&grids);
}

TEST(every_axis_refuses_what_it_cannot_hold) {
  static const char *const always[] = {"nonsense", "1e5x",  "9223372036854775808",
                                       "0x",       "-",     "nan",
                                       "inf",      "1e400", "123456789012345678901234567890123456789012345678901234567890"};
  for (int i = 0; i < AXIS_COUNT; i++) {
    const bench_axis_info *axis = bench_axis_get((bench_axis)i);
    const bool whole = axis->kind == AXIS_IS_INT || axis->kind == AXIS_IS_WINDOW;
    for (size_t v = 0; v < COUNT(always); v++)
      if (axis->kind != AXIS_IS_REAL || v != 2) assert_refused(axis, always[v]);
    for (int side = 0; whole && side < 2; side++) {
      char value[32];
      snprintf(value, sizeof value, "%lld", side ? (long long)axis->most + 1 : (long long)axis->least - 1);
      assert_refused(axis, value);
    }
  }
}

TEST(values_at_the_bounds_are_taken) {
  static const char *const good[] = {"window=2147483647",  "window=..2147483647",  "offset=2147483647",
                                     "offset=-2147483648", "seq=0,2147483647",     "seq=1:2147483647:*2",
                                     "threads=4096",       "softcap=0,-0.0,1e-45", "scale=3.4e38"};
  for (size_t i = 0; i < COUNT(good); i++) {
    char error[300] = "";
    if (!set(good[i], error)) fail_msg("%s", error);
  }
}

/* Each size fits its type, but products of them do not. */
TEST(products_of_sizes_do_not_overflow) {
  static const char *const ids[] = {"Hq:2147483647/Sq:2147483647/Dv:2147483647/layout:spread",
                                    "B:2147483647/Sq:2147483647/Sk:2147483647/lengths:varlen",
                                    "layer:mha/width:2147483647/heads:1",
                                    "layer:synthesizer-random/Sq:2147483647/Sk:2147483647",
                                    "layer:add-norm/heads:2147483647/Dv:2147483647",
                                    "mask:random/Sq:2147483647/Sk:2147483647"};
  for (size_t i = 0; i < COUNT(ids); i++)
    if (!case_of(ids[i]).invalid[0]) fail_msg("%s is valid", ids[i]);
}

/* The number of elements from the first to the last along these strides. It is huge if a stride overflowed. */
static long double span_of(attn_strides s, int64_t batch, int64_t heads, int64_t seq, int64_t dim) {
  const long double b = fabsl((long double)s.b), h = fabsl((long double)s.h), i = fabsl((long double)s.s);
  return b * (long double)(batch - 1) + h * (long double)(heads - 1) + i * (long double)(seq - 1) +
         fabsl((long double)s.d) * (long double)(dim - 1);
}

static void check_extreme(const char *id) {
  const bench_case bench = case_of(id);
  const attn_problem *p = &bench.problem;
  if (bench.invalid[0]) return;
  const long double most = ldexpl(1, 60), q = span_of(p->q_stride, p->batch, p->heads_q, p->seq_q, p->dim_qk),
                    k = span_of(p->k_stride, p->batch, p->heads_kv, p->seq_k, p->dim_qk),
                    v = span_of(p->v_stride, p->batch, p->heads_kv, p->seq_k, p->dim_v),
                    o = span_of(p->o_stride, p->batch, p->heads_q, p->seq_q, p->dim_v);
  if (q > most || k > most || v > most || o > most) fail_msg("%s: a stride overflowed", id);
  if (bench_layer_is(&bench))
    assert_true(bench_layer_bytes(&bench) > 0 && bench_layer_flops(&bench) >= 0);
  else
    (void)bench_tensors_size(&bench);
}

/* For every layout and layer, every two sizes at their largest. Sanitizers report signed overflow. */
TEST(the_largest_sizes_do_not_overflow) {
  static const char *const sizes[] = {"B", "Hq", "Hkv", "Sq", "Sk", "D", "Dv", "width", "window", "offset"};
  enum { SIZES = COUNT(sizes) };
  for (int which = 0; which < 2; which++) {
    const bench_axis_info *axis = bench_axis_get(which ? AXIS_LAYER : AXIS_LAYOUT);
    for (const char *const *word = axis->words; *word; word++)
      for (int a = 0; a < SIZES; a++)
        for (int b = 0; b < a; b++)
          for (int rest = 0; rest < 2; rest++) {
            char id[200]; /* the other sizes are 1; the batch is 0 or 1 */
            snprintf(id, sizeof id, "B:%d/Hq:1/Hkv:1/Sq:1/Sk:1/D:1/Dv:1/%s:%s/%s:2147483647/%s:2147483647", rest, axis->name,
                     *word, sizes[a], sizes[b]);
            check_extreme(id);
          }
  }
  check_extreme("B:0/Hq:2147483647/Hkv:2147483647/Sq:2147483647/Sk:2147483647/D:2147483647/Dv:2147483647");
}

TEST(an_id_names_its_case) {
  static const char *const ids[] = {
      "dtype:f32+bf16/B:2/Hq:6/Hkv:2/Sq:3/Sk:70/D:8/Dv:5/causal:bottom-right/threads:2/window:7..0/softcap:0.5/sinks:on",
      "dtype:bf16+bf16+f32/B:1/Hq:1/Hkv:1/Sq:3/Sk:3/D:8/Dv:8/causal:none/threads:1/align:offset/offset:-4/window:..2",
      "dtype:f32/B:1/Hq:8/Hkv:8/Sq:5/Sk:5/D:64/Dv:64/causal:none/threads:1/lengths:varlen/cache:cold-kv",
      "dtype:f32/B:1/Hq:4/Hkv:4/Sq:5/Sk:5/D:16/Dv:16/causal:none/threads:1/layer:mha/width:64"};
  for (size_t i = 0; i < COUNT(ids); i++) assert_string_equal(case_of(ids[i]).case_id, ids[i]);
  assert_string_equal(case_of("softcap:0.50/window:08").case_id + strlen(case_of("").case_id), "/window:8..8/softcap:0.5");
}

/* Cases that differ only in threads or cache have the same data; all others have different data. */
TEST(the_seed_follows_from_the_data) {
  const uint64_t seed = case_of("").seed;
  assert_true(case_of("threads:2").seed == seed && case_of("cache:cold").seed == seed);
  assert_true(case_of("Sq:3").seed != seed && case_of("mask:random").seed != seed && case_of("layer:mha").seed != seed);
}

/* ---- Work, counted by hand ------------------------------------------------------------------------------------------ */

#define SHAPE "B:2/Hq:6/Hkv:2/Sq:5/Sk:7/D:8/Dv:4" /* 420 pairs, q 480, k 224, v 112, o 240 numbers */

enum { KEY = 2 * 2 * (8 + 4) * 4 }; /* bytes of one key and its value in all batches and KV heads */

TEST(work_is_what_can_be_counted) {
  static const struct {
    const char *id;
    double pairs, flops, bytes;
  } cases[] = {{SHAPE, 420, 420 * 24, 4 * (480 + 224 + 112 + 240)},
               {SHAPE "/dtype:f16", 420, 420 * 24, 2 * (480 + 224 + 112 + 240)},
               {SHAPE "/dtype:f32+bf16", 420, 420 * 24, 4 * (480 + 240) + 2 * (224 + 112)},
               {SHAPE "/dtype:bf16+bf16+f32", 420, 420 * 24, 2 * (480 + 224 + 112) + 4 * 240},
               {SHAPE "/score:precomputed", 420, 420 * 8, 4 * (420 + 112 + 240)},
               {SHAPE "/score:additive", 420, 420 * 32, 4 * (480 + 224 + 112 + 240)},
               {SHAPE "/score:gaussian", 420, 420 * 32, 4 * (480 + 224 + 112 + 240)},
               {SHAPE "/causal:top-left", 180, 180 * 24, 4224 - 2 * KEY},
               {SHAPE "/causal:bottom-right", 300, 300 * 24, 4224},
               {SHAPE "/causal:offset/offset:-2", 72, 72 * 24, 4224 - 4 * KEY},
               {SHAPE "/causal:offset/offset:3", 348, 348 * 24, 4224},
               {SHAPE "/causal:offset/offset:9", 420, 420 * 24, 4224},
               {SHAPE "/causal:top-left/window:1", 108, 108 * 24, 4224 - 2 * KEY},
               {SHAPE "/window:1..1", 168, 168 * 24, 4224 - KEY},
               {SHAPE "/window:..2", 300, 300 * 24, 4224},
               {SHAPE "/align:bottom-right/window:0..0", 60, 60 * 24, 4224 - 2 * KEY},
               {SHAPE "/align:offset/offset:-2147483648/window:3", 0, 0, 4224 - 7 * KEY},
               {SHAPE "/layout:broadcast", 420, 420 * 24, 4224},
               {SHAPE "/latent:on", 420, 420 * 24, 4 * (480 + 224 + 240)},
               {SHAPE "/causal:top-left/page_tokens:16/page_order:shuffled", 180, 180 * 24, 4224 - 2 * KEY}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_case bench = case_of(cases[i].id);
    bench_tensors tensors;
    assert_true(bench_tensors_create(&bench, &tensors));
    const double pairs = bench_work_pairs(&bench.problem, &tensors.args), flops = bench_work_flops(&bench.problem, pairs);
    const double bytes = bench_work_bytes(&bench.problem, &tensors.args);
    bench_tensors_destroy(&tensors);
    assert_true(bench_multiply_adds(&bench.problem) == 420 * 12); /* masks or not */
    if (pairs != cases[i].pairs || flops != cases[i].flops || bytes != cases[i].bytes)
      fail_msg("%s: %g pairs, %g operations, %g bytes", cases[i].id, pairs, flops, bytes);
  }
}

/* `attnbench eval` may get an offset for each batch and a mask for each head, which attnbench's cases do not have. */
TEST(batches_and_heads_may_differ) {
  bench_case bench = case_of(SHAPE "/causal:offset/offset:3");
  const int32_t offsets[] = {3, -2};
  assert_true(bench_work_pairs(&bench.problem, &ATTN_STRUCT(attn_args, .offsets = offsets)) == 6 * (29 + 6));
  uint8_t mask[6 * 35];
  for (int i = 0; i < 6 * 35; i++) mask[i] = i / 35 != 3 && i / 35 != 5;
  bench = case_of(SHAPE "/mask:random");
  bench.problem.mask_stride = (attn_score_strides){.b = 0, .h = 35, .q = 7, .k = 1};
  assert_true(bench_work_pairs(&bench.problem, &ATTN_STRUCT(attn_args, .mask = mask)) == 2 * 4 * 35);
}

TEST(the_widest_window_sees_all_keys) {
  static const attn_args none = {.struct_size = sizeof(attn_args)};
  bench_case bench = case_of(SHAPE);
  bench.problem.window_left = bench.problem.window_right = INT64_MAX;
  assert_true(bench_work_pairs(&bench.problem, &none) == 420);
}

/* Most rows have 16 numbers. Bytes are those of inputs, outputs, matrices, then biases and norms. */
TEST(work_of_layers_is_what_can_be_counted) {
  static const struct {
    const char *id;
    double flops, bytes;
  } layers[] = {
      {"layer:mha/B:2/Hq:4/width:16/Sq:5/Sk:5", 2 * 10 * 1024 + 200 * 16, 4 * (160 + 160 + 1024 + 64)},
      {"layer:mha/B:2/Hq:4/width:16/Sq:5/Sk:5/causal:top-left", 2 * 10 * 1024 + 120 * 16, 4 * (160 + 160 + 1024 + 64)},
      {"layer:block/B:2/Hq:4/width:16/Sq:5/Sk:5", 2 * 10 * 3072 + 200 * 16, 4 * (160 + 160 + 3072 + 208)},
      {"layer:decoder/B:2/Hq:4/width:16/Sq:5/Sk:5", 2 * 10 * 4096 + 400 * 16, 4 * (160 + 160 + 4096 + 304)},
      {"layer:decoder/B:2/Hq:4/width:16/Sq:5/Sk:5/causal:top-left", 2 * 10 * 4096 + 320 * 16, 4 * (160 + 160 + 4096 + 304)},
      {"layer:cross/B:2/Hq:4/width:16/Sq:5/Sk:5", 2 * 10 * 1024 + 200 * 16, 4 * (160 + 160 + 1024 + 64)},
      {"layer:feed-forward/B:2/width:16/Sq:5/Sk:5", 2 * 10 * 2048, 4 * (160 + 160 + 2048 + 80)},
      {"layer:add-norm/B:2/width:16/Sq:5/Sk:5", 10 * 160, 4 * (2 * 160 + 160 + 32)},
      {"layer:additive/B:2/Sq:5/Sk:7/D:8/Dv:4/width:16", 2 * 24 * 16 * 8 + 70 * 32, 4 * (160 + 224 + 56 + 40 + 33 * 8 + 16)},
      {"layer:synthesizer-dense/B:2/Hq:4/width:16/Sq:5/Sk:5", 2 * 10 * 848 + 200 * 8, 4 * (160 + 160 + 848 + 68)},
      {"layer:synthesizer-random/B:2/Hq:4/width:16/Sq:5/Sk:5", 2 * 10 * 512 + 200 * 8, 4 * (160 + 160 + 612 + 32)},
      {"layer:synthesizer-random/B:2/Hq:4/width:16/Sq:5/Sk:5/causal:top-left", 2 * 10 * 512 + 120 * 8,
       4 * (160 + 160 + 612 + 32)},
      {"layer:regression/Sq:5/Sk:7/D:8/Dv:4", 35 * 32, 4 * (40 + 56 + 28 + 20 + 8)},
      {"layer:positions/Sq:5/Sk:5/width:16", 0, 4 * 80},
      {"layer:decode-step/B:2/Hq:4/Hkv:2/Sq:2/Sk:7/D:4/Dv:4", 104 * 16, 4 * (64 + 64 + 160 + 64)}};
  for (size_t i = 0; i < COUNT(layers); i++) {
    const bench_case bench = case_of(layers[i].id);
    if (bench.invalid[0]) fail_msg("%s", bench.invalid);
    const double flops = bench_layer_flops(&bench), bytes = bench_layer_bytes(&bench);
    if (flops != layers[i].flops || bytes != layers[i].bytes)
      fail_msg("%s: %g operations, %g bytes", layers[i].id, flops, bytes);
  }
}

/* A microsecond, and the operations at the rate of the tier (kernels/tiers.def), which naive kernels reach to 40 %. */
TEST(guesses_follow_tier_algorithm_and_threads) {
  static const struct {
    attn_kernel_info kernel;
    const char *id;
    int threads;
    double seconds;
  } cases[] = {{{.isa = "c", .algorithm = "flash"}, SHAPE, 1, 10080 / 5e9},
               {{.isa = "c", .algorithm = "naive"}, SHAPE, 1, 10080 / 2e9},
               {{.isa = "avx2", .algorithm = "flash"}, SHAPE, 1, 10080 / 60e9},
               {{.isa = "neonbf16", .algorithm = "flash"}, SHAPE, 0, 10080 / 60e9},
               {{.isa = "another", .algorithm = "flash"}, SHAPE, 1, 10080 / 20e9},
               {{.isa = "avx512", .algorithm = "flash"}, SHAPE, 2, 10080 / 240e9},
               {{.isa = "c", .algorithm = "flash"}, SHAPE "/causal:top-left", 1, 0.55 * 10080 / 5e9},
               {{.isa = "c", .algorithm = "flash"}, SHAPE "/window:..1", 1, 10080 / 5e9}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_case bench = case_of(cases[i].id);
    const double guess = bench_work_guess(&bench.problem, &cases[i].kernel, cases[i].threads) - 1e-6;
    if (fabs(guess - cases[i].seconds) > 1e-9 * cases[i].seconds) fail_msg("case %zu: %.12g s", i, guess);
  }
}
