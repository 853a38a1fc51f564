/* SPDX-License-Identifier: MIT */
/* Which tier's attn_score_steps a plan gets. */
#ifndef ATTN_SCORE_STEPS_H
#define ATTN_SCORE_STEPS_H

#include "kernels/library/score_steps.h"

/* The steps of the highest tier that this CPU can run and that is not above `cap` (NULL = no cap); never NULL. */
const attn_score_steps *attn_score_steps_below(const char *cap);

#endif
