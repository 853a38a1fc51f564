/* SPDX-License-Identifier: MIT */
/* Small calls run on fewer threads, because starting and joining threads costs more than they save: 4 to 5 us of two
 * threads, so that they begin to pay at 10 us on one thread.
 *
 * The estimates count what threads share, measured on a Granite Rapids core (docs/performance-log.md, "small calls"):
 *
 *   attention    1.5 times the tier's typical rate, and what vectors of 8 and more floats divide among their lanes:
 *                100 ps an element of K and V that is read, 63 ns a query of a head and 190 ns a KV head; in plain C 8
 *                times as much.
 *
 *   dense layer  1.2 times the typical rate, 70 ps an element of W, and 12 ns a row, which is gathered and scattered. */
#include "small_calls.h"

#include "cpu.h"
#include "float_mode.h"

static const double LEAST_NS = 5000; /* what a thread has to save in each wave: waves end with threads that wait */

static const double ATTENTION_RATE = 1.54, ELEMENT_NS = 0.1, QUERY_NS = 63, HEAD_NS = 190, VECTOR_FLOPS = 40e9;
static const double PRODUCT_RATE = 1.2, WEIGHT_NS = 0.07, ROW_NS = 12;

static double multiply_ns(const char *isa, double rate) { return 2e9 / (attn_tier_flops(attn_tier_find(isa)) * rate); }

/* What attention on the problem takes: queries of all heads; queries times keys of all heads, half of them where the mask is
 * causal; keys of one head in all sequences; dim_qk + dim_v. */
typedef struct call_size {
  double rows, pairs, keys, dims;
} call_size;

static call_size size_of_call(const attn_problem *p) {
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const double rows = varlen ? (double)p->total_q : (double)p->batch * (double)p->seq_q;
  const double masked = p->window_right == 0 && p->seq_q > 1 ? 0.5 : 1;
  return (call_size){.rows = rows * (double)p->heads_q,
                     .pairs = rows * (double)p->heads_q * (double)p->seq_k * masked,
                     .keys = varlen ? (double)p->total_k : (double)p->batch * (double)p->seq_k,
                     .dims = (double)p->dim_qk + (double)p->dim_v};
}

static double attention_ns(const char *isa, const attn_problem *p) {
  const call_size s = size_of_call(p);
  const double heads_kv = (double)p->heads_kv, flops = attn_tier_flops(attn_tier_find(isa));
  const double lanes_ns =
      s.keys * heads_kv * s.dims * ELEMENT_NS + s.rows * QUERY_NS + (double)p->batch * heads_kv * HEAD_NS;
  return s.pairs * s.dims * multiply_ns(isa, ATTENTION_RATE) + lanes_ns * (flops < VECTOR_FLOPS ? VECTOR_FLOPS / flops : 1);
}

int attn_threads_worth(double work_ns, double least_ns, int64_t waves, int threads) {
  const double pay = work_ns / (least_ns * (double)(waves > 0 ? waves : 1));
  if (pay >= threads) return threads;
  return pay < 2 ? 1 : (int)pay;
}

int attn_paying_threads(const attn_kernel_info *kernel, const attn_problem *problem, int64_t waves, int threads) {
  return attn_threads_worth(attention_ns(kernel->isa, problem), LEAST_NS, waves, threads);
}

/* The next two are asked in the caller's floating-point mode, which may have traps for inexact results. Volatile: the
 * arithmetic stays between enter and leave. */
int64_t attn_product_rows_worth(const char *isa, int64_t depth, int64_t columns) {
  const uint64_t mode = attn_float_mode_enter();
  const volatile int64_t asked = depth;
  const double weights = (double)asked * (double)columns;
  const double row_ns = weights * multiply_ns(isa, PRODUCT_RATE) + ROW_NS;
  const volatile int64_t rows = (int64_t)((2 * LEAST_NS - weights * WEIGHT_NS) / row_ns) + 1;
  attn_float_mode_leave(mode);
  return rows;
}

bool attn_parallel_pays(int64_t items, double item_ns) {
  const uint64_t mode = attn_float_mode_enter();
  const volatile int64_t asked = items;
  volatile bool pays = (double)asked * item_ns >= 2 * LEAST_NS;
  attn_float_mode_leave(mode);
  return pays;
}
