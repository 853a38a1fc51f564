/* SPDX-License-Identifier: MIT */
#include "timing/rates.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn/extend.h"
#include "base/cli.h"
#include "base/clock.h"
#include "kernels/common/aligned.h"
#include "kernels/common/dtypes.h"
#include "machine/affinity.h"
#include "timing/stats.h"

/* The last loop that is usable here, and reads if it is to. The table goes from the lowest tier to the highest. */
static const attn_peak_loop *last_loop(bool reads) {
  const attn_peak_loop *loop, *last = NULL;
  for (int i = 0; (loop = attn_peak_get(i)); i++)
    if ((loop->read || !reads) && attn_peak_usable(loop->isa)) last = loop;
  return last;
}

const char *bench_highest_tier(void) { return last_loop(false) ? last_loop(false)->isa : "c"; }
bench_read_loop bench_widest_read(void) { return last_loop(true) ? last_loop(true)->read : NULL; }

/* ---- Multiply-adds ------------------------------------------------------------------------------------------------- */

const attn_peak_loop *bench_peak_of(const attn_kernel_info *kernel, const char *dtype) {
  if (!kernel->library[0]) return attn_peak_for(kernel->isa, dtype);
  return attn_peak_for(bench_highest_tier(), kernel->numerics.p_rounding > 0 ? dtype : "f32");
}

static const double WARM_UP_NS = 2e6; /* clocks and vector units of present CPUs need well under a millisecond to wake */

bench_team bench_team_count(int threads) {
  bench_team team = {0, 0};
  cpu_set_t all;
  CPU_ZERO(&all);
  (void)threads; /* not used without OpenMP */
#pragma omp parallel num_threads(attn_parallel_available(threads))
#pragma omp critical
  {
    cpu_set_t own;
    if (!sched_getaffinity(0, sizeof own, &own)) CPU_OR(&all, &all, &own);
    team.threads++;
  }
  team.cpus = CPU_COUNT(&all);
  return team;
}

#ifdef _OPENMP
/* Appends the setting if it is in force and leaves fewer than `least`. */
static void name_limit(const char *setting, int least, char *text, size_t bytes) {
  const char *value = getenv(setting);
  if (value && atoi(value) < least) bench_append(text, bytes, "; %s=%.20s should be %d or more", setting, value, least);
}
#endif

void bench_team_explain(int given, int wanted, char *text, size_t bytes) {
  snprintf(text, bytes, "%d of %d threads run: ", given, wanted);
#ifdef _OPENMP
  bench_append(text, bytes, "OpenMP or the system gives no more");
  name_limit("OMP_THREAD_LIMIT", wanted, text, bytes);
  name_limit("OMP_MAX_ACTIVE_LEVELS", 1, text, bytes);
  if (omp_get_dynamic() && getenv("OMP_DYNAMIC")) bench_append(text, bytes, "; OMP_DYNAMIC=true should be false");
#else
  bench_append(text, bytes, "this build has no OpenMP");
#endif
}

void bench_team_dismiss(void) {
#if defined _OPENMP && (_OPENMP >= 201811 || __GNUC__ >= 9) /* of OpenMP 5.0 */
  if (omp_pause_resource_all(omp_pause_soft) == 0) (void)attn_parallel_available(0);
#endif
}

static double time_once(const attn_peak_loop *loop, int64_t iterations) {
  double start = bench_now_ns();
  loop->run(iterations);
  return bench_now_ns() - start;
}

bench_peak_slice bench_peak_prepare(const attn_peak_loop *loop, int threads, double slice_ns) {
  bench_peak_slice slice = {.loop = loop, .threads = bench_team_count(threads).threads, .iterations = 1000};
  double start = bench_now_ns();
  while (bench_now_ns() - start < WARM_UP_NS) loop->run(slice.iterations);
  double time = time_once(loop, slice.iterations);
  while (time < slice_ns / 2) {
    slice.iterations *= 2;
    time = time_once(loop, slice.iterations);
  }
  slice.iterations = 1 + (int64_t)((double)slice.iterations * slice_ns / time);
  return slice;
}

double bench_peak_rate(const bench_peak_slice *slice) {
  double rates = 0.0;
  int threads = 0;
#pragma omp parallel num_threads(attn_parallel_available(slice->threads)) reduction(+ : rates, threads)
  {
    bench_thread_settle();
#pragma omp barrier
    rates += slice->loop->flops * (double)slice->iterations / time_once(slice->loop, slice->iterations) * 1e9;
    threads += 1;
  }
  return rates / threads;
}

/* ---- Read bandwidth ------------------------------------------------------------------------------------------------ */

enum { PASSES = 9, FILL = 0x55, LINE = 64 };

static const double PASS_NS = 3e6;

/* What the threads of one measurement share. */
typedef struct reading {
  bench_read_loop loop;
  size_t bytes;
  int64_t repeats; /* of one pass */
  double rate[PASSES];
  bool failed;
} reading;

static double time_repeats(const reading *r, const unsigned char *data, int64_t repeats, bool *wrong) {
  double start = bench_now_ns();
  for (int64_t i = 0; i < repeats; i++) *wrong |= r->loop(data, r->bytes) != FILL * 0x0101010101010101u;
  return bench_now_ns() - start;
}

/* Finds how often a pass reads the buffer. One thread alone does so; passes of many threads last somewhat longer. */
static void calibrate(reading *r, const unsigned char *data) {
  bool wrong = false;
  r->repeats = 1;
  double time_ns = time_repeats(r, data, 1, &wrong);
  while (time_ns < PASS_NS / 2) {
    r->repeats *= 2;
    time_ns = time_repeats(r, data, r->repeats, &wrong);
  }
  r->failed |= wrong;
}

/* One thread's part: fills its own buffer (first touch), then adds its rate to every pass. All threads start a pass
 * together. */
static void read_own_buffer(reading *r) {
  bench_thread_settle();
  unsigned char *data = attn_aligned_alloc(LINE, r->bytes);
  if (data) memset(data, FILL, r->bytes);
#pragma omp critical
  {
    r->failed |= !data;
    if (data && !r->repeats) calibrate(r, data);
  }
  for (int pass = 0; pass < PASSES; pass++) {
#pragma omp barrier
    bool wrong = false;
    double rate = data ? (double)r->bytes * (double)r->repeats / time_repeats(r, data, r->repeats, &wrong) * 1e9 : 0.0;
#pragma omp critical
    {
      r->rate[pass] += rate;
      r->failed |= wrong;
    }
  }
  attn_aligned_free(data);
}

double bench_read_bandwidth(size_t bytes, int threads) {
  const size_t steps = (bytes + ATTN_READ_BYTES - 1) / ATTN_READ_BYTES;
  reading r = {.loop = bench_widest_read(), .bytes = (steps ? steps : 1) * ATTN_READ_BYTES};
  (void)threads; /* not used without OpenMP */
#pragma omp parallel num_threads(attn_parallel_available(threads))
  read_own_buffer(&r);
  return r.failed ? 0.0 : bench_median(r.rate, PASSES);
}

/* ---- K and V of a case --------------------------------------------------------------------------------------------- */

static int64_t elements(const attn_problem *p, int64_t dim) { return p->batch * p->heads_kv * p->seq_k * dim; }

static bool is_dense(const attn_problem *p, attn_strides stride, int64_t dim) {
  return stride.d == 1 && stride.s == dim && stride.h == p->seq_k * dim && stride.b == p->heads_kv * p->seq_k * dim;
}

double bench_read_bytes(const attn_problem *p) {
  if (!is_dense(p, p->k_stride, p->dim_qk) || !is_dense(p, p->v_stride, p->dim_v)) return 0;
  return (double)elements(p, p->dim_qk + p->dim_v) * (double)attn_dtype_bytes(p->dtype_kv);
}

/* Reads part `part` of `parts` of a tensor, in whole steps of the loop; less than two steps at the ends are left out. */
static uint64_t read_part(bench_read_loop loop, const void *tensor, int64_t bytes, int part, int parts) {
  const uintptr_t begin = ((uintptr_t)tensor + 63) / 64 * 64, end = (uintptr_t)tensor + (uintptr_t)bytes;
  const int64_t steps = begin < end ? (int64_t)(end - begin) / ATTN_READ_BYTES : 0;
  const int64_t from = steps * part / parts, to = steps * (part + 1) / parts;
  return loop((const void *)(begin + (uintptr_t)(from * ATTN_READ_BYTES)), (size_t)((to - from) * ATTN_READ_BYTES));
}

static uint64_t read_tensors(const bench_tensors *t, bench_read_loop loop, int part, int parts) {
  const attn_problem *p = &t->problem;
  const int64_t size = (int64_t)attn_dtype_bytes(p->dtype_kv);
  return read_part(loop, t->args.k, elements(p, p->dim_qk) * size, part, parts) ^
         read_part(loop, t->args.v, elements(p, p->dim_v) * size, part, parts);
}

double bench_read_rate(bench_read_loop loop, bench_read_span span, int threads) {
  uint64_t seen = 0;
  bench_team_settle(threads);
  const double start = bench_now_ns();
#pragma omp parallel for num_threads(attn_parallel_available(threads)) reduction(^ : seen) schedule(static, 1)
  for (int part = 0; part < threads; part++)
    for (int64_t i = 0; i < span.passes; i++)
      seen ^= read_tensors(&span.tensors[(span.first + i) % span.count], loop, part, threads);
  const double time_ns = bench_now_ns() - start;
  __asm__ volatile("" : : "r"(seen)); /* the loads have a use */
  return bench_read_bytes(&span.tensors->problem) * (double)span.passes / time_ns * 1e9;
}
