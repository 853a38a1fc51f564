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
  size_t (*plan_workspace)(const attn_plan *plan);
  attn_status (*plan_run)(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes);
  void (*plan_destroy)(attn_plan *plan);
} bench_build;

extern const bench_build bench_own_build; /* in attnbench */

/* Loads a libattn.so, or that of a build folder, beside any others: each has its own state. It stays loaded. False with a
 * sentence in error. */
bool bench_build_load(const char *path, bench_build *build, char *error, size_t error_bytes);

#endif
