/* SPDX-License-Identifier: MIT */
/* The tiers' attn_score_steps: score_steps_built.def, made by CMake from kernels/tiers.def, lowest tier first. */
#include "src/registry/score_steps.h"

#include "src/registry/cpu.h"

#define ATTN_SCORE_STEPS(isa) extern const attn_score_steps attn_score_steps_##isa;
#include "score_steps_built.def"
#undef ATTN_SCORE_STEPS

#define ATTN_SCORE_STEPS(isa) &attn_score_steps_##isa,
static const attn_score_steps *const steps[] = {
#include "score_steps_built.def"
};
#undef ATTN_SCORE_STEPS

const attn_score_steps *attn_score_steps_below(const char *cap) {
  const attn_score_steps *best = steps[0]; /* plain C runs everywhere */
  for (size_t i = 1; i < sizeof steps / sizeof *steps; i++)
    if (!attn_tier_unusable(attn_tier_find(steps[i]->isa), cap)) best = steps[i];
  return best;
}
