/* SPDX-License-Identifier: MIT */
/* The parts of a tier beside kernels and products. */
#ifndef ATTN_TIER_PARTS_H
#define ATTN_TIER_PARTS_H

#include "kernels/kv_rows.h"
#include "kernels/library/score_steps.h"
#include "kernels/rows.h"

typedef struct attn_tier_parts {
  const attn_kv_rows_kernel *kv_rows;
  const attn_rows_kernel *rows;
  const attn_score_steps *score_steps;
} attn_tier_parts;

/* Each from the highest tier that has it, that this CPU can run and that is not above `cap` (NULL = no cap); never NULL. */
attn_tier_parts attn_tier_parts_below(const char *cap);

#endif
