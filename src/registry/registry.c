/* SPDX-License-Identifier: MIT */
/* The registry. CMake makes its tables from kernels/kernels.def, kernels/libraries.def and kernels/tiers.def:
 * kernels_built.def, plugins_built.def and product_built.def. */
#include "src/registry/registry.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>

#include "kernels/common/problem/operation.h"
#include "kernels/common/problem/pieces.h"
#include "kernels/plugin/own_plugin.h"
#include "src/registry/library_hooks.h"
#include "src/registry/plugin.h"

/* ---- What is built ---- */

#define ATTN_KERNEL(name, folder) extern const attn_kernel attn_##name;
#define ATTN_KERNEL_NOT_BUILT(name, reason)
#define ATTN_KERNEL_IN_PLUGIN(name, plugin)
#include "kernels_built.def"
#undef ATTN_KERNEL

#define ATTN_KERNEL(name, folder) &attn_##name,
static const attn_kernel *const kernels[] = {
#include "kernels_built.def"
};
#undef ATTN_KERNEL
#undef ATTN_KERNEL_NOT_BUILT
#undef ATTN_KERNEL_IN_PLUGIN

enum { KERNEL_COUNT = sizeof kernels / sizeof *kernels };

/* A kernel that kernels.def names, but libattn does not hold: not built for a reason, or in a plug-in. */
typedef struct missing_kernel {
  const char *name, *reason, *plugin;
} missing_kernel;

#define ATTN_KERNEL(name, folder)
#define ATTN_KERNEL_NOT_BUILT(name, reason) {#name, reason, NULL},
#define ATTN_KERNEL_IN_PLUGIN(name, plugin) {#name, NULL, #plugin},
static const missing_kernel missing[] = {
#include "kernels_built.def"
    {NULL, NULL, NULL},
};

#define ATTN_PRODUCT(isa) extern const attn_product_kernel attn_product_##isa;
#include "product_built.def"
#undef ATTN_PRODUCT

#define ATTN_PRODUCT(isa) &attn_product_##isa,
static const attn_product_kernel *const products[] = {
#include "product_built.def"
};
#undef ATTN_PRODUCT

enum { PRODUCT_COUNT = sizeof products / sizeof *products };

/* libattn's own plug-ins. */
typedef struct own_plugin {
  const char *name;
  bool built_in;
  const char *not_built;         /* why, or NULL */
  _Atomic(const char *) failure; /* why the first attempt to load it failed, or NULL */
} own_plugin;

#define ATTN_PLUGIN(name, built_in, not_built) {#name, built_in, not_built, NULL},
static own_plugin plugins[] = {
#include "plugins_built.def"
};
#undef ATTN_PLUGIN

enum { PLUGIN_COUNT = sizeof plugins / sizeof *plugins };

static own_plugin *find_plugin(const char *name) {
  for (int i = 0; i < PLUGIN_COUNT; i++)
    if (strcmp(plugins[i].name, name) == 0) return &plugins[i];
  return NULL;
}

bool attn_registry_knows_plugin(const char *plugin) { return find_plugin(plugin); }

bool attn_registry_has_built_in(const char *plugin) { return find_plugin(plugin) && find_plugin(plugin)->built_in; }

const char *attn_registry_not_built(const char *plugin) {
  return find_plugin(plugin) ? find_plugin(plugin)->not_built : NULL;
}

void attn_registry_remember_failure(const char *plugin, const char *sentence) {
  own_plugin *p = find_plugin(plugin);
  if (p && !p->failure) p->failure = strdup(sentence);
}

/* ---- What plug-ins have added: entries first, then the count, so that readers need no lock ---- */

enum { MOST_ADDED = 256 };

static struct {
  const attn_kernel *kernel[MOST_ADDED];
  const char *file[MOST_ADDED]; /* file of the kernel */
  _Atomic int kernels;
  const attn_product_kernel *product[MOST_ADDED];
  _Atomic int products;
  const attn_plugin *plugin[MOST_ADDED]; /* read and written under the lock of plug-ins */
  int plugins;
} added;

bool attn_registry_has(const attn_plugin *plugin) {
  for (int i = 0; i < added.plugins; i++)
    if (added.plugin[i] == plugin) return true;
  return false;
}

bool attn_registry_add(const attn_plugin *plugin, const char *file) {
  const int first = added.kernels, first_product = added.products;
  const int own_products = plugin->own ? plugin->own->product_count : 0;
  if (plugin->kernel_count > MOST_ADDED - first || own_products > MOST_ADDED - first_product) return false;
  for (int i = 0; i < plugin->kernel_count; i++) {
    added.kernel[first + i] = plugin->kernels[i];
    added.file[first + i] = file;
  }
  for (int i = 0; i < own_products; i++) added.product[first_product + i] = plugin->own->products[i];
  added.plugin[added.plugins++] = plugin;
  added.products = first_product + own_products;
  added.kernels = first + plugin->kernel_count;
  return true;
}

/* ---- Both ---- */

const attn_kernel *attn_registry_get(int index) {
  if (index < KERNEL_COUNT) return index >= 0 ? kernels[index] : NULL;
  return index - KERNEL_COUNT < added.kernels ? added.kernel[index - KERNEL_COUNT] : NULL;
}

const attn_kernel *attn_registry_find(const char *name) {
  const attn_kernel *kernel;
  for (int i = 0; name && (kernel = attn_registry_get(i)); i++)
    if (strcmp(kernel->info.name, name) == 0) return kernel;
  return NULL;
}

/* Why the kernel rejects what it gets of the problem (pieces.h); NULL = it takes it. */
static const char *rejection(const attn_kernel *kernel, const attn_problem *problem, char *buffer, size_t buffer_bytes) {
  if (attn_lists_keys(problem) && !kernel->key_blocks)
    return "it visits all keys: ATTN_USE_KEY_BLOCKS and ATTN_USE_FULL_KEY_BLOCKS must not be set";
  if (problem->dropout > 0 && !kernel->dropout) return "it drops nothing: attn_problem.dropout must be 0";
  if (attn_has_channel_factors(problem)) {
    const attn_problem inner = attn_without_channel_factors(problem);
    return rejection(kernel, &inner, buffer, buffer_bytes);
  }
  if (!attn_has_pieces(problem)) return kernel->rejects(problem, buffer, buffer_bytes);
  const attn_problem pieces[] = {attn_early_keys(problem), attn_later_keys(problem)};
  const char *reason = kernel->rejects(&pieces[0], buffer, buffer_bytes);
  return reason ? reason : kernel->rejects(&pieces[1], buffer, buffer_bytes);
}

const char *attn_kernel_refusal(const attn_kernel *kernel, const attn_problem *problem, char *buffer, size_t buffer_bytes) {
  if (kernel->operation == problem->operation) return rejection(kernel, problem, buffer, buffer_bytes);
  snprintf(buffer, buffer_bytes, "it computes %s, not %s",
           attn_operation_exists(kernel->operation) ? attn_operations[kernel->operation].what : "something else",
           attn_operations[problem->operation].what);
  return buffer;
}

/* product_built.def goes from low to high. */
const attn_product_kernel *attn_registry_product(int index) {
  if (index < PRODUCT_COUNT) return products[PRODUCT_COUNT - 1 - index];
  return index - PRODUCT_COUNT < added.products ? added.product[index - PRODUCT_COUNT] : NULL;
}

static const char *reason_of(const missing_kernel *m) {
  static _Thread_local char text[1400];
  if (m->reason) return m->reason;
  const char *failure = find_plugin(m->plugin)->failure;
  if (failure)
    snprintf(text, sizeof text, "its plug-in cannot be loaded: %s", failure);
  else
    snprintf(text, sizeof text, "it is in the plug-in '%s', which attn_load_kernels() or ATTN_LOAD=%s would load", m->plugin,
             m->plugin);
  return text;
}

const char *attn_registry_missing(const char *name) {
  for (const missing_kernel *m = missing; m->name; m++)
    if (strcmp(m->name, name) == 0) return attn_registry_find(name) ? NULL : reason_of(m);
  return NULL;
}

/* ---- Public ---- */

static const attn_kernel_info *identified(const attn_kernel *kernel) {
  if (kernel && attn_hooks_of(kernel)->identify) kernel->library->identify();
  return kernel ? &kernel->info : NULL;
}

int attn_kernel_count(void) {
  attn_plugins_load_named();
  return KERNEL_COUNT + added.kernels;
}

const attn_kernel_info *attn_kernel_get(int index) {
  attn_plugins_load_named();
  return identified(attn_registry_get(index));
}

const attn_kernel_info *attn_kernel_find(const char *name) {
  attn_plugins_load_named();
  return identified(attn_registry_find(name));
}

attn_operation attn_kernel_operation(const attn_kernel_info *info) {
  const attn_kernel *kernel = info ? attn_registry_find(info->name) : NULL;
  return kernel ? kernel->operation : ATTN_FORWARD;
}

const char *attn_kernel_file(const attn_kernel_info *kernel) {
  for (int i = 0; kernel && i < added.kernels; i++)
    if (&added.kernel[i]->info == kernel) return added.file[i];
  return NULL;
}

const char *attn_kernel_not_built(int index, const char **reason) {
  for (const missing_kernel *m = missing; m->name; m++) {
    if (attn_kernel_find(m->name) || index-- != 0) continue;
    if (reason) *reason = reason_of(m);
    return m->name;
  }
  return NULL;
}

const char *attn_plugin_name(int index) { return index >= 0 && index < PLUGIN_COUNT ? plugins[index].name : NULL; }
