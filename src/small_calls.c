/* SPDX-License-Identifier: MIT */
/* Small calls run on fewer threads, because starting and joining threads costs more than they save: 4 to 5 us of two
 * threads, so that they begin to pay at 10 us on one thread.
 *
 * The estimates count what threads share well. Measured on a Granite Rapids core (docs/performance-log.md, "small calls"):
 *
 *   attention    two thirds of the tier's typical rate, and 44 ps an element of K and V that is read. What begins each head
 *                is left out: shapes of 64 tiny heads take 20 us, and threads slow them down all the same.
 *   dense layer  1.2 times the typical rate, 70 ps an element of W, and 12 ns a row, which is gathered and scattered. */
#include "small_calls.h"

#include "cpu.h"
#include "float_mode.h"

static const double LEAST_NS = 5000; /* what a thread has to save in each wave: waves end with threads that wait */

static const double ATTENTION_RATE = 1 / 1.5, CACHED_ELEMENT_NS = 0.044;
static const double PRODUCT_RATE = 1.2, WEIGHT_NS = 0.07, ROW_NS = 12;

static double multiply_ns(const char *isa, double rate) { return 2e9 / (attn_tier_flops(attn_tier_find(isa)) * rate); }

attn_call_size attn_size_of_call(const attn_problem *p) {
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const double rows = varlen ? (double)p->total_q : (double)p->batch * (double)p->seq_q;
  const double masked = p->window_right == 0 && p->seq_q > 1 ? 0.5 : 1;
  return (attn_call_size){.pairs = rows * (double)p->heads_q * (double)p->seq_k * masked,
                          .keys = varlen ? (double)p->total_k : (double)p->batch * (double)p->seq_k,
                          .dims = (double)p->dim_qk + (double)p->dim_v};
}

static double attention_ns(const char *isa, const attn_problem *p) {
  const attn_call_size s = attn_size_of_call(p);
  return s.pairs * s.dims * multiply_ns(isa, ATTENTION_RATE) + s.keys * (double)p->heads_kv * s.dims * CACHED_ELEMENT_NS;
}

int attn_threads_worth(double work_ns, double least_ns, int64_t waves, int threads) {
  const double pay = work_ns / (least_ns * (double)(waves > 0 ? waves : 1));
  if (pay >= threads) return threads;
  return pay < 2 ? 1 : (int)pay;
}

int attn_paying_threads(const attn_kernel_info *kernel, const attn_problem *problem, int64_t waves, int threads) {
  return attn_threads_worth(attention_ns(kernel->isa, problem), LEAST_NS, waves, threads);
}

static double product_ns(const char *isa, int64_t rows, int64_t depth, int64_t columns) {
  const double weights = (double)depth * (double)columns;
  return (double)rows * (weights * multiply_ns(isa, PRODUCT_RATE) + ROW_NS) + weights * WEIGHT_NS;
}

/* Both are asked during a run, when the caller's floating-point mode may have traps for inexact results. Volatile: the
 * arithmetic stays between enter and leave. */
bool attn_product_pays(const char *isa, int64_t rows, int64_t depth, int64_t columns) {
  const uint64_t mode = attn_float_mode_enter();
  const volatile int64_t asked = rows;
  volatile bool pays = product_ns(isa, asked, depth, columns) >= 2 * LEAST_NS;
  attn_float_mode_leave(mode);
  return pays;
}

bool attn_parallel_pays(int64_t items, double item_ns) {
  const uint64_t mode = attn_float_mode_enter();
  const volatile int64_t asked = items;
  volatile bool pays = (double)asked * item_ns >= 2 * LEAST_NS;
  attn_float_mode_leave(mode);
  return pays;
}
