/* SPDX-License-Identifier: MIT */
#include "fuzz.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int report = STDERR_FILENO;

/* oneDNN 2.6.3 forgets a few kilobytes when it cannot make the code of a product. Leaks of
 * our own are found by the test `onednn`, which runs under AddressSanitizer without this exception. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void) { return "leak:libdnnl.so\n"; }

int LLVMFuzzerInitialize(int *argc, char ***argv) {
  (void)argc, (void)argv;
  report = dup(STDERR_FILENO); /* for reports: -close_fd_mask closes stderr, on which readers say what they refuse */
  return 0;
}

void fuzz_fail(const char *format, ...) {
  va_list values;
  va_start(values, format);
  (void)dprintf(report, "FINDING: ");
  (void)vdprintf(report, format, values);
  (void)dprintf(report, "\n");
  va_end(values);
  abort();
}

uint8_t fuzz_byte(fuzz_bytes *bytes) { return bytes->at < bytes->end ? *bytes->at++ : 0; }

uint64_t fuzz_word(fuzz_bytes *bytes) {
  uint64_t word = 0;
  for (int i = 0; i < 8; i++) word |= (uint64_t)fuzz_byte(bytes) << 8 * i;
  return word;
}

const char *fuzz_file(int slot, const void *data, size_t bytes) {
  static int file[FUZZ_FILES];
  static char path[FUZZ_FILES][32];
  if (!file[slot]) file[slot] = memfd_create("fuzz", 0);
  if (file[slot] < 0 || ftruncate(file[slot], 0) || pwrite(file[slot], data, bytes, 0) != (ssize_t)bytes)
    fuzz_fail("no file in memory");
  snprintf(path[slot], sizeof *path, "/proc/self/fd/%d", file[slot]);
  return path[slot];
}

const char *fuzz_text(fuzz_bytes bytes) {
  static char *text;
  free(text);
  text = strndup((const char *)bytes.at, (size_t)(bytes.end - bytes.at));
  if (!text) fuzz_fail("no memory for the input");
  return text;
}
