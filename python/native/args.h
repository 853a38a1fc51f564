/* SPDX-License-Identifier: MIT */
/* Facts that the arrays of a call tell when it runs. Needs nothing of Python. */
#ifndef LIBATTN_ARGS_H
#define LIBATTN_ARGS_H

#include <stdbool.h>

#include "attn/attn.h"

/* The tokens of the longest sequence. */
int64_t args_longest(const int32_t *borders, int64_t sequences);

/* Packed tokens of no sequence, which the library does not write: bytes of 0, as of rows without keys, in an output of so
 * many elements; in an lse -inf. */
void args_clear_padding(const attn_problem *p, const attn_args *args, bool is_lse, void *out, int64_t elements, int size);

/* With KV_SCALES both factors are given: the one that is missing is 1. */
void args_complete_scales(const attn_problem *p, attn_args *args);

#endif
