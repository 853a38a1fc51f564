/* SPDX-License-Identifier: MIT */
/* How much of its core a thread gets: less while another program runs on the core's other hardware thread, which may
 * belong to another virtual machine and show in no load average. */
#ifndef BENCH_CORE_SHARE_H
#define BENCH_CORE_SHARE_H

/* Integer additions a cycle that the cores of so many threads make now, as a share of the most that this process has
 * seen: the least of the threads. It takes about 30 µs, the first time 3 ms. From BENCH_UNDISTURBED on nobody else runs
 * there. 0 on a CPU without such a loop. */
double bench_core_share(int threads);

#define BENCH_UNDISTURBED 0.9

#endif
