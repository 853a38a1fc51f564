/* SPDX-License-Identifier: MIT */
#include "base/plugins.h"

#include "attn/attn.h"

int bench_plugins_load(const cli_list *files, const char *command) {
  const char *name;
  for (int i = 0; (name = attn_plugin_name(i)); i++) (void)attn_load_kernels(name);
  for (int i = 0; i < files->count; i++)
    if (attn_load_kernels(files->item[i]) != ATTN_OK)
      return cli_usage_error(command, "plug-in '%s': %s", files->item[i], attn_last_error());
  return 0;
}
