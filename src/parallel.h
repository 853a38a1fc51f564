/* One parallel loop: the caller's pool, OpenMP where built in, else a plain loop. */
#ifndef ATTN_PARALLEL_H
#define ATTN_PARALLEL_H

#include "attn/extend.h" /* attn_parallel_run, attn_parallel_default_threads */

/* Checks the options and fills in the number of threads; kernel and max_isa are not kept. asked may be NULL. */
attn_status attn_parallel_resolve(const attn_options *asked, attn_options *options);

#endif
