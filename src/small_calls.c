/* SPDX-License-Identifier: MIT */
/* Small calls run on fewer threads, because starting and joining threads costs more than they save.
 *
 * The estimate is of the work that threads share well: multiply-adds, and elements of K and V that are read. Measured on a
 * Granite Rapids core (docs/performance-log.md, "Small calls"), flash_avx512 takes 25 ps a multiply-add and decode_avx512 44
 * ps more an element. What begins each head is left out: shapes of 64 tiny heads take 20 us, and threads slow them down all
 * the same. Each wave of heads ends with threads that wait for each other. That costs 4 to 5 us of two threads, so that they
 * begin to pay at 10 us on one thread. */
#include "small_calls.h"

#include <string.h>

/* Of one thread and wave: what it has to save. */
static const double LEAST_NS = 5000;

static const double ELEMENT_NS = 0.044;

/* Nanoseconds of a multiply-add: plain C and tiles differ most from the vectors of the other tiers. */
static double multiply_ns(const char *isa) {
  if (strcmp(isa, "c") == 0) return 0.4;
  return strcmp(isa, "amx") == 0 ? 0.003 : 0.025;
}

/* Keys times queries of all heads; half of them where the mask is causal. */
static double pairs(const attn_problem *p) {
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const double rows = varlen ? (double)p->total_q : (double)p->batch * (double)p->seq_q;
  return rows * (double)p->heads_q * (double)p->seq_k * (p->window_right == 0 && p->seq_q > 1 ? 0.5 : 1);
}

static double estimate_ns(const attn_kernel_info *kernel, const attn_problem *p) {
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const double dims = (double)p->dim_qk + (double)p->dim_v;
  const double keys = varlen ? (double)p->total_k : (double)p->batch * (double)p->seq_k;
  return pairs(p) * dims * multiply_ns(kernel->isa) + keys * (double)p->heads_kv * dims * ELEMENT_NS;
}

int attn_paying_threads(const attn_kernel_info *kernel, const attn_problem *problem, int64_t waves, int threads) {
  const double pay = estimate_ns(kernel, problem) / (LEAST_NS * (double)(waves > 0 ? waves : 1));
  if (pay >= threads) return threads;
  return pay < 2 ? 1 : (int)pay;
}
