/* SPDX-License-Identifier: MIT */
/* Which tier writes the rows of new tokens. */
#ifndef ATTN_REGISTRY_KV_ROWS_H
#define ATTN_REGISTRY_KV_ROWS_H

#include "kernels/kv_rows.h"

/* The writer of the highest tier that this CPU can run and that is not above `cap` (NULL = no cap); never NULL. */
const attn_kv_rows_kernel *attn_kv_rows_below(const char *cap);

#endif
