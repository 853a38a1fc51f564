/* SPDX-License-Identifier: MIT */
/* The few rows of flash_portable (kernels/common/tiles/flash_few.h). */
#include "vec_portable.h"

#include "kernels/common/tiles/flash_few.h"

ATTN_FLASH_FEW_OF(portable)
