/* SPDX-License-Identifier: MIT */
#include "base/build.h"

#include <stdio.h>
#include <sys/stat.h>

#include "base/cli.h"

const bench_build bench_own_build = {.version = attn_version,
                                     .last_error = attn_last_error,
                                     .plan_create = attn_plan_create,
                                     .plan_kernel = attn_plan_kernel,
                                     .plan_workspace = attn_plan_workspace,
                                     .plan_run = attn_plan_run,
                                     .plan_destroy = attn_plan_destroy};

#ifdef _WIN32
bool bench_build_load(const char *path, bench_build *build, char *error, size_t bytes) {
  (void)build;
  return bench_say(error, bytes, "'%s': builds cannot be loaded on Windows", path);
}
#else
#include <dlfcn.h>

/* Its calls to attn_...() mean its own functions, even where the program exports some of the same name. Sanitizers refuse
 * that flag. */
#if defined(RTLD_DEEPBIND) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
enum { HOW = RTLD_NOW | RTLD_LOCAL | RTLD_DEEPBIND };
#else
enum { HOW = RTLD_NOW | RTLD_LOCAL };
#endif

static void name_library(const char *path, char *name, size_t bytes) {
  struct stat info;
  const bool folder = !stat(path, &info) && S_ISDIR(info.st_mode);
  snprintf(name, bytes, "%s%s", path, folder ? "/libattn.so" : "");
}

/* A path with a slash is no name for the loader to search, and two libraries of one soname are two. */
static void *open_library(const char *path, char *error, size_t bytes) {
  char name[4096], with_slash[4100];
  name_library(path, name, sizeof name);
  snprintf(with_slash, sizeof with_slash, "%s%s", name[0] == '/' ? "" : "./", name);
  void *library = dlopen(with_slash, HOW);
  if (!library) (void)bench_say(error, bytes, "%s", dlerror());
  return library;
}

bool bench_build_load(const char *path, bench_build *build, char *error, size_t bytes) {
  const struct {
    const char *name;
    void *function; /* where its address goes: ISO C has no cast from dlsym()'s void * */
  } symbols[] = {{"attn_version", &build->version},          {"attn_last_error", &build->last_error},
                 {"attn_plan_create", &build->plan_create},  {"attn_plan_kernel", &build->plan_kernel},
                 {"attn_plan_run", &build->plan_run},        {"attn_plan_workspace", &build->plan_workspace},
                 {"attn_plan_destroy", &build->plan_destroy}};
  void *library = open_library(path, error, bytes);
  if (!library) return false;
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    *(void **)symbols[i].function = dlsym(library, symbols[i].name);
    if (!*(void **)symbols[i].function) return bench_say(error, bytes, "%s has no %s()", path, symbols[i].name);
  }
  return true;
}
#endif
