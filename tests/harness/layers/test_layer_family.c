/* SPDX-License-Identifier: MIT */
/* The layers of libattn_nn as benchmark cases: each passes with every kernel that takes it, fails if it is wrong, and
 * refuses axes that it does not have. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "report/report.h"
#include "tests/support/layer_support.h"

/* A kind of layer and its shapes: sizes around the blocks of kernels and products, and around the number of rows up to which
 * all are checked. `spoil` and `at` name a number of its data that is read only when the layer is made. */
typedef struct trial {
  const char *kind;
  const char *shapes[6];
  char spoil; /* 'w'eights or 'x'; 0: every call reads all data */
  int at;
} trial;

static const trial trials[] = {
    {"decoder",
     {"heads:4/width:64/seq:40", "batch:2/heads:2/width:32/seq:130", "heads:6/heads_kv:2/head_dim:8/width:48/seq:33",
      "heads:4/width:64/seq:40/causal:top-left", "batch:2/heads:2/width:32/seq:130/dtype:bf16",
      "heads:6/heads_kv:2/head_dim:8/width:48/seq:33/dtype:f16"},
     'w',
     70},
    {"cross",
     {"heads:4/width:64/seq:40", "batch:2/heads:2/width:32/seq:130", "heads:6/heads_kv:2/head_dim:8/width:48/seq:33",
      "batch:2/heads:2/width:32/seq:130/dtype:bf16", "heads:4/width:64/seq:40/dtype:f16"},
     'w',
     70},
    {"feed-forward",
     {"width:64/seq:40", "batch:2/width:32/seq:130", "width:7/seq:1", "width:64/seq:40/dtype:bf16",
      "width:7/seq:1/dtype:f16"},
     'w',
     70},
    {"swiglu", {"width:64/seq:40", "batch:2/width:32/seq:130", "width:7/seq:1", "width:64/seq:40/dtype:bf16"}, 'w', 70},
    {"geglu", {"width:64/seq:40", "width:7/seq:1", "batch:2/width:32/seq:130/dtype:f16"}, 'w', 70},
    {"linear",
     {"width:64/seq:40", "width:70/seq:1/dtype:f32+i8", "batch:2/width:32/seq:130/dtype:f32+bf16",
      "width:33/seq:3/dtype:bf16", "width:130/seq:97/dtype:bf16+i8", "width:7/seq:1/dtype:f32+f16"},
     'w',
     70},
    {"add-norm",
     {"width:64/seq:40", "batch:2/width:32/seq:130", "width:33/seq:1", "width:64/seq:40/dtype:bf16",
      "width:33/seq:1/dtype:f16"},
     0,
     0},
    {"add-rms-norm",
     {"width:64/seq:40", "batch:2/width:32/seq:130", "width:33/seq:1", "width:64/seq:40/dtype:bf16",
      "width:33/seq:1/dtype:f16"},
     0,
     0},
    {"embed", {"width:64/seq:40", "batch:2/width:33/seq:130/dtype:bf16", "width:7/seq:1/dtype:f16"}, 0, 0},
    {"pool", {"width:64/seq:40", "batch:2/width:33/seq:130/dtype:bf16", "width:7/seq:2/dtype:f16"}, 0, 0},
    {"sample", {"width:64/seq:40", "batch:2/width:100/seq:130", "width:7/seq:1"}, 0, 0},
    {"mha", /* test_layer.c has those of float32 */
     {"heads:4/width:64/seq:40/dtype:bf16", "batch:2/heads:2/width:32/seq:130/dtype:f16",
      "heads:6/heads_kv:2/head_dim:8/width:48/seq:33/causal:top-left/dtype:bf16"},
     0,
     0},
    {"block",
     {"heads:4/width:64/seq:40/dtype:bf16", "batch:2/heads:2/width:32/seq:130/dtype:f16",
      "batch:2/heads:2/width:32/seq:130/made_for:row"},
     0,
     0},
    {"decoder", {"batch:2/heads:2/width:32/seq:130/made_for:row"}, 'w', 70},
    {"mha", {"batch:2/heads:2/width:32/seq:130/causal:top-left/made_for:row"}, 0, 0},
    {"additive",
     {"seq:2", "batch:2/seq_q:1/seq_k:70/width:24", "seq:97/width:21/head_dim:13",
      "batch:2/seq_q:130/seq_k:33/dim_qk:8/dim_v:5/width:16", "seq_q:5/seq_k:2/width:1/head_dim:1"},
     'w',
     3},
    {"synthesizer-dense",
     {"heads:2/width:16/seq:2", "heads:3/head_dim:5/width:21/seq:33", "batch:2/heads:2/width:32/seq:130",
      "batch:2/heads:1/width:16/seq:97/causal:top-left"},
     'w',
     70},
    {"synthesizer-random",
     {"heads:2/width:16/seq:2", "heads:3/head_dim:5/width:21/seq:33", "batch:2/heads:2/width:32/seq:130",
      "batch:2/heads:1/width:16/seq:97/causal:top-left"},
     'w',
     3},
    {"regression", {"seq:2/head_dim:1", "seq_q:1/seq_k:70/dim_qk:3/dim_v:1", "seq_q:130/seq_k:97/dim_qk:8/dim_v:5"}, 0, 0},
    {"positions", {"seq:2/width:7", "seq:97/width:3", "seq:130/width:64"}, 0, 0},
    {"decode-step",
     {"seq:2/head_dim:8", "batch:2/heads:6/heads_kv:2/dim_qk:13/dim_v:9/seq:70",
      "batch:2/heads:4/head_dim:16/seq_q:4/seq_k:70", "heads:16/heads_kv:16/head_dim:4/seq_q:9/seq_k:40",
      "heads:2/heads_kv:1/head_dim:8/seq_q:20/seq_k:20", "batch:3/heads:1/head_dim:16/seq:300"},
     'x',
     8 * 8 + 2 * 8 * 8 + 3}, /* in the first shape: a cached key, behind query, key and value of the step */
    {"kv-append",
     {"heads:3/seq:40/head_dim:6/rope:halves", "batch:2/heads:2/seq_q:5/seq_k:40/dim_qk:34/dim_v:7/rope:interleaved",
      "batch:3/heads:2/seq_q:33/seq_k:50/page_tokens:16/page_order:shuffled/head_dim:16/rope:halves/dtype:f32+bf16",
      "heads:1/seq:130/head_dim:8/rope:halves/dtype:bf16", "heads:2/seq:9/head_dim:32/rope:interleaved/dtype:bf16+e4m3",
      "heads:2/seq:9/head_dim:32/rope:halves/dtype:f16"},
     0,
     0},
    {"kv-append",
     {"heads:2/seq:9/head_dim:64/rope:halves/dtype:f32+q4_0",
      "batch:2/heads:3/seq_q:5/seq_k:40/dim_qk:34/dim_v:7/rope:interleaved/dtype:bf16+q8_0",
      "heads:3/seq:40/head_dim:40/rope:halves/dtype:f32+i8/kv_scales:token",
      "batch:3/heads:2/seq_q:33/seq_k:50/page_tokens:16/head_dim:16/rope:halves/dtype:f16+e4m3/kv_scales:token",
      "heads:2/seq:9/head_dim:32/rope:interleaved/dtype:f32+i8/kv_scales:head",
      "heads:2/seq:9/head_dim:34/rope:halves/dtype:f32+q4_0/kv_scales:tensor"},
     0,
     0},
};

/* Calls check() with every kind of layer in each of its shapes. */
static void each_layer(void (*check)(layer_one *one, const char *shape)) {
  for (size_t t = 0; t < COUNT(trials); t++)
    for (int s = 0; s < (test_few() ? 2 : 6) && trials[t].shapes[s]; s++) {
      layer_one one;
      open_layer(&one, trials[t].kind, trials[t].shapes[s]);
      check(&one, trials[t].shapes[s]);
      close_layer(&one);
    }
}

static void passes(layer_one *one, const char *shape) {
  const bench_verdict verdict = check_layer(one);
  const char *kind = one->bench.layer;
  if (verdict.status != BENCH_PASS) fail_msg("%s %s with %s: %s", kind, shape, one->kernel->name, verdict.reason);
  assert_true(verdict.rows_checked > 0 && verdict.max_err_ratio > 0);
  assert_true((bench_layer_product(one->trial)[0] != 0) == bench_layer_has(&one->bench, BENCH_HAS_PROJECTIONS));
  const bench_verdict again = check_layer(one); /* a call does not change the next one */
  assert_true(again.status == BENCH_PASS && again.output_hash == verdict.output_hash);
}

/* A kernel of our own that takes the attention must take the layer. Kernels on libraries may refuse it. */
static const attn_kernel_info *kernel;

static void passes_with_kernel(layer_one *one, const char *shape) {
  const char *reason = attn_kernel_rejects(kernel, &one->bench.problem);
  if (remake_layer(one, kernel, false)) {
    passes(one, shape);
    if (bench_layer_has(&one->bench, BENCH_HAS_ATTENTION)) assert_string_equal(one->trial->kernel, kernel->name);
  } else if (!reason && !kernel->library[0]) {
    fail_msg("%s %s: %s does not take it: %s", one->bench.layer, shape, kernel->name, attn_last_error());
  }
}

static void passes_with(const char *name) {
  kernel = attn_kernel_find(name);
  each_layer(passes_with_kernel);
}

TEST(test_right_layers_pass_with_every_kernel) { test_each_kernel(passes_with); }

TEST(test_the_automatic_choice_passes) { each_layer(passes); }

static void wrong_layer_fails(layer_one *one, const char *shape) {
  assert_true(remake_layer(one, NULL, true));
  const bench_verdict verdict = check_layer(one);
  if (verdict.status != BENCH_FAIL) fail_msg("%s %s: the wrong answer passes", one->bench.layer, shape);
  test_contains(verdict.reason, "of the limit at batch");
}

TEST(test_wrong_answers_fail) { each_layer(wrong_layer_fails); }

/* A layer packs its weights or caches its prompt when it is made. A later change of these data changes only the right
 * answer, so the layer must fail. */
TEST(test_spoilt_data_fail) {
  for (size_t t = 0; t < COUNT(trials); t++) {
    if (!trials[t].spoil) continue;
    layer_one one;
    open_layer(&one, trials[t].kind, trials[t].shapes[0]);
    passes(&one, trials[t].shapes[0]);
    bench_layer_data *data = &one.layer->data;
    float *number = (trials[t].spoil == 'x' ? data->x : data->weights) + trials[t].at;
    *number += 0.05f;
    bench_forget(data->kept);
    if (check_layer(&one).status != BENCH_FAIL) fail_msg("%s: another weight passes", trials[t].kind);
    *number -= 0.05f;
    close_layer(&one);
  }
}

/* A write outside y fails, whatever y holds. */
TEST(test_guards) {
  layer_one one;
  open_layer(&one, "positions", "seq:8/width:6");
  bench_layer_data *data = &one.layer->data;
  data->y += 1; /* the last number comes to lie in the guard zone */
  test_contains(check_layer(&one).reason, "wrote outside y");
  data->y -= 1;
  close_layer(&one);
}

/* Without a rotation the cache holds the very values, rounded once, in every type; and nothing else is written. */
TEST(test_caches_hold_the_rounded_values) {
  static const char *const dtypes[] = {"f32",
                                       "f16",
                                       "bf16",
                                       "f32+f16",
                                       "f32+bf16",
                                       "bf16+e4m3",
                                       "f32+e5m2",
                                       "f32+i8",
                                       "f32+q8_0",
                                       "bf16+q4_0",
                                       "f32+q8_0/kv_scales:head",
                                       "f32+i8/kv_scales:tensor",
                                       "bf16+e4m3/kv_scales:head",
                                       "f16/kv_scales:head",
                                       "f16+i8/kv_scales:token",
                                       "bf16+e4m3/kv_scales:token",
                                       "f32+e5m2/kv_scales:token"};
  static const char *const places[] = {"seq:40", "seq_q:1/seq_k:40", "batch:3/seq_q:33/seq_k:50/page_tokens:16",
                                       "batch:2/seq:130/page_tokens:48/page_order:shuffled"};
  for (size_t i = 0; i < COUNT(dtypes) * COUNT(places); i++) {
    layer_one one;
    char shape[120];
    snprintf(shape, sizeof shape, "heads:3/dim_qk:40/dim_v:13/dtype:%s/%s", dtypes[i / COUNT(places)],
             places[i % COUNT(places)]);
    open_layer(&one, "kv-append", shape);
    const attn_problem *p = &one.bench.problem;
    const bench_verdict verdict = check_layer(&one);
    if (verdict.status != BENCH_PASS) fail_msg("%s: %s", shape, verdict.reason);
    assert_true(verdict.max_err_ratio == 0 && verdict.rows_checked == p->batch * p->seq_q * p->heads_kv);
    one.layer->rows.count--; /* its row counts as written beside the others */
    test_contains(check_layer(&one).reason, "wrote to places of other tokens");
    assert_true(remake_layer(&one, NULL, true) && check_layer(&one).status == BENCH_FAIL);
    close_layer(&one);
  }
}

/* One bit of what an append wrote: the scale, the first number, or the last one of its last row's block; a factor of V; or
 * one where no token went. */
static const char *spoil_of;

static attn_status append_spoilt(bench_layer_trial *t, void *workspace, size_t bytes) {
  const attn_status status = bench_layer_kv_append.run(t, workspace, bytes);
  const bench_layer_shape *s = &t->data->shape;
  unsigned char *y = (unsigned char *)t->data->y, *factors = (unsigned char *)bench_layer_factors(t->data);
  if (!strcmp(spoil_of, "scale")) y[0] ^= 1;
  if (!strcmp(spoil_of, "number")) y[attn_dtype_of(s->type_y).values > 1 ? 2 : 0] ^= 1;
  if (!strcmp(spoil_of, "last number")) factors[-1] ^= 0x10;
  if (!strcmp(spoil_of, "factor")) factors[(s->factors - 1) * 4] ^= 1;
  if (!strcmp(spoil_of, "other token's factor")) factors[0] ^= 1;
  return status;
}

TEST(test_wrong_quantised_appends_fail) {
  static const struct {
    const char *shape, *spoil, *reason;
  } cases[] = {{"dtype:f32+q8_0/seq:3", "scale", "of the limit at batch 0, row 0, column "},
               {"dtype:f32+q8_0/seq:3", "number", "of the limit at batch 0, row 0, column 0"},
               {"dtype:f32+q8_0/seq:3", "last number", "of the limit at batch 0, row 2, column 127"},
               {"dtype:f32+q4_0/seq:3", "scale", "of the limit at batch 0, row 0, column "},
               {"dtype:f32+q4_0/seq:3", "number", "of the limit at batch 0, row 0, column 0"},
               {"dtype:f32+q4_0/seq:3", "last number", "of the limit at batch 0, row 2, column 127"},
               {"dtype:f32+i8/kv_scales:token/seq:3", "number", "of the limit at batch 0, row 0, column 0"},
               {"dtype:f32+i8/kv_scales:token/seq:3", "factor", "of the limit at batch 0, row 2, column "},
               {"dtype:f32+e4m3/kv_scales:token/seq:3", "factor", "of the limit at batch 0, row 2, column "},
               {"dtype:f32+i8/kv_scales:token/seq_q:1/seq_k:3", "other token's factor", "places of other tokens"},
               {"dtype:f32+q8_0/seq_q:1/seq_k:3", "scale", "places of other tokens"}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    layer_one one;
    char shape[100];
    snprintf(shape, sizeof shape, "heads:1/head_dim:64/%s", cases[i].shape);
    open_layer(&one, "kv-append", shape);
    assert_int_equal(check_layer(&one).status, BENCH_PASS);
    bench_layer_functions spoilt = bench_layer_kv_append;
    spoilt.run = append_spoilt;
    one.layer->data.functions = &spoilt;
    spoil_of = cases[i].spoil;
    const bench_verdict verdict = check_layer(&one);
    if (verdict.status != BENCH_FAIL) fail_msg("%s: another %s passes", shape, spoil_of);
    test_contains(verdict.reason, cases[i].reason);
    one.layer->data.functions = &bench_layer_kv_append;
    close_layer(&one);
  }
}

/* Right and wrong layers agree where there is only one key, or only the frequency 1. */
TEST(test_cases_that_cannot_fail_are_degenerate) {
  static const struct {
    const char *kind, *shape, *reason;
  } cases[] = {{"additive", "seq:1", "looks at all keys alike"},
               {"synthesizer-dense", "seq:1", "looks at all keys alike"},
               {"synthesizer-random", "seq:1", "looks at all keys alike"},
               {"regression", "seq_q:3/seq_k:1", "looks at all keys alike"},
               {"decode-step", "seq:1", "looks at all keys alike"},
               {"positions", "seq:1", "frequencies of another base"},
               {"positions", "seq:40/width:2", "frequencies of another base"},
               {"positions", "seq:1/width:1", "zeros"}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    layer_one one;
    open_layer(&one, cases[i].kind, cases[i].shape);
    const bench_verdict verdict = check_layer(&one);
    if (verdict.status != BENCH_DEGENERATE) fail_msg("%s %s passes as a case", cases[i].kind, cases[i].shape);
    test_contains(verdict.reason, cases[i].reason);
    close_layer(&one);
  }
}

/* ---- Axes ---- */

TEST(test_axes_that_a_layer_settles) {
  bench_case p = valid_case("layer:additive/seq:5");
  assert_true(p.problem.heads_q == 1 && p.problem.score == ATTN_SCORE_ADDITIVE && p.width == 64);
  p = valid_case("layer:additive/seq:5/width:48");
  assert_true(p.problem.dim_qk == 48 && p.problem.dim_v == 48);
  p = valid_case("layer:decode-step/seq:50");
  assert_true(p.problem.seq_q == 1 && p.problem.seq_k == 50 && p.problem.window_right == 0);
  assert_true(p.problem.align == ATTN_ALIGN_BOTTOM_RIGHT && p.width == 0);
  p = valid_case("layer:regression/seq_q:3/seq_k:9/dim_qk:2/dim_v:1");
  assert_true(p.problem.heads_q == 1 && p.problem.score == ATTN_SCORE_GAUSSIAN && p.width == 0);
  p = valid_case("layer:synthesizer-random/seq:9");
  assert_true(p.problem.heads_q == 8 && p.problem.score == ATTN_SCORE_PRECOMPUTED && p.width == 512);
}

/* These have no heads; only the width counts, however it is given. */
TEST(test_equal_layers_have_equal_names) {
  static const char *const kind[] = {"feed-forward", "linear", "add-norm", "embed", "sample", "positions"};
  static const char *const same[] = {"width:96", "heads:4/width:96", "heads:3/heads_kv:1/head_dim:32", "heads:12/dim_v:8",
                                     "heads:5/width:96"};
  for (size_t k = 0; k < COUNT(kind); k++)
    for (size_t s = 0; s < COUNT(same); s++) {
      char id[100], first[100];
      snprintf(first, sizeof first, "layer:%s/%s", kind[k], same[0]);
      snprintf(id, sizeof id, "layer:%s/%s", kind[k], same[s]);
      const bench_case one = valid_case(first), other = valid_case(id);
      assert_int_equal(one.width, 96);
      assert_string_equal(other.case_id, one.case_id);
    }
}

/* For every layer, the id of a case gives the same case again. */
TEST(test_names_of_all_layers_are_read_again) {
  const char *const *words = bench_axis_get(AXIS_LAYER)->words;
  assert_string_equal(words[0], "none");
  for (int i = 1; words[i]; i++) {
    char id[100];
    assert_non_null(bench_layer_find(words[i]));
    snprintf(id, sizeof id, "layer:%s/seq:9", words[i]);
    const bench_case one = valid_case(id), again = valid_case(one.case_id);
    assert_string_equal(again.case_id, one.case_id);
    assert_int_equal(again.seed, one.seed);
  }
}

TEST(test_contradictions) {
  static const struct {
    const char *id, *part;
  } bad[] = {{"layer:additive/heads:8", "heads is 8; layer additive is made for heads=1 only"},
             {"layer:additive/score:dot", "score is dot; layer additive is made for score=additive only"},
             {"layer:additive/causal:top-left", "causal is top-left; layer additive takes no masks"},
             {"layer:additive/scale:2", "scale is 2; layer additive has none to set"},
             {"layer:regression/batch:2", "batch is 2; layer regression is made for batch=1 only"},
             {"layer:regression/width:5", "width is 5; layer regression has none: give head_dim"},
             {"layer:regression/seq_k:0", "seq_k is 0; layers need at least 1"},
             {"layer:positions/threads:2", "threads is 2; layer positions is made for threads=1 only"},
             {"layer:add-norm/threads:2", "threads is 2; layer add-norm is made for threads=1 only"},
             {"layer:positions/seq_q:1", "seq_q is 1 with seq_k 512; layer positions has one length"},
             {"layer:feed-forward/causal:top-left", "takes no masks"},
             {"layer:feed-forward/window:3", "window is 3; layer feed-forward takes no windows"},
             {"layer:cross/causal:top-left", "takes no masks"},
             {"layer:synthesizer-dense/heads_kv:2", "heads_kv is 2 with 8 heads"},
             {"layer:synthesizer-dense/causal:bottom-right", "takes causal=top-left"},
             {"layer:synthesizer-random/window:3", "takes no windows"},
             {"layer:synthesizer-random/seq_q:3/seq_k:4", "has one length"},
             {"layer:decode-step/causal:top-left", "layer decode-step is made for causal=bottom-right only"},
             {"layer:decode-step/seq_q:5/seq_k:3", "seq_k counts the step's own tokens too: at least 5"},
             {"layer:decode-step/width:512", "width is 512; layer decode-step has none"},
             {"layer:decode-step/scale:2", "scale is 2; layer decode-step has none to set"},
             {"layer:decode-step/dtype:bf16", "dtype is bf16; layer decode-step is float32 inside"},
             {"layer:decode-step/page_tokens:16", "page_tokens is 16; layers here have no such choice"},
             {"layer:decode-step/rope:halves", "rope is halves; layers here have no such choice"},
             {"rope:halves", "rope is of layers"},
             {"made_for:row", "made_for is of layers"},
             {"layer:feed-forward/made_for:row", "made_for is row; layers here have no such choice"},
             {"layer:kv-append/rope:halves/head_dim:7", "rope is halves with dim_qk 7; it turns pairs"},
             {"layer:kv-append/rope:halves/head_dim:258", "an even dim_qk, at most 256"},
             {"layer:kv-append/heads_kv:2", "heads_kv is 2 with 8 heads"},
             {"layer:kv-append/seq_q:5/seq_k:3", "at least 5"},
             {"layer:linear/dtype:f32+e4m3", "dtype is f32+e4m3; layer linear has a type of rows, and of weights"},
             {"layer:sample/dtype:bf16", "dtype is bf16; layer sample is float32 inside"},
             {"layer:kv-append/dtype:bf16+bf16+f32", "layer kv-append has no O"},
             {"layer:kv-append/kv_scales:token", "kv_scales is token with dtype f32; factors are made for caches of e4m3"},
             {"layer:kv-append/dtype:f32+q8_0/kv_scales:token", "kv_scales is token with dtype f32+q8_0"},
             {"layer:decode-step/kv_scales:head", "kv_scales is head; layers here have no such choice"}};
  for (size_t i = 0; i < COUNT(bad); i++) test_contains(case_of(bad[i].id).invalid, bad[i].part);
}

/* ---- Rows of results ---- */

/* Cells of one timed row; "" is an empty cell. */
typedef struct row {
  const char *layer, *shape;
  const char *heads, *width, *score, *causal;
  bool flops, plan, workspace, product, attention; /* whether these columns have values */
} row;

static bool filled(const bench_row *found, bench_column column) {
  char text[BENCH_CELL];
  return bench_cell(found, column, text)[0];
}

static void row_says(const bench_row *found, const row *expected) {
  char text[BENCH_CELL];
  assert_int_equal(found->verdict.status, BENCH_PASS);
  assert_string_equal(found->layer, expected->layer);
  assert_string_equal(bench_cell(found, COLUMN_heads_q, text), expected->heads);
  assert_int_equal(filled(found, COLUMN_dim_v), expected->heads[0] != 0);
  assert_string_equal(bench_cell(found, COLUMN_width, text), expected->width);
  assert_string_equal(found->score, expected->score);
  assert_string_equal(found->causal, expected->causal);
  static const bench_column rates[] = {COLUMN_flops, COLUMN_gflops};
  for (size_t i = 0; i < COUNT(rates); i++) assert_int_equal(filled(found, rates[i]), expected->flops);
  assert_int_equal(filled(found, COLUMN_plan_ns), expected->plan);
  assert_int_equal(filled(found, COLUMN_workspace_bytes), expected->workspace);
  static const bench_column parts[] = {COLUMN_product, COLUMN_projections_pct, COLUMN_rest_pct};
  for (size_t i = 0; i < COUNT(parts); i++) assert_int_equal(filled(found, parts[i]), expected->product);
  assert_int_equal(filled(found, COLUMN_attention_pct), expected->attention);
  assert_true(found->time.median > 0 && found->gbs > 0);
}

TEST(test_rows) {
  static const row rows[] = {
      {"additive", "seq:20/width:16", "1", "16", "additive", "none", true, true, true, true, true},
      {"synthesizer-dense", "heads:2/seq:20/width:16", "2", "16", "precomputed", "none", true, true, true, true, true},
      {"synthesizer-random", "heads:2/seq:20/width:16", "2", "16", "precomputed", "none", true, true, true, true, true},
      {"regression", "seq:20/head_dim:4", "1", "", "gaussian", "none", true, false, false, false, false},
      {"positions", "seq:20/width:16", "", "16", "", "none", false, false, false, false, false},
      {"add-norm", "seq:20/width:16", "", "16", "", "none", true, false, false, false, false},
      {"feed-forward", "seq:20/width:16", "", "16", "", "none", true, true, true, true, false},
      {"decode-step", "heads:2/seq:20/head_dim:8", "2", "", "dot", "bottom-right", true, true, false, false, false},
      {"kv-append", "heads:2/seq:20/head_dim:8", "2", "", "", "none", false, false, false, false, false}};
  const attn_kernel_info *kernels[] = {attn_kernel_find("flash_c"), &bench_automatic};
  const bench_case_settings settings = {.timed = true, .case_budget_s = 5, .rounds = 3};
  for (size_t i = 0; i < COUNT(rows); i++) {
    char id[100];
    snprintf(id, sizeof id, "layer:%s/%s", rows[i].layer, rows[i].shape);
    const bench_case bench = valid_case(id);
    const bool runs_kernel = bench_layer_has(&bench, BENCH_HAS_ATTENTION) || rows[i].product;
    bench_row found[2];
    assert_true(bench_run_case(&bench, kernels, 2, &settings, found));
    row_says(&found[1], &rows[i]);
    if (runs_kernel) row_says(&found[0], &rows[i]);
    if (!runs_kernel) test_contains(found[0].verdict.reason, "runs no kernel: one row stands for all");
    if (!runs_kernel) assert_true(found[0].verdict.status == BENCH_SKIP && !found[1].warnings[0]);
    for (int k = 0; k < 2; k++) bench_row_clear(&found[k]);
  }
}

/* If the list has no automatic choice, the first row stands for it. */
TEST(test_layers_without_a_kernel_are_measured_once) {
  const bench_case bench = valid_case("layer:positions/seq:20/width:16");
  const attn_kernel_info *kernels[] = {attn_kernel_find("flash_c"), attn_kernel_find("naive_c")};
  const bench_case_settings settings = {.case_budget_s = 5};
  bench_row results[2];
  assert_true(bench_run_case(&bench, kernels, 2, &settings, results));
  assert_true(results[0].verdict.status == BENCH_PASS && results[1].verdict.status == BENCH_SKIP);
}
