/* SPDX-License-Identifier: MIT */
/* ggml's GGML_OP_FLASH_ATTN_EXT as a call of libattn. */
#ifndef LIBATTN_GGML_ATTENTION_H
#define LIBATTN_GGML_ATTENTION_H

#include <stdbool.h>

#include "ggml.h"

/* Whether libattn computes the operation. It looks at types and shapes alone, and is quick. */
bool attention_takes(const struct ggml_tensor *op);

/* Computes it with that many threads. False where there is no memory, or the library refuses; the reason is written to
 * standard error. */
bool attention_compute(const struct ggml_tensor *op, int threads);

#endif
