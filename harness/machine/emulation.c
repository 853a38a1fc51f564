/* SPDX-License-Identifier: MIT */
/* Emulation makes times meaningless, whether the build emulates a tier or an emulator runs the program. */
#include "machine/emulation.h"

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The emulator that runs this program, or NULL. User-mode emulators answer /proc/self/exe themselves, with the path of the
 * program. qemu-user and Valgrind leave /proc/thread-self/exe to the kernel, which names the emulator. Where both name one
 * file, or cannot be read, no emulator can be seen. */
static const char *emulator_of_process(void) {
  static char emulator[256];
  char program[sizeof emulator];
  const ssize_t program_bytes = readlink("/proc/self/exe", program, sizeof program - 1);
  const ssize_t bytes = readlink("/proc/thread-self/exe", emulator, sizeof emulator - 1);
  if (program_bytes < 0 || bytes < 0) return NULL;
  program[program_bytes] = emulator[bytes] = '\0';
  return strcmp(program, emulator) ? emulator : NULL;
}

/* What the build itself emulates, or NULL. */
static const char *emulated_tier(void) {
#ifdef ATTN_EMULATE_AVX512
  return "this build emulates the avx512 tier on AVX2 (ATTN_EMULATE_AVX512=ON)";
#else
  return NULL;
#endif
}

const char *bench_emulation(void) {
  static char text[400];
  if (emulated_tier()) return emulated_tier();
  const char *declared = getenv("ATTN_EMULATED"), *emulator = emulator_of_process();
  if (emulator)
    snprintf(text, sizeof text, "this program runs under an emulator, %s", emulator);
  else if (declared && *declared && strcmp(declared, "0"))
    snprintf(text, sizeof text, "this machine is emulated (ATTN_EMULATED=%s)", declared);
  else
    return NULL;
  return text;
}

bool bench_refuses_to_time(const char *command) {
  const char *emulation = bench_emulation();
  if (emulation) fprintf(stderr, "attnbench %s: no times are taken here: %s; `attnbench check` works\n", command, emulation);
  return emulation != NULL;
}
