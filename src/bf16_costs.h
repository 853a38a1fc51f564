/* SPDX-License-Identifier: MIT */
/* What kernels take on bfloat16 without a tile unit where VDPBF16PS is quicker than widening (bf16_probe.h). */
#ifndef ATTN_BF16_COSTS_H
#define ATTN_BF16_COSTS_H

#include "cost_terms.h"

enum { ATTN_BF16_COSTS = 4 };

extern const attn_kernel_costs attn_bf16_costs[ATTN_BF16_COSTS];

#endif
