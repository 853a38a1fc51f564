/* SPDX-License-Identifier: MIT */
/* The tiers' attn_kv_rows_kernel: kv_rows_built.def, made by CMake from kernels/tiers.def, lowest tier first. */
#include "src/registry/kv_rows.h"

#include "src/registry/cpu.h"

#define ATTN_KV_ROWS(isa) extern const attn_kv_rows_kernel attn_kv_rows_##isa;
#include "kv_rows_built.def"
#undef ATTN_KV_ROWS

#define ATTN_KV_ROWS(isa) &attn_kv_rows_##isa,
static const attn_kv_rows_kernel *const writers[] = {
#include "kv_rows_built.def"
};
#undef ATTN_KV_ROWS

const attn_kv_rows_kernel *attn_kv_rows_below(const char *cap) {
  const attn_kv_rows_kernel *best = writers[0]; /* plain C runs everywhere */
  for (size_t i = 1; i < sizeof writers / sizeof *writers; i++)
    if (!attn_tier_unusable(attn_tier_find(writers[i]->isa), cap)) best = writers[i];
  return best;
}
