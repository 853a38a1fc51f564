/* SPDX-License-Identifier: MIT */
#include "timing/core_share.h"

#include <math.h>

#include "attn/extend.h"
#include "base/clock.h"
#include "machine/affinity.h"

#if defined __x86_64__ || defined __aarch64__

enum { TURNS = 600, LOOKS = 3, FIRST_LOOKS = 100 };

/* An instruction that takes a cycle, as text: some CPUs make additions of constants before they are executed. */
#ifdef __x86_64__
#define ADD(to) "add %[one], %[" #to "]\n\t"
#else
#define ADD(to) "add %[" #to "], %[" #to "], %[one]\n\t"
#endif
#define TWICE(text) text text
#define ADD_TO_EACH ADD(a) ADD(b) ADD(c) ADD(d) ADD(e) ADD(f) ADD(g) ADD(h)

/* TURNS times 16 additions, each of which waits for the one before. */
static void add_in_order(void) {
  unsigned long a = 0;
  for (int i = 0; i < TURNS; i++) __asm__ volatile(TWICE(TWICE(TWICE(TWICE(ADD(a))))) : [a] "+r"(a) : [one] "r"(1ul));
}

/* TURNS times 64 additions, eight of which may run at once: more than a core can do. */
static void add_side_by_side(void) {
  unsigned long a = 0, b = 0, c = 0, d = 0, e = 0, f = 0, g = 0, h = 0;
  for (int i = 0; i < TURNS; i++)
    __asm__ volatile(TWICE(TWICE(TWICE(ADD_TO_EACH)))
                     : [a] "+r"(a), [b] "+r"(b), [c] "+r"(c), [d] "+r"(d), [e] "+r"(e), [f] "+r"(f), [g] "+r"(g), [h] "+r"(h)
                     : [one] "r"(1ul));
}

/* The quickest of a few looks: interrupts do not count. */
static double time_quickest(void (*loop)(void)) {
  double quickest_ns = INFINITY;
  for (int i = 0; i < LOOKS; i++) {
    const double start_ns = bench_now_ns();
    loop();
    quickest_ns = fmin(quickest_ns, bench_now_ns() - start_ns);
  }
  return quickest_ns;
}

/* The cycle is looked at before and after: a disturbed one must not make the best rate. */
static double additions_per_cycle(void) {
  const double before_ns = time_quickest(add_in_order), many_ns = time_quickest(add_side_by_side);
  return 4 * fmin(before_ns, time_quickest(add_in_order)) / many_ns;
}

/* The least and the most of the threads. */
typedef struct rate_range {
  double least, most;
} rate_range;

static rate_range look(int threads) {
  double least = INFINITY, most = 0;
  (void)threads; /* not used without OpenMP */
#pragma omp parallel num_threads(attn_parallel_available(threads)) reduction(min : least) reduction(max : most)
  {
    bench_thread_settle();
    least = most = additions_per_cycle();
  }
  return (rate_range){least, most};
}

double bench_core_share(int threads) {
  static double most;
  rate_range now;
  for (int looks = most > 0 ? 1 : FIRST_LOOKS; looks > 0; looks--) {
    now = look(threads);
    most = fmax(most, now.most);
  }
  return now.least / most;
}

#else
double bench_core_share(int threads) {
  (void)threads;
  return 0;
}
#endif
