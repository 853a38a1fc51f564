/* SPDX-License-Identifier: MIT */
/* The interface of the kernels to OpenBLAS: its product, its name, and its threads. */
#ifndef ATTN_BLAS_OPENBLAS_H
#define ATTN_BLAS_OPENBLAS_H

#include "kernels/library/composed.h"

/* One sgemm. Between attn_openblas_hold() and attn_openblas_release() it runs on the calling thread alone. */
void attn_openblas_product(const library_product *product);

/* Holds OpenBLAS at one thread until every hold has been released, then restores its number of threads. OpenBLAS has one
 * number for the whole process, so other threads' calls to it run on one thread meanwhile. If other code sets the number in
 * between, that setting stays. */
void attn_openblas_hold(void);
void attn_openblas_release(void);

/* "OpenBLAS 0.3.21 Zen": the version of the library that is loaded, and the core whose code it chose. Filled in by the hook
 * `identify`. */
extern char attn_openblas_library[80];

/* Why the code that OpenBLAS chose (OPENBLAS_CORETYPE overrides its choice) may not run below `cap`; NULL if it may. */
const char *attn_openblas_unusable(const char *cap);

/* The number of threads that OpenBLAS has working memory for. */
int attn_openblas_most_threads(void);

/* A kernel's run: attention on blocks of rows (composed.h) by OpenBLAS's products. */
void attn_openblas_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                       void *scratch);

/* The hooks of each kernel here. */
extern const attn_library_hooks attn_openblas_hooks;

#endif
