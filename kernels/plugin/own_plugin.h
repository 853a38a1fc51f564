/* SPDX-License-Identifier: MIT */
/* Parts of libattn's own plug-ins beside kernels. Their form may change with any version, so such a plug-in serves one
 * version alone. */
#ifndef ATTN_PLUGIN_OWN_PLUGIN_H
#define ATTN_PLUGIN_OWN_PLUGIN_H

#include "kernels/product.h"

typedef struct attn_own_plugin {
  const char *version; /* the libattn that the plug-in belongs to: the first member in every version */
  const attn_product_kernel *const *products; /* dense layers */
  int product_count;
} attn_own_plugin;

#endif
