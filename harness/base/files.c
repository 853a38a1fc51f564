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

/* Makes the rename survive a power cut. Some file systems cannot; that is no error. */
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

/* True of /dev/stdout and pipes, which cannot be replaced by renaming. */
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

static bool fail_with(int error, const char *what, const char *path) {
  errno = error;
  return say(what, path);
}

/* The file's name until it is whole. */
static bool name_temporary(const char *path, char *temporary) {
  if (snprintf(temporary, PATH_BYTES, "%s.%ld.tmp", path, (long)getpid()) < PATH_BYTES) return true;
  return fail_with(ENAMETOOLONG, "write", path);
}

bool bench_file_writable(const char *path) {
  char temporary[PATH_BYTES];
  if (is_device(path)) return true;
  if (is_folder(path)) return fail_with(EISDIR, "write", path);
  if (!name_temporary(path, temporary)) return false;
  FILE *file = fopen(temporary, "w");
  if (!file) return say("write", path);
  (void)fclose(file);
  (void)unlink(temporary);
  return true;
}

/* Closes the temporary file and gives it its name. */
static bool finish(FILE *file, const char *temporary, const char *path) {
  const bool failed = ferror(file) || fflush(file) || fsync(fileno(file));
  const bool closed = !fclose(file);
  if (closed && !failed && !rename(temporary, path)) return true;
  (void)(closed && !failed ? say("rename to", path) : say("write", temporary));
  (void)unlink(temporary);
  return false;
}

bool bench_file_write(const char *path, bench_write_fn write, void *context) {
  char temporary[PATH_BYTES];
  if (is_device(path)) return write_directly(path, write, context);
  if (!name_temporary(path, temporary)) return false;
  FILE *file = fopen(temporary, "w");
  if (!file) return say("write", temporary);
  write(context, file);
  if (!finish(file, temporary, path)) return false;
  sync_folder_of(path);
  return true;
}

static bool create_one(const char *path) { return !mkdir(path, 0777) || errno == EEXIST || say("create", path); }

bool bench_folder_create(const char *path) {
  char part[PATH_BYTES];
  if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part) return fail_with(ENAMETOOLONG, "create", path);
  for (char *slash = part + 1; (slash = strchr(slash, '/')); *slash++ = '/') {
    *slash = 0;
    if (!create_one(part)) return false;
  }
  if (!create_one(part)) return false;
  return is_folder(part) || fail_with(ENOTDIR, "create", part);
}

bool bench_file_exists(const char *path) { return !access(path, F_OK); }

static void put_json_character(FILE *file, unsigned char c) {
  if (c == '"' || c == '\\')
    fprintf(file, "\\%c", c);
  else if (c == '\n')
    fputs("\\n", file);
  else if (c < 0x20)
    fprintf(file, "\\u%04x", c);
  else
    fputc(c, file);
}

void bench_json_string(FILE *file, const char *text) {
  fputc('"', file);
  for (; *text; text++) put_json_character(file, (unsigned char)*text);
  fputc('"', file);
}
