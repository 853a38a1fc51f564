/* SPDX-License-Identifier: MIT */
/* test_onednn with broken thread handling. The program is linked with --wrap, so every hold and restore of the kernels on
 * oneDNN comes here. The variable MUTANT names the fault: "no_hold" lets oneDNN use all threads of OpenMP, "no_restore"
 * leaves the caller with one thread. */
#include <stdlib.h>
#include <string.h>

#include "kernels/onednn/onednn.h"

int __real_attn_onednn_hold_threads(const onednn_library *library);
int __wrap_attn_onednn_hold_threads(const onednn_library *library);
void __real_attn_onednn_restore_threads(const onednn_library *library, int before);
void __wrap_attn_onednn_restore_threads(const onednn_library *library, int before);

static bool is(const char *name) {
  const char *mutant = getenv("MUTANT");
  return mutant && strcmp(mutant, name) == 0;
}

int __wrap_attn_onednn_hold_threads(const onednn_library *library) {
  return is("no_hold") ? 1 : __real_attn_onednn_hold_threads(library);
}

void __wrap_attn_onednn_restore_threads(const onednn_library *library, int before) {
  if (!is("no_restore")) __real_attn_onednn_restore_threads(library, before);
}
