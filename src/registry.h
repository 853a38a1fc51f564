/* SPDX-License-Identifier: MIT */
/* The kernels of this build, in the order of kernels.def. */
#ifndef ATTN_REGISTRY_H
#define ATTN_REGISTRY_H

#include "attn/kernel.h"

/* NULL beyond the last. */
const attn_kernel *attn_registry_get(int index);
const attn_kernel *attn_registry_find(const char *name);

#endif
