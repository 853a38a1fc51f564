/* SPDX-License-Identifier: MIT */
/* Operations: the tensors that each reads and writes. */
#include "kernels/common/problem/operation.h"

_Static_assert(ATTN_OPERANDS <= 32, "a bit for each operand");

#define BIT(operand) (UINT32_C(1) << ATTN_OPERAND_##operand)
/* The inputs of scores: operands, masks, and where rows and keys stand. */
#define SCORED                                                                                                           \
  (BIT(Q) | BIT(K) | BIT(K_SCALE) | BIT(BIAS) | BIT(MASK) | BIT(SCORES) | BIT(SCORE_WEIGHT) | BIT(KV_LEN) | BIT(Q_LEN) | \
   BIT(ROW_LEN) | BIT(CU_SEQLENS_Q) | BIT(CU_SEQLENS_K) | BIT(OFFSETS) | BIT(ALIBI_SLOPES) | BIT(PAGE_TABLE) |           \
   BIT(KV_NUM_BLOCKS) | BIT(KV_INDICES) | BIT(FULL_KV_NUM_BLOCKS) | BIT(FULL_KV_INDICES))

const attn_operation_info attn_operations[] = {
    [ATTN_FORWARD] = {.name = "forward",
                      .what = "attention",
                      .inputs = SCORED | BIT(V) | BIT(V_SCALE) | BIT(SINKS),
                      .outputs = BIT(O) | BIT(LSE) | BIT(STATE),
                      .linear_in_v = BIT(O)},
};

const int attn_operation_count = sizeof attn_operations / sizeof *attn_operations;
