/* SPDX-License-Identifier: MIT */
/* Text that is put together piece by piece in a buffer. */
#ifndef ATTN_TEXT_H
#define ATTN_TEXT_H

#include <assert.h>
#include <stdio.h>
#include <string.h>

/* Appends `more`, after `separator` unless the text is empty; cuts off what the buffer has no room for. */
static inline void attn_append(char *text, size_t bytes, const char *separator, const char *more) {
  const size_t used = strlen(text);
  assert(used < bytes);
  (void)snprintf(text + used, bytes - used, "%s%s", used ? separator : "", more);
}

#endif
