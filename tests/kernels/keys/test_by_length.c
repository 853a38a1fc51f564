/* SPDX-License-Identifier: MIT */
/* Packed sequences get their kernels by their number of queries: few go to one kernel and many to another, in one call. A
 * row's bits depend on its own sequence, not on those beside it. Costs are those of a file of this test. */
#include <stdlib.h>
#include <string.h>

#include "attn/extend.h"
#include "src/choice/tuning.h"
#include "tests/support/support.h"

enum { SEQUENCES = 8, LONGEST = 40, KEYS = 64, HEADS = 4, DIM = 16, FEW = 4, TOTAL = 85 };
static const int32_t starts[SEQUENCES + 1] = {0, 1, 41, 44, 44, 48, 57, 58, TOTAL};
static const int32_t kv_len[SEQUENCES] = {50, 40, 17, 20, 64, 33, 1, 60};

/* A row takes decode 1 ns, and a call flash 20 ns: 4 heads of 4 queries take less, 4 of 8 take more. */
static attn_tuning *costs;

int test_begin(char **arguments) {
  static char text[16384];
  const size_t head = attn_tuning_head(text, sizeof text);
  snprintf(text + head, sizeof text - head,
           "threads least_ns=1\ncost kernel=decode_portable f32 error=0.1 row=1\n"
           "cost kernel=flash_portable f32 error=0.1 call=20\n");
  return (void)arguments, attn_tuning_read("a.tuning", text, strlen(text), &costs) != ATTN_OK;
}

static attn_problem packed_problem(void) {
  attn_problem p;
  attn_problem_init(&p, SEQUENCES, HEADS, 2, LONGEST, KEYS, DIM, DIM);
  attn_problem_set_varlen(&p, TOTAL, 0);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  attn_problem_set_pages(&p, KEYS, SEQUENCES); /* a page for each sequence */
  p.uses |= ATTN_USE_LSE;
  return p;
}

static attn_options automatic(int threads) { return ATTN_STRUCT(attn_options, .threads = threads, .tuning = costs); }

static attn_plan *plan_of(const attn_problem *p, attn_options options) {
  attn_plan *plan;
  test_ok(attn_plan_create(p, &options, &plan));
  return plan;
}

/* Whether a plan has several kernels. */
static bool is_divided(const attn_problem *p, attn_options options) {
  attn_plan *plan = plan_of(p, options);
  const bool divided = strcmp(attn_plan_kernel_of(plan, 1), attn_plan_kernel_of(plan, LONGEST)) != 0;
  assert_string_equal(attn_plan_kernel(plan), attn_plan_kernel_of(plan, LONGEST));
  assert_true(divided == (strstr(attn_plan_describe(plan), "lengths ") != NULL));
  attn_plan_destroy(plan);
  return divided;
}

/* ---- The tensors of a call ---- */

typedef struct call {
  attn_problem problem;
  attn_args args;
  float *q, *k, *v, *o, *lse;
} call;

static float *filled(size_t count, unsigned seed) {
  float *values = test_allocate(count * sizeof *values);
  test_fill(values, count, seed);
  return values;
}

/* With room for TOTAL rows behind the first row of any sequence. */
static call call_of(attn_problem p) {
  static const int32_t pages[SEQUENCES] = {3, 1, 0, 2, 7, 6, 5, 4};
  call c = {.problem = p,
            .q = filled(2 * TOTAL * HEADS * DIM, 1),
            .k = filled(SEQUENCES * 2 * KEYS * DIM, 2),
            .v = filled(SEQUENCES * 2 * KEYS * DIM, 3),
            .o = filled(2 * TOTAL * HEADS * DIM, 4),
            .lse = filled(2 * TOTAL * HEADS, 5)};
  c.args = ATTN_STRUCT(attn_args, .q = c.q, .k = c.k, .v = c.v, .o = c.o, .lse = c.lse, .cu_seqlens_q = starts,
                       .kv_len = kv_len, .page_table = pages);
  return c;
}

static void free_call(call *c) {
  free(c->q);
  free(c->k);
  free(c->v);
  free(c->o);
  free(c->lse);
}

/* Compares the rows of sequence b. */
static void expect_rows(const call *a, const call *other, int b, const char *how) {
  for (int token = starts[b]; token < starts[b + 1]; token++)
    for (int h = 0; h < HEADS; h++) {
      const int64_t o = token * a->problem.o_stride.s + h * a->problem.o_stride.h, lse = h * TOTAL + token;
      if (memcmp(a->o + o, other->o + o, DIM * sizeof(float)) || memcmp(a->lse + lse, other->lse + lse, sizeof(float)))
        fail_msg("%s: a row of sequence %d, token %d, has other bits", how, b, token - starts[b]);
    }
}

/* Runs sequence b as the only one that has queries. */
static void run_alone(call *c, int b, const attn_options *options) {
  int32_t own[SEQUENCES + 1];
  for (int i = 0; i <= SEQUENCES; i++) own[i] = i > b ? starts[b + 1] - starts[b] : 0;
  attn_args args = c->args;
  args.q = c->q + starts[b] * c->problem.q_stride.s;
  args.o = c->o + starts[b] * c->problem.o_stride.s;
  args.lse = c->lse + starts[b];
  args.cu_seqlens_q = own;
  test_ok(test_run(&c->problem, &args, options));
}

static void expect_own_bits(const attn_problem *p) {
  call together = call_of(*p), alone = call_of(*p);
  for (int threads = 1; threads <= 2; threads++) {
    const attn_options options = automatic(threads);
    test_ok(test_run(p, &together.args, &options));
    for (int b = 0; b < SEQUENCES; b++) {
      run_alone(&alone, b, &options);
      expect_rows(&together, &alone, b, threads == 1 ? "one thread" : "two threads");
    }
  }
  free_call(&together);
  free_call(&alone);
}

/* ---- Tests ---- */

TEST(few_queries_and_many_have_their_kernels) {
  const attn_problem p = packed_problem();
  attn_plan *plan = plan_of(&p, automatic(1));
  for (int queries = 0; queries <= LONGEST; queries++)
    assert_string_equal(attn_plan_kernel_of(plan, queries), queries <= FEW ? "decode_portable" : "flash_portable");
  assert_string_equal(attn_plan_kernel(plan), "flash_portable");
  test_contains(attn_plan_describe(plan), "lengths    2 kernels");
  test_contains(attn_plan_describe(plan), "of up to 4 queries\nkernel     decode_portable");
  test_contains(attn_plan_describe(plan), "of up to 40 queries\nkernel     flash_portable");
  attn_plan_destroy(plan);
}

/* A sequence has the bits of the kernel that the plan names for its number of queries. */
TEST(rows_are_of_the_kernel_that_is_told) {
  const attn_problem p = packed_problem();
  const attn_options options = automatic(2);
  attn_plan *plan = plan_of(&p, options);
  call together = call_of(p), named = call_of(p);
  test_ok(test_run(&p, &together.args, &options));
  for (int b = 0; b < SEQUENCES; b++) {
    const int queries = starts[b + 1] - starts[b];
    const attn_options by_name = ATTN_STRUCT(attn_options, .kernel = attn_plan_kernel_of(plan, queries), .threads = 1);
    if (queries <= FEW) named.problem.seq_q = FEW;
    run_alone(&named, b, &by_name);
    expect_rows(&together, &named, b, by_name.kernel);
    named.problem.seq_q = p.seq_q;
  }
  free_call(&together);
  free_call(&named);
  attn_plan_destroy(plan);
}

TEST(bits_depend_on_the_own_sequence) {
  attn_problem p = packed_problem();
  expect_own_bits(&p);
  p.window_left = 9;
  p.window_first = 2; /* two pieces, each of which is divided */
  expect_own_bits(&p);
}

TEST(one_kernel_serves_where_it_must) {
  attn_problem p = packed_problem(), few = p;
  assert_true(is_divided(&p, automatic(1)));
  assert_false(is_divided(&p, ATTN_STRUCT(attn_options, .kernel = "flash_portable", .tuning = costs)));
  assert_false(is_divided(&p, ATTN_STRUCT(attn_options, .steady = 1, .tuning = costs)));
  few.seq_q = FEW;
  assert_false(is_divided(&few, automatic(1)));
  attn_problem_set_causal(&p, ATTN_ALIGN_TOP_LEFT);
  p.uses |= ATTN_USE_STATE; /* its pieces end at borders of one kernel */
  assert_false(is_divided(&p, automatic(1)));
  attn_problem_init(&p, SEQUENCES, HEADS, 2, LONGEST, KEYS, DIM, DIM);
  assert_false(is_divided(&p, automatic(1)));
}

/* A call in which no sequence has as many queries, or none has any at all. */
TEST(ranges_may_be_empty) {
  static const int32_t none[SEQUENCES + 1] = {0}, few[SEQUENCES + 1] = {0, 1, 1, 3, 3, 3, 3, 3, 3};
  const attn_problem p = packed_problem();
  const attn_options options = automatic(2);
  call c = call_of(p), untouched = call_of(p), right = call_of(p);
  c.args.cu_seqlens_q = none;
  test_ok(test_run(&p, &c.args, &options));
  assert_memory_equal(c.o, untouched.o, TOTAL * HEADS * DIM * sizeof(float));
  c.args.cu_seqlens_q = right.args.cu_seqlens_q = few;
  test_ok(test_run(&p, &c.args, &options));
  right.problem.seq_q = FEW;
  test_ok(test_run(&right.problem, &right.args, &ATTN_STRUCT(attn_options, .kernel = "decode_portable", .threads = 1)));
  assert_memory_equal(c.o, right.o, TOTAL * HEADS * DIM * sizeof(float));
  free_call(&c);
  free_call(&untouched);
  free_call(&right);
}
