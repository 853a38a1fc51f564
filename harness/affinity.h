/* Threads kept on CPUs of their own while they are timed: a scheduler may pack threads on one CPU, or move them about. */
#ifndef BENCH_AFFINITY_H
#define BENCH_AFFINITY_H

#include <sched.h>
#include <stdbool.h>

/* What bench_threads_release() needs. */
typedef struct bench_hold {
  int threads; /* 0 = nothing is held */
  cpu_set_t before;
} bench_hold;

/* Keeps each of the OpenMP threads of a region of this size on one CPU: the caller on the present one, the others on CPUs of
 * other cores, as far as there are any. Holds nothing if OpenMP binds them already (OMP_PROC_BIND) or CPUs are too few. */
bench_hold bench_threads_hold(int threads);
void bench_threads_release(const bench_hold *hold);

#endif
