/* SPDX-License-Identifier: MIT */
/* Shared by the fuzz targets. A target is a file fuzz_NAME.c with LLVMFuzzerTestOneInput(), which libFuzzer calls with bytes
 * that it generates (scripts/dev/fuzz.sh). Without libFuzzer, driver.c calls it with the files of corpus/NAME. */
#ifndef TESTS_FUZZ_H
#define TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerInitialize(int *argc, char ***argv);

/* The bytes that the decisions of a target are read from. Behind the end all bytes are 0, so every input is valid. */
typedef struct fuzz_bytes {
  const uint8_t *at, *end;
} fuzz_bytes;
uint8_t fuzz_byte(fuzz_bytes *bytes);
uint64_t fuzz_word(fuzz_bytes *bytes); /* 8 bytes */

/* Reports a finding on stderr, even if the fuzzer has closed that, and aborts. */
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The path of a file in memory that holds exactly these bytes; valid until the next call for the same slot. */
enum { FUZZ_FILES = 20 };
const char *fuzz_file(int slot, const void *data, size_t bytes);

/* The bytes as a string, up to the first 0. Valid until the next call. */
const char *fuzz_text(fuzz_bytes bytes);

#endif
