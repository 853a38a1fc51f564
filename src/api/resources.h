/* SPDX-License-Identifier: MIT */
/* CPUs and threads that the system still gives this process. */
#ifndef ATTN_RESOURCES_H
#define ATTN_RESOURCES_H

#include <stdbool.h>
#include <stddef.h>

/* CPUs that run now; at least 1. */
int attn_online_cpus(void);

/* How many of `count` more threads can be made, by trying. */
int attn_startable_threads(int count);

/* Whether `count` more threads can be made, each of which takes `bytes` of address space beside its stack, by trying. */
bool attn_has_room_for_threads(int count, size_t bytes);

#endif
