/* SPDX-License-Identifier: MIT */
/* Two keys with equal scores: attention must be the mean of their values. This file is C and C++. */
#include <attn/attn.h>
#include <stdio.h>
#include <string.h>

int main(void) {
  const float q[2] = {1, 1}, k[4] = {1, 2, 2, 1}, v[4] = {1, 10, 3, 30};
  float o[2];
  attn_problem problem;
  attn_problem_init(&problem, 1, 1, 1, 1, 2, 2, 2);
  attn_args args;
  memset(&args, 0, sizeof args);
  args.struct_size = sizeof args;
  args.q = q;
  args.k = k;
  args.v = v;
  args.o = o;
  attn_options options;
  memset(&options, 0, sizeof options);
  options.struct_size = sizeof options;
  attn_plan *plan;
  options.threads = 2;
  if (attn_sdpa(&problem, &args) != ATTN_OK || attn_plan_create(&problem, &options, &plan) != ATTN_OK) {
    puts(attn_last_error());
    return 1;
  }
  attn_plan_destroy(plan);
  printf("libattn %s: %g %g\n", attn_version(), (double)o[0], (double)o[1]);
  return o[0] == 2 && o[1] == 20 ? 0 : 1;
}
