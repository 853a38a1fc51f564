/* SPDX-License-Identifier: MIT */
/* A rotation, as attn_rope_create() makes it. */
#ifndef ATTN_LAYERS_ROPE_H
#define ATTN_LAYERS_ROPE_H

#include "kernels/kv_rows.h"

struct attn_rope {
  attn_rope_turns turns; /* its arrays are these two */
  double high[ROPE_MOST_DIM / 2], rest[ROPE_MOST_DIM / 2];
  double frequency[ROPE_MOST_DIM / 2]; /* radians per position */
};

#endif
