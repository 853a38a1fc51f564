/* SPDX-License-Identifier: MIT */
/* Where the threads come from (threads.c). src/plan/parallel.c declares the functions that it takes from there. */
#ifndef LIBATTN_THREADS_H
#define LIBATTN_THREADS_H

#include <stdbool.h>

/* The file of the OpenMP runtime whose threads are used, or "pool". */
const char *threads_source(void);

/* Use the pool even where a runtime is there. */
void threads_refuse_openmp(bool refuse);

#endif
