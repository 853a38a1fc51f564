/* SPDX-License-Identifier: MIT */
/* How many threads a call gets where its caller leaves that open: one where more cost more than they save, as measured in
 * notebook/performance-log.md, "small calls". The tests look at the decision, not at time. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attn/nn.h"
#include "attn/product.h"
#include "src/cpu.h"
#include "src/small_calls.h"
#include "support.h"

/* Threads of the plan as attn_plan_describe() tells them. */
static int threads_of(const attn_problem *problem, const attn_options *options) {
  attn_plan *plan;
  int threads = 0;
  test_ok(attn_plan_create(problem, options, &plan));
  const char *line = strstr(attn_plan_describe(plan), "threads ");
  assert_non_null(line);
  assert_int_equal(sscanf(line, "threads %d", &threads), 1);
  attn_plan_destroy(plan);
  return threads;
}

/* The test runs with OMP_NUM_THREADS=4; without OpenMP there is one thread and nothing to decide. */
static int most(void) {
  attn_problem large;
  attn_problem_init(&large, 8, 8, 8, 1024, 1024, 64, 64);
  return threads_of(&large, NULL);
}

static int threads_for(const char *kernel, int64_t heads, int64_t seq_q, int64_t seq_k, int64_t dim) {
  attn_problem problem;
  attn_problem_init(&problem, 1, heads, heads, seq_q, seq_k, dim, dim);
  return threads_of(&problem, &ATTN_STRUCT(attn_options, .kernel = kernel));
}

/* On two threads the first ones took up to 3.9 times as long as on one, and the others 0.81 to 0.53 times as long. */
TEST(calls_get_threads_where_these_pay) {
  static const struct {
    int64_t heads, seq_q, seq_k, dim;
    bool pay;
  } calls[] = {{8, 1, 16, 64, false},   {8, 1, 64, 64, false},  {1, 16, 16, 64, false}, {1, 32, 32, 64, false},
               {1, 48, 48, 64, false},  {8, 8, 8, 32, false},   {4, 16, 16, 16, false}, {2, 1, 8, 64, false},
               {8, 1, 256, 64, true},   {8, 1, 512, 64, true},  {8, 1, 2048, 64, true}, {1, 96, 96, 64, true},
               {1, 192, 192, 64, true}, {8, 32, 32, 32, true},  {8, 64, 64, 64, true},  {12, 32, 32, 32, true},
               {32, 1, 64, 128, true},  {2, 48, 48, 128, true}, {8, 4, 256, 64, true}};
  const attn_kernel_info *kernel = attn_kernel_find("flash_avx512");
  for (size_t i = 0; i < COUNT(calls) && most() > 1; i++) {
    attn_problem problem;
    attn_problem_init(&problem, 1, calls[i].heads, calls[i].heads, calls[i].seq_q, calls[i].seq_k, calls[i].dim,
                      calls[i].dim);
    if (kernel && !attn_kernel_rejects(kernel, &problem)) assert_int_equal(threads_of(&problem, NULL) > 1, calls[i].pay);
  }
}

TEST(plain_c_gets_threads_earlier) {
  if (most() == 1) return;
  assert_true(threads_for("flash_c", 8, 16, 16, 64) >= 2);
  assert_int_equal(threads_for("flash_c", 2, 1, 8, 64), 1);
}

TEST(threads_grow_with_the_work) {
  if (most() < 4) return;
  int last = 1;
  for (int64_t seq = 16; seq <= 512; seq *= 2) {
    const int threads = threads_for("flash_c", 4, seq, seq, 32);
    assert_true(threads >= last);
    last = threads;
  }
  assert_int_equal(last, most());
}

/* A causal mask halves the work. */
TEST(masked_keys_count_as_no_work) {
  if (most() == 1) return;
  attn_problem problem;
  attn_problem_init(&problem, 1, 4, 4, 2, 8, 64, 64); /* 15.5 us in plain C */
  const attn_options plain = ATTN_STRUCT(attn_options, .kernel = "flash_c");
  assert_int_equal(threads_of(&problem, &plain), 3);
  attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  assert_int_equal(threads_of(&problem, &plain), 2);
}

TEST(a_number_of_threads_is_obeyed) {
  attn_problem problem;
  attn_problem_init(&problem, 1, 4, 4, 1, 16, 64, 64);
  const int one = threads_of(&problem, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .threads = 1));
  const int three = threads_of(&problem, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .threads = 3));
  assert_int_equal(one, 1);
  assert_int_equal(three, 3);
}

TEST(plans_say_why_threads_are_few) {
  if (most() == 1) return;
  attn_problem problem;
  attn_problem_init(&problem, 1, 4, 4, 1, 16, 64, 64);
  attn_plan *plan;
  test_ok(attn_plan_create(&problem, NULL, &plan));
  test_contains(attn_plan_describe(plan), "more do not pay for so small a call");
  attn_plan_destroy(plan);
}

/* Nothing to do is no reason to divide by it. */
TEST(empty_calls_are_planned) {
  attn_problem problem;
  attn_problem_init(&problem, 0, 4, 4, 1, 16, 64, 64);
  threads_of(&problem, NULL);
  attn_problem_init(&problem, 2, 4, 4, 0, 0, 64, 64);
  threads_of(&problem, NULL);
}

/* ---- The estimates themselves, with the rates of kernels/tiers.def ---- */

/* All threads that save 5 us or more in each wave: pairs of a query and a key take 2 operations an element at 1.54 times the
 * tier's rate, each element of K and V 100 ps, a query of a head 63 ns, a KV head 190 ns; the last three 8 times as much in
 * plain C. */
TEST(threads_are_those_that_save_enough) {
  static const struct {
    const char *isa;
    int64_t heads_q, heads_kv, seq_q, seq_k;
    bool causal, varlen;
    int64_t waves;
    int threads;
  } calls[] = {{"c", 8, 8, 100, 100, false, false, 1, 494},        {"c", 8, 8, 100, 100, true, false, 1, 294},
               {"c", 8, 8, 100, 100, false, false, 0, 494},        {"c", 8, 2, 30, 40, false, true, 1, 122},
               {"avx512", 8, 2, 1, 100000, false, false, 1, 550},  {"avx512", 8, 2, 1, 100000, true, false, 3, 183},
               {"avx512", 8, 2, 1, 100000, false, false, 275, 2},  {"avx512", 8, 2, 1, 100000, false, false, 276, 1},
               {"avx512", 8, 2, 1, 1000000, false, false, 1, 1000}};
  for (size_t i = 0; i < COUNT(calls); i++) {
    const attn_kernel_info kernel = {.isa = calls[i].isa};
    attn_problem p;
    if (attn_tier_find(kernel.isa) < 0) continue;
    attn_problem_init(&p, 1, calls[i].heads_q, calls[i].heads_kv, calls[i].seq_q, calls[i].seq_k, 64, 32);
    if (calls[i].causal) attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
    if (calls[i].varlen) attn_problem_set_varlen(&p, 50, 70);
    assert_int_equal(attn_paying_threads(&kernel, &p, calls[i].waves, 1000), calls[i].threads);
  }
}

/* 1.2 times the tier's rate, 12 ns a row and 70 ps an element of W make 10 us. */
TEST(products_pay_from_this_many_rows) {
  static const struct {
    const char *isa;
    int64_t depth, columns, rows;
  } products[] = {{"c", 64, 32, 15}, {"avx2", 16, 16, 523}, {"avx512", 64, 32, 244}, {"avx512", 1024, 128, 1}};
  for (size_t i = 0; i < COUNT(products); i++) {
    if (attn_tier_find(products[i].isa) < 0) continue;
    assert_int_equal(attn_product_rows_worth(products[i].isa, products[i].depth, products[i].columns), products[i].rows);
  }
  int64_t items = 0;
  while (!attn_parallel_pays(items, 3)) items++;
  assert_int_equal(items, 3334);
}

/* ---- Dense layers and loops over rows, which have no plan to look at: the threads that a process has after a call ---- */

static int threads_of_process(void) {
  int threads = 0;
  DIR *folder = opendir("/proc/self/task");
  for (const struct dirent *entry; folder && (entry = readdir(folder));) threads += entry->d_name[0] != '.';
  if (folder) closedir(folder);
  return threads;
}

/* One shape of a call. */
typedef struct call {
  int64_t rows, width;
  int threads; /* of attn_options */
} call;

/* How many threads a process has that makes this call alone; this one has run no loop yet. */
static int threads_after(void (*run)(const call *), call what) {
  const pid_t child = fork();
  if (child == 0) {
    run(&what);
    _exit(threads_of_process());
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status));
  return WEXITSTATUS(status);
}

static float *floats(int64_t count) { return calloc((size_t)count, sizeof(float)); }

static void run_product(const call *c) {
  const attn_product_weights weights =
      ATTN_STRUCT(attn_product_weights, .depth = c->width, .columns = c->width, .weight = floats(c->width * c->width),
                  .stride_depth = c->width, .stride_column = 1);
  const attn_product_args args =
      ATTN_STRUCT(attn_product_args, .batch = 1, .rows = c->rows, .x = floats(c->rows * c->width),
                  .x_stride = {.s = c->width, .d = 1}, .y = floats(c->rows * c->width), .y_stride = {.s = c->width, .d = 1});
  attn_product *product;
  test_ok(attn_product_create(&weights, &ATTN_STRUCT(attn_options, .threads = c->threads), &product));
  const size_t bytes = attn_product_workspace(product, c->rows);
  test_ok(attn_product_run(product, &args, aligned_alloc(64, bytes), bytes));
}

/* All that it runs but the addition and norm of rows is serial: a post-norm block of width 4, whose products and heads are
 * tiny. */
static void run_block(const call *c) {
  const int64_t w = c->width;
  attn_block_config config;
  attn_encoder_block_init(&config, c->rows, 1, 1, w, w);
  config.self_weights = ATTN_STRUCT(attn_mha_weights, .w_qkv = floats(3 * w * w), .w_o = floats(w * w));
  config.feed_forward.first.weight = config.feed_forward.second.weight = floats(w * w);
  attn_block *block;
  test_ok(attn_block_create(&config, &ATTN_STRUCT(attn_options, .threads = c->threads), &block));
  const attn_block_args args = ATTN_STRUCT(attn_block_args, .x = floats(c->rows * w), .y = floats(c->rows * w));
  const size_t bytes = attn_block_workspace(block);
  test_ok(attn_block_run(block, &args, aligned_alloc(64, bytes), bytes));
}

TEST(small_products_run_on_one_thread) {
  if (most() == 1) return;
  assert_int_equal(threads_after(run_product, (call){4, 64, 0}), 1);
  assert_int_equal(threads_after(run_product, (call){1, 64, 0}), 1);
  assert_true(threads_after(run_product, (call){200, 384, 0}) > 1);
  assert_true(threads_after(run_product, (call){1, 1024, 0}) > 1); /* one row, but 4 MiB of weights */
}

TEST(small_loops_over_rows_run_on_one_thread) {
  if (most() == 1) return;
  assert_int_equal(threads_after(run_block, (call){30, 4, 0}), 1);
  assert_true(threads_after(run_block, (call){100, 64, 0}) > 1);
}

TEST(a_number_of_threads_is_obeyed_by_layers) {
  if (most() == 1) return;
  assert_true(threads_after(run_product, (call){300, 64, 3}) > 1);
  assert_true(threads_after(run_block, (call){100, 4, 3}) > 1);
}

TEST(one_thread_is_obeyed_by_layers) {
  assert_int_equal(threads_after(run_product, (call){200, 384, 1}), 1);
  assert_int_equal(threads_after(run_block, (call){100, 64, 1}), 1);
}
