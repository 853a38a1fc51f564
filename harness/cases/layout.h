/* SPDX-License-Identifier: MIT */
/* The layouts of q, k, v and o by name. */
#ifndef BENCH_LAYOUT_H
#define BENCH_LAYOUT_H

#include "attn/attn.h"

/* Sets the strides of q, k, v and o. `layout` is one of the words of the axis `layout`. */
void bench_layout_apply(attn_problem *problem, const char *layout);

#endif
