/* SPDX-License-Identifier: MIT */
/* Structural tests one by one: which problems each of them runs, as a recording kernel sees them, and that a wrong value at
 * any place fails. structure_mutants.c tries whole broken kernels. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cases/cases.h"
#include "check/check.h"
#include "check/structure.h"
#include "check/structure_private.h"
#include "kernels/common/problem/convert.h"
#include "src/plan/plan.h"
#include "tests/support/layer_support.h"

/* ---- A kernel that keeps a record ------------------------------------------------------------------------------------- */

enum { MOST_RUNS = 8 };

/* One output: column -1 is the LSE. */
typedef struct place {
  int64_t h, i, d;
} place;

static struct {
  int runs, threads[MOST_RUNS]; /* since the last check began */
  bool pool[MOST_RUNS], backwards[MOST_RUNS];
  attn_problem problem[MOST_RUNS];
  attn_args args[MOST_RUNS];
  int32_t offset[MOST_RUNS];
  int64_t tasks;                                                     /* tasks of the present run that are done */
  void (*look)(const attn_problem *problem, const attn_args *args);  /* at the inputs of each run */
  void (*spoil)(const attn_problem *problem, const attn_args *args); /* the outputs of run `spoilt` */
  int spoilt;
  bool idle;          /* computes nothing */
  attn_status refuse; /* planning's answer instead */
  const char *rejects;
} spy;

extern const attn_kernel attn_naive_c, attn_flash_c;
static const attn_kernel *watched_kernel = &attn_naive_c; /* attn_flash_c where keys come in pieces */

static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  const int64_t items = schedule->items[0];
  const attn_problem *p = &schedule->problem;
  const int n = spy.runs < MOST_RUNS ? spy.runs : 0;
  if (!spy.tasks) {
    spy.problem[n] = *p;
    spy.args[n] = *args;
    spy.offset[n] = p->align == ATTN_ALIGN_OFFSET ? args->offsets[0] : 0;
    spy.backwards[n] = task.unit == schedule->units - 1 && task.item == items - 1;
    if (spy.look) spy.look(p, args);
  }
  if (!spy.idle) watched_kernel->run(schedule, args, task, unit_memory, scratch);
  if (++spy.tasks < items * schedule->units) return;
  spy.tasks = 0;
  if (spy.spoil && spy.spoilt == spy.runs) spy.spoil(p, args);
  spy.runs++;
}

static const char *rejects(const attn_problem *problem, char *buffer, size_t bytes) {
  return spy.rejects ? spy.rejects : watched_kernel->rejects(problem, buffer, bytes);
}

static attn_status create_plan(const void *context, const attn_problem *problem, const attn_options *options,
                               attn_plan **plan) {
  static attn_kernel kernel; /* outlives the plan */
  (void)context;
  kernel = *watched_kernel;
  kernel.run = run;
  kernel.rejects = rejects;
  if (spy.runs < MOST_RUNS) spy.threads[spy.runs] = options->threads, spy.pool[spy.runs] = options->parallel_for;
  return spy.refuse ? spy.refuse : attn_plan_create_for_kernel(problem, &kernel, options, plan);
}

/* ---- Cases ------------------------------------------------------------------------------------------------------------ */

typedef struct watched {
  bench_case bench;
  bench_tensors tensors;
  bench_expected *expected;
  attn_numerics numerics;
  bool alone; /* rows stand alone */
  unsigned ran;
} watched;

/* Opens a case whose output is right. change may be NULL; else it changes the inputs before the output is computed. */
static watched open_with(const char *id, void (*change)(const attn_args *args)) {
  watched w = {.bench = valid_case(id), .numerics = attn_naive_c.info.numerics, .alone = true};
  attn_plan *plan;
  memset(&spy, 0, sizeof spy);
  assert_true(bench_tensors_create(&w.bench, &w.tensors));
  if (change) change(&w.tensors.args);
  w.expected = bench_expected_create(&w.bench.problem, &w.tensors.args, 1, !strstr(id, "values:positive"));
  assert_non_null(w.expected);
  test_ok(create_plan(NULL, &w.bench.problem, &ATTN_STRUCT(attn_options, .threads = 1), &plan));
  test_ok(bench_run_once(plan, &w.tensors.args));
  attn_plan_destroy(plan);
  return w;
}

static watched open_case(const char *id) { return open_with(id, NULL); }

static void close_case(watched *w) {
  bench_expected_destroy(w->expected);
  bench_tensors_destroy(&w->tensors);
}

/* The linker's --wrap sends all allocations of the harness and the library here. Behind aligned memory, which views are made
 * of, stand bytes that nobody may change: large numbers, and then NaN. */
enum { MOST_BLOCKS = 400, LARGE = 64, GUARD = 256 };

static struct {
  int used, countdown; /* countdown 1: the next allocation fails; 0: none does */
  struct {
    unsigned char *memory;
    size_t bytes;
  } block[MOST_BLOCKS];
} heap;

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);

static void *note_block(unsigned char *memory, size_t bytes) {
  assert_true(heap.used < MOST_BLOCKS);
  heap.block[heap.used].memory = memory;
  heap.block[heap.used++].bytes = bytes;
  return memory;
}

static bool may_allocate(void) {
  const bool fine = heap.countdown != 1;
  if (heap.countdown) heap.countdown--;
  return fine;
}

void *__wrap_malloc(size_t bytes) { return may_allocate() ? note_block(__real_malloc(bytes), 0) : NULL; }
void *__wrap_calloc(size_t count, size_t bytes) {
  return may_allocate() ? note_block(__real_calloc(count, bytes), 0) : NULL;
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  if (!may_allocate()) return NULL;
  unsigned char *memory = __real_aligned_alloc(alignment, bytes + GUARD);
  memset(memory + bytes, 0x7d, LARGE);
  memset(memory + bytes + LARGE, 0xff, GUARD - LARGE);
  return note_block(memory, bytes);
}

void __wrap_free(void *memory) {
  int n = heap.used - 1;
  while (n >= 0 && heap.block[n].memory != memory) n--;
  if (n >= 0) {
    const unsigned char *after = heap.block[n].memory + heap.block[n].bytes;
    for (int i = 0; heap.block[n].bytes && i < GUARD; i++) assert_int_equal(after[i], i < LARGE ? 0x7d : 0xff);
    heap.block[n] = heap.block[--heap.used];
  }
  __real_free(memory);
}

static bench_verdict check_set(watched *w, unsigned set, uint64_t seed) {
  const bench_subject subject = {.create_plan = create_plan, .numerics = &w->numerics, .rows_stand_alone = w->alone};
  spy.runs = 0;
  spy.tasks = 0;
  const int blocks = heap.used;
  const bench_verdict verdict = bench_structure_check(&subject, &w->tensors, w->expected, seed, set, &w->ran);
  assert_int_equal(heap.used, blocks);
  return verdict;
}

static bench_verdict check(watched *w, bench_structure_test test, uint64_t seed) { return check_set(w, 1u << test, seed); }

static void expect_pass(watched *w, bench_structure_test test, uint64_t seed) {
  const bench_verdict verdict = check(w, test, seed);
  if (verdict.status != BENCH_PASS) fail_msg("seed %d: %s", (int)seed, verdict.reason);
  assert_true(w->ran == 0 || w->ran == 1u << test);
  assert_true(!spy.runs || spy.threads[0] == 1);
}

static void expect(watched *w, bench_structure_test test, uint64_t seed, bench_status status, const char *part) {
  const bench_verdict verdict = check(w, test, seed);
  if (verdict.status != status) fail_msg("%s: %s, not '%s'", bench_status_name(verdict.status), verdict.reason, part);
  test_contains(verdict.reason, part);
  test_contains(verdict.reason, bench_structure_name(test));
}

/* ---- Which outputs are compared, and how closely ---------------------------------------------------------------------- */

static struct {
  place at;
  double by; /* added; 0: the next number */
  bool zero; /* the value is lost */
} wrong;

static void spoil_one(const attn_problem *p, const attn_args *args) {
  float *lse = &args->lse[wrong.at.h * p->lse_stride.h + wrong.at.i * p->lse_stride.s];
  const int64_t n = wrong.at.h * p->o_stride.h + wrong.at.i * p->o_stride.s + wrong.at.d * p->o_stride.d;
  const float old = wrong.at.d < 0 ? *lse : attn_load_f32((attn_storage){args->o, p->dtype_o}, n);
  const float value = wrong.zero ? 0 : wrong.by != 0.0 ? (float)((double)old + wrong.by) : nextafterf(old, INFINITY);
  if (wrong.at.d < 0)
    *lse = value;
  else
    attn_store_f32(args->o, p->dtype_o, n, value);
}

static void spoil_all(const attn_problem *p, const attn_args *args) {
  float *o = args->o;
  for (int64_t n = 0; n < p->heads_q * p->seq_q * p->dim_v; n++) o[n] *= (float)(1 + wrong.by);
}

/* The sequence that is looked at: the one whose queries the first run reads. */
static int64_t sequence_of(const watched *w) {
  return ((const float *)spy.args[0].q - (const float *)w->tensors.args.q) / w->bench.problem.q_stride.b;
}

/* Each wrong bit fails and is named as a place of the case. */
TEST(every_bit_of_a_sequence_and_of_rows_is_compared) {
  static const bench_structure_test tests[] = {BENCH_STRUCTURE_batch, BENCH_STRUCTURE_rows};
  watched w = open_case("batch:2/heads:2/seq_q:3/seq_k:4/dim_qk:2/dim_v:3/lse:on");
  for (size_t t = 0; t < COUNT(tests); t++) {
    spy.spoil = NULL;
    expect_pass(&w, tests[t], 3);
    assert_true(w.ran && spy.runs == 1);
    const int64_t rows = spy.problem[0].seq_q, b = sequence_of(&w);
    const int64_t before = ((const float *)spy.args[0].q - (const float *)w.tensors.args.q - b * 12) / 2;
    spy.spoil = spoil_one;
    for (wrong.at.h = 0; wrong.at.h < 2; wrong.at.h++)
      for (wrong.at.i = 0; wrong.at.i < rows; wrong.at.i++)
        for (wrong.at.d = -1; wrong.at.d < 3; wrong.at.d++) {
          char part[100], column[30] = "";
          if (wrong.at.d >= 0) snprintf(column, sizeof column, ", column %d", (int)wrong.at.d);
          snprintf(part, sizeof part, "%s[batch %d, head %d, query %d%s] is ", wrong.at.d < 0 ? "lse" : "o", (int)b,
                   (int)wrong.at.h, (int)(before + wrong.at.i), column);
          expect(&w, tests[t], 3, BENCH_FAIL, part);
        }
  }
  close_case(&w);
}

/* Both answers may be off by their limit: 1.9 limits pass, 2.1 do not, in every output that the test compares. */
static void expect_twice_the_limit(bench_structure_test test, const char *id, int64_t rows) {
  watched w = open_case(id);
  const bench_expected *e = w.expected;
  spy.spoil = spoil_one;
  for (int64_t n = 0; n < e->rows; n++) {
    const attn_oracle_row *facts = &e->row[n].facts;
    const bench_row_limits limits = bench_limits_of_row(&e->problem, &w.numerics, facts, true);
    for (int64_t d = -1; d < 2 && e->row[n].i < rows; d++) {
      const int64_t k = n * 2 + d;
      const double ratio = d < 0 ? bench_lse_ratio(&limits, facts->lse, facts->lse + 1e-3)
                                 : bench_output_ratio(&limits, e->o[k], e->m[k], e->w[k], e->o[k] + 1e-3);
      wrong.at = (place){e->row[n].h, e->row[n].i, d};
      wrong.by = 1.85e-3 / ratio;
      expect_pass(&w, test, 1);
      wrong.by = 2.15e-3 / ratio;
      expect(&w, test, 1, BENCH_FAIL, d < 0 ? "lse[" : "o[");
    }
  }
  wrong.by = 0;
  close_case(&w);
}

TEST(twice_the_limit_is_the_limit_of_two_answers) {
  expect_twice_the_limit(BENCH_STRUCTURE_heads, "heads:2/heads_kv:1/seq_q:3/seq_k:9/head_dim:2", 3);
  expect_twice_the_limit(BENCH_STRUCTURE_heads, "heads:2/heads_kv:1/seq_q:3/seq_k:9/head_dim:2/lse:on", 3);
  /* row 0 sees key 0 alone, and the NaN stands in key 1 or 2 */
  expect_twice_the_limit(BENCH_STRUCTURE_neighbours, "heads:1/seq:3/head_dim:2/causal:top-left", 1);
}

/* The verdict tells the value that was computed and the right one, which is 1 less. */
TEST(wrong_values_are_told) {
  static const bench_structure_test tests[] = {BENCH_STRUCTURE_batch, BENCH_STRUCTURE_heads, BENCH_STRUCTURE_permutation};
  watched w = open_case("heads:2/heads_kv:1/seq_q:3/seq_k:9/head_dim:2/lse:on");
  spy.spoil = spoil_one;
  wrong.by = 1;
  for (size_t t = 0; t < COUNT(tests); t++)
    for (int64_t d = -1; d < 2; d++) {
      double got = 0, right = 0;
      wrong.at = (place){1, 2, d};
      const bench_verdict verdict = check(&w, tests[t], 1);
      assert_int_equal(verdict.status, BENCH_FAIL);
      const char *is = strstr(verdict.reason, "] is "), *should = strstr(verdict.reason, ", should be ");
      assert_true(is && should && sscanf(is, "] is %lf", &got) == 1 && sscanf(should, ", should be %lf", &right) == 1);
      assert_true(fabs(got - right - 1) < 1e-6);
    }
  wrong.by = 0;
  close_case(&w);
}

/* ---- Cut views -------------------------------------------------------------------------------------------------------- */

static uint64_t random_state = 7;

static int64_t between(int64_t least, int64_t most) {
  return least + (int64_t)(bench_random(&random_state) % (uint64_t)(most - least + 1));
}

/* The rule of docs/semantics.md, once more. */
static bool may_see(const attn_problem *p, const int32_t *row_len, int64_t position, int64_t i, int64_t j) {
  if (j >= p->seq_k || j < p->key_begin || (p->key_end > 0 && j >= p->key_end)) return false;
  if (attn_uses(p, ATTN_USE_ROW_LEN) && j >= row_len[i]) return false;
  if (p->window_right >= 0 && j > position + p->window_right) return false;
  return p->window_left < 0 || j >= position - p->window_left || j < p->window_first;
}

/* Rows and keys that are left see each other as before, whatever selects keys; positions are told in each way. */
TEST(cut_views_see_what_the_case_sees) {
  enum { MOST_ROWS = 6, MOST_KEYS = 12 };
  int ways[3] = {0};
  for (int n = 0; n < 20000; n++) {
    int32_t lengths[MOST_ROWS];
    const int64_t rows = between(1, MOST_ROWS), keys = between(1, MOST_KEYS), right = between(-1, 4), left = between(-1, 4);
    const int64_t offset = between(0, 1) ? keys - rows : between(-4, 6), begin = between(0, keys - 1);
    for (int i = 0; i < MOST_ROWS; i++) lengths[i] = (int32_t)between(0, keys);
    const attn_problem p = {.seq_q = rows,
                            .seq_k = keys,
                            .uses = between(0, 2) ? 0 : ATTN_USE_ROW_LEN,
                            .window_left = left,
                            .window_right = right,
                            .window_first = between(0, 1) * between(0, keys),
                            .key_begin = begin,
                            .key_end = between(0, 1) * between(begin + 1, keys)};
    bench_view v = {.problem = p, .args = {.row_len = lengths}, .offset = (int32_t)offset};
    const int64_t row = between(0, rows - 1), first = between(0, keys - 1), end = between(first + 1, keys);
    bench_view_keep_rows(&v, row, between(1, rows - row));
    bench_view_keep_keys(&v, first, end, 1);
    const int64_t told[] = {0, v.problem.seq_k - v.problem.seq_q, v.offset};
    const attn_sequence seq = {
        .len_q = v.problem.seq_q, .len_k = v.problem.seq_k, .offset = told[v.problem.align - ATTN_ALIGN_TOP_LEFT]};
    ways[v.problem.align - ATTN_ALIGN_TOP_LEFT]++;
    for (int64_t i = 0; i < v.problem.seq_q; i++)
      for (int64_t j = 0; j < end - first; j++) {
        const attn_key_range range = attn_allowed_keys(&v.problem, &v.args, &seq, 0, i);
        const bool sees = j >= range.begin && j < range.end && !attn_between_windows(&v.problem, &seq, i, j);
        assert_int_equal(sees, may_see(&p, lengths, row + i + offset, row + i, first + j));
      }
    bench_view_clear(&v);
  }
  assert_true(ways[0] && ways[1] && ways[2]);
}

/* ---- What seeds choose ------------------------------------------------------------------------------------------------ */

static int nan_at; /* twice the key that has a NaN; 1 more: in V */

static void find_nan(const attn_problem *p, const attn_args *args) {
  for (int n = 0; n < 2 * (int)p->seq_k; n++)
    if (isnan(((const float *)(n % 2 ? args->v : args->k))[n / 2 * p->dim_qk])) nan_at = n;
}

/* Every key of K and V, every group of heads and sequence; every first row with every number of rows. */
TEST(seeds_choose_everything_that_there_is) {
  enum { KEYS = 30, ROWS = 4, SEEDS = 800 };
  watched w = open_case("batch:2/heads:4/heads_kv:2/seq_q:4/seq_k:30/head_dim:2/mask:random");
  bool nan[2 * KEYS] = {false}, head[8] = {false}, part[2][ROWS][ROWS + 1] = {{{false}}};
  for (uint64_t seed = 0; seed < SEEDS; seed++) {
    spy.look = find_nan;
    expect_pass(&w, BENCH_STRUCTURE_neighbours, seed);
    nan[nan_at] = true;
    head[((const float *)spy.args[0].q - (const float *)w.tensors.args.q) / (ROWS * 2)] = true;
    spy.look = NULL;
    expect_pass(&w, BENCH_STRUCTURE_rows, seed);
    const int64_t row = ((const float *)spy.args[0].q - (const float *)w.tensors.args.q) / 2;
    if (w.ran) part[row / (4 * ROWS)][row % ROWS][spy.problem[0].seq_q] = true;
  }
  for (int n = 0; n < 2 * KEYS; n++) assert_true(nan[n]);
  for (int h = 0; h < 8; h++) assert_int_equal(head[h], h % 2 == 0);
  for (int n = 0; n < 2 * ROWS * ROWS; n++)
    assert_int_equal(part[n / ROWS / ROWS][n / ROWS % ROWS][1 + n % ROWS],
                     n / ROWS % ROWS + n % ROWS < ROWS && n % ROWS < ROWS - 1);
  close_case(&w);
}

/* ---- Threads ---------------------------------------------------------------------------------------------------------- */

TEST(threads_are_one_two_three_and_seven) {
  static const int counts[] = {1, 2, 3, 7};
  watched w = open_case("batch:2/heads:4/seq:4/head_dim:2/lse:on");
  const size_t bytes = bench_tensors_output_bytes(&w.tensors);
  unsigned char *before = test_allocate(bytes), *after = test_allocate(bytes);
  bench_tensors_gather_output(&w.tensors, before);
  expect_pass(&w, BENCH_STRUCTURE_threads, 1);
  assert_int_equal(spy.runs, 4);
  for (int n = 0; n < 4; n++) {
    assert_true(spy.threads[n] == counts[n] && spy.pool[n]);
    assert_true(spy.backwards[n] || n == 0);
  }
  bench_tensors_gather_output(&w.tensors, after);
  assert_memory_equal(before, after, bytes);
  free(before), free(after);
  close_case(&w);
  for (int n = 0; n < 12; n++) { /* a failed test leaves the wrong output */
    static const place places_of[] = {{0, 0, 0}, {3, 3, 1}, {3, 3, -1}};
    char part[60];
    w = open_case("batch:2/heads:4/seq:4/head_dim:2/lse:on");
    spy.spoil = spoil_one, spy.spoilt = n / 3;
    wrong.at = places_of[n % 3];
    snprintf(part, sizeof part, "other bits with %d threads that take the tasks backwards", counts[n / 3]);
    expect(&w, BENCH_STRUCTURE_threads, 1, BENCH_FAIL, part);
    close_case(&w);
  }
}

/* ---- Poison ----------------------------------------------------------------------------------------------------------- */

static const attn_args *original; /* the case's own inputs, dense */
static int poisons[4];            /* how often each was seen */
static int poison;                /* the present run's; -1: none yet */

static void expect_element(float got, float before, bool seen) {
  static const float values[] = {INFINITY, -INFINITY, 3e38f};
  int kind = isnan(got) ? 3 : 0;
  while (kind < 3 && got != values[kind]) kind++;
  if (seen) {
    assert_true(got == before);
    return;
  }
  assert_true(kind < 3 || isnan(got));
  assert_true(poison < 0 || poison == kind);
  poison = kind;
  poisons[kind]++;
}

static void look_at_keys(const attn_problem *p, const attn_args *args, int64_t first, int64_t end) {
  const float *k = args->k, *v = args->v;
  poison = -1;
  for (int64_t n = 0; n < p->heads_kv * p->seq_k * 2; n++) {
    const bool seen = n / 2 % p->seq_k >= first && n / 2 % p->seq_k < end;
    expect_element(v[n], ((const float *)original->v)[n], seen);
    if (p->score == ATTN_SCORE_DOT) expect_element(k[n], ((const float *)original->k)[n], seen);
  }
}

static void look_at_later_keys(const attn_problem *p, const attn_args *args) { look_at_keys(p, args, 0, 3); }
static void look_at_earlier_keys(const attn_problem *p, const attn_args *args) { look_at_keys(p, args, 2, 5); }

/* A causal mask, and a bias or scores of its own for each pair. */
static void look_at_masked_pairs(const attn_problem *p, const attn_args *args) {
  const float *got = args->bias ? args->bias : args->scores, *before = args->bias ? original->bias : original->scores;
  poison = -1;
  for (int64_t n = 0; n < p->heads_q * p->seq_q * p->seq_k; n++)
    expect_element(got[n], before[n], n % p->seq_k <= n / p->seq_k % p->seq_q);
}

/* Row i sees key i + 2 alone. */
static void look_beside_the_window(const attn_problem *p, const attn_args *args) {
  poison = -1;
  for (int64_t n = 0; n < p->heads_q * p->seq_q * p->seq_k; n++)
    expect_element(args->scores[n], original->scores[n], n % p->seq_k == n / p->seq_k % p->seq_q + 2);
}

/* KV head 0 sees all keys but key 0, KV head 1 all but key 1. */
static void hide_two_keys(const attn_args *args) {
  float *bias = (float *)(uintptr_t)args->bias;
  for (int n = 0; n < 4 * 3 * 5; n++)
    if (n % 5 == n / 30) bias[n] = -INFINITY;
}

static void look_at_two_keys(const attn_problem *p, const attn_args *args) {
  poison = -1;
  for (int64_t n = 0; n < p->heads_kv * p->seq_k * 2; n++)
    expect_element(((const float *)args->k)[n], ((const float *)original->k)[n], n / 2 % 5 != n / 10);
}

TEST(poison_stands_in_keys_that_no_head_of_the_group_sees) {
  watched w = open_with("heads:4/heads_kv:2/seq_q:3/seq_k:5/head_dim:2/bias:full", hide_two_keys);
  original = &w.tensors.args;
  spy.look = look_at_two_keys;
  for (uint64_t seed = 0; seed < 4; seed++) expect_pass(&w, BENCH_STRUCTURE_poison, seed);
  assert_true(w.ran && spy.runs == 1);
  close_case(&w);
}

TEST(poison_stands_where_no_row_looks) {
  static const struct {
    const char *id;
    void (*look)(const attn_problem *problem, const attn_args *args);
  } cases[] = {
      {"heads:4/heads_kv:2/seq_q:3/seq_k:5/head_dim:2/causal:top-left", look_at_later_keys},
      {"heads:4/heads_kv:2/seq_q:3/seq_k:5/head_dim:2/causal:top-left/score:precomputed", look_at_later_keys},
      {"heads:2/seq_q:3/seq_k:5/head_dim:2/align:bottom-right/window:0..0", look_at_earlier_keys},
      {"heads:2/seq_q:3/seq_k:5/head_dim:2/align:bottom-right/window:0..0/score:precomputed", look_beside_the_window},
      {"heads:2/seq_q:3/seq_k:3/head_dim:2/causal:top-left/score:precomputed", look_at_masked_pairs},
      {"heads:2/seq_q:3/seq_k:5/head_dim:2/causal:top-left/score:precomputed", look_at_masked_pairs},
      {"heads:2/seq_q:3/seq_k:3/head_dim:2/causal:top-left/bias:full", look_at_masked_pairs},
      {"heads:2/seq_q:3/seq_k:5/head_dim:2/causal:top-left/bias:full", look_at_masked_pairs}};
  for (size_t c = 0; c < COUNT(cases); c++) {
    watched w = open_case(cases[c].id);
    original = &w.tensors.args;
    memset(poisons, 0, sizeof poisons);
    spy.look = cases[c].look;
    for (uint64_t seed = 0; seed < 24; seed++) {
      expect_pass(&w, BENCH_STRUCTURE_poison, seed);
      assert_true(w.ran && spy.runs == 1);
    }
    assert_true(poisons[0] && poisons[1] && poisons[2] && poisons[3]);
    spy.spoil = spoil_one;
    wrong.at = (place){1, 2, 1};
    expect(&w, BENCH_STRUCTURE_poison, 1, BENCH_FAIL, "with poison in what it may not see");
    close_case(&w);
  }
  watched w = open_case("heads:2/seq_q:3/seq_k:5/head_dim:2/bias:full");
  expect_pass(&w, BENCH_STRUCTURE_poison, 1);
  assert_true(!w.ran && !spy.runs); /* every row sees every key */
  close_case(&w);
}

/* ---- Neighbours ------------------------------------------------------------------------------------------------------- */

static const char causal[] = "heads:2/seq_q:3/seq_k:5/head_dim:2/causal:top-left";

static bool spoilt_lse, in_k;

/* Row 2 sees keys 1 and 2, row 0 neither. */
static void forget_nan(const attn_problem *p, const attn_args *args) {
  in_k = isnan(((const float *)args->k)[2]) || isnan(((const float *)args->k)[4]);
  if (spoilt_lse)
    args->lse[2] = 1;
  else
    ((float *)args->o)[2 * p->dim_v + wrong.at.d] = 1;
}

TEST(rows_that_see_a_nan_must_be_nan) {
  watched w = open_case(causal);
  spy.spoil = forget_nan;
  for (wrong.at.d = 0; wrong.at.d < 2; wrong.at.d++) {
    spoilt_lse = false;
    expect(&w, BENCH_STRUCTURE_neighbours, 1, BENCH_FAIL, "query 2 may see a NaN in ");
    spoilt_lse = true; /* a NaN in V does not reach it */
    for (uint64_t seed = 0; seed < 12; seed++) {
      const bench_verdict verdict = check(&w, BENCH_STRUCTURE_neighbours, seed);
      assert_int_equal(verdict.status, in_k ? BENCH_FAIL : BENCH_PASS);
      if (in_k) test_contains(verdict.reason, "query 2 may see a NaN in K and does not come to NaN");
    }
  }
  spy.spoil = spoil_one;
  wrong.at = (place){0, 0, 1}, wrong.by = 0.01;
  expect(&w, BENCH_STRUCTURE_neighbours, 1, BENCH_FAIL, "query 0, column 1] is ");
  wrong.by = 0;
  close_case(&w);
}

static void forget_nan_of_second_head(const attn_problem *p, const attn_args *args) {
  ((float *)args->o)[(p->seq_q + 2) * p->dim_v] = 1;
}

/* The reason names the row's place in the case, where a group has two heads and a batch two sequences. */
TEST(a_row_that_is_not_nan_is_named) {
  watched w = open_case("batch:2/heads:4/heads_kv:2/seq_q:3/seq_k:5/head_dim:2/causal:top-left");
  int seen[2][4] = {{0}};
  spy.spoil = forget_nan_of_second_head;
  for (uint64_t seed = 0; seed < 16; seed++) {
    char part[80];
    const bench_verdict verdict = check(&w, BENCH_STRUCTURE_neighbours, seed);
    const int64_t heads = ((const float *)spy.args[0].q - (const float *)w.tensors.args.q) / w.bench.problem.q_stride.h;
    snprintf(part, sizeof part, "batch %d, head %d, query 2 may see a NaN in ", (int)(heads / 4), (int)(heads % 4 + 1));
    assert_int_equal(verdict.status, BENCH_FAIL);
    test_contains(verdict.reason, part);
    seen[heads / 4][heads % 4 + 1]++;
  }
  assert_true(seen[0][1] + seen[1][1] && seen[0][3] + seen[1][3] && seen[0][1] + seen[0][3] && seen[1][1] + seen[1][3]);
  close_case(&w);
}

/* ---- Equal scores ----------------------------------------------------------------------------------------------------- */

static void look_at_probe(const attn_problem *p, const attn_args *args) {
  assert_int_equal(p->dim_v, p->seq_k);
  assert_false(p->uses & (ATTN_USE_SINKS | ATTN_USE_ALIBI));
  for (int64_t j = 0; j < p->seq_k; j++)
    for (int64_t d = 0; d < p->dim_v; d++) assert_true(((const float *)args->v)[j * p->dim_v + d] == (j == d ? 1 : 0));
  for (int64_t n = 0; p->score == ATTN_SCORE_DOT && n < p->seq_k * p->dim_qk; n++)
    assert_true(((const float *)args->k)[n] == 0);
  for (int64_t n = 0; n < p->seq_q * p->dim_qk; n++) assert_true(((const float *)args->q)[n] == 0);
  for (int64_t n = 0; args->bias && n < p->heads_q * p->seq_q * p->seq_k; n++) /* all heads: one KV head */
    assert_true(args->bias[n] == (original->bias[n] == -INFINITY ? -INFINITY : 0));
}

/* 16 keys have the weight 1/16 within 2 * 2^-22 + 2^-24 + 24 * 2^-24 = 33 * 2^-24. */
TEST(weights_of_equal_scores_are_held_against_their_limit) {
  static const char *const ids[] = {
      "heads:2/seq_q:3/seq_k:16/head_dim:2", "heads:2/seq_q:3/seq_k:16/head_dim:2/sinks:on/alibi:on",
      "heads:4/heads_kv:2/seq_q:3/seq_k:16/head_dim:2/bias:full", "heads:2/seq_q:3/seq_k:16/head_dim:2/score:precomputed"};
  for (size_t n = 0; n < COUNT(ids); n++) {
    watched w = open_case(ids[n]);
    const bool masked = w.bench.problem.uses & ATTN_USE_BIAS;
    w.numerics.exp_error = 0x1p-22;
    original = &w.tensors.args;
    spy.look = look_at_probe;
    spy.spoil = spoil_all;
    for (int units = 16; units <= 17 && !masked; units++) {
      wrong.by = units * 0x1p-23;
      const bench_verdict verdict = check(&w, BENCH_STRUCTURE_probe, 1);
      assert_int_equal(verdict.status, units > 16 ? BENCH_FAIL : BENCH_PASS);
      if (units > 16) test_contains(verdict.reason, "query 0 gives key 0 of 16 allowed ones the weight 0.0625");
    }
    wrong.by = 0;
    expect_pass(&w, BENCH_STRUCTURE_probe, 1);
    assert_true(w.ran);
    spy.spoil = spoil_one;
    wrong.by = 0.01;
    for (wrong.at.h = 0; wrong.at.h < spy.problem[0].heads_q; wrong.at.h++)
      for (wrong.at.i = 0; wrong.at.i < 3; wrong.at.i++)
        for (wrong.at.d = 0; wrong.at.d < 16; wrong.at.d += 5) {
          char part[60];
          snprintf(part, sizeof part, "head %d, query %d gives key %d of ", (int)wrong.at.h, (int)wrong.at.i,
                   (int)wrong.at.d);
          if (w.bench.problem.heads_kv > 1) snprintf(part, sizeof part, "gives key %d of ", (int)wrong.at.d);
          expect(&w, BENCH_STRUCTURE_probe, 1, BENCH_FAIL, part);
        }
    wrong.by = 0;
    close_case(&w);
  }
  watched w = open_case("heads:1/seq_q:1/seq_k:1024/head_dim:2");
  expect_pass(&w, BENCH_STRUCTURE_probe, 1);
  assert_true(w.ran);
  close_case(&w);
  w = open_case("heads:1/seq_q:1/seq_k:1025/head_dim:2");
  expect_pass(&w, BENCH_STRUCTURE_probe, 1);
  assert_false(w.ran);
  close_case(&w);
}

/* ---- Convexity -------------------------------------------------------------------------------------------------------- */

static float *output_of(const watched *w, const bench_expected_row *row, int64_t d) {
  const attn_problem *p = &w->bench.problem;
  return (float *)w->tensors.args.o + bench_row_place(p, &w->tensors.args, &p->o_stride, row) + d * p->o_stride.d;
}

/* The least or the largest value that a row sees under a causal mask, with a sink or without. */
static double bound_of(const watched *w, const bench_expected_row *row, int64_t d, bool high) {
  const attn_problem *p = &w->bench.problem;
  double bound = p->uses & ATTN_USE_SINKS ? 0 : high ? -INFINITY : INFINITY;
  for (int64_t j = 0; j <= row->i; j++) {
    const int64_t at = row->b * p->v_stride.b + row->h / (p->heads_q / p->heads_kv) * p->v_stride.h + j * p->v_stride.s;
    const double value = attn_oracle_load(w->tensors.args.v, p->dtype_kv, at + d * p->v_stride.d);
    bound = high ? fmax(bound, value) : fmin(bound, value);
  }
  return bound;
}

TEST(outputs_beyond_the_values_fail) {
  static const char *const ids[] = {"heads:4/heads_kv:2/seq:4/head_dim:2/causal:top-left/layout:strided",
                                    "heads:2/seq:4/head_dim:2/causal:top-left/dtype:f32+bf16",
                                    "heads:2/seq:4/head_dim:2/causal:top-left/sinks:on"};
  for (size_t c = 0; c < COUNT(ids); c++) {
    watched w = open_case(ids[c]);
    const bench_expected *e = w.expected;
    if (w.bench.problem.dtype_kv == ATTN_BF16) w.numerics.p_rounding = 0x1p-8;
    expect_pass(&w, BENCH_STRUCTURE_convex, 1);
    assert_true(w.ran && !spy.runs);
    for (int64_t n = 0; n < e->rows; n++)
      for (int64_t k = 0; k < 4; k++) {
        const int64_t d = k / 2;
        float *o = output_of(&w, &e->row[n], d), right = *o;
        const bench_row_limits limits = bench_limits_of_row(&e->problem, &w.numerics, &e->row[n].facts, true);
        const double bound = bound_of(&w, &e->row[n], d, k % 2), away = k % 2 ? 1e-3 : -1e-3;
        const double limit = away / bench_output_ratio(&limits, bound, e->m[n * 2 + d], e->w[n * 2 + d], bound + away);
        *o = (float)(bound + 0.8 * limit);
        expect_pass(&w, BENCH_STRUCTURE_convex, 1);
        *o = (float)(bound + 1.2 * limit);
        char part[80];
        snprintf(part, sizeof part, "o[batch 0, head %d, query %d, column %d]", (int)e->row[n].h, (int)e->row[n].i, (int)d);
        expect(&w, BENCH_STRUCTURE_convex, 1, BENCH_FAIL, part);
        *o = right;
      }
    close_case(&w);
  }
}

/* ---- Partition -------------------------------------------------------------------------------------------------------- */

/* Three parts that touch each other and together have all keys; then every third key. */
TEST(parts_have_every_key_once) {
  watched w = open_case("heads:2/seq_q:3/seq_k:7/head_dim:2/dtype:f32/sinks:on");
  const float *k = w.tensors.args.k;
  int64_t most = 0, least = 7;
  for (uint64_t seed = 0; seed < 40; seed++) {
    expect_pass(&w, BENCH_STRUCTURE_partition, seed);
    assert_true(w.ran && spy.runs == 6);
    int64_t next = 0;
    for (int n = 0; n < 6; n++) {
      const attn_problem *p = &spy.problem[n];
      assert_true(p->dtype_o == ATTN_F32 && !(p->uses & ATTN_USE_SINKS) && p->uses & ATTN_USE_LSE);
      assert_ptr_equal(spy.args[n].k, k + (n < 3 ? next : n - 3) * 2);
      assert_int_equal(p->k_stride.s, n < 3 ? 2 : 6);
      if (n < 3) next += p->seq_k;
      if (n >= 3) assert_int_equal(p->seq_k, n == 3 ? 3 : 2);
    }
    assert_int_equal(next, 7);
    if (spy.problem[0].seq_k > most) most = spy.problem[0].seq_k;
    if (spy.problem[0].seq_k < least) least = spy.problem[0].seq_k;
  }
  assert_true(most == 7 && least == 0);
  close_case(&w);
  w = open_case("heads:2/seq:7/head_dim:2/causal:top-left");
  expect_pass(&w, BENCH_STRUCTURE_partition, 1);
  assert_true(w.ran && spy.runs == 3);
  close_case(&w);
  w = open_case("heads:2/seq_q:3/seq_k:1/head_dim:2");
  expect_pass(&w, BENCH_STRUCTURE_partition, 1);
  assert_true(w.ran && spy.runs == 6 && spy.problem[4].seq_k == 0 && spy.problem[5].seq_k == 0);
  close_case(&w);
}

/* The error of a rounded LSE is allowed for, twice as for every pair of answers. */
TEST(merged_parts_are_held_against_their_limit) {
  watched w = open_case("heads:1/seq_q:1/seq_k:12/head_dim:1");
  const bench_expected *e = w.expected;
  const attn_oracle_row *facts = &e->row[0].facts;
  const bench_row_limits plain = bench_limits_of_row(&e->problem, &w.numerics, facts, true);
  attn_numerics wide = w.numerics;
  wide.exp_error += plain.lse + 0x1p-22 * (facts->abs_sum + log(12));
  const bench_row_limits limits = bench_limits_of_row(&e->problem, &wide, facts, true);
  const double ratio = bench_output_ratio(&limits, e->o[0], e->m[0], e->w[0], e->o[0] * (1 + 1e-3));
  spy.spoil = spoil_all;
  for (int n = 0; n < 3; n++) {
    spy.spoilt = n;
    wrong.by = 1.0;
    const bench_verdict verdict = check(&w, BENCH_STRUCTURE_partition, 1);
    assert_int_equal(verdict.status, spy.problem[n].seq_k ? BENCH_FAIL : BENCH_PASS);
    if (spy.problem[n].seq_k) test_contains(verdict.reason, "merged from parts");
  }
  uint64_t seed = 0; /* counts up until one part has all keys */
  spy.spoilt = 0;
  for (wrong.by = 0; seed < 200; seed++) {
    expect_pass(&w, BENCH_STRUCTURE_partition, seed);
    if (spy.problem[0].seq_k == 12) break;
  }
  assert_true(seed < 200);
  wrong.by = 1.9e-3 / ratio;
  expect_pass(&w, BENCH_STRUCTURE_partition, seed);
  wrong.by = 2.1e-3 / ratio;
  expect(&w, BENCH_STRUCTURE_partition, seed, BENCH_FAIL, "merged from parts");
  spy.spoilt = 4, wrong.by = 1;
  expect(&w, BENCH_STRUCTURE_partition, seed, BENCH_FAIL, "merged from every third key");
  wrong.by = 0;
  close_case(&w);
}

/* ---- Right kernels ---------------------------------------------------------------------------------------------------- */

/* Which tests ran. */
static unsigned expect_all_pass(const char *id, uint64_t seed) {
  watched w = open_case(id);
  const bench_verdict verdict = check_set(&w, ~0u, seed);
  if (verdict.status != BENCH_PASS) fail_msg("%s: %s", id, verdict.reason);
  close_case(&w);
  return w.ran;
}

/* A right answer passes whatever the case has: each view must be the part of the case that it should be. */
TEST(right_answers_pass) {
  static const char *const ids[] = {
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/dim_qk:3/dim_v:2/causal:bottom-right/lse:on",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/dim_qk:3/dim_v:2/layout:reversed/dtype:bf16/window:2..1",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/dim_qk:3/dim_v:2/layout:transposed/dtype:f16/lse:on/mask:random",
      "batch:3/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:3/lengths:varlen/causal:bottom-right/sinks:on/dtype:f32+bf16",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:2/bias:full/mask:random/causal:top-left",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:2/bias:heads/alibi:on/lse:on",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:2/bias:masking/sinks:on/dtype:bf16+bf16+f32",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:2/bias:row/mask:padding/lengths:kv_len",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:2/score:precomputed/mask:random/layout:strided",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:2/score:additive/lengths:q_len/window:1",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:2/score:gaussian/align:offset/offset:2/window:3..2",
      "batch:2/heads:4/heads_kv:2/seq_q:16/seq_k:7/head_dim:2/lengths:row_len/mask:random/lse:on",
      "batch:2/heads:4/heads_kv:2/seq_q:16/seq_k:7/head_dim:2/lengths:row_len/causal:top-left/alibi:on",
      "batch:2/heads:4/heads_kv:2/seq_q:5/seq_k:7/head_dim:2/causal:offset/offset:-2/alibi:on/lse:on",
      "heads:4/heads_kv:2/seq_q:32/seq_k:16/head_dim:2/causal:top-left/sinks:on/layout:strided/lse:on",
      "heads:4/heads_kv:2/seq_q:4/seq_k:16/head_dim:2/sinks:on/layout:strided"};
  unsigned ran = 0;
  for (size_t c = 0; c < COUNT(ids); c++)
    for (uint64_t seed = 0; seed < 6; seed++) ran |= expect_all_pass(ids[c], seed);
  assert_int_equal(ran, ((1u << BENCH_STRUCTURE_TESTS) - 1) & ~(1u << BENCH_STRUCTURE_pieces)); /* naive_c takes none */
}

/* Three pieces, the last of which has the answer. */
TEST(pieces_have_the_bits_of_one_call) {
  static const char *const ids[] = {"heads:2/heads_kv:1/seq_q:5/seq_k:150/head_dim:8/causal:bottom-right/lse:on",
                                    "batch:2/heads:2/heads_kv:2/seq_q:7/seq_k:90/head_dim:4/lengths:row_len/bias:masking",
                                    "heads:2/heads_kv:1/seq_q:3/seq_k:200/head_dim:8/window:30..2/alibi:on/lse:on"};
  watched_kernel = &attn_flash_c;
  for (size_t c = 0; c < COUNT(ids); c++)
    for (uint64_t seed = 0; seed < 4; seed++) {
      watched w = open_case(ids[c]);
      expect_pass(&w, BENCH_STRUCTURE_pieces, seed);
      assert_int_equal(w.ran, 1u << BENCH_STRUCTURE_pieces);
      assert_int_equal(spy.runs, 3);
      int64_t keys = 0;
      for (int n = 0; n < 3; n++) keys += spy.problem[n].seq_k;
      assert_true(keys <= w.bench.problem.seq_k && spy.args[0].state == spy.args[2].state);
      wrong.at = (place){1, 2, 3};
      wrong.by = 0;
      spy.spoil = spoil_one;
      spy.spoilt = 2;
      for (int zero = 0; zero < 2; zero++) {
        wrong.zero = zero;
        expect(&w, BENCH_STRUCTURE_pieces, seed, BENCH_FAIL, "with keys in pieces");
      }
      wrong.zero = false;
      close_case(&w);
    }
  watched_kernel = &attn_naive_c;
}

/* One key that stays beside a window, or one of a prefix, is enough: its pieces are the caller's. */
TEST(pieces_need_keys_in_order) {
  watched_kernel = &attn_flash_c;
  static const char *const ids[] = {"/window:30..2/window_first:1", "/shared_prefix:1"};
  for (size_t c = 0; c < COUNT(ids); c++) {
    char id[100];
    snprintf(id, sizeof id, "batch:2/heads:2/seq_q:3/seq_k:200/head_dim:8%s", ids[c]);
    watched w = open_case(id);
    expect_pass(&w, BENCH_STRUCTURE_pieces, 1);
    assert_int_equal(w.ran, 0);
    close_case(&w);
  }
  watched_kernel = &attn_naive_c;
}

/* And in random cases. */
TEST(right_answers_pass_in_random_cases) {
  bench_case_list list = conformance_cases(0, 160, 2e4, 3);
  for (int c = 0; c < list.count; c++) (void)expect_all_pass(list.item[c].case_id, (uint64_t)c);
  bench_cases_clear(&list);
}

/* ---- All of them ------------------------------------------------------------------------------------------------------ */

/* A problem that the kernel refuses is left out; any other status is an error with its sentence. */
TEST(refusals_are_no_failures) {
  watched w = open_case("heads:2/heads_kv:1/seq_q:3/seq_k:5/head_dim:2/causal:top-left");
  for (bench_structure_test test = 0; test < BENCH_STRUCTURE_TESTS; test++) {
    if (test == BENCH_STRUCTURE_convex) continue; /* runs nothing */
    spy.refuse = ATTN_OK;
    spy.rejects = "the test forbids it";
    if (test == BENCH_STRUCTURE_threads) /* it runs the case itself, which the kernel has taken */
      expect(&w, test, 2, BENCH_ERROR, "the test forbids it");
    else
      expect_pass(&w, test, 2), assert_false(w.ran);
    spy.refuse = ATTN_INVALID_ARGUMENT; /* with the sentence of the last error */
    expect(&w, test, 2, BENCH_ERROR, "the test forbids it");
    spy.refuse = ATTN_OUT_OF_MEMORY;
    expect(&w, test, 2, BENCH_ERROR, "out of memory");
  }
  close_case(&w);
}

/* Whichever allocation fails, the test says so and loses no memory. */
TEST(without_memory_there_is_an_error) {
  static const char *const ids[] = {
      "batch:2/heads:4/heads_kv:2/seq_q:3/seq_k:5/head_dim:2/bias:full/mask:random/lengths:row_len",
      "batch:2/heads:4/heads_kv:2/seq_q:3/seq_k:5/head_dim:2/page_tokens:16"};
  for (int each = 0; each < 2 * BENCH_STRUCTURE_TESTS; each++) {
    const bench_structure_test test = (bench_structure_test)(each / 2);
    int failing = 1;
    watched_kernel = test == BENCH_STRUCTURE_pieces ? &attn_flash_c : &attn_naive_c;
    for (bool failed = true; failed; failing++) {
      watched w = open_case(ids[each % 2]);
      heap.countdown = failing;
      const bench_verdict verdict = check(&w, test, 2);
      failed = heap.countdown == 0;
      heap.countdown = 0;
      if (verdict.status != (failed ? BENCH_ERROR : BENCH_PASS)) fail_msg("%s", verdict.reason);
      if (failed) test_contains(verdict.reason, "out of memory");
      close_case(&w);
    }
    assert_true(failing > 2);
  }
  watched_kernel = &attn_naive_c;
}

/* Nor is there an answer of the oracle where an allocation for it fails. */
TEST(without_memory_there_is_no_oracle) {
  watched w = open_case("heads:1/seq:5/head_dim:4");
  for (int failing = 1, failed = 1; failed; failing++) {
    const int blocks = heap.used;
    heap.countdown = failing;
    bench_expected *e = bench_expected_create(&w.tensors.problem, &w.tensors.args, 1, true);
    failed = heap.countdown == 0;
    heap.countdown = 0;
    assert_int_equal(e == NULL, failed);
    bench_expected_destroy(e);
    assert_int_equal(heap.used, blocks);
    assert_true(failed || failing > 5);
  }
  close_case(&w);
}
