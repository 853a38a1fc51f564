/* SPDX-License-Identifier: MIT */
/* product_avx2: dense layers with the register tile of vec_avx2.h, 8 floats wide. */
#include "vec_avx2.h"

#include "kernels/common/tiles/product_panel.h"

PRODUCT_KERNEL(avx2);
