/* SPDX-License-Identifier: MIT */
/* Runs a fuzz target on the files and folders of files that its arguments name, and on random inputs: for compilers without
 * libFuzzer, and to repeat a finding.
 *
 *     fuzz_NAME [--random FIRST:END] FILE|FOLDER...
 *
 * A random input depends on its number and on the files alone. A finding says the number. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fuzz.h"

enum { MOST_FILES = 100, MOST_BYTES = 1024 };

typedef struct input {
  uint8_t *data;
  size_t bytes;
} input;

static input files[MOST_FILES];
static int file_count;

/* Runs an input in exactly as much memory as it has, so that a sanitizer reports reads beyond it. */
static bool run(const uint8_t *data, size_t bytes) {
  uint8_t *copy = malloc(bytes ? bytes : 1);
  if (!copy) return false;
  memcpy(copy, data, bytes);
  (void)LLVMFuzzerTestOneInput(copy, bytes);
  free(copy);
  return true;
}

/* ---- Files ---- */

static bool run_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) return false;
  const long bytes = ftell(file);
  uint8_t *data = malloc(bytes > 0 ? (size_t)bytes : 1);
  rewind(file);
  const bool fine = data && bytes >= 0 && fread(data, 1, (size_t)bytes, file) == (size_t)bytes && run(data, (size_t)bytes);
  (void)fclose(file);
  if (fine && file_count < MOST_FILES)
    files[file_count++] = (input){data, (size_t)bytes};
  else
    free(data);
  return fine;
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }

/* The number of inputs that ran, or -1. Files come in the order of their names, so that random inputs are the same ones
 * everywhere. */
static int run_folder(const char *path) {
  char file[4096];
  struct dirent **entries;
  const int found = scandir(path, &entries, NULL, by_name);
  int count = 0;
  for (int i = 0; i < found; i++) {
    snprintf(file, sizeof file, "%s/%s", path, entries[i]->d_name);
    if (entries[i]->d_name[0] != '.' && count >= 0) count = run_file(file) ? count + 1 : -1;
    free(entries[i]);
  }
  if (found >= 0) free(entries);
  return found < 0 ? -1 : count;
}

/* ---- Random inputs ---- */

/* The line that a signal's handler writes, because it may not format one. */
static char running[64];
static volatile sig_atomic_t running_bytes;

/* AddressSanitizer's findings end in abort(), too. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) { return "abort_on_error=1"; }

static void report_number(int signal_number) {
  (void)!write(STDERR_FILENO, running, (size_t)running_bytes);
  (void)signal(signal_number, SIG_DFL);
  (void)raise(signal_number);
}

static uint64_t next(uint64_t *state) { /* splitmix64 (Steele, Lea & Flood 2014) */
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return z ^ z >> 31;
}

/* One input in two is a file with some bytes changed and others behind it; the rest is random from the first byte on. */
static bool run_random(int number) {
  uint8_t data[MOST_BYTES];
  uint64_t state = (uint64_t)number;
  size_t kept = 0;
  if (file_count && next(&state) & 1) {
    const input *file = &files[next(&state) % (uint64_t)file_count];
    kept = file->bytes < MOST_BYTES / 2 ? file->bytes : MOST_BYTES / 2;
    memcpy(data, file->data, kept);
  }
  const size_t bytes = kept + 1 + next(&state) % (MOST_BYTES / 2);
  for (size_t i = kept; i < bytes; i++) data[i] = (uint8_t)next(&state);
  for (uint64_t changes = next(&state) % 9; kept && changes > 0; changes--)
    data[next(&state) % kept] = (uint8_t)next(&state);
  running_bytes = snprintf(running, sizeof running, "in --random %d:%d\n", number, number + 1);
  return run(data, bytes);
}

/* The number of inputs that ran, or -1. */
static int run_random_inputs(const char *range) {
  int first, end;
  if (sscanf(range, "%d:%d", &first, &end) != 2 || first < 0) return -1;
  for (int number = first; number < end; number++)
    if (!run_random(number)) return -1;
  return end > first ? end - first : 0;
}

int main(int argc, char **argv) {
  const char *range = NULL;
  int total = 0;
  (void)LLVMFuzzerInitialize(&argc, &argv);
  (void)signal(SIGABRT, report_number);
  (void)signal(SIGSEGV, report_number);
  for (int i = 1; i < argc; i++) {
    if (strcmp(argv[i], "--random") == 0 && i + 1 < argc) {
      range = argv[++i];
      continue;
    }
    const int in_folder = run_folder(argv[i]), count = in_folder >= 0 ? in_folder : run_file(argv[i]) ? 1 : -1;
    if (count < 0) {
      fprintf(stderr, "cannot read %s\n", argv[i]);
      return 2;
    }
    total += count;
  }
  const int random = range ? run_random_inputs(range) : 0;
  if (random < 0) {
    fprintf(stderr, "--random %s: it must be FIRST:END, two numbers from 0 on\n", range);
    return 2;
  }
  for (int i = 0; i < file_count; i++) free(files[i].data);
  printf("%d inputs, no finding\n", total + random);
  return total + random ? 0 : 1;
}
