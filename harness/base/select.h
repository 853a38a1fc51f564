/* SPDX-License-Identifier: MIT */
/* Which kernels a run takes: globs over names, algorithms and tiers, with errors that name the nearest right word. */
#ifndef BENCH_SELECT_H
#define BENCH_SELECT_H

#include "attn/attn.h"
#include "base/cli.h"

enum { BENCH_MAX_KERNELS = 64 };

typedef struct bench_selection {
  const attn_kernel_info *kernel[BENCH_MAX_KERNELS]; /* registry order: best first */
  int count;
  bool automatic; /* "auto" was named: the library's own choice is to be run as well */
} bench_selection;

typedef struct bench_filter {
  cli_list kernels;    /* names or globs, comma-separated; "!GLOB" excludes; "auto"; NAME=FILE[:SYMBOL] alone in its item */
  cli_list algorithms; /* globs, comma-separated */
  cli_list isas;       /* globs, comma-separated */
  cli_list load;       /* plug-ins to load first */
} bench_filter;

/* Loads plug-ins. Returns 0, BENCH_EXIT_USAGE (an unknown name) or BENCH_EXIT_NOTHING (globs that match nothing), said on
 * stderr. */
int bench_select(const bench_filter *filter, const char *command, bench_selection *selection);

/* The tiers of kernels/tiers.def, ended by NULL. */
extern const char *const bench_tier_names[];

#endif
