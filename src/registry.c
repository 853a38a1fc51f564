/* SPDX-License-Identifier: MIT */
/* The registry: kernels_built.def, made by CMake from kernels/kernels.def, turned into a table. */
#include "registry.h"

#include <string.h>

#define ATTN_KERNEL(name, folder) extern const attn_kernel attn_##name;
#define ATTN_KERNEL_NOT_BUILT(name, reason)
#include "kernels_built.def"
#undef ATTN_KERNEL
#undef ATTN_KERNEL_NOT_BUILT

#define ATTN_KERNEL(name, folder) &attn_##name,
#define ATTN_KERNEL_NOT_BUILT(name, reason)
static const attn_kernel *const kernels[] = {
#include "kernels_built.def"
};
#undef ATTN_KERNEL
#undef ATTN_KERNEL_NOT_BUILT

enum { KERNEL_COUNT = sizeof kernels / sizeof *kernels };

typedef struct missing_kernel {
  const char *name, *reason;
} missing_kernel;

#define ATTN_KERNEL(name, folder)
#define ATTN_KERNEL_NOT_BUILT(name, reason) {#name, reason},
static const missing_kernel missing[] = {
#include "kernels_built.def"
    {NULL, NULL},
};

const attn_kernel *attn_registry_get(int index) { return index >= 0 && index < KERNEL_COUNT ? kernels[index] : NULL; }

const attn_kernel *attn_registry_find(const char *name) {
  for (int i = 0; name && i < KERNEL_COUNT; i++)
    if (strcmp(kernels[i]->info.name, name) == 0) return kernels[i];
  return NULL;
}

static const attn_kernel_info *identified(const attn_kernel *kernel) {
  if (kernel && kernel->identify) kernel->identify();
  return kernel ? &kernel->info : NULL;
}

int attn_kernel_count(void) { return KERNEL_COUNT; }

const attn_kernel_info *attn_kernel_get(int index) { return identified(attn_registry_get(index)); }

const attn_kernel_info *attn_kernel_find(const char *name) { return identified(attn_registry_find(name)); }

const char *attn_kernel_not_built(int index, const char **reason) {
  for (int i = 0; missing[i].name; i++) {
    if (i != index) continue;
    if (reason) *reason = missing[i].reason;
    return missing[i].name;
  }
  return NULL;
}
