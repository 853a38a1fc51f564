/* SPDX-License-Identifier: MIT */
/* Operations: the tensors that each reads and writes. */
#include "kernels/common/problem/operation.h"

_Static_assert(ATTN_OPERANDS <= 64, "a bit for each operand");

#define BIT(operand) (UINT64_C(1) << ATTN_OPERAND_##operand)
/* The inputs of scores: operands, masks, and where rows and keys stand. */
#define SCORED                                                                                                           \
  (BIT(Q) | BIT(K) | BIT(K_SCALE) | BIT(BIAS) | BIT(MASK) | BIT(SCORES) | BIT(SCORE_WEIGHT) | BIT(KV_LEN) | BIT(Q_LEN) | \
   BIT(ROW_LEN) | BIT(CU_SEQLENS_Q) | BIT(CU_SEQLENS_K) | BIT(OFFSETS) | BIT(ALIBI_SLOPES) | BIT(PAGE_TABLE) |           \
   BIT(KV_NUM_BLOCKS) | BIT(KV_INDICES) | BIT(FULL_KV_NUM_BLOCKS) | BIT(FULL_KV_INDICES))

#define GRADIENTS \
  (BIT(D_Q) | BIT(D_K) | BIT(D_V) | BIT(D_BIAS) | BIT(D_SCORES) | BIT(D_SCORE_WEIGHT) | BIT(D_ALIBI_SLOPES) | BIT(D_SINKS))
#define OF_GRADIENTS \
  (ATTN_USE_D_LSE | ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS | ATTN_USE_D_SCORE_WEIGHT | ATTN_USE_ACCUMULATE)

const attn_operation_info attn_operations[] = {
    [ATTN_FORWARD] = {.name = "forward",
                      .what = "attention",
                      .inputs = SCORED | BIT(V) | BIT(V_SCALE) | BIT(SINKS),
                      .outputs = BIT(O) | BIT(LSE) | BIT(STATE),
                      .linear_in = ATTN_OPERAND_V,
                      .linear = BIT(O),
                      .refused = OF_GRADIENTS},
    [ATTN_BACKWARD] = {.name = "backward",
                       .what = "gradients",
                       .inputs = SCORED | BIT(V) | BIT(SINKS) | BIT(O) | BIT(LSE) | BIT(D_O) | BIT(D_LSE),
                       .outputs = GRADIENTS,
                       .optional = GRADIENTS,
                       .linear_in = ATTN_OPERAND_D_O,
                       .linear = GRADIENTS,
                       .refused = ATTN_USE_PAGES | ATTN_USE_STATE | ATTN_USE_KV_SCALES | ATTN_USE_KEY_BLOCKS |
                                  ATTN_USE_FULL_KEY_BLOCKS},
};

const int attn_operation_count = sizeof attn_operations / sizeof *attn_operations;
