/* SPDX-License-Identifier: MIT */
#include "base/build.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attn/extend.h"
#include "attn/kernel.h"
#include "base/cli.h"
#include "base/files.h"
#include "src/registry/plugin.h"

const bench_build bench_own_build = {.version = attn_version,
                                     .last_error = attn_last_error,
                                     .plan_create = attn_plan_create,
                                     .plan_kernel = attn_plan_kernel,
                                     .plan_kernel_of = attn_plan_kernel_of,
                                     .plan_workspace = attn_plan_workspace,
                                     .plan_run = attn_plan_run,
                                     .plan_destroy = attn_plan_destroy};

attn_status bench_build_plan(const bench_build *build, const attn_problem *problem, const attn_options *options,
                             attn_plan **plan) {
  attn_problem own = *problem;
  if (!(own.uses & ATTN_USE_STATE)) own.state_stride = (attn_strides){0};
  return build->plan_create(&own, options, plan);
}

void bench_build_kernel(const bench_build *build, const bench_build *other, const char *kernel,
                        char name[BENCH_BUILD_KERNEL]) {
  const int base = (int)(strlen(kernel) - strlen(other->suffix));
  snprintf(name, BENCH_BUILD_KERNEL, "%.*s%s", base, kernel, build->suffix);
}

const attn_kernel_info *bench_copies_kernel(const bench_copies *copies, const attn_kernel_info *kernel) {
  char name[BENCH_BUILD_KERNEL];
  if (!copies->plugin) return kernel;
  bench_build_kernel(&copies->build[0], &bench_own_build, kernel->name, name);
  return attn_kernel_find(name);
}

#ifdef _WIN32
bool bench_copies_load(const char *path, bench_copies *copies, char *error, size_t bytes) {
  (void)copies;
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

static bool exports(const char *file, const char *symbol) {
  void *library = dlopen(file, HOW);
  return library && dlsym(library, symbol);
}

static bool load(const char *path, bench_build *build, char *error, size_t bytes) {
  const struct {
    const char *name;
    void *function; /* where its address goes: ISO C has no cast from dlsym()'s void * */
  } symbols[] = {{"attn_version", &build->version},          {"attn_last_error", &build->last_error},
                 {"attn_plan_create", &build->plan_create},  {"attn_plan_kernel", &build->plan_kernel},
                 {"attn_plan_run", &build->plan_run},        {"attn_plan_workspace", &build->plan_workspace},
                 {"attn_plan_destroy", &build->plan_destroy}};
  void *library = dlopen(path, HOW);
  if (!library) return bench_say(error, bytes, "%s", dlerror());
  for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
    *(void **)symbols[i].function = dlsym(library, symbols[i].name);
    if (!*(void **)symbols[i].function) return bench_say(error, bytes, "%s has no %s()", path, symbols[i].name);
  }
  *(void **)(void *)&build->plan_kernel_of = dlsym(library, "attn_plan_kernel_of");
  return true;
}

/* A nameless copy of the file, which stays open: the loader takes a path that it has seen for the same library. False if it
 * cannot be made. */
static bool copy_file(const char *path, char *copy, size_t bytes) {
  FILE *to = tmpfile();
  if (to) snprintf(copy, bytes, "/proc/self/fd/%d", fileno(to));
  return to && bench_file_copy(path, to) && !fflush(to);
}

/* Plug-ins have names that no other has: __a0, __a1, ... for the first file and its copies, __b0, ... for the second. */
static bool load_plugin(const char *path, int side, int copy, const char *name, bench_build *build, char *error,
                        size_t bytes) {
  *build = bench_own_build;
  snprintf(build->suffix, sizeof build->suffix, "__%c%d", 'a' + side, copy);
  if (attn_plugins_load_as(path, build->suffix, name) == ATTN_OK) return true;
  return bench_say(error, bytes, "%s", attn_last_error());
}

/* Loads the file once more from a copy, if it can be made. */
static bool load_copy(const char *file, const char *symbol, int side, const char *name, bench_copies *copies) {
  char copy[100], ignored[300];
  bench_build *build = &copies->build[copies->count];
  if (!copy_file(file, copy, sizeof copy)) return false;
  if (!copies->plugin) return load(copy, build, ignored, sizeof ignored);
  bench_append(copy, sizeof copy, "%s", symbol);
  return load_plugin(copy, side, copies->count, name, build, ignored, sizeof ignored);
}

/* Where ":SYMBOL" begins; the end if the text is a file. */
static const char *symbol_of(const char *path) {
  const char *colon = strrchr(path, ':');
  return colon && !strchr(colon, '/') && access(path, F_OK) ? colon : path + strlen(path);
}

/* A path with a slash is no name for the loader to search, and two libraries of one soname are two. */
bool bench_copies_load(const char *path, bench_copies *copies, char *error, size_t bytes) {
  static int plugins;
  char name[4096], whole[4100], file[4100];
  *copies = (bench_copies){.count = 0};
  name_library(path, name, sizeof name);
  snprintf(whole, sizeof whole, "%s%s", name[0] == '/' ? "" : "./", name);
  const char *symbol = symbol_of(whole);
  snprintf(file, sizeof file, "%.*s", (int)(symbol - whole), whole);
  copies->plugin = *symbol || exports(file, ATTN_PLUGIN_ENTRY);
  const int side = copies->plugin ? plugins++ : 0;
  if (copies->plugin ? !load_plugin(whole, side, 0, path, &copies->build[0], error, bytes)
                     : !load(file, &copies->build[0], error, bytes))
    return false;
  copies->count = 1;
  while (copies->count < BENCH_MOST_COPIES && load_copy(file, symbol, side, path, copies)) copies->count++;
  return true;
}
#endif
