/* SPDX-License-Identifier: MIT */
/* One parallel loop: the caller's pool, OpenMP where built in, else a plain loop. */
#ifndef ATTN_PARALLEL_H
#define ATTN_PARALLEL_H

#include "attn/extend.h" /* attn_parallel_run, _resolve and _default_threads */

#endif
