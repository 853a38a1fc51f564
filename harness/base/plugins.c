/* SPDX-License-Identifier: MIT */
#include "base/plugins.h"

#include "attn/attn.h"
#include "base/handlers.h"

int bench_plugins_load(const cli_list *files, const char *command) {
  const char *name;
  for (int i = 0; (name = attn_plugin_name(i)); i++) (void)attn_load_kernels(name);
  for (int i = 0; i < files->count; i++) {
    if (attn_load_kernels(files->item[i]) != ATTN_OK)
      return cli_usage_error(command, "plug-in '%s': %s", files->item[i], attn_last_error());
    const int number = bench_handlers_other();
    if (number) return cli_usage_error(command, "plug-in '%s': " BENCH_OTHER_HANDLER, files->item[i], number);
  }
  return 0;
}
