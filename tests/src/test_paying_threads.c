/* SPDX-License-Identifier: MIT */
/* How many threads a call gets where its caller leaves that open: as many as save least_ns each. The tests look at the
 * decision, not at time: costs are those of a file of this test. */
#ifdef _OPENMP
#include <omp.h>
#endif
#include <dirent.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "attn/extend.h"
#include "attn/kv.h"
#include "attn/nn.h"
#include "attn/product.h"
#include "cases/case.h"
#include "src/choice/machine_class.h"
#include "src/choice/paying_threads.h"
#include "src/choice/tuning.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"
#include "tests/support/support.h"

/* A key of a KV head takes 100 ns, and each head 1 us. */
static attn_tuning *costs;

int test_begin(char **arguments) {
  static char text[16384];
  const size_t head = attn_tuning_head(text, sizeof text);
  snprintf(text + head, sizeof text - head,
           "threads least_ns=1000\ncost kernel=decode_portable f32 error=0.1 key=100 head=1000\n");
  setenv("ATTN_MACHINE", "amd-zen4", 1);
  return (void)arguments, attn_tuning_read("a.tuning", text, strlen(text), &costs) != ATTN_OK;
}

/* Threads of the plan as attn_plan_describe() tells them. */
static int threads_of(const attn_problem *problem, const char *kernel, int threads) {
  attn_plan *plan;
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = threads, .tuning = costs);
  test_ok(attn_plan_create(problem, &options, &plan));
  const char *text = attn_plan_describe(plan), *line = strstr(text, "threads ");
  assert_non_null(line);
  assert_int_equal(sscanf(line, "threads %d", &threads), 1);
  attn_plan_destroy(plan);
  return threads;
}

static attn_problem of_keys(int64_t heads, int64_t keys) {
  attn_problem p;
  attn_problem_init(&p, 1, heads, heads, 1, keys, 8, 8);
  return p;
}

/* The test runs with OMP_NUM_THREADS=4; without OpenMP there is one thread and nothing to decide. */
static int most(void) {
  const attn_problem large = of_keys(8, 100000);
  return threads_of(&large, "decode_portable", 0);
}

/* ---- By costs ---- */

/* The first test, as a process finds its class once: here it finds none, and the file knows another kernel. */
TEST(all_threads_work_where_costs_say_nothing) {
  const pid_t child = fork();
  if (child == 0) {
    const attn_problem p = of_keys(1, 10);
    setenv("ATTN_MACHINE", "vax", 1);
    static const float w[1];
    const attn_product_weights weights =
        ATTN_STRUCT(attn_product_weights, .depth = 1, .columns = 1, .weight = w, .stride_depth = 1, .stride_column = 1);
    attn_product *product;
    if (attn_product_create(&weights, NULL, &product) == ATTN_OK) _exit(0);
    const int threads = attn_paying_threads(costs, attn_registry_find("flash_portable"), &p, 1, 9);
    _exit(strstr(attn_last_error(), "'vax'; it must be a class of CPUs: generic, amd-zen3, amd-zen4, ") ? threads : 0);
  }
  int status = 0;
  assert_int_equal(waitpid(child, &status, 0), child);
  assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 9);
}

TEST(threads_are_those_that_save_enough) {
  static const struct {
    int64_t heads, keys, waves;
    int most, threads;
  } calls[] = {{1, 10, 1, 9, 2},   {1, 9, 1, 9, 1},    {1, 20, 1, 9, 3},  {1, 20, 0, 9, 3},
               {4, 20, 1, 9, 9},   {4, 20, 4, 9, 3},   {4, 20, 7, 9, 1},  {2, 0, 1, 9, 2},
               {8, 20, 1, 24, 24}, {8, 20, 1, 23, 23}, {8, 20, 1, 99, 24}};
  const attn_kernel *decode = attn_registry_find("decode_portable");
  for (size_t i = 0; i < COUNT(calls); i++) {
    const attn_problem p = of_keys(calls[i].heads, calls[i].keys);
    assert_int_equal(attn_paying_threads(costs, decode, &p, calls[i].waves, calls[i].most), calls[i].threads);
  }
}

/* One query each for 10 sequences; one sequence has all keys but 9. The costs are those of 10 sequences with 10 keys each.
 */
TEST(keys_of_uneven_sequences_are_counted) {
  const attn_kernel *decode = attn_registry_find("decode_portable");
  attn_problem p = of_keys(1, 91);
  p.batch = 10;
  attn_problem_set_varlen(&p, 10, 100);
  assert_true(attn_call_ns(costs, decode, &p) == 10 * 2000);
  p.total_k = 10000; /* more than the longest has */
  assert_true(attn_call_ns(costs, decode, &p) == 10 * 10100);
  p.total_q = 0;
  assert_true(attn_call_ns(costs, decode, &p) == 0);
  attn_problem_set_varlen(&p, 10, 0); /* keys in pages have no total: each sequence may have all of seq_k */
  attn_problem_set_pages(&p, 16, 10);
  assert_true(attn_call_ns(costs, decode, &p) == 10 * 10100);
}

/* Kernels of other tiers count their terms with instructions that this CPU may lack. */
static bool counts_here(const attn_kernel *kernel) { return !attn_tier_unusable(attn_tier_find(kernel->info.isa), NULL); }

/* The time by costs of the class: those of the kernel, or else the shortest of the kernels that can run here; the
 * instructions of a kernel of ours may be slower than the quickest one's. */
static double model_ns(const attn_kernel *kernel, const attn_problem *p) {
  const attn_class *class;
  const attn_kernel *other, *quickest = NULL;
  double least = INFINITY;
  test_ok(attn_class_here(&class));
  for (int i = 0; (other = attn_registry_get(i)); i++) {
    const attn_kernel_costs *known = counts_here(other) ? attn_tuning_costs_of(class->costs, other, p) : NULL;
    const double ns = known ? (double)p->batch * attn_expected_ns(other, known->ns, p) : INFINITY;
    if (other == kernel && known && ns > 0) return ns;
    if (ns < least && !attn_kernel_unusable(&other->info) && !attn_kernel_rejects(&other->info, p))
      least = ns, quickest = other;
  }
  if (kernel->info.library[0] || !quickest) return quickest ? least : 0;
  return least * attn_tier_flops(attn_tier_find(quickest->info.isa)) / attn_tier_flops(attn_tier_find(kernel->info.isa));
}

TEST(calls_take_what_their_kernel_or_the_quickest_takes) {
  uint64_t seed = 3;
  for (int i = 0; i < 200; i++) {
    const attn_kernel *kernel;
    attn_problem p;
    attn_problem_init(&p, (int64_t)(bench_random(&seed) % 4), 2, 2, 1 + (int64_t)(bench_random(&seed) % 90),
                      1 + (int64_t)(bench_random(&seed) % 900), 64, 64);
    p.dtype_q = p.dtype_kv = p.dtype_o = (attn_dtype)(bench_random(&seed) % 3);
    for (int n = 0; (kernel = attn_registry_get(n)); n++) {
      if (!counts_here(kernel)) continue;
      const double ns = attn_call_ns(NULL, kernel, &p), model = model_ns(kernel, &p);
      if (!(fabs(ns - model) <= 1e-9 * model)) fail_msg("%s takes %g, not %g", kernel->info.name, ns, model);
    }
  }
}

/* ---- Plans ---- */

TEST(threads_grow_with_the_work) {
  if (most() < 4) return;
  for (int64_t keys = 0; keys < 40; keys += 3) {
    const attn_problem p = of_keys(1, keys);
    const int pay = (int)(1 + keys / 10);
    assert_int_equal(threads_of(&p, "decode_portable", 0) > 1, pay > 1 && threads_of(&p, "decode_portable", 4) > 1);
  }
}

TEST(a_number_of_threads_is_obeyed) {
  const attn_problem small = of_keys(4, 1);
  for (int threads = 1; threads <= 3; threads++) assert_int_equal(threads_of(&small, "decode_portable", threads), threads);
}

TEST(plans_say_why_threads_are_few) {
  if (most() == 1) return;
  const attn_problem small = of_keys(1, 3);
  attn_plan *plan;
  test_ok(attn_plan_create(&small, &ATTN_STRUCT(attn_options, .kernel = "decode_portable", .tuning = costs), &plan));
  test_contains(attn_plan_describe(plan), "more do not pay for so small a call");
  attn_plan_destroy(plan);
  test_ok(attn_plan_create(&small, NULL, &plan));
  test_contains(attn_plan_describe(plan), "by costs of amd-zen4 (ATTN_MACHINE)");
  attn_plan_destroy(plan);
}

/* Nothing to do is no reason to divide by it. */
TEST(empty_calls_are_planned) {
  static const int64_t empty[][3] = {{0, 1, 16}, {2, 0, 0}, {2, 0, 7}, {2, 7, 0}};
  for (size_t i = 0; i < COUNT(empty); i++) {
    attn_problem problem;
    attn_problem_init(&problem, empty[i][0], 4, 4, empty[i][1], empty[i][2], 64, 64);
    threads_of(&problem, NULL, 0);
  }
}

/* The row from which threads pay is where flash's costs for as many elements and multiply-adds reach twice least_ns. */
TEST(products_pay_from_this_many_rows) {
  static const char *const tiers[] = {"portable", "avx2", "avx512"};
  static const int64_t shapes[][2] = {{63, 32}, {15, 16}, {1024, 128}, {4096, 4096}};
  for (size_t i = 0; i < COUNT(tiers); i++) {
    char name[40];
    snprintf(name, sizeof name, "flash_%s", tiers[i]);
    const attn_kernel *flash = attn_registry_find(name);
    if (!flash || attn_kernel_unusable(&flash->info)) continue;
    for (size_t n = 0; n < COUNT(shapes); n++) {
      const int64_t depth = shapes[n][0], rows = attn_product_rows_worth(tiers[i], depth, shapes[n][1]);
      int pay[2];
      assert_true(rows >= 1 && rows < 10000);
      for (int more = 0; more < 2; more++) {
        attn_problem p;
        attn_problem_init(&p, 1, 1, 1, rows - 1 + more, shapes[n][1], (depth + 1) / 2, (depth + 1) / 2);
        pay[more] = attn_paying_threads(NULL, flash, &p, 1, 2);
      }
      assert_true(pay[1] == 2 && (pay[0] == 1 || rows == 1));
    }
  }
}

/* A tier without flash has the costs of the next one below. */
TEST(products_of_tiers_without_flash_pay) {
  if (attn_tier_find("avx512vnni") < 0) skip(); /* another architecture */
  const int64_t rows = attn_product_rows_worth("avx512vnni", 63, 32);
  assert_true(rows > 1);
  assert_int_equal(rows, attn_product_rows_worth("avx512", 63, 32));
}

TEST(loops_pay_from_twice_what_a_thread_has_to_save) {
  const attn_class *class;
  test_ok(attn_class_here(&class));
  const double least = 2 * attn_tuning_least_ns(class->costs);
  int64_t items = 0;
  while (!attn_parallel_pays(items, 3)) items++;
  assert_true(3 * (double)items >= least && 3 * (double)(items - 1) < least);
}

/* A float costs what the portable kernel takes for one of K or V. */
TEST(portable_loops_pay_from_that_time_on) {
  const attn_class *class;
  test_ok(attn_class_here(&class));
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, 1, 1024, 64, 64);
  const double least = 2 * attn_tuning_least_ns(class->costs), row = 2 * 1024 * 64,
               ns = attn_call_ns(NULL, attn_registry_find("decode_portable"), &p) / row;
  const int64_t floats = (int64_t)ceil(least / ns);
  assert_true(ns > 0 && attn_parallel_pays_for_elements(floats) && !attn_parallel_pays_for_elements(floats - 1));
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
  int threads; /* attn_options.threads */
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

/* Everything that it runs is serial, except the addition and norm of rows: a post-norm block of width 4, whose products and
 * heads are tiny. */
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
  assert_int_equal(threads_after(run_product, (call){2, 128, 0}), 1); /* it has several tasks */
  assert_true(threads_after(run_product, (call){2, 128, 4}) > 1);
  assert_true(threads_after(run_product, (call){200, 384, 0}) > 1);
  assert_true(threads_after(run_product, (call){1, 1024, 0}) > 1); /* one row, but 4 MiB of weights */
}

TEST(small_loops_over_rows_run_on_one_thread) {
  if (most() == 1) return;
  assert_int_equal(threads_after(run_block, (call){30, 4, 0}), 1);
  assert_true(threads_after(run_block, (call){100, 64, 0}) > 1);
}

static void run_append(const call *c) {
  float *k = floats(c->rows * c->width), *cache = floats(c->rows * c->width);
  test_ok(attn_kv_append(&ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = c->rows, .heads_kv = 1, .dim_qk = c->width,
                                      .dim_v = 1, .capacity = c->rows, .k = k, .k_cache = cache),
                         &ATTN_STRUCT(attn_options, .threads = c->threads)));
}

TEST(small_appends_run_on_one_thread) {
  if (most() == 1) return;
  assert_int_equal(threads_after(run_append, (call){64, 16, 0}), 1);
  assert_true(threads_after(run_append, (call){4096, 512, 0}) > 1);
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

#ifdef _OPENMP
static void count_task(void *counts, int64_t task, int worker) { ((int *)counts)[task] += 1 + worker; }

/* Regions that are nested as deep as OpenMP allows have one thread each. The last test: children need their own threads. */
TEST(threads_are_those_that_may_start) {
  int least = 9, most = 0, counts[5] = {0};
  omp_set_max_active_levels(1);
#pragma omp parallel num_threads(attn_parallel_available(2)) reduction(min : least) reduction(max : most)
  least = most = attn_parallel_available(2);
  assert_true(least == 1 && most == 1 && attn_parallel_available(2) == 2);
#pragma omp parallel num_threads(2)
#pragma omp single
  attn_parallel_run(&ATTN_STRUCT(attn_options, .threads = 4), COUNT(counts), count_task, counts);
  for (size_t i = 0; i < COUNT(counts); i++) assert_int_equal(counts[i], 1); /* each task once, by the only worker */
}
#endif
