/* SPDX-License-Identifier: MIT */
/* The few rows of flash_avx512 (kernels/common/tiles/flash_few.h). */
#include "vec_avx512.h"

#include "kernels/common/tiles/flash_few.h"

ATTN_FLASH_FEW_OF(avx512)
