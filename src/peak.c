/* SPDX-License-Identifier: MIT */
/* The table of peak loops, from the tiers of this architecture. */
#include "kernels/peak.h"

#include <stddef.h>
#include <string.h>

#include "cpu.h"
#include "tiers.h"

#define ATTN_TIER(isa, folder, architecture, flags, features) ATTN_IF_##architecture(attn_peak_##isa, )
static const attn_peak_loop *const tables[] = {
#include "kernels/tiers.def"
};
#undef ATTN_TIER

enum { TABLE_COUNT = sizeof tables / sizeof *tables };

const attn_peak_loop *attn_peak_get(int index) {
  for (int t = 0; t < TABLE_COUNT; t++)
    for (const attn_peak_loop *loop = tables[t]; loop->isa; loop++)
      if (index-- == 0) return loop;
  return NULL;
}

static const attn_peak_loop *find_in(int tier, const char *dtype) {
  for (const attn_peak_loop *loop = tables[tier]; loop->isa; loop++)
    if (strcmp(loop->dtype, dtype) == 0) return loop;
  return NULL;
}

const attn_peak_loop *attn_peak_for(const char *isa, const char *dtype) {
  for (int tier = attn_tier_find(isa); tier >= 0; tier--) {
    const attn_peak_loop *own = find_in(tier, dtype);
    if (!own) own = find_in(tier, "f32");
    if (own) return own;
  }
  return NULL;
}
