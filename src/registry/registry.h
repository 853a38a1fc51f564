/* SPDX-License-Identifier: MIT */
/* The kernels of this process: first this build's in the order of kernels.def, then those of plug-ins in the order in which
 * they came. An entry never changes, so that any thread may read while plug-ins are added. */
#ifndef ATTN_REGISTRY_H
#define ATTN_REGISTRY_H

#include "attn/kernel.h"
#include "kernels/product.h"

/* NULL beyond the last. */
const attn_kernel *attn_registry_get(int index);
const attn_kernel *attn_registry_find(const char *name);

/* NULL: the kernel computes the problem's operation and takes the problem. Else the reason: static text, or in `buffer`. */
const char *attn_kernel_refusal(const attn_kernel *kernel, const attn_problem *problem, char *buffer, size_t buffer_bytes);

/* The products of dense layers: the tiers' from high to low, then those of libraries. NULL beyond the last. */
const attn_product_kernel *attn_registry_product(int index);

/* Why a kernel that kernels.def names is not here; NULL if it is, or if kernels.def does not name it. Static or thread-local
 * text. */
const char *attn_registry_missing(const char *name);

/* Whether libattn has a plug-in of this name, there or not; and whether its kernels are part of this build. */
bool attn_registry_knows_plugin(const char *plugin);
bool attn_registry_has_built_in(const char *plugin);

/* Why libattn's plug-in of this name was not built; NULL if it was, or if there is no such plug-in. */
const char *attn_registry_not_built(const char *plugin);

/* Keeps the reason why libattn's plug-in could not be loaded, for attn_registry_missing(). */
void attn_registry_remember_failure(const char *plugin, const char *sentence);

/* Adds a plug-in that has been checked. The caller holds the lock of plug-ins and keeps `file` for ever. False if there is
 * no room. */
bool attn_registry_add(const attn_plugin *plugin, const char *file);

/* Whether that plug-in has been added. */
bool attn_registry_has(const attn_plugin *plugin);

#endif
