/* SPDX-License-Identifier: MIT */
/* The real loops against a clock of this test: each thread has its own, which only its loops move, so that every rate is
 * known whatever the threads and passes take. Some tests use the real clock. */
#include <math.h>
#ifdef _OPENMP
#include <omp.h>
#else
static int omp_get_thread_num(void) { return 0; }
static int omp_in_parallel(void) { return 0; }
#endif
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/clock.h"
#include "cases/cases.h"
#include "machine/affinity.h"
#include "tests/support/layer_support.h"
#include "timing/core_share.h"
#include "timing/rates.h"
#include "timing/reading.h"
#include "timing/trial.h"

enum { MOST_THREADS = 4, MOST_MEASUREMENTS = 4096, PASSES = 9, FILL = 0x55, LINE = ATTN_READ_LINE };

/* ---- A clock for each thread ----------------------------------------------------------------------------------------- */

typedef struct measurement {
  double time_ns, bytes, cost; /* cost: what a unit of work takes */
  int order;                   /* in the read loop */
} measurement;

/* The measurements that a thread makes between two looks at its clock. */
typedef struct thread_log {
  double now_ns;
  int looks;
  measurement did[MOST_MEASUREMENTS]; /* [looks / 2] */
  const unsigned char *data[BENCH_READ_ORDERS];
} thread_log;

static thread_log logs[MOST_THREADS];
static const double START_NS = 1e6;
static bool feigned;
static double look_cost; /* time of a measurement without a loop of ours, times its cost; 0: nothing */
static int threads_now;
static double look_ns[2 * BENCH_READ_ORDERS]; /* times of the first looks at the clock outside of parallel regions */

static double cost_of(int thread, int number) {
  uint64_t bits = (uint64_t)(thread * MOST_MEASUREMENTS + number);
  return 1 + (double)(bench_random(&bits) >> 11) * 0x1p-54;
}

static void feign(bool on) {
  for (int t = 0; t < MOST_THREADS; t++) logs[t] = (thread_log){.now_ns = START_NS};
  feigned = on, look_cost = 0;
}

static double latest_ns(void) {
  double latest = 0;
  for (int t = 0; t < MOST_THREADS; t++) latest = fmax(latest, logs[t].now_ns);
  return latest;
}

static void work(double units) {
  thread_log *own = &logs[omp_get_thread_num()];
  measurement *m = &own->did[own->looks / 2];
  assert_true(own->looks / 2 < MOST_MEASUREMENTS);
  m->cost = cost_of(omp_get_thread_num(), own->looks / 2);
  m->time_ns += units * m->cost;
  m->bytes += units;
  own->now_ns += units * m->cost;
}

/* Outside of a region all threads have waited for the slowest. */
double __real_bench_now_ns(void);
double __wrap_bench_now_ns(void);
double __wrap_bench_now_ns(void) {
  if (!feigned) return __real_bench_now_ns();
  thread_log *own = &logs[omp_get_thread_num()];
  for (int t = 0; t < MOST_THREADS && !omp_in_parallel(); t++) logs[t].now_ns = latest_ns();
  if (own->looks % 2 && look_cost > 0) work(look_cost);
  if (!omp_in_parallel() && own->looks < (int)COUNT(look_ns)) look_ns[own->looks] = own->now_ns;
  own->looks++;
  return own->now_ns;
}

static void assert_near(double got, double wanted) {
  if (!(fabs(got / wanted - 1) < 1e-9)) fail_msg("%.12g, should be %.12g", got, wanted);
}

static int most_threads(void) { return bench_team_count(MOST_THREADS).threads < MOST_THREADS ? 1 : MOST_THREADS; }

/* ---- Multiply-adds --------------------------------------------------------------------------------------------------- */

static void run_feigned(int64_t iterations) { work((double)iterations); }

static const attn_peak_loop feigned_loop = {.isa = "c", .dtype = "f32", .flops = 8, .run = run_feigned};

TEST(the_peak_rate_is_the_mean_of_the_threads) {
  for (int threads = 1; threads <= most_threads(); threads++) {
    double mean = 0;
    feign(true);
    const double rate = bench_peak_rate(&(bench_peak_slice){&feigned_loop, threads, 1000});
    for (int t = 0; t < threads; t++) {
      assert_true(logs[t].did[0].bytes == 1000 && logs[t].looks == 2);
      mean += 8e9 / logs[t].did[0].cost / threads;
    }
    feign(false);
    assert_near(rate, mean);
  }
}

/* A loop of one nanosecond an iteration warms up for 2 ms; then a slice is tried until it takes half of its time. */
static double ran_ns;

static void run_evenly(int64_t iterations) { logs[0].now_ns += (double)iterations, ran_ns += (double)iterations; }

TEST(slices_are_as_long_as_they_should_be) {
  static const attn_peak_loop loop = {.isa = "c", .dtype = "f32", .flops = 8, .run = run_evenly};
  feign(true);
  const bench_peak_slice slice = bench_peak_prepare(&loop, 1, 250000);
  feign(false);
  assert_true(slice.loop == &loop && slice.threads == 1);
  assert_int_equal(slice.iterations, 250001);
  assert_true(ran_ns == 2e6 + 1000 + 254000); /* 1000, and 2000 to 128000 */
  assert_int_equal(bench_peak_prepare(&loop, most_threads(), 1).threads, most_threads());
}

static bool own_loops; /* in place of the machine's */

/* Kernels of libraries may use any instruction: of the type that P is rounded to. */
TEST(libraries_have_the_peak_of_the_highest_tier) {
  attn_kernel_info kernel = {.name = "x", .isa = "c", .library = ""};
  const char *highest = bench_highest_tier();
  assert_ptr_equal(bench_peak_of(&kernel, "f32"), attn_peak_for("c", "f32"));
  kernel.library = "x";
  assert_ptr_equal(bench_peak_of(&kernel, "bf16"), attn_peak_for(highest, "f32"));
  kernel.numerics.p_rounding = 0x1p-9;
  assert_ptr_equal(bench_peak_of(&kernel, "bf16"), attn_peak_for(highest, "bf16"));
}

/* Only our own float32 kernels of a tier whose loop takes floats in parts have a second roof. */
TEST(parts_have_a_roof_in_their_tier) {
  static const attn_peak_loop f32 = {.isa = "amx", .dtype = "f32"}, bf16 = {.isa = "amx", .dtype = "bf16"};
  attn_kernel_info kernel = {.name = "x", .isa = "amx", .library = ""};
  own_loops = true;
  const attn_peak_loop *parts = bench_parts_peak_of(&kernel, &f32);
  assert_true(parts && parts->f32_share == 0.25);
  assert_null(bench_parts_peak_of(&kernel, &bf16));
  assert_null(bench_parts_peak_of(&kernel, NULL));
  kernel.library = "x";
  assert_null(bench_parts_peak_of(&kernel, &f32));
  kernel.library = "", kernel.isa = "c";
  assert_null(bench_parts_peak_of(&kernel, &f32));
  own_loops = false;
}

/* ---- Buffers of their own -------------------------------------------------------------------------------------------- */

static int wrong_thread = -1, wrong_number; /* thread and number of the measurement that reads wrong numbers; -1: none */

static int order_of(const void *beside, size_t ahead) { return ahead ? 2 : beside ? 1 : 0; }

/* Looks at both ends of the buffer, which must be the thread's own, and filled. */
static uint64_t read_feigned(const void *data, const void *beside, size_t bytes, size_t ahead) {
  thread_log *own = &logs[omp_get_thread_num()];
  const unsigned char *byte = data;
  const int order = order_of(beside, ahead);
  assert_true(bytes % LINE == 0 && (uintptr_t)data % LINE == 0 && (!beside || beside == byte + bytes));
  if (beside) bytes *= 2;
  assert_true(byte[0] == FILL && byte[bytes - 1] == FILL && (!own->data[order] || own->data[order] == data));
  own->data[order] = data;
  own->did[own->looks / 2].order = order;
  work((double)bytes);
  const bool wrong = omp_get_thread_num() == wrong_thread && own->looks / 2 == wrong_number;
  return FILL * 0x0101010101010101u + wrong;
}

/* The linker's --wrap gives these loops in place of the machine's: of those that are usable and read, the last one counts.
 */
const attn_peak_loop *__real_attn_peak_get(int index);
const attn_peak_loop *__wrap_attn_peak_get(int index);
const attn_peak_loop *__wrap_attn_peak_get(int index) {
  static const attn_peak_loop loops[] = {{.isa = "c", .run = run_feigned},
                                         {.isa = "c", .run = run_feigned, .read = read_feigned},
                                         {.isa = "c", .run = run_feigned},
                                         {.isa = "amx", .dtype = "bf16", .f32_share = 0.25},
                                         {.isa = "no such tier", .run = run_feigned, .read = read_feigned}};
  if (!own_loops) return __real_attn_peak_get(index);
  return index < (int)COUNT(loops) ? &loops[index] : NULL;
}

static double read_bandwidth(size_t bytes, int threads) {
  threads_now = threads;
  feign(true);
  own_loops = true;
  const double rate = bench_machine_meter.bandwidth(bytes, threads, false);
  own_loops = false;
  feigned = false;
  return rate;
}

static int compare(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

/* Pass n of a thread in an order: the last PASSES measurements of the order are passes. */
static const measurement *pass_of(int thread, int order, int n) {
  int last = logs[thread].looks / 2 - 1;
  while (last >= 0 && logs[thread].did[last].order != order) last--;
  assert_true(last >= PASSES - 1);
  return &logs[thread].did[last - PASSES + 1 + n];
}

static double median_of_passes(int order, double pass) {
  double sums[PASSES] = {0};
  for (int n = 0; n < PASSES; n++)
    for (int t = 0; t < threads_now; t++) {
      const measurement *m = pass_of(t, order, n);
      assert_true(m->order == order && m->bytes == pass);
      sums[n] += m->bytes / m->time_ns * 1e9;
    }
  assert_true(sums[0] != sums[1]);
  qsort(sums, PASSES, sizeof *sums, compare);
  return sums[PASSES / 2];
}

/* Buffers are rounded up to two lines. A pass is about 3 ms long; one thread finds out how often it reads. */
TEST(the_read_bandwidth_is_the_median_of_passes_of_all_threads) {
  static const size_t bytes[][2] = {{0, 128}, {1, 128}, {128, 128}, {129, 256}, {1 << 14, 1 << 14}, {9 << 20, 9 << 20}};
  for (int threads = 1; threads <= most_threads(); threads++)
    for (size_t i = 0; i < COUNT(bytes); i++) {
      const double rate = read_bandwidth(bytes[i][0], threads), step = (double)bytes[i][1];
      double best = 0;
      for (int order = 0; order < BENCH_READ_ORDERS; order++) {
        const double pass = pass_of(0, order, 0)->bytes;
        assert_true(fmod(pass, step) == 0);
        assert_true(pass == step || (pass * 1.5 >= 1.5e6 && pass / 2 < 1.5e6)); /* costs are 1 to 1.5 ns a byte */
        best = fmax(best, median_of_passes(order, pass));
        for (int t = 1; t < threads; t++) assert_ptr_not_equal(logs[t].data[order], logs[t - 1].data[order]);
      }
      assert_near(rate, best);
    }
}

/* The linker's --wrap: the allocation of this number fails. */
static int bad_allocation = -1;

void *__real_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes) {
  int number;
#pragma omp atomic capture
  number = bad_allocation--;
  return number == 0 ? NULL : __real_aligned_alloc(alignment, bytes);
}

static bool is_short; /* memory for lists */

void *__real_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes);
void *__wrap_realloc(void *old, size_t bytes) { return is_short ? NULL : __real_realloc(old, bytes); }

/* One wrong value in any thread, in a first look or a pass of any order, or one buffer without memory. */
TEST(a_loop_that_reads_wrongly_has_no_rate) {
  for (wrong_thread = 0; wrong_thread < most_threads(); wrong_thread++)
    for (wrong_number = 0; wrong_number < BENCH_READ_ORDERS * PASSES; wrong_number += 4)
      assert_true(read_bandwidth(1 << 22, most_threads()) == 0);
  wrong_thread = -1;
  assert_true(read_bandwidth(1 << 22, most_threads()) > 0);
  assert_true(bench_read_bandwidth(1 << 14, 1) > 1e7); /* this machine's own loops */
  assert_true(bench_copy_bandwidth(1 << 14, 1) > 1e7);
  for (int n = 0; n < BENCH_READ_ORDERS * most_threads(); n++) {
    bad_allocation = n;
    assert_true(read_bandwidth(1 << 14, most_threads()) == 0);
  }
  bad_allocation = -1;
}

/* ---- What a case reads ----------------------------------------------------------------------------------------------- */

enum { ROTATION = 3, MOST_LINES = 1 << 12 };

static bench_tensors rotation[ROTATION];
static int lines_read[ROTATION][BENCH_O + 1][MOST_LINES]; /* lines of Q, K, V and O */
static int pairs_read;                                    /* calls that read two tensors side by side */

static void note_lines_of(const unsigned char *data, size_t bytes) {
  bool inside = false;
#pragma omp critical
  for (int n = 0; n < ROTATION; n++)
    for (int which = BENCH_Q; which <= BENCH_O && rotation[n].buffers; which++) {
      const bench_buffer *t = &rotation[n].buffers[which];
      const ptrdiff_t at = data - t->data;
      if (t->within_k || at < 0 || at >= (ptrdiff_t)t->bytes) continue;
      inside = at + (ptrdiff_t)bytes < (ptrdiff_t)t->bytes + LINE;
      for (size_t line = 0; line < bytes / LINE; line++) lines_read[n][which][(size_t)at / LINE + line]++;
    }
  assert_true(inside && (uintptr_t)data % LINE == 0 && bytes % LINE == 0);
}

static uint64_t note_lines(const void *data, const void *beside, size_t bytes, size_t ahead) {
  note_lines_of(data, bytes);
  if (beside) note_lines_of(beside, bytes);
#pragma omp atomic
  pairs_read += beside != NULL;
  work((double)(beside ? 2 * bytes : bytes) / (1 + order_of(beside, ahead))); /* later orders are quicker */
  return 0;
}

static uint64_t read_any(const void *data, const void *beside, size_t bytes, size_t ahead) {
  (void)data, (void)beside, (void)ahead;
  work((double)bytes);
  return 0;
}

/* How many turns of a span read tensor n. Each order takes all passes. */
static int turns_of(int n, int64_t first, int64_t passes, int count) {
  int turns = 0;
  for (int64_t i = 0; i < BENCH_READ_ORDERS * passes; i++) turns += (first + i) % count == n;
  return turns;
}

static int rows_of(const bench_tensors *t, int64_t b) { return t->args.q_len ? t->args.q_len[b] : (int)t->problem.seq_q; }

/* Makes of a page and its token the sequence and its key; false if no table names the page. */
static bool find_page(const bench_tensors *t, int64_t *b, int64_t *row) {
  const attn_problem *p = &t->problem;
  for (int64_t n = 0; n < p->batch * p->page_table_stride; n++)
    if (t->args.page_table[n] == *b) {
      *b = n / p->page_table_stride;
      *row += n % p->page_table_stride * p->page_tokens;
      return true;
    }
  return false;
}

/* The rows that a call needs of a tensor: queries within q_len, and keys within kv_len, for some query. */
static bool is_needed(const bench_tensors *t, int which, int64_t b, int64_t row) {
  const attn_problem *p = &t->problem;
  if (p->uses & ATTN_USE_VARLEN)
    return row < (which == BENCH_Q || which == BENCH_O ? t->args.cu_seqlens_q : t->args.cu_seqlens_k)[p->batch];
  if (which == BENCH_O) return true;
  if (which == BENCH_Q) return row < rows_of(t, b);
  if (t->args.page_table && !find_page(t, &b, &row)) return false;
  if (t->args.kv_len && row >= t->args.kv_len[b]) return false;
  for (int64_t i = 0; i < rows_of(t, b); i++)
    if (p->window_left < 0 || (row >= i + t->args.offsets[b] - p->window_left && row <= i + t->args.offsets[b])) return true;
  return false;
}

/* Every line of a needed row, and no line of others, is read as often as the tensor has its turn. Rows end with lines. */
static void expect_lines(int n, int turns) {
  for (int which = BENCH_Q; which <= BENCH_O; which++) {
    const bench_buffer *t = &rotation[n].buffers[which];
    const int64_t bytes = (int64_t)t->element_bytes;
    if (t->within_k) continue;
    for (int64_t b = 0; b < t->extent[0]; b++)
      for (int64_t h = 0; h < t->extent[1]; h++)
        for (int64_t row = 0; row < t->extent[2]; row++) {
          const int64_t at = (b * t->stride[0] + h * t->stride[1] + row * t->stride[2]) * bytes;
          for (int64_t line = at / LINE; line < (at + t->extent[3] * bytes) / LINE; line++)
            if (lines_read[n][which][line] != (is_needed(&rotation[n], which, b, row) ? turns : 0))
              fail_msg("%s: batch %d, head %d, row %d is read %d times", t->name, (int)b, (int)h, (int)row,
                       lines_read[n][which][line]);
        }
  }
}

/* The slowest thread ends an order; the quickest order counts. */
static void expect_rate(double rate, double bytes) {
  double best = 0;
  for (int order = 0; order < BENCH_READ_ORDERS; order++)
    best = fmax(best, bytes / (look_ns[2 * order + 1] - look_ns[2 * order]) * 1e9);
  assert_near(rate, best);
}

/* Whatever layout, lengths, windows, threads and turns. */
TEST(read_rates_are_those_of_what_a_call_needs) {
  static const char *const ids[] = {"",
                                    "/layout:bshd",
                                    "/lengths:kv_len",
                                    "/lengths:kv_len/layout:bshd",
                                    "/lengths:q_len",
                                    "/lengths:varlen",
                                    "/heads_kv:1",
                                    "/causal:offset/offset:3/window:2",
                                    "/dtype:f32+bf16",
                                    "/dim_v:16",
                                    "/dim_v:16/latent:on",
                                    "/seq_k:40/page_tokens:16/page_order:shuffled/lengths:kv_len",
                                    "/seq_k:40/page_tokens:32/layout:bshd"};
  for (size_t i = 0; i < COUNT(ids); i++) {
    char id[200];
    snprintf(id, sizeof id, "batch:3/seq_q:2/seq_k:9/heads:2/head_dim:32%s", ids[i]);
    const bench_case bench = case_of(id);
    for (int n = 0; n < ROTATION; n++) assert_true(bench_tensors_create(&bench, &rotation[n]));
    const double bytes = bench_work_bytes(&bench.problem, &rotation[0].args);
    assert_true(bench_can_read(&rotation[0]));
    for (int threads = 1; threads <= most_threads(); threads++)
      for (int count = 1; count <= ROTATION; count++)
        for (int64_t first = 0, passes = 1 + count * threads % 5; first < count; first++) {
          memset(lines_read, 0, sizeof lines_read), pairs_read = 0;
          feign(true);
          const double rate = bench_read_rate(note_lines, (bench_read_span){rotation, count, first, passes}, threads);
          feigned = false;
          expect_rate(rate, bytes * (double)passes);
          for (int n = 0; n < ROTATION; n++) expect_lines(n, turns_of(n, first, passes, count));
          if (i < 2 && threads == 1) /* without gaps: K and V of a sequence, and Q and O, in one go */
            assert_int_equal(pairs_read, passes * bench.problem.batch * 2);
        }
    for (int n = 0; n < ROTATION; n++) bench_tensors_destroy(&rotation[n]);
    memset(rotation, 0, sizeof rotation);
  }
}

/* Two arrays of another library's call: every line of both once, whatever the order and the threads. */
TEST(read_rates_of_arrays_are_those_of_their_bytes) {
  const bench_case bench = case_of("batch:3/seq:9/heads:2/head_dim:32/dim_v:64");
  assert_true(bench_tensors_create(&bench, &rotation[0]));
  const bench_buffer *k = &rotation[0].buffers[BENCH_K], *v = &rotation[0].buffers[BENCH_V];
  for (int threads = 1; threads <= most_threads(); threads++)
    for (int order = 0; order < BENCH_READ_ORDERS; order++) {
      memset(lines_read, 0, sizeof lines_read), pairs_read = 0;
      feign(true);
      const double rate = bench_read_arrays(note_lines, (const void *[]){k->data, v->data},
                                            (const size_t[]){k->bytes, v->bytes}, threads, order);
      feigned = false;
      assert_near(rate, (double)(k->bytes + v->bytes) / (look_ns[1] - look_ns[0]) * 1e9);
      for (size_t line = 0; line < v->bytes / LINE; line++) {
        assert_int_equal(lines_read[0][BENCH_V][line], 1);
        assert_int_equal(lines_read[0][BENCH_K][line], line < k->bytes / LINE);
      }
    }
  bench_tensors_destroy(&rotation[0]);
  memset(rotation, 0, sizeof rotation);
}

/* Read loops take packed sequences, precomputed scores, and rows that end within lines, but no gaps within the rows of a
 * head. */
TEST(read_loops_know_what_they_can_read) {
  static const struct {
    const char *id;
    bool can;
  } cases[] = {{"/lengths:varlen", true},  {"/score:precomputed", true}, {"/dim_qk:33/dim_v:48", true},
               {"/layout:strided", false}, {"/layout:spread", false},    {"/layout:transposed", false},
               {"/layout:reversed", false}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    char id[200];
    snprintf(id, sizeof id, "batch:2/seq:16/heads:2/head_dim:32%s", cases[i].id);
    const bench_case bench = case_of(id);
    assert_true(bench_tensors_create(&bench, &rotation[0]));
    assert_int_equal(bench_can_read(&rotation[0]), cases[i].can);
    attn_problem *p = &rotation[0].problem;
    attn_strides *const strides[] = {&p->q_stride, &p->k_stride, &p->v_stride, &p->o_stride};
    for (int n = 0; n < 4 && i == 0; n++) { /* a gap in one of them is enough */
      strides[n]->s++;
      assert_false(bench_can_read(&rotation[0]));
      strides[n]->s--;
    }
    feign(true);
    const double rate = cases[i].can ? bench_read_rate(read_any, (bench_read_span){rotation, 1, 0, 1}, 1) : 0;
    feigned = false;
    if (cases[i].can) expect_rate(rate, bench_work_bytes(&bench.problem, &rotation[0].args));
    is_short = true;
    assert_true(!cases[i].can || bench_read_rate(read_any, (bench_read_span){rotation, 1, 0, 1}, 1) == 0);
    is_short = false;
    bench_tensors_destroy(&rotation[0]);
    memset(rotation, 0, sizeof rotation);
  }
}

/* ---- Shares of the core ---------------------------------------------------------------------------------------------- */

static double quickest(int thread, int first) {
  double ns = INFINITY;
  for (int i = first; i < first + 3; i++) ns = fmin(ns, logs[thread].did[i].time_ns);
  return ns;
}

/* Additions a cycle in look n of a thread, which adds three times in order, three times side by side, and again in order. */
static double additions_per_cycle(int thread, int n) {
  return 4 * fmin(quickest(thread, 9 * n), quickest(thread, 9 * n + 6)) / quickest(thread, 9 * n + 3);
}

static double most; /* additions a cycle that any look has seen */

/* The first call looks 100 times for the highest rate; each later call looks once and divides by the highest so far. */
TEST(shares_of_the_core_are_those_of_the_best_look) {
#if defined __x86_64__ || defined __aarch64__
  for (int call = 0; call < 12; call++) {
    const int threads = call % 2 ? most_threads() : 1, looks = call ? 1 : 100;
    double least = INFINITY;
    feign(true);
    look_cost = call < 6 ? 1000 : 10; /* a rate has no unit */
    const double share = bench_core_share(threads);
    feigned = false;
    for (int t = 0; t < threads; t++) {
      assert_int_equal(logs[t].looks, 18 * looks);
      for (int n = 0; n < looks; n++) most = fmax(most, additions_per_cycle(t, n));
      least = fmin(least, additions_per_cycle(t, looks - 1));
    }
    assert_near(share, least / most);
  }
#endif
}

/* Cores add 1 to 8 numbers a cycle. */
TEST(cores_add_a_few_numbers_a_cycle) {
  double best = 0;
  for (int i = 0; i < 200; i++) {
    const double share = bench_core_share(1 + i % 2);
    best = fmax(best, share);
    assert_true(share >= 0);
  }
#if defined __x86_64__ || defined __aarch64__
  assert_true(best * most > 0.9 && best * most < 10);
#else
  assert_true(best == 0);
#endif
}

/* ---- On the real clock ----------------------------------------------------------------------------------------------- */

/* A loop that takes this long. */
static void wait_iterations(int64_t ns) {
  struct timespec begin, now;
  clock_gettime(CLOCK_MONOTONIC, &begin);
  do clock_gettime(CLOCK_MONOTONIC, &now);
  while ((now.tv_sec - begin.tv_sec) * 1000000000 + now.tv_nsec - begin.tv_nsec < ns);
}

/* Loops run on the threads that a case holds, each of which is bound to a CPU of its own, new ones too. */
static cpu_set_t all_cpus;
static int most_cpus;

static void run_noting(int64_t iterations) {
  cpu_set_t set;
  assert_int_equal(sched_getaffinity(0, sizeof set, &set), 0);
#pragma omp critical
  {
    CPU_OR(&all_cpus, &all_cpus, &set);
    if (CPU_COUNT(&set) > most_cpus) most_cpus = CPU_COUNT(&set);
  }
  wait_iterations(iterations);
}

static uint64_t read_noting(const void *data, const void *beside, size_t bytes, size_t ahead) {
  (void)beside, (void)ahead;
  run_noting((int64_t)bytes);
  return data ? FILL * 0x0101010101010101u : 0;
}

TEST(loops_run_where_the_case_does) {
  static const attn_peak_loop loop = {.isa = "c", .dtype = "f32", .flops = 8, .run = run_noting};
  const bench_case bench = case_of("seq:64/heads:2/head_dim:32/threads:2");
  assert_true(bench_tensors_create(&bench, &rotation[0]));
  for (int reads = 0; reads < 2 && bench_team_count(2).threads == 2; reads++) {
    CPU_ZERO(&all_cpus);
    assert_int_equal(sched_getaffinity(0, sizeof all_cpus, &all_cpus), 0);
    assert_int_equal(bench_team_count(1).cpus, CPU_COUNT(&all_cpus));
    if (!bench_threads_hold(2) || bench_threads_held() < 2) break; /* nothing is bound on this machine */
    assert_int_equal(bench_team_count(1).cpus, 1);
    CPU_ZERO(&all_cpus);
    most_cpus = 0;
    bench_team_dismiss();
    if (reads)
      assert_true(bench_read_rate(read_noting, (bench_read_span){rotation, 1, 0, 1}, 2) > 0);
    else
      assert_true(bench_peak_rate(&(bench_peak_slice){.loop = &loop, .threads = 2, .iterations = 1000}) > 0);
    bench_threads_release();
    assert_true(most_cpus == 1 && CPU_COUNT(&all_cpus) == 2);
  }
  bench_threads_release();
  bench_tensors_destroy(&rotation[0]);
}

/* ---- Teams ----------------------------------------------------------------------------------------------------------- */

#ifdef _OPENMP
static void expect_limits(const char *limits) {
  char text[300], wanted[300];
  bench_team_explain(2, 3, text, sizeof text);
  snprintf(wanted, sizeof wanted, "2 of 3 threads run: OpenMP or the system gives no more%s", limits);
  assert_string_equal(text, wanted);
}

/* Only those that are in force, and set by a variable. This is the last test, as OpenMP stays dynamic or not. */
TEST(limits_of_openmp_are_named) {
  unsetenv("OMP_THREAD_LIMIT"), unsetenv("OMP_MAX_ACTIVE_LEVELS"), unsetenv("OMP_DYNAMIC");
  omp_set_dynamic(1);
  expect_limits("");
  setenv("OMP_DYNAMIC", "true", 1);
  expect_limits("; OMP_DYNAMIC=true should be false");
  omp_set_dynamic(0);
  setenv("OMP_THREAD_LIMIT", "3", 1), setenv("OMP_MAX_ACTIVE_LEVELS", "1", 1);
  expect_limits("");
  setenv("OMP_THREAD_LIMIT", "2", 1), setenv("OMP_MAX_ACTIVE_LEVELS", "0", 1);
  expect_limits("; OMP_THREAD_LIMIT=2 should be 3 or more; OMP_MAX_ACTIVE_LEVELS=0 should be 1 or more");
}
#endif
