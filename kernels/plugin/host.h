/* SPDX-License-Identifier: MIT */
#ifndef ATTN_PLUGIN_HOST_H
#define ATTN_PLUGIN_HOST_H

#include "attn/kernel.h"

/* attn_plugin.start of libattn's own plug-ins: remembers what the library offers. */
const char *attn_plugin_start(const attn_host *loader);

#endif
