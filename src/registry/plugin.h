/* SPDX-License-Identifier: MIT */
/* Loading of plug-ins, and ATTN_LOAD. */
#ifndef ATTN_PLUGIN_H
#define ATTN_PLUGIN_H

#include "attn/attn.h"

enum { ATTN_KERNEL_NAME_BYTES = 60 /* bytes of a kernel's name, its 0 included, at most */ };

/* Loads what ATTN_LOAD names, the first time. Costs one load from memory after that. */
void attn_plugins_load_named(void);

/* Loads them likewise. Returns ATTN_OK, or the error of the first one that could not be loaded. */
attn_status attn_plugins_check_named(void);

/* Loads a plug-in from a path as attn_load_kernels() does, but each kernel NAME becomes NAME + suffix, so that several
 * versions of one plug-in, or copies of it, stand side by side. Its products are left out. `name` is what the plug-in is
 * called. */
attn_status attn_plugins_load_as(const char *path, const char *suffix, const char *name);

#endif
