/* SPDX-License-Identifier: MIT */
/* The tiers' parts: tier_parts_built.def, made by CMake from kernels/tiers.def, lowest tier first. */
#include "src/registry/tier_parts.h"

#include "src/registry/cpu.h"

#define ATTN_KV_ROWS(isa)     extern const attn_kv_rows_kernel attn_kv_rows_##isa;
#define ATTN_ROWS(isa)        extern const attn_rows_kernel attn_rows_##isa;
#define ATTN_SCORE_STEPS(isa) extern const attn_score_steps attn_score_steps_##isa;
#include "tier_parts_built.def"
#undef ATTN_KV_ROWS
#undef ATTN_ROWS
#undef ATTN_SCORE_STEPS

/* A line has one part. */
typedef struct tier_line {
  const char *isa;
  attn_tier_parts has;
} tier_line;

#define ATTN_KV_ROWS(isa)     {#isa, {.kv_rows = &attn_kv_rows_##isa}},
#define ATTN_ROWS(isa)        {#isa, {.rows = &attn_rows_##isa}},
#define ATTN_SCORE_STEPS(isa) {#isa, {.score_steps = &attn_score_steps_##isa}},
static const tier_line lines[] = {
#include "tier_parts_built.def"
};
#undef ATTN_KV_ROWS
#undef ATTN_ROWS
#undef ATTN_SCORE_STEPS

/* Plain C has all parts and runs everywhere. */
attn_tier_parts attn_tier_parts_below(const char *cap) {
  attn_tier_parts best = {0};
  for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
    if (attn_tier_unusable(attn_tier_find(lines[i].isa), cap)) continue;
    if (lines[i].has.kv_rows) best.kv_rows = lines[i].has.kv_rows;
    if (lines[i].has.rows) best.rows = lines[i].has.rows;
    if (lines[i].has.score_steps) best.score_steps = lines[i].has.score_steps;
  }
  return best;
}
