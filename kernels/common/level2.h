/* SPDX-License-Identifier: MIT */
/* The level 2 cache of this machine, for kernels that choose by it how they ask memory for lines. */
#ifndef ATTN_COMMON_LEVEL2_H
#define ATTN_COMMON_LEVEL2_H

#include <stdint.h>

/* Its bytes, as the operating system tells them; 0 where it does not. Asked for once per process, thread-safe. It may be
 * wrong in a virtual machine, so only speed may depend on it. */
int64_t attn_level2_bytes(void);

#endif
