/* SPDX-License-Identifier: MIT */
/* Kernels from plug-ins: libattn's own plug-ins where they exist, and those that --load names. */
#ifndef BENCH_PLUGINS_H
#define BENCH_PLUGINS_H

#include "base/cli.h"

/* A row of an option table; `list` points to a cli_list. */
#define BENCH_LOAD_OPTION(list) \
  { CLI_LIST, 0, "load", "FILE[:SYMBOL]", "repeatable: a plug-in with further kernels, ./libmine.so", list }

/* Loads libattn's own plug-ins and then each file; the former may be missing, and attn_kernel_not_built() says why. Returns
 * 0 or, having said why a file cannot be loaded, BENCH_EXIT_USAGE. */
int bench_plugins_load(const cli_list *files, const char *command);

#endif
