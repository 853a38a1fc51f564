/* SPDX-License-Identifier: MIT */
/* Options that are kept to make plans by later. The caller may free the strings in them. */
#ifndef ATTN_OWN_OPTIONS_H
#define ATTN_OWN_OPTIONS_H

#include <stdio.h>

#include "attn/attn.h"

/* The strings of attn_options. */
typedef struct attn_option_names {
  char kernel[64], max_isa[32];
} attn_option_names;

/* No kernel has a name that is too long to keep. Cut off, it is still unknown. */
static inline const char *attn_keep_name(char *memory, size_t bytes, const char *text) {
  if (!text) return NULL;
  snprintf(memory, bytes, "%s", text);
  return memory;
}

/* Copies the strings of *options to *names, and makes it point there. */
static inline void attn_own_options(attn_options *options, attn_option_names *names) {
  options->kernel = attn_keep_name(names->kernel, sizeof names->kernel, options->kernel);
  options->max_isa = attn_keep_name(names->max_isa, sizeof names->max_isa, options->max_isa);
}

#endif
