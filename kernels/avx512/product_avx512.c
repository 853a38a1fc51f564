/* SPDX-License-Identifier: MIT */
/* product_avx512: dense layers with the register tile of vec_avx512.h, 16 floats wide. */
#include "vec_avx512.h"

#include "kernels/common/tiles/product_panel.h"

PRODUCT_KERNEL(avx512);
