/* SPDX-License-Identifier: MIT */
/* The export of a plug-in of libattn: the kernels and products that plugin_built.def names, which CMake makes for each
 * plug-in from kernels.def and the files of its folder. */
#include "host.h"
#include "own_plugin.h"
#include "src/api/version.h"

#define ATTN_KERNEL(name, folder) extern const attn_kernel attn_##name;
#define ATTN_PRODUCT(name)        extern const attn_product_kernel attn_product_##name;
#include "plugin_built.def"
#undef ATTN_KERNEL
#undef ATTN_PRODUCT

#define ATTN_KERNEL(name, folder) &attn_##name,
#define ATTN_PRODUCT(name)
static const attn_kernel *const kernels[] = {
#include "plugin_built.def"
};
#undef ATTN_KERNEL
#undef ATTN_PRODUCT

#define ATTN_KERNEL(name, folder)
#define ATTN_PRODUCT(name) &attn_product_##name,
static const attn_product_kernel *const products[] = {
#include "plugin_built.def"
    NULL,
};

static const attn_own_plugin own = {
    .version = ATTN_VERSION_TEXT,
    .products = products,
    .product_count = sizeof products / sizeof *products - 1,
};

extern ATTN_PLUGIN_EXPORT const attn_plugin attn_plugin_entry;
const attn_plugin attn_plugin_entry = {
    ATTN_PLUGIN_SIZES,          .kernels = kernels, .kernel_count = sizeof kernels / sizeof *kernels,
    .start = attn_plugin_start, .own = &own,
};
