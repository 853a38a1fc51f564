/* SPDX-License-Identifier: MIT */
#define _GNU_SOURCE /* dladdr, secure_getenv */
#include "src/registry/shared_object.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Cuts a path down to its folder; "" if it has none. */
static void cut_to_folder(char *path, char separator) {
  char *end = strrchr(path, separator);
  *(end ? end : path) = '\0';
}

#ifdef _WIN32
#include <windows.h>

static void describe(DWORD code, char *text, size_t bytes) {
  const int begun = snprintf(text, bytes, "Windows answers error %lu, ", code);
  const size_t at = begun > 0 && (size_t)begun < bytes ? (size_t)begun : 0;
  const DWORD how = FORMAT_MESSAGE_FROM_SYSTEM | FORMAT_MESSAGE_IGNORE_INSERTS | FORMAT_MESSAGE_MAX_WIDTH_MASK;
  if (!FormatMessageA(how, NULL, code, 0, text + at, (DWORD)(bytes - at), NULL))
    snprintf(text + at, bytes - at, "for which it has no words");
}

/* LoadLibrary takes a path with slashes for the name of a file. */
void *attn_object_open(const char *path, char *error, size_t error_bytes) {
  char native[MAX_PATH];
  snprintf(native, sizeof native, "%s", path);
  for (char *c = native; *c; c++)
    if (*c == '/') *c = '\\';
  HMODULE object = strlen(path) < sizeof native ? LoadLibraryA(native) : NULL;
  if (!object) describe(strlen(path) < sizeof native ? GetLastError() : ERROR_FILENAME_EXCED_RANGE, error, error_bytes);
  return object;
}

const void *attn_object_symbol(void *object, const char *name) {
  FARPROC symbol = GetProcAddress(object, name);
  const void *address;
  memcpy(&address, &symbol, sizeof address);
  return address;
}

bool attn_object_exists(const char *path) { return GetFileAttributesA(path) != INVALID_FILE_ATTRIBUTES; }

void attn_object_path(const void *address, const char *fallback, char *path, size_t bytes) {
  HMODULE object = NULL;
  const DWORD how = GET_MODULE_HANDLE_EX_FLAG_FROM_ADDRESS | GET_MODULE_HANDLE_EX_FLAG_UNCHANGED_REFCOUNT;
  if (!GetModuleHandleExA(how, address, &object) || !GetModuleFileNameA(object, path, (DWORD)bytes))
    snprintf(path, bytes, "%s", fallback);
}

void attn_object_own_folder(char *folder, size_t bytes) {
  static const char here = 0;
  attn_object_path(&here, "", folder, bytes);
  cut_to_folder(folder, '\\');
}

const char *attn_object_secure_getenv(const char *name) { return getenv(name); }
#else
#include <dlfcn.h>
#include <sys/stat.h>
#include <unistd.h>
#ifdef __linux__
#include <link.h>
#endif

/* Weak, so that a program that is linked statically needs no dlopen, and linkers do not warn of it. */
#pragma weak dlopen
#pragma weak dlsym
#pragma weak dlerror
#pragma weak dladdr

/* Whether the file has all bytes that its segments are mapped from. The loader does not check that: a truncated file would
 * end the process by SIGBUS. True for a file that is no ELF file of this machine, which the loader refuses itself. */
#ifdef __linux__
static bool is_whole(const char *path, unsigned long long size) {
  ElfW(Ehdr) head;
  ElfW(Phdr) segment;
  bool whole = true;
  FILE *file = fopen(path, "rbe");
  if (!file) return true;
  const unsigned char class = sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32;
  if (fread(&head, sizeof head, 1, file) == 1 && !memcmp(head.e_ident, ELFMAG, SELFMAG) && head.e_ident[EI_CLASS] == class &&
      head.e_phentsize == sizeof segment && !fseek(file, (long)head.e_phoff, SEEK_SET))
    for (int i = 0; i < head.e_phnum && fread(&segment, sizeof segment, 1, file) == 1; i++)
      whole =
          whole && (segment.p_type != PT_LOAD || (segment.p_offset <= size && segment.p_filesz <= size - segment.p_offset));
  (void)fclose(file);
  return whole;
}
#else
static bool is_whole(const char *path, unsigned long long size) { return (void)path, (void)size, true; }
#endif

/* NULL, or why the loader must not open the file: it would wait for the writer of a pipe, or crash. */
static const char *unfit(const char *path) {
  struct stat facts;
  if (!strchr(path, '/') || stat(path, &facts)) return NULL; /* the loader looks for it, or says why it cannot */
  if (!S_ISREG(facts.st_mode)) return "it is no regular file";
  return is_whole(path, (unsigned long long)facts.st_size) ? NULL : "it is truncated: its segments go on behind its end";
}

void *attn_object_open(const char *path, char *error, size_t error_bytes) {
  const char *reason = unfit(path);
  if (reason) return snprintf(error, error_bytes, "%s", reason), NULL;
  void *object = dlopen ? dlopen(path, RTLD_NOW | RTLD_LOCAL) : NULL;
  const char *text = object ? "" : dlopen ? dlerror() : "this program is linked statically and has no loader";
  snprintf(error, error_bytes, "%s", text ? text : "it does not say why");
  return object;
}

const void *attn_object_symbol(void *object, const char *name) { return dlsym(object, name); }

bool attn_object_exists(const char *path) { return access(path, F_OK) == 0; }

void attn_object_path(const void *address, const char *fallback, char *path, size_t bytes) {
  Dl_info info;
  const bool known = address && dladdr && dladdr(address, &info) && info.dli_fname;
  snprintf(path, bytes, "%s", known ? info.dli_fname : fallback);
}

/* A program that was found by PATH is called by a name without a folder. */
void attn_object_own_folder(char *folder, size_t bytes) {
  static const char here = 0;
  attn_object_path(&here, "", folder, bytes);
  if (!strchr(folder, '/')) {
    const ssize_t length = readlink("/proc/self/exe", folder, bytes - 1);
    folder[length > 0 ? length : 0] = '\0';
  }
  cut_to_folder(folder, '/');
}

const char *attn_object_secure_getenv(const char *name) { return secure_getenv(name); }
#endif
