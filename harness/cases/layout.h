/* SPDX-License-Identifier: MIT */
/* The layouts of q, k, v and o by name. */
#ifndef BENCH_LAYOUT_H
#define BENCH_LAYOUT_H

#include <stdbool.h>

#include "attn/attn.h"

/* Sets the strides of q, k, v and o. `layout` is one of the words of the axis `layout`. False if the tensors have more
 * numbers than any memory holds; then nothing is set. */
bool bench_layout_apply(attn_problem *problem, const char *layout);

#endif
