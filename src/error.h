/* Errors: a status code for the program, one sentence for the person. */
#ifndef ATTN_ERROR_H
#define ATTN_ERROR_H

#include "attn/attn.h"

/* Remembers the sentence for attn_last_error() of this thread and returns `status`, so that callers write
 * `return attn_fail(ATTN_INVALID_ARGUMENT, "batch is %lld, ...", ...)`. */
attn_status attn_fail(attn_status status, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
