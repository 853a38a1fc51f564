/* SPDX-License-Identifier: MIT */
/* Runs a fuzz target on the files and folders of files that its arguments name: for compilers without libFuzzer, and to
 * repeat a finding. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>

#include "fuzz.h"

/* Allocates exactly as much memory as the file has, so that a sanitizer reports reads beyond it. */
static bool run_file(const char *path) {
  FILE *file = fopen(path, "rb");
  if (!file || fseek(file, 0, SEEK_END)) return false;
  const long bytes = ftell(file);
  uint8_t *data = malloc(bytes > 0 ? (size_t)bytes : 1);
  rewind(file);
  const bool fine = data && bytes >= 0 && fread(data, 1, (size_t)bytes, file) == (size_t)bytes;
  if (fine) (void)LLVMFuzzerTestOneInput(data, (size_t)bytes);
  free(data);
  (void)fclose(file);
  return fine;
}

/* The number of inputs that ran, or -1. */
static int run_folder(DIR *folder, const char *path) {
  char file[4096];
  int count = 0;
  for (const struct dirent *entry; (entry = readdir(folder));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(file, sizeof file, "%s/%s", path, entry->d_name);
    if (!run_file(file)) return -1;
    count++;
  }
  return count;
}

int main(int argc, char **argv) {
  int total = 0;
  (void)LLVMFuzzerInitialize(&argc, &argv);
  for (int i = 1; i < argc; i++) {
    DIR *folder = opendir(argv[i]);
    const int count = folder ? run_folder(folder, argv[i]) : run_file(argv[i]) ? 1 : -1;
    if (folder) (void)closedir(folder);
    if (count < 0) {
      fprintf(stderr, "cannot read %s\n", argv[i]);
      return 2;
    }
    total += count;
  }
  printf("%d inputs, no finding\n", total);
  return total ? 0 : 1;
}
