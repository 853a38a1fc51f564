/* SPDX-License-Identifier: MIT */
/* Small calls run on fewer threads, because starting and joining threads costs more than they save. What a thread has to
 * save and what a call takes come from the same costs as the choice of a kernel. */
#include "src/choice/paying_threads.h"

#include <math.h>
#include <stdatomic.h>
#include <string.h>

#include "kernels/common/problem/arithmetic.h"
#include "src/api/float_mode.h"
#include "src/choice/machine_class.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"

int attn_threads_worth(double work_ns, double least_ns, int64_t waves, int threads) {
  return (int)fmin(threads, fmax(work_ns / (least_ns * (double)max64(waves, 1)), 1));
}

/* Costs of this machine's class; NULL where these cannot be had. */
static const attn_tuning *class_costs(void) {
  const attn_class *class;
  return attn_class_here(&class) == ATTN_OK ? class->costs : NULL;
}

/* Describes the call by sequences of one length: as many queries as the longest sequence has, and in all as many queries and
 * keys as the call. */
static double even_sequences(attn_problem *p) {
  if (!(p->uses & ATTN_USE_VARLEN) || p->seq_q == 0) return (double)p->batch;
  const double count = (double)p->total_q / (double)p->seq_q;
  if (!(p->uses & ATTN_USE_PAGES) && (double)p->total_k < count * (double)p->seq_k)
    p->seq_k = (int64_t)((double)p->total_k / count);
  return count;
}

static int tier_of(const attn_kernel *kernel) { return attn_tier_find(kernel->info.isa); }

static bool takes_problem(const attn_kernel *kernel, void *context) {
  char buffer[300];
  return !attn_tier_unusable(tier_of(kernel), NULL) && !attn_kernel_refusal(kernel, context, buffer, sizeof buffer);
}

/* The time that a kernel takes for one sequence; 0 if the costs say nothing. */
static double sequence_ns(const attn_tuning *tuning, const attn_kernel *kernel, const attn_problem *problem) {
  const attn_kernel_costs *costs = attn_tuning_costs_of(tuning, kernel, problem);
  return costs ? attn_expected_ns(kernel, costs->ns, problem) : 0;
}

static attn_expected quickest(const attn_tuning *tuning, attn_problem *problem) {
  int count;
  attn_expected best[2];
  const attn_kernel_costs *costs = attn_tuning_costs(tuning, &count);
  attn_expect(costs, count, problem, takes_problem, problem, best);
  return best[0];
}

/* The time of a kernel without costs: the time of the quickest kernel; for our own kernels times the factor by which their
 * tier is slower. Libraries choose their instructions themselves. */
static double quickest_ns(const attn_tuning *tuning, const attn_kernel *kernel, attn_problem *problem) {
  const attn_expected best = quickest(tuning, problem);
  if (!best.costs) return 0;
  if (kernel->info.library[0]) return best.ns;
  return best.ns * attn_tier_flops(tier_of(best.costs->kernel)) / attn_tier_flops(tier_of(kernel));
}

double attn_call_ns(const attn_tuning *tuning, const attn_kernel *kernel, const attn_problem *problem) {
  attn_problem even = *problem;
  const double count = even_sequences(&even);
  const double measured = tuning ? sequence_ns(tuning, kernel, &even) : 0;
  if (measured > 0) return count * measured;
  const attn_tuning *class = class_costs();
  const double ns = class ? sequence_ns(class, kernel, &even) : 0;
  return count * (ns > 0 || !class ? ns : quickest_ns(class, kernel, &even));
}

static double least_ns(const attn_tuning *tuning) {
  const double measured = tuning ? attn_tuning_least_ns(tuning) : 0;
  const attn_tuning *class = class_costs();
  return measured > 0 || !class ? measured : attn_tuning_least_ns(class);
}

int attn_paying_threads(const attn_tuning *tuning, const attn_kernel *kernel, const attn_problem *problem, int64_t waves,
                        int threads) {
  const double ns = attn_call_ns(tuning, kernel, problem);
  return ns > 0 ? attn_threads_worth(ns, least_ns(tuning), waves, threads) : threads;
}

/* ---- Dense layers ---- */

static const attn_kernel *flash_of(const char *isa) {
  const attn_kernel *kernel;
  for (int i = 0; (kernel = attn_registry_get(i)); i++)
    if (strcmp(kernel->info.isa, isa) == 0 && strcmp(kernel->info.algorithm, "flash") == 0 &&
        kernel->operation == ATTN_FORWARD)
      return kernel;
  return NULL;
}

/* The tier's, or that of the next lower one that has one. */
static const attn_kernel *flash_up_to(const char *isa) {
  const attn_kernel *kernel = NULL;
  for (int tier = attn_tier_find(isa); !kernel && tier >= 0; tier--) kernel = flash_of(attn_tier_isa(tier));
  return kernel;
}

/* A dense layer reads its weights and multiplies rows with them as flash does K and V: as many elements, as many
 * multiply-adds. */
static double layer_ns(const attn_kernel *flash, attn_dtype dtype, int64_t rows, int64_t depth, int64_t columns) {
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, rows, columns, (depth + 1) / 2, (depth + 1) / 2);
  p.dtype_q = p.dtype_kv = dtype;
  return attn_call_ns(NULL, flash, &p);
}

/* Called in the caller's floating-point mode, which may have traps for inexact results. */
int64_t attn_product_rows_worth(const char *isa, int64_t depth, int64_t columns) {
  const attn_kernel *flash = flash_up_to(isa);
  const uint64_t mode = attn_float_mode_enter();
  const double needed = 2 * least_ns(NULL);
  int64_t few = 0, enough = 1;
  while (flash && enough < INT64_C(1) << 40 && layer_ns(flash, ATTN_F32, enough, depth, columns) < needed)
    few = enough, enough *= 2;
  while (enough - few > 1) {
    const int64_t middle = few + (enough - few) / 2;
    if (layer_ns(flash, ATTN_F32, middle, depth, columns) < needed)
      few = middle;
    else
      enough = middle;
  }
  attn_float_mode_leave(mode);
  return enough;
}

bool attn_bf16_products_pay(const char *isa, const char *other) {
  enum { ROWS = 128, SIZE = 1024 }; /* so many that products take all of the time */
  const attn_kernel *pairs = flash_of(isa), *floats = flash_of(other);
  if (!pairs || !floats) return pairs != NULL;
  const uint64_t mode = attn_float_mode_enter();
  const double pairs_ns = layer_ns(pairs, ATTN_BF16, ROWS, SIZE, SIZE),
               floats_ns = layer_ns(floats, ATTN_BF16, ROWS, SIZE, SIZE);
  attn_float_mode_leave(mode);
  return pairs_ns <= floats_ns;
}

/* ---- Loops ---- */

/* The time of a kernel, or of the quickest if it is NULL. Once per process, as the class: to find the quickest kernel takes
 * longer than small loops. */
static double element_ns(const attn_kernel *kernel, _Atomic double *known) {
  enum { KEYS = 1024, DIM = 64 };
  if (*known > 0) return *known;
  const uint64_t mode = attn_float_mode_enter();
  const attn_tuning *class = class_costs();
  attn_problem p;
  attn_problem_init(&p, 1, 1, 1, 1, KEYS, DIM, DIM);
  const double ns = kernel ? attn_call_ns(NULL, kernel, &p) : class ? quickest(class, &p).ns : 0;
  *known = ns / (2 * KEYS * DIM);
  attn_float_mode_leave(mode);
  return *known;
}

double attn_element_ns(void) {
  static _Atomic double known;
  return element_ns(NULL, &known);
}

/* Volatile: the arithmetic stays between enter and leave. */
bool attn_parallel_pays(int64_t items, double item_ns) {
  const uint64_t mode = attn_float_mode_enter();
  const volatile int64_t asked = items;
  volatile bool pays = (double)asked * item_ns >= 2 * least_ns(NULL);
  attn_float_mode_leave(mode);
  return pays;
}

bool attn_parallel_pays_for_elements(int64_t elements) {
  static _Atomic double known;
  return attn_parallel_pays(elements, element_ns(attn_registry_find("decode_portable"), &known));
}
