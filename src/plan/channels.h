/* SPDX-License-Identifier: MIT */
/* Plans for factors of channels: queries take those of K, a plan without them runs, and O takes those of V. */
#ifndef ATTN_PLAN_CHANNELS_H
#define ATTN_PLAN_CHANNELS_H

#include "src/choice/choice.h"

typedef struct attn_channels attn_channels;

/* The problem has attn_has_channel_factors() (kernels/common/problem/pieces.h). */
attn_status attn_channels_create(const attn_problem *problem, const attn_choice *choice, const attn_options *options,
                                 attn_channels **channels);
void attn_channels_destroy(attn_channels *channels);

size_t attn_channels_workspace(const attn_channels *channels);

/* The plan without the factors. */
const attn_plan *attn_channels_plan(const attn_channels *channels);

/* Writes what has factors, and the plan. */
void attn_channels_describe(const attn_channels *channels, char *text, size_t bytes);

/* The arguments have been read, and the workspace is large enough. */
void attn_channels_run(const attn_channels *channels, const attn_args *args, void *workspace);

#endif
