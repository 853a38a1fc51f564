/* SPDX-License-Identifier: MIT */
/* Source and compiler of this program, and how the process was started. */
#include <stdlib.h>
#include <string.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn/attn.h"
#include "build_info.h"
#include "machine/environment_private.h"
#include "src/tiers.h"

extern char **environ;

/* ---- Build ----------------------------------------------------------------------------------------------------------- */

static void add_commit(bench_environment *e) {
  bool clean = strcmp(BENCH_BUILD_TREE, "clean") == 0, dirty = strcmp(BENCH_BUILD_TREE, "dirty") == 0;
  bench_fact_note(e, "commit", strcmp(BENCH_BUILD_COMMIT, "unknown") ? BENCH_BUILD_COMMIT : "");
  bench_fact_add(e, "source_tree", dirty ? BENCH_WARN : BENCH_OK,
                 dirty ? "git commit: results should name the code that they came from" : "", "%s",
                 clean || dirty ? BENCH_BUILD_TREE : "");
}

static void add_build_type(bench_environment *e) {
  bool fast = strstr(BENCH_BUILD_BUILD_TYPE, "Rel") != NULL, sanitized = BENCH_BUILD_SANITIZE[0] != 0;
  bench_fact_add(e, "build_type", fast ? BENCH_OK : BENCH_BAD,
                 fast ? "" : "cmake -DCMAKE_BUILD_TYPE=Release and build again", "%s",
                 BENCH_BUILD_BUILD_TYPE[0] ? BENCH_BUILD_BUILD_TYPE : "none: no optimisation");
  bench_fact_add(e, "sanitizers", sanitized ? BENCH_BAD : BENCH_OK,
                 sanitized ? "cmake -DATTN_SANITIZE= and build again" : "", "%s", sanitized ? BENCH_BUILD_SANITIZE : "none");
}

/* The flags that all files share, and those that the library and each tier (kernels/tiers.def) get on top. */
static void add_flags(bench_environment *e) {
#define ATTN_TIER(isa, folder, architecture, flags, ...) ATTN_IF_##architecture({"flags_" #isa, flags}, )
  static const struct {
    const char *fact, *flags;
  } tiers[] = {
#include "kernels/tiers.def"
  };
#undef ATTN_TIER
  bench_fact_note(e, "flags", BENCH_BUILD_C_FLAGS[0] ? BENCH_BUILD_C_FLAGS : "none");
  bench_fact_note(e, "flags_library", BENCH_BUILD_LIBRARY_FLAGS[0] ? BENCH_BUILD_LIBRARY_FLAGS : "none of its own");
  for (size_t i = 0; i < sizeof tiers / sizeof *tiers; i++)
    bench_fact_note(e, tiers[i].fact, tiers[i].flags[0] ? tiers[i].flags : "none of its own");
}

/* On a CPU that it does not know, an old OpenBLAS runs its SSE3 code, called Prescott. The setting that selects better code,
 * or "". */
static const char *better_core(const char *libraries) {
  if (!strstr(libraries, "OpenBLAS") || !strstr(libraries, " Prescott") || !strstr(attn_cpu_tiers(), "avx2")) return "";
  return strstr(attn_cpu_tiers(), "avx512")
             ? "OPENBLAS_CORETYPE=SkylakeX: this OpenBLAS does not know the CPU and runs SSE3 code"
             : "OPENBLAS_CORETYPE=Haswell: this OpenBLAS does not know the CPU and runs SSE3 code";
}

/* Versions of the libraries that kernels call, each once. */
static void add_libraries(bench_environment *e) {
  char list[512] = "";
  for (int i = 0; i < attn_kernel_count(); i++) {
    const char *library = attn_kernel_get(i)->library;
    size_t used = strlen(list);
    if (library && library[0] && !strstr(list, library))
      snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "", library);
  }
  bench_fact_note(e, "attn", attn_version());
  const char *advice = better_core(list);
  bench_fact_add(e, "libraries", advice[0] ? BENCH_WARN : BENCH_OK, advice, "%s", list[0] ? list : "none");
  bench_fact_note(e, "openmp", BENCH_BUILD_OPENMP);
}

void bench_environment_add_build(bench_environment *environment) {
  bench_fact_note(environment, "compiler", BENCH_BUILD_COMPILER);
  add_build_type(environment);
  add_flags(environment);
  add_libraries(environment);
  add_commit(environment);
}

/* ---- Process --------------------------------------------------------------------------------------------------------- */

/* Appends what fits. */
static void append(char *list, size_t bytes, const char *separator, const char *text) {
  size_t used = strlen(list);
  snprintf(list + used, bytes - used, "%s%s", used ? separator : "", text);
}

/* All environment variables whose names start with one of the prefixes. */
static void list_variables(const char *const *prefixes, char *list, size_t bytes) {
  list[0] = 0;
  for (char **variable = environ; *variable; variable++)
    for (int i = 0; prefixes[i]; i++)
      if (strncmp(*variable, prefixes[i], strlen(prefixes[i])) == 0) append(list, bytes, " ", *variable);
}

static void add_variables(bench_environment *e) {
  static const char *const ours[] = {"ATTN_", NULL};
  static const char *const threads[] = {"OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "DNNL_", "ONEDNN_", NULL};
  static const char *const memory[] = {"MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD", NULL};
  char list[512];
  list_variables(ours, list, sizeof list);
  bench_fact_add(e, "attn_variables", list[0] ? BENCH_WARN : BENCH_OK, list[0] ? "unset them: they change what runs" : "",
                 "%s", list[0] ? list : "none");
  list_variables(threads, list, sizeof list);
  bench_fact_note(e, "thread_variables", list[0] ? list : "none");
  list_variables(memory, list, sizeof list);
  bench_fact_note(e, "memory_variables", list[0] ? list : "none");
}

static void add_threads(bench_environment *e) {
#ifdef _OPENMP
  bench_fact_add(e, "threads", BENCH_OK, "", "%d by OpenMP's default", omp_get_max_threads());
#else
  bench_fact_note(e, "threads", "1: built without OpenMP");
#endif
}

void bench_environment_add_process(bench_environment *environment, int argc, char **argv, unsigned long long seed) {
  char command[512] = "";
  add_variables(environment);
  add_threads(environment);
  for (int i = 0; i < argc; i++) append(command, sizeof command, " ", argv[i]);
  bench_fact_note(environment, "argv", command);
  bench_fact_add(environment, "seed", BENCH_OK, "", "%llu", seed);
}
