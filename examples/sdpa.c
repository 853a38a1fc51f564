/* SPDX-License-Identifier: MIT */
/* example: ten lines */
#include <attn/attn.h>
#include <stdio.h>

static float q[8 * 512 * 64], k[8 * 512 * 64], v[8 * 512 * 64], o[8 * 512 * 64]; /* [heads][seq][dim] */

int main(void) {
  attn_problem problem;
  attn_problem_init(&problem, 1, 8, 8, 512, 512, 64, 64); /* batch, heads_q, heads_kv, seq_q, seq_k, dim_qk, dim_v */
  attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  for (int i = 0; i < 8 * 512 * 64; i++) q[i] = (float)(i % 7) / 7, k[i] = (float)(i % 5) / 5, v[i] = (float)(i % 11);
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);
  if (attn_sdpa(&problem, &args) != ATTN_OK) return puts(attn_last_error()), 1;
  return printf("o[511][0] = %g\n", (double)o[511 * 64]) < 0; /* head 0, query 511, element 0 */
}
