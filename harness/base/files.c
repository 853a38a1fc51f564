/* SPDX-License-Identifier: MIT */
/* Atomic files, folders, JSON strings. */
#include "base/files.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static bool say(const char *what, const char *path) {
  fprintf(stderr, "attnbench: cannot %s %s: %s\n", what, path, strerror(errno));
  return false;
}

static bool fail_with(int error, const char *what, const char *path) {
  errno = error;
  return say(what, path);
}

/* Makes the rename survive a power cut. Some file systems cannot; that is no error. */
static void sync_folder_of(const char *path) {
  char folder[PATH_BYTES];
  const char *slash = strrchr(path, '/');
  snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
  const int descriptor = open(folder, O_RDONLY | O_DIRECTORY);
  if (descriptor < 0) return;
  (void)fsync(descriptor);
  (void)close(descriptor);
}

static bool is_kind(const char *path, mode_t kind) {
  struct stat info;
  return !stat(path, &info) && (info.st_mode & S_IFMT) == kind;
}

/* True of "-", /dev/stdout and pipes, which cannot be replaced by renaming. */
static bool is_stream(const char *path) {
  return !strcmp(path, "-") || (bench_file_exists(path) && !is_kind(path, S_IFREG) && !is_kind(path, S_IFDIR));
}

static bool write_stream(const char *path, bench_write_fn write, void *context) {
  FILE *file = strcmp(path, "-") ? fopen(path, "w") : stdout;
  if (!file) return say("write", path);
  write(context, file);
  const bool failed = fflush(file) || ferror(file);
  const int error = errno;
  if (file != stdout && fclose(file)) return say("write", path);
  return !failed || fail_with(error, "write", path);
}

/* The file's name until it is whole. */
static bool name_temporary(const char *path, char *temporary) {
  if (snprintf(temporary, PATH_BYTES, "%s.%ld.tmp", path, (long)getpid()) < PATH_BYTES) return true;
  return fail_with(ENAMETOOLONG, "write", path);
}

bool bench_file_writable(const char *path) {
  char temporary[PATH_BYTES];
  if (is_stream(path)) return true;
  if (is_kind(path, S_IFDIR)) return fail_with(EISDIR, "write", path);
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
  if (is_stream(path)) return write_stream(path, write, context);
  if (!name_temporary(path, temporary)) return false;
  FILE *file = fopen(temporary, "w");
  if (!file) return say("write", temporary);
  write(context, file);
  if (!finish(file, temporary, path)) return false;
  sync_folder_of(path);
  return true;
}

bool bench_folder_create(const char *path) {
  char part[PATH_BYTES];
  if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part) return fail_with(ENAMETOOLONG, "create", path);
  for (char *slash = part + (*part == '/'); slash; slash = *slash ? slash + 1 : NULL) {
    slash += strcspn(slash, "/");
    const char separator = *slash;
    *slash = 0;
    if (mkdir(part, 0777) && errno != EEXIST) return say("create", part);
    *slash = separator;
  }
  return is_kind(path, S_IFDIR) || fail_with(ENOTDIR, "create", path);
}

/* Removes the files "NAME.PID.tmp" of processes that were killed. */
static void remove_temporaries(int folder) {
  DIR *list = fdopendir(dup(folder));
  for (struct dirent *entry; list && (entry = readdir(list));) {
    const size_t length = strlen(entry->d_name);
    const char *end = entry->d_name + (length > 4 ? length - 4 : 0), *digits = end;
    while (digits > entry->d_name && isdigit((unsigned char)digits[-1])) digits--;
    if (digits > entry->d_name && digits < end && digits[-1] == '.' && !strcmp(end, ".tmp"))
      (void)unlinkat(folder, entry->d_name, 0);
  }
  if (list) (void)closedir(list);
}

int bench_folder_lock(const char *path) {
  const int folder = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (folder < 0) {
    (void)say("open", path);
    return -1;
  }
  if (!flock(folder, LOCK_EX | LOCK_NB)) {
    remove_temporaries(folder);
    return folder;
  }
  if (errno != EWOULDBLOCK) {
    fprintf(stderr, "warning: %s cannot be locked (%s): let no other attnbench write there\n", path, strerror(errno));
    return folder;
  }
  fprintf(stderr, "attnbench: another process writes to %s: wait until it ends, or choose another folder with -o\n", path);
  (void)close(folder);
  return -1;
}

void bench_file_hash(const char *path, char text[17]) {
  unsigned char part[4096];
  uint64_t hash = 0xcbf29ce484222325;
  FILE *file = fopen(path, "re");
  snprintf(text, 17, "unknown");
  if (!file) return;
  for (size_t bytes; (bytes = fread(part, 1, sizeof part, file)) > 0;)
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ part[i]) * 0x100000001b3;
  if (!ferror(file)) snprintf(text, 17, "%016" PRIx64, hash);
  (void)fclose(file);
}

void bench_open_standard_files(void) {
  for (int i = 0; i <= STDERR_FILENO; i++) /* open() takes the lowest descriptor that is free: this one */
    if (fcntl(i, F_GETFD) < 0) (void)open("/dev/null", O_RDWR);
}

bool bench_file_exists(const char *path) { return !access(path, F_OK); }

/* ---- System files ------------------------------------------------------------------------------------------------- */

static void trim(char *text) {
  size_t begin = strspn(text, " \t\""), end = strlen(text);
  while (end > begin && strchr(" \t\r\n\"", text[end - 1])) end--;
  memmove(text, text + begin, end - begin);
  text[end - begin] = 0;
}

void bench_read_line(const char *path, char *line, size_t bytes) {
  FILE *file = fopen(path, "r");
  line[0] = 0;
  if (!file) return;
  if (!fgets(line, (int)bytes, file)) line[0] = 0;
  fclose(file);
  trim(line);
}

/* The value in a line "name: value" or "name=value", or NULL. Changes the line. */
static const char *value_of(char *line, const char *name) {
  char *separator = strpbrk(line, ":=");
  if (!separator) return NULL;
  *separator = 0;
  trim(line);
  trim(separator + 1);
  return strcmp(line, name) ? NULL : separator + 1;
}

void bench_read_field(const char *path, const char *name, char *value, size_t bytes) {
  char line[8192];
  const char *found = NULL;
  FILE *file = fopen(path, "r");
  while (file && !found && fgets(line, sizeof line, file)) found = value_of(line, name);
  snprintf(value, bytes, "%s", found ? found : "");
  if (file) fclose(file);
}

/* ---- JSON ------------------------------------------------------------------------------------------------------------ */

/* How many bytes the character takes that begins at `text`; 0 if that is not UTF-8 (RFC 3629). */
static size_t utf8_bytes(const unsigned char *text) {
  const unsigned char c = text[0];
  const size_t bytes = c < 0x80 ? 1 : c >= 0xc2 && c < 0xe0 ? 2 : c >= 0xe0 && c < 0xf0 ? 3 : c >= 0xf0 && c < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < bytes; i++)
    if ((text[i] & 0xc0) != 0x80) return 0;
  const bool overlong = (c == 0xe0 && text[1] < 0xa0) || (c == 0xf0 && text[1] < 0x90);
  const bool beyond = (c == 0xed && text[1] > 0x9f) || (c == 0xf4 && text[1] > 0x8f); /* surrogates, U+110000 */
  return overlong || beyond ? 0 : bytes;
}

void bench_json_string(FILE *file, const char *text) {
  fputc('"', file);
  for (const unsigned char *c = (const unsigned char *)text; *c;) {
    const size_t bytes = utf8_bytes(c);
    if (*c == '"' || *c == '\\')
      fprintf(file, "\\%c", *c);
    else if (*c == '\n')
      fputs("\\n", file);
    else if (*c < 0x20 || *c == 0x7f || !bytes)
      fprintf(file, "\\u%04x", *c);
    else
      fwrite(c, 1, bytes, file);
    c += bytes ? bytes : 1;
  }
  fputc('"', file);
}

void bench_json_pair(FILE *file, const char *before, const char *key, const char *text) {
  fprintf(file, "%s\"%s\": ", before, key);
  bench_json_string(file, text);
}

bool bench_file_copy(const char *path, FILE *to) {
  static char part[1 << 16]; /* stdio's own would take 2,400 calls for a library of 10 MB; no allocation that could fail */
  size_t got = 0;
  FILE *from = fopen(path, "rbe");
  if (!from) return false;
  while ((got = fread(part, 1, sizeof part, from)) > 0 && fwrite(part, 1, got, to) == got) continue;
  const bool whole = !got && !ferror(from);
  (void)fclose(from);
  return whole;
}
