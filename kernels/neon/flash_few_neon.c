/* SPDX-License-Identifier: MIT */
/* The few rows of flash_neon (kernels/common/tiles/flash_few.h). */
#include "vec_neon.h"

#include "kernels/common/tiles/flash_few.h"

ATTN_FLASH_FEW_OF(neon)
