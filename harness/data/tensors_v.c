/* SPDX-License-Identifier: MIT */
/* Another V whose output is known without another check: o is linear in V, and a factor of -1 or of a power of two commutes
 * with every rounding to nearest, as long as nothing leaves the range of normal numbers. */
#include <math.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn/extend.h"
#include "data/tensors.h"
#include "machine/affinity.h"

enum { ONE_THREAD = 1 << 14 }; /* elements: for fewer, waking a team costs more than it saves */

/* Between these, a number may be multiplied by 4, and by every P that is not near the ends of the range itself. */
static const float LEAST = 0x1p-60f, MOST = 0x1p60f;

/* Element i as a float32, of which a 16-bit element is the upper half. That is the value of a bfloat16, and of a float16
 * only its sign. */
static float load(const bench_buffer *v, int64_t i) {
  uint32_t word = 0;
  float x;
  if (v->element_bytes == sizeof word) {
    memcpy(&word, v->data + i * 4, sizeof word);
  } else {
    uint16_t upper;
    memcpy(&upper, v->data + i * 2, sizeof upper);
    word = (uint32_t)upper << 16;
  }
  memcpy(&x, &word, sizeof x);
  return x;
}

static void store(bench_buffer *v, int64_t i, float x) {
  uint32_t word;
  memcpy(&word, &x, sizeof word);
  const uint16_t upper = (uint16_t)(word >> 16);
  if (v->element_bytes == sizeof word)
    memcpy(v->data + i * 4, &word, sizeof word);
  else
    memcpy(v->data + i * 2, &upper, sizeof upper);
}

static int64_t elements_of(const bench_buffer *v) { return (int64_t)(v->bytes / v->element_bytes); }

/* Whether powers of two are exact, too. A sink may be so large that it leaves outputs near zero. NaN, which fills gaps,
 * stays NaN. */
static bool takes_powers(const bench_tensors *t) {
  const bench_buffer *v = &t->buffers[BENCH_V];
  const attn_problem *p = &t->problem;
  bool within = p->dtype_kv != ATTN_F16 && p->dtype_o != ATTN_F16 && !(p->uses & ATTN_USE_SINKS);
  for (int64_t i = 0; i < elements_of(v) && within; i++) {
    const float x = fabsf(load(v, i));
    within = !(x > MOST || (x > 0 && x < LEAST));
  }
  return within;
}

double bench_v_factor(const bench_tensors *t) {
  static const double size[] = {1, 2, 4};
  return (t->v_step % 2 ? -1 : 1) * (t->v_powers ? size[t->v_step % 3] : 1);
}

void bench_tensors_renew_v(bench_tensors *t, int threads) {
  bench_buffer *v = &t->buffers[BENCH_V];
  const int64_t count = elements_of(v);
  if (!t->v_step) t->v_powers = takes_powers(t);
  const double before = bench_v_factor(t);
  t->v_step++;
  const float factor = (float)(bench_v_factor(t) / before);
  const int team = count < ONE_THREAD ? 1 : threads;
  (void)team; /* without OpenMP */
#ifdef _OPENMP
#pragma omp parallel num_threads(attn_parallel_available(team)) if (team > 1)
#endif
  {
#ifdef _OPENMP
    if (team > 1) bench_thread_settle(omp_get_thread_num(), omp_get_num_threads());
#pragma omp for schedule(static)
#endif
    for (int64_t i = 0; i < count; i++) store(v, i, factor * load(v, i));
  }
}
