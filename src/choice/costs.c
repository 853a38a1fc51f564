/* SPDX-License-Identifier: MIT */
#include "src/choice/costs.h"

#include <assert.h>
#include <math.h>
#include <string.h>

int attn_term_find(const attn_kernel *kernel, const char *name) {
  for (int i = 0; i < kernel->terms.count; i++)
    if (strcmp(kernel->terms.names[i], name) == 0) return i;
  return -1;
}

attn_dtype attn_costs_shared(attn_dtype dtype) {
  switch (dtype) {
    case ATTN_F8_E5M2: return ATTN_F8_E4M3;
    case ATTN_Q4_0: return ATTN_Q8_0;
    default: return dtype;
  }
}

bool attn_costs_lack_factors(const attn_problem *problem) {
  return problem->dtype_kv == ATTN_I8 && !(problem->uses & ATTN_USE_KV_SCALES);
}

attn_dtype attn_costs_dtype(const attn_kernel_costs *costs, int count, const attn_problem *problem) {
  const attn_dtype dtype = problem->dtype_kv, shared = attn_costs_shared(dtype);
  bool known = attn_dtype_is_float(dtype);
  if (attn_costs_lack_factors(problem)) return ATTN_F16;
  for (int i = 0; i < count && !known; i++) known = costs[i].dtype == shared;
  return known ? shared : ATTN_F16;
}

double attn_expected_ns(const attn_kernel *kernel, const double ns[ATTN_MAX_TERMS], const attn_problem *problem) {
  double terms[ATTN_MAX_TERMS], sum = 0;
  assert(kernel->terms.count <= ATTN_MAX_TERMS);
  kernel->terms.of(problem, terms);
  for (int i = 0; i < kernel->terms.count; i++) sum += ns[i] * terms[i];
  return sum;
}

void attn_expect(const attn_kernel_costs *costs, int count, const attn_problem *problem,
                 bool (*takes)(const attn_kernel *kernel, void *context), void *context, attn_expected best[2]) {
  const attn_dtype dtype = attn_costs_dtype(costs, count, problem);
  best[0] = best[1] = (attn_expected){.ns = INFINITY};
  for (int i = 0; i < count; i++) {
    const attn_kernel_costs *c = &costs[i];
    if (c->dtype != dtype || !takes(c->kernel, context)) continue;
    const attn_expected now = {c, attn_expected_ns(c->kernel, c->ns, problem)};
    if (now.ns < best[0].ns) {
      best[1] = best[0];
      best[0] = now;
    } else if (now.ns < best[1].ns) {
      best[1] = now;
    }
  }
}
