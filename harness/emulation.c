/* What would make a time meaningless: a build whose tiers are emulated. */
#include "emulation.h"

#include <stddef.h>
#include <stdio.h>

const char *bench_emulation(void) {
#ifdef ATTN_EMULATE_AVX512
  return "this build emulates the avx512 tier on AVX2 (ATTN_EMULATE_AVX512=ON)";
#else
  return NULL;
#endif
}

bool bench_refuses_to_time(const char *command) {
  const char *emulation = bench_emulation();
  if (emulation) fprintf(stderr, "attnbench %s: no times are taken here: %s; `attnbench check` works\n", command, emulation);
  return emulation != NULL;
}
