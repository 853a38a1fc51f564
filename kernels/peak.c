/* SPDX-License-Identifier: MIT */
/* The table of peak loops: peak_built.def, made by CMake from the tiers of this architecture, low to high. */
#include "kernels/peak.h"

#include <string.h>

#include "src/registry/cpu.h"

#define ATTN_PEAK(isa) extern const attn_peak_loop attn_peak_##isa[];
#include "peak_built.def"
#undef ATTN_PEAK

#define ATTN_PEAK(isa) attn_peak_##isa,
static const attn_peak_loop *const tables[] = {
#include "peak_built.def"
};
#undef ATTN_PEAK

enum { TABLE_COUNT = sizeof tables / sizeof *tables };

const attn_peak_loop *attn_peak_get(int index) {
  for (int t = 0; t < TABLE_COUNT; t++)
    for (const attn_peak_loop *loop = tables[t]; loop->isa; loop++)
      if (index-- == 0) return loop;
  return NULL;
}

bool attn_peak_usable(const char *isa) {
  const int tier = attn_tier_find(isa);
  return tier >= 0 && !attn_tier_unusable(tier, NULL) && !attn_tier_claim(tier);
}

static const attn_peak_loop *find_in(const attn_peak_loop *table, const char *dtype) {
  for (const attn_peak_loop *loop = table; loop->isa; loop++)
    if (strcmp(loop->dtype, dtype) == 0) return loop;
  return NULL;
}

const attn_peak_loop *attn_peak_for(const char *isa, const char *dtype) {
  for (int t = TABLE_COUNT - 1; t >= 0; t--) {
    if (attn_tier_find(tables[t]->isa) > attn_tier_find(isa)) continue;
    const attn_peak_loop *own = find_in(tables[t], dtype);
    if (!own) own = find_in(tables[t], "f32");
    if (own) return own;
  }
  return NULL;
}
