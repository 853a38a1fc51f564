/* SPDX-License-Identifier: MIT */
/* The weights of a multi-head attention layer, checked and packed into its four products. */
#ifndef ATTN_MHA_WEIGHTS_H
#define ATTN_MHA_WEIGHTS_H

#include "attn/attn.h"
#include "attn/product.h"

enum { PROJECT_Q, PROJECT_K, PROJECT_V, PROJECT_OUT, PROJECTIONS };

/* Copies and checks the weights for a problem. */
attn_status attn_mha_read_weights(const attn_mha_problem *problem, const attn_mha_weights *theirs,
                                  attn_mha_weights *weights);

/* Packs weights that were read. On failure some of the products may be there, the others are as they were. */
attn_status attn_mha_pack_weights(const attn_mha_problem *problem, const attn_mha_weights *weights,
                                  const attn_options *options, attn_product *product[PROJECTIONS]);

#endif
