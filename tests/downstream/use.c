/* SPDX-License-Identifier: MIT */
/* Two keys with equal scores: attention must be the mean of their values. */
#include <attn/attn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  const float q[2] = {1, 1}, k[4] = {1, 2, 2, 1}, v[4] = {1, 10, 3, 30};
  float o[2];
  attn_problem problem;
  attn_problem_init(&problem, 1, 1, 1, 1, 2, 2, 2);
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);
  if (attn_sdpa(&problem, &args) != ATTN_OK) {
    puts(attn_last_error());
    return 1;
  }
  printf("libattn %s: %g %g\n", attn_version(), (double)o[0], (double)o[1]);
  return o[0] == 2 && o[1] == 20 ? 0 : 1;
}
