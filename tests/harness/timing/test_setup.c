/* SPDX-License-Identifier: MIT */
/* A case from its opening to its checked trials: what runs, what is refused and why, cold copies, and guesses of its time.
 */
#define TEST_SETUP begin
static int begin(void **state);
#include <fenv.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/build.h"
#include "kernels/common/problem/operation.h"
#include "machine/environment.h"
#include "src/registry/registry.h"
#include "tests/support/failing_malloc.h"
#include "tests/support/layer_support.h"
#include "timing/setup.h"

static const char small[] = "heads:2/seq:12/head_dim:8";

/* ---- A build of the library that counts its plans --------------------------------------------------------------------- */

static struct {
  int plans, fails_at;    /* plan number fails_at cannot be made; 0: all can */
  int settled;            /* threads that are settled for a check */
  size_t workspace;       /* bytes that a plan asks for; 0: as many as it really does */
  int calls, rounds_in;   /* calls of its kernels; the one that changes the rounding (0: none) */
  bool overwrites;        /* its kernels change q */
  bool spoils;            /* o of the pass before gradients is wrong */
  unsigned char *changes; /* or this byte, where they run on `of`, and the rounding */
  const attn_args *of;
  char notes[200]; /* words of bench_note() */
  volatile int stop;
  bool stops; /* a note of "checking" stops the run */
} now;

/* The linker's --wrap asks here how much memory is free, and how large each cache is; sizes below a level are unknown. 0: as
 * on this machine. */
static struct {
  double memory;
  long long cache, first; /* first: size of the first level; 0: as the others */
  int level;
} feigned;

double __real_bench_memory_available(const char *root);
double __wrap_bench_memory_available(const char *root);
long long __real_bench_cache_bytes(int level);
long long __wrap_bench_cache_bytes(int level);

double __wrap_bench_memory_available(const char *root) {
  return feigned.memory > 0 ? feigned.memory : __real_bench_memory_available(root);
}

long long __wrap_bench_cache_bytes(int level) {
  assert_in_range(level, 1, 3);
  if (level == 1 && feigned.first) return feigned.first;
  return level < feigned.level ? 0 : feigned.cache ? feigned.cache : __real_bench_cache_bytes(level);
}

/* Threads go to their CPUs before a kernel is checked. */
void __real_bench_team_settle(int threads);
void __wrap_bench_team_settle(int threads);
void __wrap_bench_team_settle(int threads) {
  now.settled = threads;
  __real_bench_team_settle(threads);
}

static int begin(void **state) {
  memset(&now, 0, sizeof now);
  memset(&feigned, 0, sizeof feigned);
  return note_blocks(state);
}

static attn_status plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan) {
  const attn_strides *of_state = &problem->state_stride; /* which a build without states refuses */
  const bool unknown = !(problem->uses & ATTN_USE_STATE) && (of_state->b | of_state->h | of_state->s | of_state->d) != 0;
  if (++now.plans == now.fails_at || unknown)
    return attn_plan_create(problem, &ATTN_STRUCT(attn_options, .kernel = "none"), plan);
  return attn_plan_create(problem, options, plan);
}

static size_t plan_workspace(const attn_plan *plan) { return now.workspace ? now.workspace : attn_plan_workspace(plan); }

static attn_status plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t bytes) {
  assert_int_equal(now.settled, 1);
  if (now.overwrites) ((float *)(uintptr_t)args->q)[0] += 1;
  if (now.changes || ++now.calls == now.rounds_in) (void)fesetround(FE_DOWNWARD);
  if (now.changes && args == now.of) *now.changes ^= 1;
  const attn_status status = attn_plan_run(plan, args, workspace, bytes);
  if (now.spoils && !args->d_o) ((float *)args->o)[9] += 1;
  return status;
}

static const bench_build counted = {.version = attn_version,
                                    .last_error = attn_last_error,
                                    .plan_create = plan_create,
                                    .plan_kernel = attn_plan_kernel,
                                    .plan_workspace = plan_workspace,
                                    .plan_run = plan_run,
                                    .plan_destroy = attn_plan_destroy};

static void note(void *context, const char *what, const char *kernel) {
  assert_ptr_equal(context, &now);
  now.settled = 0;
  const size_t used = strlen(now.notes);
  snprintf(now.notes + used, sizeof now.notes - used, "%s %s;", what, kernel);
  if (now.stops && !strcmp(what, "checking")) now.stop = 1;
}

static const bench_case_settings checked = {.note = note, .note_context = &now, .stop = &now.stop};
static const bench_case_settings timed = {.timed = true, .rounds = 1, .case_budget_s = 1, .stop = &now.stop};

/* The case with these kernels (NULL: one less); the first kernel is the counted build's. */
static bench_setup *open_case(const char *id, const char *first, const char *second, const bench_case_settings *settings) {
  static bench_case bench;
  const attn_kernel_info *kernels[] = {strcmp(first, "auto") ? attn_kernel_find(first) : &bench_automatic,
                                       second ? attn_kernel_find(second) : NULL};
  bench = case_of(id);
  bench_setup *s = bench_setup_open(&bench, kernels, second ? 2 : 1, settings);
  assert_non_null(s);
  s->trials[0].build = &counted;
  return s;
}

static void expect_verdict(const bench_trial *trial, bench_status status, const char *part) {
  if (trial->verdict.status != status) fail_msg("%s: %s", bench_status_name(trial->verdict.status), trial->verdict.reason);
  test_contains(trial->verdict.reason, part);
}

/* ---- Plans and checks ------------------------------------------------------------------------------------------------- */

TEST(each_step_is_announced) {
  bench_setup *s = open_case(small, "naive_c", "flash_c", &checked);
  assert_true(bench_setup_check(s));
  assert_string_equal(now.notes, "making tensors ;asking the oracle ;checking naive_c;checking flash_c;");
  bench_setup_close(s);
  now.notes[0] = 0;
  s = open_case("layer:mha/batch:1/heads:2/seq:5/head_dim:8", "naive_c", NULL, &checked);
  assert_string_equal(now.notes, "making the layer ;");
  assert_true(s->flops == bench_layer_flops(s->bench) && s->bytes == bench_layer_bytes(s->bench));
  assert_true(s->flops > 0 && s->bytes > 0);
  bench_setup_close(s);
  now.notes[0] = 0; /* a trial that is refused is not checked */
  s = open_case("layer:add-norm/batch:1/seq:5/width:16", "naive_c", "flash_c", &checked);
  s->trials[0].build = NULL;
  assert_true(bench_setup_check(s));
  assert_string_equal(now.notes, "making the layer ;checking naive_c;");
  expect_verdict(&s->trials[1], BENCH_SKIP, "runs no kernel");
  bench_setup_close(s);
}

/* A plan's time is the shortest of five more plans. Only timed runs make them. */
TEST(plans_are_made_five_times_more_to_be_timed) {
  bench_setup *s = open_case(small, "naive_c", NULL, &checked);
  assert_true(bench_setup_check(s));
  assert_true(now.plans == 1 && s->trials[0].plan_ns == 0 && s->trials[0].call_ns == 0);
  bench_setup_close(s);
  now.plans = 0;
  s = open_case(small, "naive_c", NULL, &timed);
  assert_true(bench_setup_check(s));
  assert_int_equal(now.plans, 6);
  expect_verdict(&s->trials[0], BENCH_PASS, "");
  assert_true(s->trials[0].plan_ns > 0 && s->trials[0].plan_ns < 1e9);
  assert_true(s->trials[0].call_ns > 0 && s->trials[0].call_ns < 1e10);
  bench_setup_close(s);
  s = open_case("layer:mha/batch:1/heads:2/seq:5/head_dim:8", "naive_c", NULL, &timed);
  assert_true(bench_setup_check(s));
  assert_true(s->trials[0].plan_ns > 0 && s->trials[0].plan_ns < 1e9);
  bench_setup_close(s);
  now.plans = 0, now.fails_at = 4; /* timed kernels: there is no time */
  s = open_case(small, "naive_c", NULL, &timed);
  assert_true(bench_setup_check(s));
  expect_verdict(&s->trials[0], BENCH_PASS, "");
  assert_true(s->trials[0].plan_ns == 0);
  bench_setup_close(s);
  now.plans = 0, now.fails_at = 1;
  s = open_case(small, "naive_c", NULL, &timed);
  assert_true(bench_setup_check(s));
  expect_verdict(&s->trials[0], BENCH_ERROR, "none");
  bench_setup_close(s);
}

/* A kernel that fails may have changed the inputs: those that come after it get new ones. */
TEST(damaged_inputs_are_made_again) {
  bench_setup *s = open_case(small, "naive_c", "flash_c", &timed);
  now.overwrites = true;
  assert_true(bench_setup_check(s));
  expect_verdict(&s->trials[0], BENCH_FAIL, "");
  expect_verdict(&s->trials[1], BENCH_PASS, "");
  assert_true(s->rotations == 1 && s->trials[0].call_ns == 0 && s->trials[1].call_ns > 0);
  bench_setup_close(s);
}

/* Whichever call changes the rounding, when its output is checked or its time is guessed. */
TEST(each_call_of_a_check_is_watched) {
  do {
    now.calls = 0, now.rounds_in++;
    bench_setup *s = open_case(small, "naive_c", NULL, &timed);
    assert_true(bench_setup_check(s) && fegetround() == FE_TONEAREST);
    const bool changed = now.calls >= now.rounds_in;
    expect_verdict(&s->trials[0], changed ? BENCH_FAIL : BENCH_PASS, changed ? "other rounding" : "");
    bench_setup_close(s);
  } while (now.calls >= now.rounds_in);
  assert_true(now.rounds_in > 3); /* two are checked, and one at least is timed */
}

/* Whichever input a kernel changes, however often V was multiplied and whatever failed: it is named, or where no kernel
 * changes any now, what failed. */
TEST(who_changes_an_input_is_found) {
  static const char id[] =
      "batch:2/heads:4/heads_kv:2/seq:12/head_dim:8/mask:random/bias:full/alibi:on/sinks:on/lengths:kv_len";
  bench_setup *s = open_case(id, "naive_c", "flash_c", &timed);
  assert_true(bench_setup_check(s));
  for (int i = 0; i < 2; i++) s->trials[i].call_ns = 1;
  feigned.cache = 1 << 20;
  bench_setup_rotate(s);
  assert_true(s->rotations > 1);
  s->controlled = &s->trials[0];
  int inputs = 0;
  for (int which = 0; which < BENCH_TENSORS; which++) {
    const bench_buffer *buffer = &s->tensors[0].buffers[which];
    const attn_operand operand = attn_operand_of(&s->bench->problem, (attn_operand_id)which);
    if (!operand.present || buffer->output || which == BENCH_Q) continue; /* q is written before each call */
    bench_tensors_renew_v(&s->tensors[0], 1);
    now.of = &s->tensors[0].args;
    for (int n = 0; n < 4; n++) {
      unsigned char *byte = (unsigned char *)(uintptr_t)attn_operand_at(&operand, now.of) + n;
      const unsigned char before = *byte;
      *byte ^= 1; /* the damage */
      now.changes = n % 2 ? byte : NULL;
      s->inputs_lost = false;
      assert_ptr_equal(bench_setup_find_cause(s, &s->trials[n / 2]), &s->trials[n % 2 ? 0 : n / 2]);
      assert_true(s->inputs_lost && fegetround() == FE_TONEAREST);
      *byte = before;
    }
    now.changes = NULL;
    inputs++;
  }
  s->inputs_lost = false;
  for (int n = 0; n < 2; n++, bench_tensors_renew_v(&s->tensors[0], 1))
    assert_true(bench_setup_find_cause(s, &s->trials[1]) == NULL && !s->inputs_lost); /* nothing is wrong */
  assert_int_equal(inputs, 7);
  feigned.cache = 0;
  bench_setup_close(s);
}

static const attn_kernel_info *roughest(void) {
  const attn_kernel_info *most = attn_kernel_get(0);
  for (int i = 1; i < attn_kernel_count(); i++)
    if (attn_kernel_get(i)->numerics.exp_error > most->numerics.exp_error) most = attn_kernel_get(i);
  return most;
}

static const char *kernel_of(const attn_plan *plan, int64_t queries) {
  assert_non_null(plan);
  return queries == 1 ? "naive_c" : roughest()->name;
}

TEST(the_automatic_choice_names_its_kernel) {
  bench_build mixed = counted;
  mixed.plan_kernel_of = kernel_of;
  for (int two = 0; two < 2; two++) {
    bench_setup *s = open_case(small, "auto", "naive_c", &checked);
    if (two) s->trials[0].build = &mixed;
    assert_true(s->trials[0].automatic && !s->trials[1].automatic);
    assert_true(bench_setup_check(s));
    const char *kernel = attn_plan_kernel(s->trials[0].plan);
    char chose[100];
    snprintf(chose, sizeof chose, "chose %s%s", kernel, two ? ", and naive_c for single queries" : "");
    assert_string_equal(s->trials[0].warnings, chose);
    assert_string_equal(s->trials[1].warnings, "");
    assert_string_equal(s->trials[0].kernel->name, kernel);
    const double error = (two ? roughest() : s->trials[0].kernel)->numerics.exp_error; /* the largest of what runs */
    assert_true(s->trials[0].numerics.exp_error == error && s->trials[0].verdict.status == BENCH_PASS);
    bench_setup_close(s);
  }
}

static const char two_passes[] = "heads:2/seq:12/head_dim:8/pass:both";

/* Forward and then gradients, in one workspace: operations, plans and times are those of both. */
TEST(a_case_may_have_both_passes) {
  bench_setup *s = open_case(two_passes, "flash_backward_c", "flash_backward_portable", &timed);
  bench_trial *t = s->trials;
  assert_true(s->flops == 2 * 12 * 12 * (32 + 80));
  assert_true(bench_setup_check(s));
  assert_int_equal(now.plans, 12);
  for (int i = 0; i < 2; i++) {
    expect_verdict(&t[i], BENCH_PASS, "");
    test_contains(t[i].warnings, i ? "forward pass by flash_portable" : "forward pass by flash_c");
    const size_t bytes = attn_plan_workspace(t[i].plan), before = attn_plan_workspace(t[i].before);
    assert_int_equal(t[i].workspace_bytes, bytes > before ? bytes : before);
  }
  assert_true(s->expected_of == bench_tensors_rewritten_hash(&s->tensors[0])); /* the oracle has seen the last o */
  t[0].call_ns = 1;
  feigned.cache = (long long)(2.5 * s->bytes);
  bench_setup_rotate(s);
  assert_true(s->rotations > 1 && s->tensors[1].args.k == s->tensors[0].args.k);
  assert_true(s->tensors[1].args.o != s->tensors[0].args.o && s->tensors[1].args.lse != s->tensors[0].args.lse);
  bench_setup_close(s);
}

/* A forward pass that is wrong fails its check; one that becomes wrong later is seen in a look at its rows, because
 * gradients are right for the o that it wrote. */
TEST(a_wrong_pass_before_gradients_is_seen) {
  char text[350];
  now.spoils = true;
  bench_setup *s = open_case(two_passes, "flash_backward_c", NULL, &timed);
  assert_true(bench_setup_check(s));
  expect_verdict(&s->trials[0], BENCH_FAIL, "forward pass: o[batch 0, head 0, query 1");
  bench_setup_close(s);
  now.spoils = false;
  s = open_case(two_passes, "flash_backward_c", NULL, &timed);
  assert_true(bench_setup_check(s));
  bench_setup_rotate(s);
  for (int spoilt = 0; spoilt < 2; spoilt++) {
    int seen = 0;
    uint64_t random = 1;
    now.spoils = spoilt;
    bench_trial_freshen(&s->trials[0], 0, &random);
    test_ok(bench_trial_call(&s->trials[0], 0));
    for (uint64_t n = 0; n < 200; n++) seen += bench_trial_look_closely(&s->trials[0], 0, n, text, sizeof text) != NULL;
    assert_int_equal(seen > 0, spoilt);
  }
  bench_setup_close(s);
}

/* o and lse of other queries are no input that somebody changed. */
TEST(inputs_that_calls_rewrite_are_no_damage) {
  bench_setup *s = open_case(two_passes, "auto", NULL, &timed);
  assert_true(bench_setup_check(s));
  test_contains(s->trials[0].warnings, "forward pass by ");
  bench_setup_rotate(s);
  s->controlled = &s->trials[0];
  uint64_t random = 1;
  bench_trial_freshen(&s->trials[0], 0, &random);
  test_ok(bench_trial_call(&s->trials[0], 0));
  assert_true(bench_setup_find_cause(s, &s->trials[0]) == NULL && !s->inputs_lost);
  bench_setup_close(s);
}

/* Whoever stops the run after the first check leaves the second trial as it was. */
TEST(a_stopped_check_is_not_complete) {
  bench_setup *s = open_case(small, "naive_c", "flash_c", &checked);
  now.stops = true;
  assert_false(bench_setup_check(s));
  expect_verdict(&s->trials[0], BENCH_PASS, "");
  expect_verdict(&s->trials[1], BENCH_ERROR, "interrupted before its check");
  bench_setup_close(s);
}

/* A case that was stopped, or that is not to be timed, has no time. Tensors with gaps have no read loop, but a time. */
TEST(only_complete_cases_are_timed) {
  static const char *const ids[] = {small, "heads:2/seq:12/head_dim:8/layout:strided"};
  const attn_kernel_info *kernel = attn_kernel_find("naive_c");
  bench_case_settings settings = timed;
  bench_row row;
  for (int stopped = 0; stopped < 2; stopped++)
    for (int n = 0; n < 4; n++) {
      const bench_case bench = case_of(ids[n / 2]);
      const int asked = n % 2;
      now.stop = stopped;
      settings.timed = asked;
      assert_int_equal(bench_run_case(&bench, &kernel, 1, &settings, &row), !stopped);
      assert_int_equal(row.verdict.status, stopped ? BENCH_ERROR : BENCH_PASS);
      assert_int_equal(row.time.n, asked && !stopped);
      assert_int_equal(row.bw_pct > 0, asked && !stopped && n < 2);
      bench_row_clear(&row);
    }
}

/* Structural tests run where they were asked for, on cases of at most 1e8 multiply-adds. */
TEST(structural_tests_run_on_small_cases) {
  static const struct {
    const char *id;
    bool asked, runs;
  } cases[] = {{small, false, false}, {small, true, true}, {"heads:1/seq_q:1100/seq_k:1500/head_dim:32", true, false}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bench_case_settings settings = {.structure = cases[i].asked};
    bench_setup *s = open_case(cases[i].id, "flash_c", NULL, &settings);
    assert_true(bench_setup_check(s));
    expect_verdict(&s->trials[0], BENCH_PASS, "");
    assert_int_equal(s->trials[0].verdict.structure != 0, cases[i].runs);
    bench_setup_close(s);
  }
}

/* Each head of several rows is a little larger than that of one row. */
static void run_for_many(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, void *scratch) {
  const attn_problem *p = &schedule->problem;
  const attn_strides at = p->o_stride;
  attn_registry_find("naive_c")->run(schedule, args, task, unit, scratch);
  float *o = (float *)args->o + task.unit / p->heads_kv * at.b + task.unit % p->heads_kv * at.h;
  for (int64_t i = 0; i < p->seq_q * p->dim_v && p->seq_q > 1; i++)
    o[i / p->dim_v * at.s + i % p->dim_v * at.d] *= 1 + 0x1p-23f;
}

/* Rows that stand alone have other bits. */
TEST(structural_tests_say_what_is_wrong) {
  static attn_kernel leaning;
  static const attn_kernel *const kernels[] = {&leaning};
  static const attn_plugin added = {.kernels = kernels, .kernel_count = 1};
  leaning = *attn_registry_find("naive_c");
  leaning.info.name = "leaning";
  leaning.run = run_for_many;
  assert_true(attn_registry_add(&added, "this program"));
  bench_setup *s = open_case(small, "leaning", NULL, &(bench_case_settings){.structure = true});
  assert_true(bench_setup_check(s));
  expect_verdict(&s->trials[0], BENCH_FAIL, "structural test ");
  bench_setup_close(s);
}

/* The automatic choice may take one kernel for a prefix that sequences share and another for the keys behind it. Then no
 * named kernel has its bits, so structural tests and other placements run the automatic choice again. */
TEST(the_automatic_choice_has_two_kernels_for_a_prefix) {
  const bench_case bench = case_of(
      "batch:32/heads:8/heads_kv:2/seq_q:1/seq_k:300/head_dim:64/causal:bottom-right"
      "/shared_prefix:256/layout:bshd");
  const attn_kernel_info *kernel = &bench_automatic;
  bench_case_settings settings = timed;
  settings.structure = true;
  settings.rounds = 5;
  bench_row row;
  assert_true(bench_run_case(&bench, &kernel, 1, &settings, &row));
  if (row.verdict.status != BENCH_PASS) fail_msg("%s", row.verdict.reason);
  assert_int_equal(row.time.n, 5);
  bench_row_clear(&row);
}

/* Where not even the case can be opened, each of its rows says so. */
TEST(rows_without_memory_say_so) {
  const attn_kernel_info *const kernels[] = {attn_kernel_find("naive_c"), attn_kernel_find("flash_c")};
  const bench_case bench = case_of(small);
  bench_row rows[2];
  allocations_left = 0;
  assert_true(bench_run_case(&bench, kernels, 2, &timed, rows));
  allocations_left = -1;
  for (int i = 0; i < 2; i++) {
    assert_string_equal(rows[i].kernel, kernels[i]->name);
    assert_string_equal(rows[i].case_id, bench.case_id);
    assert_int_equal(rows[i].verdict.status, BENCH_ERROR);
    assert_string_equal(rows[i].verdict.reason, "out of memory");
  }
}

/* The trial sees that a call was never made, by the marks or poison that it did not overwrite, and whether its output has
 * the known bits. */
TEST(trials_see_what_calls_wrote) {
  char text[350];
  for (int layer = 0; layer < 2; layer++) {
    uint64_t random = 1;
    bench_setup *s = open_case(layer ? "layer:mha/heads:2/seq:12/head_dim:8" : small, "flash_c", NULL, &timed);
    assert_true(bench_setup_check(s));
    bench_setup_rotate(s);
    const bench_trial *t = &s->trials[0];
    assert_int_equal(t->zero_mean, !layer); /* looks hold rows against the sharp limit, too */
    for (int n = 0; n < 8; n++) {
      const uint64_t inputs = layer ? (uint64_t)s->layer->input : bench_tensors_input_hash(&s->tensors[0]);
      float q[2 * 12 * 8];
      if (!layer) memcpy(q, s->tensors[0].args.q, sizeof q);
      bench_trial_freshen(t, 0, &random);
      assert_true(layer || memcmp(q, s->tensors[0].args.q, sizeof q) != 0);
      assert_int_not_equal(layer ? (uint64_t)s->layer->input : bench_tensors_input_hash(&s->tensors[0]), inputs);
      assert_non_null(bench_trial_look(t, 0));
      test_ok(bench_trial_call(t, 0));
      assert_null(bench_trial_look(t, 0));
      assert_null(bench_trial_look_closely(t, 0, random, text, sizeof text));
      assert_int_equal(bench_trial_output_hash(t, 0) == t->verdict.output_hash, layer);
      bench_trial_poison(t, 0);
      assert_int_equal(bench_trial_look_closely(t, 0, random, text, sizeof text) != NULL, !layer);
      if (!layer) test_contains(text, "skips work: wrong on inputs that no call has seen: o[");
      assert_int_not_equal(bench_trial_output_hash(t, 0), t->verdict.output_hash);
      bench_trial_restore(t, 0);
      const double factor = layer ? 0 : bench_v_factor(&s->tensors[0]);
      bench_trial_renew(t, 0, 1); /* whatever V was multiplied by */
      assert_true(layer || bench_v_factor(&s->tensors[0]) != factor);
      test_ok(bench_trial_call(t, 0));
      assert_int_equal(bench_trial_output_hash(t, 0), t->verdict.output_hash);
    }
    float *o = layer ? NULL : s->tensors[0].args.o;
    for (int row = 0; row < 2 * 12 && !layer; row++) { /* any row may be looked at closely */
      const float right = o[8 * row];
      o[8 * row] += 1;
      for (random = 0; !bench_trial_look_closely(t, 0, random, text, sizeof text); random++) assert_true(random < 300);
      o[8 * row] = right;
    }
    bench_setup_close(s);
  }
}

/* ---- What does not run ------------------------------------------------------------------------------------------------ */

TEST(layers_larger_than_memory_are_skipped) {
  bench_setup *s = open_case("layer:mha/batch:1000000/heads:64/seq:100000/head_dim:128", "naive_c", NULL, &checked);
  expect_verdict(&s->trials[0], BENCH_SKIP, "its data need ");
  assert_null(s->layer);
  bench_setup_close(s);
}

/* A case may use 800 of 1,000 free bytes, and no more. */
TEST(eighty_per_cent_of_memory_is_the_limit) {
  bench_setup *s = open_case(small, "naive_c", "flash_c", &checked);
  const double bytes = (double)bench_tensors_size(s->bench);
  char reason[200];
  bench_setup_close(s);
  for (int fits = 0; fits < 2; fits++) {
    feigned.memory = bytes / (fits ? 0.799 : 0.801);
    s = open_case(small, "naive_c", "flash_c", &checked);
    snprintf(reason, sizeof reason, "its tensors need %.3g GB, more than 80 %% of the %.3g GB of memory that are free",
             bytes * 1e-9, feigned.memory * 1e-9);
    assert_string_equal(s->trials[1].verdict.reason, fits ? "interrupted before its check" : reason);
    now.workspace = 4000000;
    feigned.memory = 4e6 / (fits ? 0.799 : 0.801);
    assert_true(bench_setup_check(s));
    if (fits) expect_verdict(&s->trials[0], BENCH_PASS, "");
    bench_setup_close(s);
  }
  s = open_case(small, "naive_c", NULL, &checked);
  feigned.memory = 4e6 / 0.801;
  assert_true(bench_setup_check(s));
  expect_verdict(&s->trials[0], BENCH_SKIP, "workspace of 0.004 GB is more than 80 % of the memory that is free");
  bench_setup_close(s);
}

/* An invalid case has no data: only its verdicts say why. */
TEST(invalid_cases_say_why) {
  bench_setup *s = open_case("heads:3/heads_kv:2/seq:5", "naive_c", "flash_c", &checked);
  assert_true(bench_setup_check(s) && !s->expected && !s->rotations);
  for (int i = 0; i < 2; i++) expect_verdict(&s->trials[i], BENCH_SKIP, "heads_kv");
  assert_string_equal(now.notes, "");
  bench_setup_close(s);
}

/* A layer without attention and projections has one row: that of the automatic choice, or the first. */
TEST(a_layer_without_kernels_has_one_row) {
  const attn_kernel_info *const kernels[] = {attn_kernel_find("naive_c"), &bench_automatic, attn_kernel_find("flash_c")};
  const bench_case bench = case_of("layer:add-norm/seq:4/heads:1/head_dim:8"), plain = case_of("heads:1/seq:4/head_dim:8");
  for (int i = 0; i < 3; i++) {
    const char *refusal = bench_refusal(&bench, kernels, 3, i);
    if (i == 1)
      assert_null(refusal);
    else
      test_contains(refusal, "one row stands for all");
    assert_null(bench_refusal(&plain, kernels, 3, i));
  }
  assert_null(bench_refusal(&bench, &kernels[2], 1, 0));
  bench_case other = plain;
  other.problem.operation = (attn_operation)7;
  test_contains(bench_refusal(&other, kernels, 3, 1), "no kernel takes it");
  const attn_kernel_info *const named[] = {kernels[0], kernels[2]};
  assert_null(bench_refusal(&bench, named, 2, 0));
  assert_non_null(bench_refusal(&bench, named, 2, 1));
}

/* ---- Cold caches ----------------------------------------------------------------------------------------------------- */

/* Cores share the last level alone. */
TEST(levels_hold_what_threads_read) {
  static const struct {
    int level;
    double bytes;
    const char *name;
  } cases[] = {{0, 1000, "L1"},    {2, 1000, "L2"},     {3, 500, "L3"}, {3, 0, "L3"},
               {3, 501, "memory"}, {0, 1001, "memory"}, {4, 0, ""}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    feigned.cache = 1000, feigned.level = cases[i].level;
    assert_string_equal(bench_level_of(cases[i].bytes, 2), cases[i].name);
  }
}

/* Calls of a group get inputs of their own if three quarters of a cache hold them. Else, or where a smaller cache has less
 * than four times too little room for one call, they share K and V, but never q or outputs. */
TEST(warm_groups_have_tensors_that_fit_a_cache) {
  for (int cache = 3000; cache < 70000; cache += 500) {
    const int below = cache % 1500 / 500; /* 1: a first level of a quarter of what a call reads; 2: of a little more */
    bench_setup *s = open_case(cache % 1000 ? small : "heads:2/seq:12/head_dim:8/lse:on", "naive_c", NULL, &checked);
    assert_true(bench_setup_check(s));
    s->trials[0].call_ns = 1; /* a group is as large as it may be */
    feigned.cache = cache;
    feigned.first = below ? (long long)(s->bytes / 4) + (below == 2) : 0;
    bench_setup_rotate(s);
    const bench_tensors *t = s->tensors;
    const int count = s->rotations, most = BENCH_MOST_GROUP;
    assert_true(below != 2 || count == 1 || t[count - 1].args.k == t[0].args.k);
    const bool shares = t[count - 1].args.k == t[0].args.k;
    const double level = 0.75 * cache,
                 own = (double)(t->buffers[BENCH_Q].bytes + t->buffers[BENCH_O].bytes + t->buffers[BENCH_LSE].bytes),
                 each = count > 1 && shares ? own : s->bytes, held = s->bytes + (count - 1) * each;
    assert_int_equal(s->trials[0].tensor_count, count);
    assert_true(count == 1 || (count <= most && held <= level));
    if (level >= s->bytes) assert_true(count == most || held + own > level);
    if (level >= most * s->bytes) assert_true(count == most && shares == (below == 2));
    for (int n = 1; n < count; n++) {
      assert_true((t[n].args.k == t[0].args.k) == shares && (t[n].args.v == t[0].args.v) == shares);
      for (int of = 0; of < n; of++) {
        assert_true(t[n].args.q != t[of].args.q && t[n].args.o != t[of].args.o);
        assert_true(!t[n].args.lse || t[n].args.lse != t[of].args.lse);
      }
    }
    feigned.cache = feigned.first = 0;
    bench_setup_close(s);
  }
}

/* Given scores are the only inputs: no two calls of a group have the same. */
TEST(warm_groups_never_share_scores) {
  bench_setup *s = open_case("score:precomputed/heads:2/seq:12/head_dim:8", "naive_c", NULL, &checked);
  assert_true(bench_setup_check(s));
  s->trials[0].call_ns = 1;
  feigned.cache = (long long)(3.5 * s->bytes);
  bench_setup_rotate(s);
  assert_int_equal(s->rotations, 2);
  assert_ptr_not_equal(s->tensors[1].args.scores, s->tensors[0].args.scores);
  bench_setup_close(s);
}

/* Copies of 64 KiB: as many as fill four caches and one more; at most 512, and at most 40 % of memory. */
TEST(copies_are_counted_by_caches_and_memory) {
  static const struct {
    long long cache;
    double copies; /* copies for which 40 % of memory has room; 0: all */
    int rotations;
    bool warns;
  } cases[] = {{1 << 20, 0, 65, false},
               {(1 << 20) + 1, 0, 66, false},
               {1 << 20, 10.5, 10, true},
               {1 << 20, 64.5, 64, false},
               {1 << 20, 63.5, 63, true},
               {8 << 20, 0, BENCH_MAX_ROTATIONS, false},
               {(8 << 20) + 1, 0, BENCH_MAX_ROTATIONS, true},
               {-1, 0, BENCH_MAX_ROTATIONS, true},
               {1 << 20, 0.5, 1, true}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    const bool shares_q = i % 2;
    bench_setup *s =
        open_case(shares_q ? "seq:64/heads:2/head_dim:32/cache:cold-kv" : "seq:64/heads:2/head_dim:32/cache:cold", "flash_c",
                  "naive_c", &checked);
    assert_true(s->bytes == 65536 && bench_setup_check(s));
    feigned.cache = cases[i].cache;
    feigned.memory = cases[i].copies / 0.4 * (double)s->tensors[0].bytes;
    assert_true(bench_last_cache_bytes() == (cases[i].cache > 0 ? (double)cases[i].cache : 33554432));
    bench_setup_rotate(s);
    char warning[100] = "";
    if (cases[i].warns)
      snprintf(warning, sizeof warning, "cache: %d rotations of 0.0655 MB are less than 4 x the last-level cache",
               cases[i].rotations);
    if (s->rotations != cases[i].rotations) fail_msg("case %zu: %d rotations", i, s->rotations);
    for (int k = 0; k < 2; k++) assert_string_equal(s->trials[k].warnings, warning);
    assert_true(s->trials[0].turn == &s->turn && s->trials[0].tensor_count == s->rotations); /* which all trials share */
    for (int n = 1; n < s->rotations; n++) {
      const attn_args *own = &s->tensors[n].args, *last = &s->tensors[n - 1].args;
      assert_true((own->q == last->q) == shares_q && own->k != last->k && own->v != last->v && own->o != last->o);
    }
    memset(&feigned, 0, sizeof feigned);
    bench_setup_close(s);
  }
}

/* ---- Guesses ---------------------------------------------------------------------------------------------------------- */

static void assert_close(double a, double b) {
  if (!(fabs(a - b) <= 1e-12 * (1 + fabs(b)))) fail_msg("%.17g instead of %.17g", a, b);
}

/* Three calls to check, the oracle, and 45 samples of 2 ms or one call, with half a sample of a loop beside each. */
TEST(a_case_is_guessed_from_its_kernels) {
  const attn_kernel_info *const kernels[] = {attn_kernel_find("naive_c"), attn_kernel_find("flash_c"),
                                             attn_kernel_find("decode_c")};
  const bench_case little = case_of("heads:4/seq:64/head_dim:32"), large = case_of("heads:64/seq:4096/head_dim:64");
  bench_case_settings settings = {.case_budget_s = 5};
  double calls = 0, long_calls = 0;
  for (int i = 0; i < 2; i++) calls += bench_work_guess(&little.problem, kernels[i], 1);
  for (int i = 0; i < 2; i++) long_calls += bench_work_guess(&large.problem, kernels[i], 1);
  assert_true(calls < 2e-3 && long_calls > 10);
  const double check = 1e-3 + 3 * calls + 4 * 64 * 64 * 64 * 6e-9;
  assert_close(bench_case_guess(&little, kernels, 3, &settings), check); /* decode_c refuses 64 queries */
  settings.timed = true;
  assert_close(bench_case_guess(&little, kernels, 3, &settings), check + 45 * 2 * 3e-3);
  settings.case_budget_s = 0.1;
  assert_close(bench_case_guess(&little, kernels, 3, &settings), check + 0.1);
  settings.rounds = 7;
  assert_close(bench_case_guess(&little, kernels, 3, &settings), check + 7 * 2 * 3e-3);
  assert_close(bench_case_guess(&little, &kernels[2], 1, &settings), 1e-4);
  /* four calls do not fit into the budget; then those of one kernel do, exactly */
  assert_close(bench_case_guess(&large, kernels, 2, &settings), 1e-3 + 3 * long_calls + 1e8 * 6e-9);
  const double call = bench_work_guess(&large.problem, kernels[1], 1), checked_s = 1e-3 + 3 * call + 1e8 * 6e-9;
  settings.case_budget_s = call * BENCH_FEW_ROUNDS;
  assert_close(bench_case_guess(&large, &kernels[1], 1, &settings), checked_s + 7 * (call + 1e-3));
}

/* A layer takes longer than its attention by its operations. */
TEST(a_layer_is_guessed_from_its_operations) {
  const attn_kernel_info *const kernel = attn_kernel_find("flash_c");
  const bench_case bench = case_of("layer:mha/seq:64/heads:4/width:128");
  const bench_case_settings settings = {.case_budget_s = 5};
  const double attention = 4.0 * 64 * 64 * 64 * 2, factor = bench_layer_flops(&bench) / attention;
  const double call = factor * bench_work_guess(&bench.problem, kernel, 1);
  assert_close(bench_case_guess(&bench, &kernel, 1, &settings), 1e-3 + 3 * call + 4 * 64 * 64 * 64 * 6e-9);
}

TEST(guesses_of_cases_are_added) {
  const bench_case cases[] = {case_of("heads:4/seq:64/head_dim:32"), case_of("heads:8/seq:500/head_dim:64")};
  const double first = bench_cases_guess(cases, 1, 5, true), second = bench_cases_guess(&cases[1], 1, 5, true);
  const bench_case_settings settings = {.timed = true, .case_budget_s = 5};
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS];
  int usable = 0;
  for (int i = 0; i < attn_kernel_count(); i++)
    if (!attn_kernel_unusable(attn_kernel_get(i))) kernels[usable++] = attn_kernel_get(i);
  assert_close(first, bench_case_guess(cases, kernels, usable, &settings));
  assert_close(bench_cases_guess(cases, 2, 5, true), first + second);
  assert_true(bench_cases_guess(cases, 1, 5, false) < first);
  assert_true(bench_cases_guess(cases, 1, 0.1, true) < first); /* which two kernels fill */
}
