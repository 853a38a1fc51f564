/* SPDX-License-Identifier: MIT */
/* Text that is put together piece by piece in a buffer, and words of a text. */
#ifndef ATTN_TEXT_H
#define ATTN_TEXT_H

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* Appends `more`, after `separator` unless the text is empty; cuts off what the buffer has no room for. */
static inline void attn_append(char *text, size_t bytes, const char *separator, const char *more) {
  const size_t used = strlen(text);
  assert(used < bytes);
  (void)snprintf(text + used, bytes - used, "%s%s", used ? separator : "", more);
}

/* Whether `word` is one of the words of `text`, which blanks separate. */
static inline bool attn_has_word(const char *text, const char *word) {
  const size_t length = strlen(word);
  for (const char *at = text; (at = strstr(at, word)); at += length)
    if ((at == text || at[-1] == ' ') && (at[length] == 0 || at[length] == ' ')) return true;
  return false;
}

#endif
