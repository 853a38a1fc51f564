/* SPDX-License-Identifier: MIT */
/* The few rows of flash_avx512bf16 (kernels/common/tiles/flash_few.h). */
#include "few_lanes_bf16.h"
#include "kernels/common/tiles/flash_few.h"

ATTN_FLASH_FEW_OF(avx512bf16)
