/* SPDX-License-Identifier: MIT */
/* The functions of src/registry/cpu.h in a plug-in: those of the library that has loaded it. So a kernel calls the same
 * names whether it is part of libattn or of a plug-in, and all ask one library what this CPU can do. */
#include "host.h"

#include "src/registry/cpu.h"

static const attn_host *host;

const char *attn_plugin_start(const attn_host *loader) {
  host = loader;
  return NULL;
}

int attn_tier_find(const char *isa) { return host->tier_find(isa); }

const char *attn_tier_unusable(int tier, const char *cap) { return host->tier_unusable(tier, cap); }

const char *attn_tier_best(void) { return host->tier_best(); }
