/* SPDX-License-Identifier: MIT */
/* flash_backward_amx: gradients of attention on bf16 inputs in the tile unit. The loops are
 * kernels/common/backward/flash_backward.h, on pairs of values; a tile of theirs is two tiles of sums high, and products are
 * 32 x 32 sums at a time: each tile that is loaded takes part in two of them. */
#define AVX512_TILE_ROWS 32
#include "kernels/avx512bf16/pairs_avx512bf16.h"
#include "tiles_amx.h"

#define PRODUCT_WHOLE 16 /* pairs that a tile product sums over */

/* sum[i][v] += sum_k a[i * a_stride + k] b[k * b_stride + v], pairs in place of floats. An odd last vector of sums has a
 * neighbour that nobody uses. */
static void product_whole(vec sum[TILE_ROWS][TILE_VECS], const float *a, int64_t a_stride, const float *b, int64_t b_stride,
                          int64_t depth, const int vecs) {
  const int64_t sums = sizeof sum[0], half = TILE_ROWS / 2, a_bytes = a_stride * (int64_t)sizeof *a;
  const int64_t b_bytes = b_stride * (int64_t)sizeof *b;
  tiles_see_stores();
  for (int v = 0; v < vecs; v += 2) {
    _tile_loadd(0, &sum[0][v], sums);
    _tile_loadd(1, &sum[0][v + 1], sums);
    _tile_loadd(2, &sum[half][v], sums);
    _tile_loadd(3, &sum[half][v + 1], sums);
    for (int64_t k = 0; k < depth; k += PRODUCT_WHOLE) {
      const float *right = b + k * b_stride + v * VEC_LANES;
      _tile_loadd(4, a + k, a_bytes);
      _tile_loadd(5, a + half * a_stride + k, a_bytes);
      _tile_loadd(6, right, b_bytes);
      _tile_loadd(7, right + VEC_LANES, b_bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_dpbf16ps(1, 4, 7);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
    _tile_stored(0, &sum[0][v], sums);
    _tile_stored(1, &sum[0][v + 1], sums);
    _tile_stored(2, &sum[half][v], sums);
    _tile_stored(3, &sum[half][v + 1], sums);
  }
  tiles_see_stores();
}

#define PAIR_OPERANDS
#define OPERAND_STEP 32
#define TURNED_SUMS
#include "kernels/common/backward/flash_backward.h"

static void flash_backward_amx_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                   void *scratch) {
  _tile_loadconfig(&eight_tiles);
  backward_run(schedule, args, task, unit_memory, scratch);
  _tile_release();
}

const attn_kernel attn_flash_backward_amx = {
    .info = {.name = "flash_backward_amx",
             .algorithm = "flash_backward",
             .isa = "amx",
             .library = "",
             .summary = "gradients of attention on bf16 inputs in the tile unit, P and dS rounded to bf16, no score matrix; "
                        "32 queries x 64 keys at a time",
             .numerics = {.exp_error = 0x1p-22, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}},
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = backward_takes_bf16,
    .plan = backward_plan,
    .run = flash_backward_amx_run,
    .terms = BACKWARD_KERNEL_TERMS,
};
