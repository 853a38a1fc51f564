/* SPDX-License-Identifier: MIT */
#ifndef ATTN_LIBRARY_HOOKS_H
#define ATTN_LIBRARY_HOOKS_H

#include "attn/kernel.h"

/* The kernel's hooks for its library; hooks that are all NULL if it stands on none. */
static inline const attn_library_hooks *attn_hooks_of(const attn_kernel *kernel) {
  static const attn_library_hooks none = {0};
  return kernel->library ? kernel->library : &none;
}

#endif
