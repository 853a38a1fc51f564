/* SPDX-License-Identifier: MIT */
/* Limits of the system are found by trying: threads and address space are limited by the user's, the process's and the
 * control group's, and what is left of each depends on what others hold. */
#define _DEFAULT_SOURCE /* MAP_ANONYMOUS */
#include "src/api/resources.h"

#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#ifndef _WIN32
#include <sys/mman.h>
#endif
#include <unistd.h>

static intptr_t start_in_turn(intptr_t count);

static void *start_the_rest(void *count) { return (void *)start_in_turn((intptr_t)count - 1); }

/* Each thread starts the next and waits for it, so that all are there at once. Returns how many could be started. */
static intptr_t start_in_turn(intptr_t count) {
  pthread_t next;
  void *started = NULL;
  if (count == 0 || pthread_create(&next, NULL, start_the_rest, (void *)count)) return 0;
  pthread_join(next, &started);
  return 1 + (intptr_t)started;
}

#ifdef _WIN32
int attn_online_cpus(void) { return 1; }

int attn_startable_threads(int count) { return (int)start_in_turn(count); }

bool attn_has_room_for_threads(int count, size_t bytes) { return (void)bytes, attn_startable_threads(count) == count; }
#else
int attn_online_cpus(void) {
  const long cpus = sysconf(_SC_NPROCESSORS_ONLN);
  return cpus > 0 ? (int)cpus : 1;
}

int attn_startable_threads(int count) {
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's signals are not for these threads */
  const int startable = (int)start_in_turn(count);
  pthread_sigmask(SIG_SETMASK, &before, NULL);
  return startable;
}

bool attn_has_room_for_threads(int count, size_t bytes) {
  void *room = mmap(NULL, (size_t)count * bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0); /* takes no memory */
  const bool has_room = room != MAP_FAILED && attn_startable_threads(count) == count;
  if (room != MAP_FAILED) munmap(room, (size_t)count * bytes);
  return has_room;
}
#endif
