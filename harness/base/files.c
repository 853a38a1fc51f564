/* SPDX-License-Identifier: MIT */
/* Atomic files, folders, JSON strings. */
#include "base/files.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static bool say(const char *what, const char *path) {
  fprintf(stderr, "attnbench: cannot %s %s: %s\n", what, path, strerror(errno));
  return false;
}

/* So that the rename itself survives a power cut. Not every file system can; that is no error. */
static void sync_folder_of(const char *path) {
  char folder[PATH_BYTES];
  snprintf(folder, sizeof folder, "%s", path);
  char *slash = strrchr(folder, '/');
  if (slash)
    slash[slash == folder] = 0;
  else
    snprintf(folder, sizeof folder, ".");
  const int descriptor = open(folder, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return;
  (void)fsync(descriptor);
  (void)close(descriptor);
}

/* /dev/stdout, a pipe: nothing to rename. */
static bool is_device(const char *path) {
  struct stat info;
  return !stat(path, &info) && !S_ISREG(info.st_mode) && !S_ISDIR(info.st_mode);
}

static bool is_folder(const char *path) {
  struct stat info;
  return !stat(path, &info) && S_ISDIR(info.st_mode);
}

static bool write_directly(const char *path, bench_write_fn write, void *context) {
  FILE *file = fopen(path, "w");
  if (!file) return say("write", path);
  write(context, file);
  const bool failed = ferror(file);
  return !fclose(file) && !failed ? true : say("write", path);
}

/* The file's name until it is whole. */
static bool name_temporary(const char *path, char *temporary) {
  if (snprintf(temporary, PATH_BYTES, "%s.%ld.tmp", path, (long)getpid()) < PATH_BYTES) return true;
  errno = ENAMETOOLONG;
  return say("write", path);
}

bool bench_file_writable(const char *path) {
  char temporary[PATH_BYTES];
  if (is_device(path)) return true;
  if (is_folder(path)) {
    errno = EISDIR;
    return say("write", path);
  }
  if (!name_temporary(path, temporary)) return false;
  FILE *file = fopen(temporary, "w");
  if (!file) return say("write", path);
  (void)fclose(file);
  (void)unlink(temporary);
  return true;
}

bool bench_file_write(const char *path, bench_write_fn write, void *context) {
  char temporary[PATH_BYTES];
  if (is_device(path)) return write_directly(path, write, context);
  if (!name_temporary(path, temporary)) return false;
  FILE *file = fopen(temporary, "w");
  if (!file) return say("write", temporary);
  write(context, file);
  const bool failed = ferror(file) || fflush(file) || fsync(fileno(file));
  if (fclose(file) || failed) {
    (void)say("write", temporary);
    (void)unlink(temporary);
    return false;
  }
  if (rename(temporary, path)) {
    (void)say("rename to", path);
    (void)unlink(temporary);
    return false;
  }
  sync_folder_of(path);
  return true;
}

bool bench_folder_create(const char *path) {
  char part[PATH_BYTES];
  if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part) {
    errno = ENAMETOOLONG;
    return say("create", path);
  }
  for (char *slash = part + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
    *slash = 0;
    if (mkdir(part, 0777) && errno != EEXIST) return say("create", part);
  }
  if (mkdir(part, 0777) && errno != EEXIST) return say("create", part);
  if (is_folder(part)) return true;
  errno = ENOTDIR;
  return say("create", part);
}

bool bench_file_exists(const char *path) { return !access(path, F_OK); }

void bench_json_string(FILE *file, const char *text) {
  fputc('"', file);
  for (; *text; text++) {
    const unsigned char c = (unsigned char)*text;
    if (c == '"' || c == '\\')
      fprintf(file, "\\%c", c);
    else if (c == '\n')
      fputs("\\n", file);
    else if (c < 0x20)
      fprintf(file, "\\u%04x", c);
    else
      fputc(c, file);
  }
  fputc('"', file);
}
