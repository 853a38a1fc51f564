/* SPDX-License-Identifier: MIT */
/* The few rows of flash_avx2 (kernels/common/tiles/flash_few.h). */
#include "vec_avx2.h"

#include "kernels/common/tiles/flash_few.h"

ATTN_FLASH_FEW_OF(avx2)
