/* SPDX-License-Identifier: MIT */
/* NUMA nodes, on a machine that may have one: topologies are made up, and workers are said to run on their CPUs. */
#define _DEFAULT_SOURCE /* mincore, mkdtemp */
#define TEST_TEARDOWN   forget_nodes
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "src/plan/nodes.h"
#include "src/plan/plan.h"
#include "tests/support/support.h"

static attn_node_map map;

static int forget_nodes(void **state) {
  (void)state;
  test_pretend_nodes(0);
  return 0;
}

/* ---- Which there are ---- */

static void write_list(const char *folder, int node, const char *cpus) {
  char path[200];
  snprintf(path, sizeof path, "%s/node%d", folder, node);
  assert_int_equal(mkdir(path, 0700), 0);
  strcat(path, "/cpulist");
  FILE *file = fopen(path, "w");
  assert_non_null(file);
  fputs(cpus, file);
  fclose(file);
}

static void remove_list(const char *folder, int node) {
  char path[200];
  snprintf(path, sizeof path, "%s/node%d/cpulist", folder, node);
  unlink(path);
  *strrchr(path, '/') = 0;
  rmdir(path);
}

TEST(nodes_are_read_from_the_systems_files) {
  char folder[] = "/tmp/attn_nodes_XXXXXX";
  static const struct {
    int node;
    const char *cpus;
  } lists[] = {{0, "0-3,8\n"}, {1, "\n"}, {3, "4-6,7,9-10"}, {63, "1023-1100\n"}};
  assert_non_null(mkdtemp(folder));
  for (size_t i = 0; i < COUNT(lists); i++) write_list(folder, lists[i].node, lists[i].cpus);
  attn_node_map_read(folder, &map);
  for (size_t i = 0; i < COUNT(lists); i++) remove_list(folder, lists[i].node);
  rmdir(folder);
  assert_true(map.nodes == (1u | 1u << 3 | UINT64_C(1) << 63)); /* node 1 has memory alone */
  for (int cpu = 0; cpu < 11; cpu++) assert_int_equal(map.node[cpu], cpu < 4 || cpu == 8 ? 0 : 3);
  assert_int_equal(map.node[1023], 63);
  assert_int_equal(map.cpus, 1024);
  attn_node_map_read(folder, &map);
  assert_true(map.nodes == 0 && map.cpus == 0);
}

TEST(nodes_have_places_in_a_set) {
  const uint64_t set = 1u << 2 | 1u << 5 | UINT64_C(1) << 63;
  assert_int_equal(attn_nodes_count(set), 3);
  assert_int_equal(attn_nodes_below(set, 2), 0);
  assert_int_equal(attn_nodes_below(set, 5), 1);
  assert_int_equal(attn_nodes_below(set, 63), 2);
  assert_int_equal(attn_nodes_here(set & 4, 7), 0);
  map = (attn_node_map){.cpus = 2, .node = {2, 5}, .nodes = 1u << 2 | 1u << 5};
  attn_nodes_pretend(&map);
  assert_true(attn_parallel_nodes(64) == map.nodes);
  assert_int_equal(attn_nodes_here(map.nodes, 1), 1);
  assert_int_equal(attn_nodes_here(map.nodes, 2), 0);
  test_pretend_nodes(0);
  assert_true(attn_parallel_nodes(64) != 0);
}

/* ---- Plans ---- */

static attn_problem problem_of(const char *kernel, int64_t batch, int64_t seq_q) {
  attn_problem p;
  attn_problem_init(&p, batch, 4, 2, seq_q, 150, 16, 16);
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  test_fit_types(kernel, &p);
  return p;
}

static void run(const char *kernel, const attn_problem *p, const test_data *data, int threads) {
  test_ok(test_run(p, &data->args, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = threads)));
}

static void check_bits(const char *kernel, const attn_problem *p) {
  test_data one = test_data_create(p, 1);
  run(kernel, p, &one, 1);
  for (int nodes = 1; nodes <= 4; nodes *= 2)
    for (int threads = 1; threads <= 8; threads++) {
      test_data many = test_data_share_inputs(p, &one);
      test_pretend_nodes(nodes);
      run(kernel, p, &many, threads);
      assert_memory_equal(many.args.o, one.args.o, one.o_bytes);
      test_data_destroy_outputs(&many);
    }
  test_pretend_nodes(0);
  test_data_destroy(&one);
}

/* Fewer heads than nodes and than threads, more of them, and several waves; few rows, and many. */
static void nodes_change_no_bit(const char *kernel) {
  static const int64_t shapes[][2] = {{1, 4}, {9, 4}, {1, 130}, {3, 70}};
  for (size_t i = 0; i < COUNT(shapes); i++) {
    const attn_problem p = problem_of(kernel, shapes[i][0], shapes[i][1]);
    if (!attn_kernel_rejects(attn_kernel_find(kernel), &p)) check_bits(kernel, &p);
  }
}
KERNEL_TEST(nodes_change_no_bit)

static attn_plan *plan_of(const char *kernel, int64_t batch, int threads) {
  const attn_problem p = problem_of(kernel, batch, 4);
  attn_plan *plan;
  test_ok(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = kernel, .threads = threads), &plan));
  return plan;
}

TEST(a_plan_says_which_nodes_share_heads) {
  static const struct {
    int64_t batch;
    int nodes, threads;
    const char *says; /* "" = nothing of nodes */
  } cases[] = {{4, 1, 8, ""},
               {4, 2, 8, "on 2 NUMA nodes, each with KV heads of its own"},
               {4, 8, 8, "on 8 NUMA nodes, each"},
               {4, 4, 1, ""},
               {1, 4, 8, "on 4 NUMA nodes, some of which share KV heads"}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    test_pretend_nodes(cases[i].nodes);
    attn_plan *plan = plan_of("decode_c", cases[i].batch, cases[i].threads);
    if (cases[i].says[0]) test_contains(attn_plan_describe(plan), cases[i].says);
    assert_true(!strstr(attn_plan_describe(plan), "NUMA") == !cases[i].says[0]);
    attn_plan_destroy(plan);
  }
}

/* Memory for as many heads in each node: else nodes with less would end later. */
static void waves_are_alike_in_all_nodes(const char *kernel) {
  for (int nodes = 3; nodes <= 7; nodes++) {
    test_pretend_nodes(nodes);
    attn_plan *plan = plan_of(kernel, 997, 8);
    const attn_schedule *s = attn_plan_schedule(plan);
    assert_true(!s || s->wave_units == s->units || s->wave_units % nodes == 0);
    attn_plan_destroy(plan);
  }
}
KERNEL_TEST(waves_are_alike_in_all_nodes)

/* ---- First touch ---- */

typedef struct touched {
  char *memory;
  size_t pages, page_bytes;
  bool looked;
} touched;

/* Before the first task none but the last page, with the counters of the deal, has been written. */
static void look(void *context, const attn_task *task, bool ended) {
  touched *t = context;
  unsigned char there[1000];
  (void)task, (void)ended;
  if (t->looked) return;
  assert_int_equal(mincore(t->memory, t->pages * t->page_bytes, there), 0);
  for (size_t i = 0; i + 1 < t->pages; i++) assert_int_equal(there[i] & 1, 0);
  t->looked = true;
}

TEST(tasks_touch_the_workspace_first) {
  test_pretend_nodes(2);
  const attn_problem p = problem_of("flash_c", 3, 70);
  attn_plan *plan;
  test_ok(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .threads = 8), &plan));
  test_data data = test_data_create(&p, 1);
  touched t = {.page_bytes = (size_t)sysconf(_SC_PAGESIZE)};
  t.pages = attn_plan_workspace(plan) / t.page_bytes + 1;
  assert_true(t.pages > 8 && t.pages < 1000);
  t.memory = mmap(NULL, t.pages * t.page_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  assert_true(t.memory != MAP_FAILED);
  madvise(t.memory, t.pages * t.page_bytes, MADV_NOHUGEPAGE);
  attn_plan_run_seen(plan, &data.args, t.memory, look, &t);
  assert_true(t.looked);
  munmap(t.memory, t.pages * t.page_bytes);
  test_data_destroy(&data);
  attn_plan_destroy(plan);
}

/* ---- Loops ---- */

static void count(void *counts, int64_t i, int worker) {
  (void)worker;
  ((int *)counts)[i]++;
}

TEST(near_tasks_run_once_on_any_nodes) {
  for (int nodes = 1; nodes <= 8; nodes *= 2)
    for (int64_t tasks = 1; tasks < 30; tasks += 7) {
      int counts[30] = {0};
      test_pretend_nodes(nodes);
      attn_parallel_run_near(&ATTN_STRUCT(attn_options, .threads = 8), tasks, count, counts);
      for (int64_t i = 0; i < tasks; i++) assert_int_equal(counts[i], 1);
    }
}
