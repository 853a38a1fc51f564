/* SPDX-License-Identifier: MIT */
/* Deliberately broken kernels: see mutants.def. Programs that link test_zoo have them in their registry. */
#ifndef TESTS_MUTANTS_H
#define TESTS_MUTANTS_H

#include "attn/kernel.h"

typedef struct mutant {
  const attn_kernel *kernel;
  bool guard_only;     /* its values are right; only guard pages find the fault */
  bool structure_only; /* its values are right; only a structural test finds the fault */
} mutant;

extern const mutant mutants[]; /* the original first */
extern const int mutant_count;
const attn_kernel *mutant_find(const char *name); /* NULL if there is none */

#endif
