/* SPDX-License-Identifier: MIT */
/* The read-only loop over the tensors of a case, so that it meets the same caches, pages and placement as the kernel. */
#include "timing/read_rate.h"

#include "base/clock.h"
#include "data/generate.h"
#include "kernels/peak.h"
#include "machine/affinity.h"

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
#ifdef _OPENMP
#pragma omp parallel for num_threads(threads) reduction(^ : seen) schedule(static, 1)
#else
  threads = 1;
#endif
  for (int part = 0; part < threads; part++)
    for (int64_t i = 0; i < span.passes; i++)
      seen ^= read_tensors(&span.tensors[(span.first + i) % span.count], loop, part, threads);
  const double time_ns = bench_now_ns() - start;
  __asm__ volatile("" : : "r"(seen)); /* the loads have a use */
  return bench_read_bytes(&span.tensors->problem) * (double)span.passes / time_ns * 1e9;
}
