/* SPDX-License-Identifier: MIT */
/* The simulator on tasks whose times are known, so that its answer is known, too; topology files; the deal that it plays. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "simulate/simulate.h"
#include "tests/support/support.h"

enum { MOST_TASKS = 4096, ERROR_BYTES = 300 };

static double task_ns[MOST_TASKS];

static void assert_near(double value, double expected, double most) {
  if (!(fabs(value - expected) <= most)) fail_msg("%g, not %g", value, expected);
}

static attn_schedule schedule_of(int64_t units, int64_t wave_units, int phases, const int64_t *items) {
  attn_schedule s = {.units = units, .wave_units = wave_units, .phases = phases};
  memcpy(s.items, items, (size_t)phases * sizeof *items);
  assert_true(sim_task_count(&s) <= MOST_TASKS);
  return s;
}

#define SCHEDULE(units, wave, phases, ...) schedule_of(units, wave, phases, (const int64_t[]){__VA_ARGS__})

static void all_take(const attn_schedule *s, double ns) {
  for (int64_t i = 0; i < sim_task_count(s); i++) task_ns[i] = ns;
}

static sim_result play(const attn_schedule *s, int threads, const sim_machine *machine, sim_work work) {
  const sim_machine large = sim_machine_scaled(threads, INFINITY);
  sim_result result;
  work.schedule = s;
  work.task_ns = task_ns;
  assert_true(sim_play(&work, threads, machine ? machine : &large, &result));
  assert_int_equal(result.tasks, sim_task_count(s));
  /* every moment of every thread is accounted for */
  const double all = result.work_ns + result.memory_ns + result.waiting_ns + result.over_ns + result.loop_ns;
  assert_near(all, result.ns * threads, 1e-6 * all + 1e-9);
  return result;
}

static void takes(const sim_result *r, double ns) { assert_near(r->ns, ns, 1e-6 * ns); }

/* ---- Playing ---- */

TEST(equal_tasks_take_their_rounds) {
  const attn_schedule s = SCHEDULE(1, 1, 1, 130);
  all_take(&s, 10);
  for (int threads = 1; threads <= 256; threads++) {
    const sim_result r = play(&s, threads, NULL, (sim_work){0});
    takes(&r, 10 * ((130 + threads - 1) / threads));
    assert_int_equal(r.working, threads < 130 ? threads : 130);
    assert_near(r.work_ns, 1300, 1e-3);
  }
}

TEST(one_long_task_limits) {
  const attn_schedule s = SCHEDULE(1, 1, 1, 9);
  all_take(&s, 10);
  task_ns[0] = 100; /* first: the others fit beside it */
  sim_result r = play(&s, 2, NULL, (sim_work){0});
  takes(&r, 100);
  assert_string_equal(sim_limit(&r, 2), "longest task");
  task_ns[0] = 10, task_ns[8] = 100; /* last: it begins when four have been done on each thread */
  r = play(&s, 2, NULL, (sim_work){0});
  takes(&r, 140);
  r = play(&s, 16, NULL, (sim_work){0});
  takes(&r, 100);
  assert_string_equal(sim_limit(&r, 16), "too few tasks");
}

TEST(few_tasks_leave_threads_idle) {
  const attn_schedule s = SCHEDULE(1, 1, 1, 3);
  all_take(&s, 10);
  const sim_result r = play(&s, 8, NULL, (sim_work){0});
  takes(&r, 10);
  assert_near(r.over_ns, 50, 1e-6);
  assert_string_equal(sim_limit(&r, 8), "too few tasks");
}

TEST(a_phase_waits_for_its_own_unit_alone) {
  const attn_schedule one = SCHEDULE(1, 1, 2, 2, 2), two = SCHEDULE(2, 2, 2, 1, 2);
  all_take(&one, 10);
  task_ns[1] = 30;
  sim_result r = play(&one, 2, NULL, (sim_work){0});
  takes(&r, 40); /* the thread of the short first task waits for the long one */
  assert_near(r.waiting_ns, 20, 1e-6);
  assert_string_equal(sim_limit(&r, 2), "earlier phases");
  all_take(&two, 10);
  task_ns[1] = 30; /* the second unit's first phase: both tasks of the first unit run beside it */
  r = play(&two, 2, NULL, (sim_work){0});
  takes(&r, 40);
  assert_near(r.waiting_ns, 0, 1e-6);
}

TEST(a_unit_waits_for_the_memory_of_the_one_before) {
  const attn_schedule apart = SCHEDULE(2, 2, 1, 1), shared = SCHEDULE(2, 1, 1, 1);
  all_take(&apart, 10);
  sim_result r = play(&apart, 2, NULL, (sim_work){0});
  takes(&r, 10);
  r = play(&shared, 2, NULL, (sim_work){0});
  takes(&r, 20);
  assert_near(r.waiting_ns, 10, 1e-6);
}

TEST(memory_limits_what_reads_it) {
  const attn_schedule s = SCHEDULE(1, 1, 1, 64);
  all_take(&s, 100); /* 1000 bytes: 10 a nanosecond and thread */
  const sim_work work = {.bytes = {1000}};
  sim_machine m = sim_machine_scaled(16, 10);
  sim_result r = play(&s, 16, &m, work);
  takes(&r, 400);
  m = sim_machine_scaled(16, 5);
  r = play(&s, 16, &m, work);
  takes(&r, 800); /* 64,000 bytes at 80 a nanosecond */
  assert_string_equal(sim_limit(&r, 16), "bandwidth");
  r = play(&s, 8, &m, work);
  takes(&r, 800); /* eight threads fill it as well */
  r = play(&s, 4, &m, work);
  takes(&r, 1600);
  assert_string_equal(sim_limit(&r, 4), "work");
}

TEST(bytes_come_later_beside_others) {
  const attn_schedule s = SCHEDULE(1, 1, 1, 64);
  all_take(&s, 100); /* 1000 bytes, each of which takes up to 0.06 ns longer */
  const sim_work work = {.bytes = {1000}, .wait_ns = 0.06};
  sim_machine m = sim_machine_scaled(16, 20);
  sim_result r = play(&s, 16, &m, work); /* 15 others want 10 of 20 bytes a nanosecond each */
  takes(&r, 4 * (100 + 1000 * 0.06 / 2));
  assert_string_equal(sim_limit(&r, 16), "bandwidth");
  r = play(&s, 1, &m, work);
  takes(&r, 6400);
  r = play(&s, 6, &m, work); /* beside 5, and 3 in the end */
  takes(&r, 10 * (100 + 60 * 5.0 / 30) + 100 + 60 * 3.0 / 30);
  m = sim_machine_scaled(16, 10);
  r = play(&s, 16, &m, work);
  takes(&r, 4 * 160);
  m = sim_machine_scaled(16, 5); /* there is half of what is wanted: that is longer */
  r = play(&s, 16, &m, work);
  takes(&r, 800);
  m = (sim_machine){.nodes = 2, .cores = 2, .node = {{1, 20, 0, 1}, {1, 20, 0, 1}}, .memory = SIM_FIRST};
  r = play(&s, 2, &m, work); /* each is all others of the one core */
  takes(&r, 32 * 160);
}

TEST(nodes_have_memory_of_their_own) {
  const attn_schedule s = SCHEDULE(1, 1, 1, 64);
  all_take(&s, 100);
  const sim_work work = {.bytes = {1000}};
  sim_machine m = {.nodes = 2, .cores = 16, .node = {{8, 80, 0, 1}, {8, 80, 0, 1}}};
  sim_result r = play(&s, 16, &m, work);
  takes(&r, 400);
  m.memory = SIM_FIRST; /* 160 wanted of 80 */
  r = play(&s, 16, &m, work);
  takes(&r, 800);
  m.memory = SIM_LOCAL;
  r = play(&s, 16, &m, work);
  takes(&r, 400);
  m.node[1].bytes_per_ns = 40; /* the second node's threads take half of the time's tasks: 16 + 8 of 24 in 200 */
  r = play(&s, 16, &m, work);
  assert_true(r.ns >= 64.0 / 24 * 200 - 1e-6 && r.ns <= 64.0 / 24 * 200 + 200);
  m.memory = SIM_SPREAD; /* half of 160 from a memory of 40 */
  r = play(&s, 16, &m, work);
  takes(&r, 800);
}

/* 16 heads of two phases, packed and used; 16 threads of two nodes that get little from each other. */
TEST(nodes_that_keep_their_heads_read_near) {
  const attn_schedule s = SCHEDULE(16, 16, 2, 2, 4);
  all_take(&s, 100);
  const sim_work work = {.bytes = {1000, 0}, .packed_bytes = 1000};
  sim_machine m = {.nodes = 2, .cores = 16, .node = {{8, 80, 10, 1}, {8, 80, 10, 1}}, .memory = SIM_HEADS};
  sim_result r = play(&s, 16, &m, work);
  takes(&r, 600);        /* 96 tasks, and nobody is late */
  m.memory = SIM_SPREAD; /* half of 8 * 10 is remote: 40 of 10 */
  r = play(&s, 16, &m, work);
  takes(&r, 2 * 400 + 400);
  m.memory = SIM_HEADS, m.flat = true; /* thread 0 .. 15 still begin with head 0 .. 15 */
  r = play(&s, 16, &m, work);
  takes(&r, 600);
  const attn_schedule few = SCHEDULE(2, 2, 2, 8, 32); /* all threads work on both heads */
  r = play(&few, 16, &m, work);
  /* Half of what each node packs is remote, 40 of 10. What is packed lies in node 0, whose threads come first; the first two
   * tasks of node 1 read 20 of 10. */
  takes(&r, 4 * 100 + 400 + 100);
  m.flat = false;
  r = play(&few, 16, &m, work);
  takes(&r, 500);
  assert_near(r.memory_ns, 0, 1e-6);
}

/* Eight threads use what one has packed: once for each cache. */
TEST(a_cache_reads_what_was_packed_once) {
  const attn_schedule s = SCHEDULE(1, 1, 2, 1, 15);
  all_take(&s, 100);
  const sim_work work = {.packed_bytes = 1000};
  sim_machine m = sim_machine_scaled(8, INFINITY);
  m.node[0].bytes_per_ns = 5; /* 10 wanted by the first task that reads */
  sim_result r = play(&s, 8, &m, work);
  takes(&r, 100 + 200);
  assert_near(r.memory_ns, 100, 1e-6);
  m.node[0].caches = 4;
  r = play(&s, 8, &m, work);
  assert_near(r.memory_ns, 4 * 700, 1e-6);
}

TEST(threads_take_time_to_start_and_tasks_to_take) {
  const attn_schedule s = SCHEDULE(1, 1, 1, 40);
  all_take(&s, 10);
  const sim_work work = {.take_ns = 1, .loop_ns = 1000};
  sim_result r = play(&s, 4, NULL, work);
  takes(&r, 1110);
  assert_string_equal(sim_limit(&r, 4), "starting threads");
  r = play(&s, 1, NULL, (sim_work){.loop_ns = 1000});
  takes(&r, 400); /* one thread starts none */
}

/* ---- The deal ---- */

/* Any number of threads, in any order of their steps: each task once, no sooner than it may begin, and no thread waits for a
 * task that nobody has. */
static void deal_all(const attn_schedule *s, int threads, int nodes, uint64_t seed) {
  static attn_deal deal;
  static int taken[MOST_TASKS];
  _Atomic int64_t *finished = calloc((size_t)s->wave_units, sizeof *finished);
  attn_dealt *holds = calloc((size_t)threads, sizeof *holds);
  int64_t *ended = calloc((size_t)(s->units * s->phases), sizeof *ended);
  int64_t *in_slot = calloc((size_t)s->wave_units, sizeof *in_slot); /* 1 + the unit */
  bool *busy = calloc((size_t)threads, sizeof *busy);
  int64_t left = sim_task_count(s), done = 0;
  memset(taken, 0, sizeof taken);
  attn_deal_start(&deal, s, s->units, threads, nodes, finished);
  assert_int_equal(deal.units, s->units);
  for (int64_t steps = 0; done < sim_task_count(s); steps++) {
    assert_true(steps < 200 * (left + 100) * threads);
    const int worker = (int)(bench_random(&seed) % (uint64_t)threads);
    attn_dealt *dealt = &holds[worker];
    if (!busy[worker]) {
      busy[worker] = attn_deal_take(&deal, worker, worker % nodes, dealt);
      if (busy[worker]) assert_int_equal(taken[sim_task_number(s, &dealt->task)]++, 0);
    } else if (attn_deal_is_ready(&deal, dealt)) {
      const attn_task task = dealt->task;
      for (int phase = 0; phase < task.phase; phase++)
        assert_int_equal(ended[task.unit * s->phases + phase], s->items[phase]);
      const int64_t before = in_slot[dealt->slot] - 1;
      for (int phase = 0; phase < s->phases && before >= 0 && before != task.unit; phase++)
        assert_int_equal(ended[before * s->phases + phase], s->items[phase]);
      in_slot[dealt->slot] = task.unit + 1;
      attn_deal_finish(&deal, dealt);
      ended[task.unit * s->phases + task.phase]++;
      busy[worker] = false;
      done++;
    }
  }
  for (int worker = 0; worker < threads; worker++) assert_false(attn_deal_take(&deal, worker, worker % nodes, holds));
  free(in_slot), free(busy), free(ended), free(holds), free(finished);
}

TEST(every_task_is_dealt_once_and_in_time) {
  for (uint64_t seed = 0; seed < 400; seed++) {
    uint64_t draw = seed;
    const int64_t units = 1 + (int64_t)(bench_random(&draw) % 40), wave = 1 + (int64_t)(bench_random(&draw) % 12);
    const int64_t items[] = {(int64_t)(bench_random(&draw) % 5), (int64_t)(bench_random(&draw) % 7), 1};
    attn_schedule s = schedule_of(units, wave < units ? wave : units, 1 + (int)(bench_random(&draw) % 3), items);
    deal_all(&s, 1 + (int)(bench_random(&draw) % 130), 1 + (int)(bench_random(&draw) % 20), seed);
  }
}

TEST(a_thread_with_units_enough_begins_with_its_own) {
  static attn_deal deal;
  _Atomic int64_t finished[8];
  attn_dealt dealt;
  const attn_schedule many = SCHEDULE(8, 8, 2, 2, 3), few = SCHEDULE(3, 3, 2, 2, 3);
  attn_deal_start(&deal, &many, 8, 4, 1, finished);
  assert_true(attn_deal_take(&deal, 2, 0, &dealt));
  assert_int_equal(dealt.task.unit, 4);
  attn_deal_start(&deal, &few, 3, 4, 1, finished);
  for (int64_t i = 0; i < 6; i++) { /* the first items of all units, which are the longest, before the second ones */
    assert_true(attn_deal_take(&deal, 2, 0, &dealt));
    assert_int_equal(dealt.task.unit, i % 3);
    assert_int_equal(dealt.task.item, i / 3);
  }
}

/* All tasks of 16 units in 2 phases, on 8 threads of 2 nodes that work in turns: each works in its own node's half, in the
 * memory of that half, wave after wave. */
TEST(a_node_keeps_its_units_and_their_memory) {
  static attn_deal deal;
  _Atomic int64_t finished[8];
  const attn_schedule many = SCHEDULE(16, 8, 2, 1, 3), few = SCHEDULE(16, 4, 2, 1, 3);
  for (const attn_schedule *s = &many; s; s = s == &many ? &few : NULL) {
    attn_dealt dealt;
    attn_deal_start(&deal, s, s->units, 8, 2, finished);
    for (int64_t i = 0; i < sim_task_count(s); i++) {
      const int worker = (int)(i % 8), node = worker / 4;
      assert_true(attn_deal_take(&deal, worker, node, &dealt));
      assert_int_equal(dealt.part, node);
      assert_int_equal(dealt.task.unit / 8, node);
      assert_int_equal(dealt.slot / (s->wave_units / 2), node);
      assert_int_equal(attn_deal_part_of(s->units, 2, dealt.task.unit), node);
    }
  }
}

TEST(a_node_helps_another_when_its_own_tasks_are_taken) {
  static attn_deal deal;
  _Atomic int64_t finished[4];
  attn_dealt dealt;
  const attn_schedule s = SCHEDULE(4, 4, 1, 2), one = SCHEDULE(1, 1, 1, 4);
  attn_deal_start(&deal, &s, 4, 2, 2, finished);
  for (int64_t i = 0; i < 8; i++) {
    assert_true(attn_deal_take(&deal, 1, 1, &dealt));
    assert_int_equal(dealt.task.unit / 2, i < 4 ? 1 : 0);
  }
  attn_deal_start(&deal, &one, 1, 2, 2, finished); /* fewer units than nodes: all work on it */
  assert_true(attn_deal_take(&deal, 0, 0, &dealt) && attn_deal_take(&deal, 1, 1, &dealt));
  assert_int_equal(dealt.task.item, 1);
}

TEST(parts_begin_at_their_borders) {
  for (int64_t all = 1; all < 40; all++)
    for (int parts = 1; parts < 17; parts++)
      for (int64_t i = 0; i < all; i++) {
        const int part = attn_deal_part_of(all, parts, i);
        assert_true(attn_deal_border(all, parts, part) <= i && i < attn_deal_border(all, parts, part + 1));
      }
}

/* ---- Topology files ---- */

TEST(topology_files_are_read) {
  char error[ERROR_BYTES] = "";
  sim_machine m;
  const char *text =
      "# two sockets\nnode cores=32 bandwidth=200\n\n  node bandwidth=1.5e2 cores=16 remote=60 caches=2 # smaller\r\n"
      "memory local\ndeal flat\nloop us=2.5";
  if (!sim_machine_read("f", text, &m, error, sizeof error)) fail_msg("%s", error);
  assert_int_equal(m.nodes, 2);
  assert_int_equal(m.cores, 48);
  assert_int_equal(m.node[1].cores, 16);
  assert_near(m.node[0].bytes_per_ns, 200, 0);
  assert_near(m.node[1].bytes_per_ns, 150, 0);
  assert_near(m.node[0].remote, 0, 0);
  assert_near(m.node[1].remote, 60, 0);
  assert_int_equal(m.node[0].caches, 1);
  assert_int_equal(m.node[1].caches, 2);
  assert_true(m.flat);
  assert_int_equal(m.memory, SIM_LOCAL);
  assert_near(m.loop_ns, 2500, 0);
}

TEST(plans_see_the_nodes_of_all_threads) {
  sim_machine m = {.nodes = 3, .cores = 4096, .node = {{.cores = 1000}, {.cores = 1096}, {.cores = 2000}}};
  const attn_node_map one = sim_node_map(&m, 1000), two = sim_node_map(&m, 2096), all = sim_node_map(&m, 4096);
  assert_true(one.nodes == 1 && two.nodes == 3 && all.nodes == 7);
  assert_int_equal(one.cpus, 1000);
  assert_int_equal(all.cpus, ATTN_MOST_CPUS);
  assert_int_equal(all.node[999], 0);
  assert_int_equal(all.node[ATTN_MOST_CPUS - 1], 1);
  m.flat = true;
  assert_true(sim_node_map(&m, 4096).nodes == 1);
}

TEST(mistakes_in_topology_files_are_named) {
  static const struct {
    const char *text, *says[3];
  } mistakes[] = {
      {"", {"f has no node", "node cores="}},
      {"memory local", {"f has no node"}},
      {"node cores=2 bandwidth=9\nnode cores=0 bandwidth=9", {"f, line 2", "cores is '0'", "from 1 to 4096"}},
      {"node cores=2.5 bandwidth=9", {"line 1", "cores is '2.5'", "whole number"}},
      {"node cores=x bandwidth=9", {"line 1", "cores is 'x'"}},
      {"node cores=4", {"line 1", "bandwidth is ''", "GB/s"}},
      {"node bandwidth=4", {"line 1", "cores is ''"}},
      {"node cores=2 bandwidth=-1", {"line 1", "bandwidth is '-1'"}},
      {"node cores=2 bandwidth=nan", {"line 1", "bandwidth is 'nan'"}},
      {"node cores=2 speed=1", {"line 1", "'speed=1'", "cores=N, bandwidth=GB/s, remote=GB/s or caches=N"}},
      {"\n\nnodes 2", {"line 3", "'nodes'", "node, memory, deal or loop"}},
      {"memory near", {"line 1", "memory is 'near'", "spread, local, first or heads"}},
      {"memory local local", {"line 1", "memory is 'local'"}},
      {"deal", {"line 1", "deal is ''", "nodes or flat"}},
      {"node cores=2 bandwidth=9 remote=0", {"line 1", "remote is '0'", "GB/s above 0"}},
      {"node cores=2 bandwidth=9 caches=1.5", {"line 1", "caches is '1.5'", "from 1 to 64"}},
      {"loop 5", {"line 1", "loop is '5'", "us="}},
      {"loop us=0", {"line 1", "us is '0'"}},
  };
  for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes; i++) {
    char error[ERROR_BYTES] = "";
    sim_machine m;
    if (sim_machine_read("f", mistakes[i].text, &m, error, sizeof error)) fail_msg("'%s' was read", mistakes[i].text);
    for (int n = 0; n < 3 && mistakes[i].says[n]; n++) test_contains(error, mistakes[i].says[n]);
  }
}

TEST(no_more_nodes_than_fit_and_no_longer_lines) {
  static char text[SIM_MOST_NODES * 40 + 1000], error[ERROR_BYTES];
  sim_machine m;
  for (int n = 0; n < SIM_MOST_NODES; n++) strcat(text, "node cores=2 bandwidth=9\n");
  assert_true(sim_machine_read("f", text, &m, error, sizeof error));
  assert_int_equal(m.cores, 2 * SIM_MOST_NODES);
  strcat(text, "node cores=2 bandwidth=9\n");
  assert_false(sim_machine_read("f", text, &m, error, sizeof error));
  test_contains(error, "line 65: node 65");
  memset(text, ' ', 900);
  text[900] = 0;
  assert_false(sim_machine_read("f", text, &m, error, sizeof error));
  test_contains(error, "line 1 has 900 characters");
}
