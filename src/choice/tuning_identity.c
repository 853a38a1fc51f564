/* SPDX-License-Identifier: MIT */
/* The head of a tuning file, which names what the file is good for: this CPU, this version of the library, and kernels of
 * this code. */
#include <stdio.h>
#include <string.h>

#include "src/api/text.h"
#include "src/choice/tuning.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"

/* Made by cmake/AttnKernelCodes.cmake. */
static const struct kernel_code {
  const char *name, *code;
} codes[] = {
#define ATTN_KERNEL_CODE(name, code) {#name, code},
#include "kernel_codes.h"
#undef ATTN_KERNEL_CODE
};

/* Kernels of anyone's plug-in have no code version: the library that they name stands for it. */
const char *attn_tuning_code(const attn_kernel_info *kernel) {
  for (size_t i = 0; i < sizeof codes / sizeof *codes; i++)
    if (strcmp(codes[i].name, kernel->name) == 0) return codes[i].code;
  return *kernel->library ? kernel->library : "unknown";
}

static void append_kernel(const attn_kernel_info *kernel, char *text, size_t bytes) {
  char line[200];
  snprintf(line, sizeof line, "kernel %s %s", kernel->name, attn_tuning_code(kernel));
  for (char *c = line; *c; c++)
    if ((unsigned char)*c < ' ') *c = ' '; /* control characters in a plug-in's text */
  attn_append(text, bytes, "\n", line);
}

size_t attn_tuning_head(char *text, size_t bytes) {
  char cpu[200], head[16384];
  attn_cpu_identity(cpu, sizeof cpu);
  snprintf(head, sizeof head, "attn-tuning %d\ncpu %s\nlibrary %s", ATTN_TUNING_FORMAT, cpu, attn_version());
  for (int i = 0; i < attn_kernel_count(); i++) append_kernel(attn_kernel_get(i), head, sizeof head);
  attn_append(head, sizeof head, "\n", "");
  if (text && bytes) snprintf(text, bytes, "%s", head);
  return strlen(head);
}
