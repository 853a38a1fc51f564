/* SPDX-License-Identifier: MIT */
/* Status names, the thread's last error sentence, and the version. */
#include <assert.h>
#include <stdarg.h>
#include <stdio.h>

#include "src/api/error.h"
#include "src/api/version.h"

static _Thread_local char last_error[2400];

attn_status attn_fail(attn_status status, const char *format, ...) {
  assert(status != ATTN_OK);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(last_error, sizeof last_error, format, arguments);
  va_end(arguments);
  return status;
}

const char *attn_last_error(void) { return last_error; }

const char *attn_status_name(attn_status status) {
  static const char *const names[] = {
      [ATTN_OK] = "ATTN_OK",
      [ATTN_INVALID_ARGUMENT] = "ATTN_INVALID_ARGUMENT",
      [ATTN_UNSUPPORTED] = "ATTN_UNSUPPORTED",
      [ATTN_UNKNOWN_KERNEL] = "ATTN_UNKNOWN_KERNEL",
      [ATTN_WORKSPACE_TOO_SMALL] = "ATTN_WORKSPACE_TOO_SMALL",
      [ATTN_OUT_OF_MEMORY] = "ATTN_OUT_OF_MEMORY",
  };
  size_t index = (size_t)status;
  return index < sizeof names / sizeof *names ? names[index] : "unknown status";
}

const char *attn_version(void) { return ATTN_VERSION_TEXT; }
