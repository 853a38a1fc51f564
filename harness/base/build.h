/* SPDX-License-Identifier: MIT */
/* libattn of some build: the one in attnbench, or another from its shared object. */
#ifndef BENCH_BUILD_H
#define BENCH_BUILD_H

#include <stdbool.h>
#include <stddef.h>

#include "attn/attn.h"

/* The functions of a build, as attn.h describes them. Structs carry their size, so builds of other versions do. */
typedef struct bench_build {
  const char *(*version)(void);
  const char *(*last_error)(void);
  attn_status (*plan_create)(const attn_problem *problem, const attn_options *options, attn_plan **plan);
  const char *(*plan_kernel)(const attn_plan *plan);
  const char *(*plan_kernel_of)(const attn_plan *plan, int64_t queries); /* NULL: a build before it */
  size_t (*plan_workspace)(const attn_plan *plan);
  attn_status (*plan_run)(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes);
  void (*plan_destroy)(attn_plan *plan);
  char suffix[8]; /* appended to the names of its kernels where a plug-in is loaded several times; else "" */
} bench_build;

extern const bench_build bench_own_build; /* in attnbench */

/* The same code at several places in memory. */
enum { BENCH_MOST_COPIES = 8 };
typedef struct bench_copies {
  bench_build build[BENCH_MOST_COPIES];
  int count;
  bool plugin; /* attnbench's own build, with the kernels of a plug-in under other names */
} bench_copies;

/* Loads a libattn.so, or that of a build folder, or a plug-in (a file, or FILE:SYMBOL) beside any others: each has its own
 * state. Copies of the file are loaded as well, as far as the system lets them. All stay loaded. False with a sentence in
 * error. */
bool bench_copies_load(const char *path, bench_copies *copies, char *error, size_t error_bytes);

/* A plan of that build. The strides of a state that the problem does not use are left out, because builds from before states
 * refuse what they do not know. */
attn_status bench_build_plan(const bench_build *build, const attn_problem *problem, const attn_options *options,
                             attn_plan **plan);

/* The name in `build` of the kernel that `other` calls `kernel`. */
enum { BENCH_BUILD_KERNEL = 80 };
void bench_build_kernel(const bench_build *build, const bench_build *other, const char *kernel,
                        char name[BENCH_BUILD_KERNEL]);

/* The kernel that the first copy runs under that name; NULL if a plug-in has none. */
const attn_kernel_info *bench_copies_kernel(const bench_copies *copies, const attn_kernel_info *kernel);

#endif
