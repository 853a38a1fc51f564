/* SPDX-License-Identifier: MIT */
/* product_neon: dense layers with the register tile of vec_neon.h, 4 floats wide. */
#include "vec_neon.h"

#include "kernels/common/tiles/product_panel.h"

PRODUCT_KERNEL(neon);
