/* Deliberately broken kernels: see mutants.def. */
#ifndef TESTS_MUTANTS_H
#define TESTS_MUTANTS_H

#include "kernels/kernel.h"

typedef struct mutant {
  attn_kernel kernel;
  bool guard_only; /* its values are right: only guard pages can tell */
} mutant;

extern const mutant mutants[]; /* the original first */
extern const int mutant_count;

#endif
