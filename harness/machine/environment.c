/* SPDX-License-Identifier: MIT */
/* The list of facts: adding, finding, printing. Source and compiler of this program, how the process was started, and
 * what emulates the machine. */
#include "machine/environment.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "attn/attn.h"
#include "base/cli.h"
#include "base/files.h"
#include "build_info.h"
#include "src/registry/tiers.h"

void bench_fact_add(bench_environment *environment, const char *name, bench_grade grade, const char *advice,
                    const char *format, ...) {
  if (environment->count == (int)(sizeof environment->facts / sizeof *environment->facts)) return;
  bench_fact *fact = &environment->facts[environment->count++];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(fact->value, sizeof fact->value, format, arguments);
  va_end(arguments);
  const bool known = fact->value[0] != 0;
  if (!known) snprintf(fact->value, sizeof fact->value, "unknown");
  snprintf(fact->name, sizeof fact->name, "%s", name);
  snprintf(fact->advice, sizeof fact->advice, "%s", known ? advice : "");
  fact->grade = known ? grade : BENCH_UNKNOWN;
}

void bench_fact_note(bench_environment *environment, const char *name, const char *value) {
  bench_fact_add(environment, name, BENCH_OK, "", "%s", value);
}

/* ---- Showing --------------------------------------------------------------------------------------------------------- */

const char *bench_environment_get(const bench_environment *environment, const char *name) {
  for (int i = 0; i < environment->count; i++)
    if (strcmp(environment->facts[i].name, name) == 0) return environment->facts[i].value;
  return "unknown";
}

const char *bench_grade_name(bench_grade grade) {
  static const char *const names[] = {"OK", "WARN", "BAD", "unknown"};
  return names[grade];
}

bench_grade bench_environment_worst(const bench_environment *environment) {
  static const int rank[] = {[BENCH_OK] = 0, [BENCH_UNKNOWN] = 1, [BENCH_WARN] = 2, [BENCH_BAD] = 3};
  bench_grade worst = BENCH_OK;
  for (int i = 0; i < environment->count; i++)
    if (rank[environment->facts[i].grade] > rank[worst]) worst = environment->facts[i].grade;
  return worst;
}

void bench_environment_write_json(const bench_environment *environment, FILE *file) {
  const char *separator = "{";
  for (const bench_fact *fact = environment->facts; fact < environment->facts + environment->count; fact++) {
    fprintf(file, "%s\n  \"%s\": {", separator, fact->name);
    bench_json_pair(file, "", "value", fact->value);
    bench_json_pair(file, ", ", "grade", bench_grade_name(fact->grade));
    if (fact->advice[0]) bench_json_pair(file, ", ", "advice", fact->advice);
    fputs("}", file);
    separator = ",";
  }
  fputs("\n}\n", file);
}

void bench_environment_print(const bench_environment *environment, FILE *file) {
  for (int i = 0; i < environment->count; i++) {
    const bench_fact *fact = &environment->facts[i];
    fprintf(file, "%-8s %-18s %s\n", bench_grade_name(fact->grade), fact->name, fact->value);
    if (fact->advice[0]) fprintf(file, "%-8s %-18s fix: %s\n", "", "", fact->advice);
  }
}

/* ---- Build ----------------------------------------------------------------------------------------------------------- */

static void add_build_type(bench_environment *e) {
  const bool fast = strstr(BENCH_BUILD_BUILD_TYPE, "Rel") != NULL, sanitized = BENCH_BUILD_SANITIZE[0] != 0;
  bench_fact_note(e, "compiler", BENCH_BUILD_COMPILER);
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
    if (library[0] && !strstr(list, library)) bench_append(list, sizeof list, "%s%s", *list ? ", " : "", library);
  }
  bench_fact_note(e, "attn", attn_version());
  const char *advice = better_core(list);
  bench_fact_add(e, "libraries", advice[0] ? BENCH_WARN : BENCH_OK, advice, "%s", list[0] ? list : "none");
  bench_fact_note(e, "openmp", BENCH_BUILD_OPENMP);
}

/* The files that kernels came from, with a hash of what is in them, and libattn's own plug-ins that are missing. */
static void add_plugins(bench_environment *e) {
  char list[1200] = "", missing[1200] = "", hash[17];
  const char *name, *before = "";
  for (int i = 0; i < attn_kernel_count(); i++) {
    const char *file = attn_kernel_file(attn_kernel_get(i));
    if (!file || !strcmp(file, before)) continue;
    bench_file_hash(file, hash);
    bench_append(list, sizeof list, "%s%s %s", *list ? ", " : "", hash, file);
    before = file;
  }
  for (int i = 0; (name = attn_plugin_name(i)); i++)
    if (attn_load_kernels(name) != ATTN_OK)
      bench_append(missing, sizeof missing, "%s%s", *missing ? "; " : "", attn_last_error());
  bench_fact_note(e, "plugins", list[0] ? list : "none");
  bench_fact_note(e, "plugins_missing", missing[0] ? missing : "none");
}

static void add_commit(bench_environment *e) {
  const bool dirty = strcmp(BENCH_BUILD_TREE, "dirty") == 0;
  bench_fact_note(e, "commit", strcmp(BENCH_BUILD_COMMIT, "unknown") ? BENCH_BUILD_COMMIT : "");
  bench_fact_add(e, "source_tree", dirty ? BENCH_WARN : BENCH_OK,
                 dirty ? "git commit: results should name the code that they came from" : "", "%s",
                 strcmp(BENCH_BUILD_TREE, "unknown") ? BENCH_BUILD_TREE : "");
}

/* ---- Process --------------------------------------------------------------------------------------------------------- */

static bool begins_with(const char *text, const char *const *prefixes) {
  for (int i = 0; prefixes[i]; i++)
    if (strncmp(text, prefixes[i], strlen(prefixes[i])) == 0) return true;
  return false;
}

/* The first environment variable in the order of the alphabet behind `last` whose name begins so; NULL at the end. */
static const char *find_variable(const char *const *prefixes, const char *last) {
  const char *first = NULL;
  for (char **variable = environ; *variable; variable++)
    if (begins_with(*variable, prefixes) && strcmp(*variable, last) > 0 && (!first || strcmp(*variable, first) < 0))
      first = *variable;
  return first;
}

/* All environment variables whose names start with one of the prefixes. Launchers of MPI give ranks other orders. */
static void list_variables(const char *const *prefixes, char *list, size_t bytes) {
  for (const char *variable = ""; (variable = find_variable(prefixes, variable));)
    bench_append(list, bytes, "%s%s", *list ? " " : "", variable);
}

static void add_variables(bench_environment *e) {
  static const struct {
    const char *fact, *prefixes[8], *advice;
  } kinds[] = {
      {"attn_variables", {"ATTN_"}, "unset them: they change what runs"},
      {"thread_variables", {"OMP_", "GOMP_", "KMP_", "OPENBLAS_", "MKL_", "DNNL_", "ONEDNN_"}, ""},
      {"memory_variables", {"MALLOC_", "GLIBC_TUNABLES", "LD_PRELOAD"}, ""},
  };
  for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    char list[512] = "";
    list_variables(kinds[i].prefixes, list, sizeof list);
    const bool warns = list[0] && kinds[i].advice[0];
    bench_fact_add(e, kinds[i].fact, warns ? BENCH_WARN : BENCH_OK, warns ? kinds[i].advice : "", "%s",
                   list[0] ? list : "none");
  }
}

void bench_environment_read(bench_environment *environment, int argc, char **argv, unsigned long long seed) {
  char command[512] = "";
  environment->count = 0;
  bench_environment_add_machine(environment);
  add_build_type(environment);
  add_flags(environment);
  add_libraries(environment);
  add_plugins(environment);
  add_commit(environment);
  add_variables(environment);
#ifdef _OPENMP
  bench_fact_add(environment, "threads", BENCH_OK, "", "%d by OpenMP's default", omp_get_max_threads());
#else
  bench_fact_note(environment, "threads", "1: built without OpenMP");
#endif
  for (int i = 0; i < argc; i++) bench_append(command, sizeof command, "%s%s", *command ? " " : "", argv[i]);
  bench_fact_note(environment, "argv", command);
  bench_fact_add(environment, "seed", BENCH_OK, "", "%llu", seed);
}

/* ---- Emulation: of a tier by the build, or of the machine by a program -------------------------------------------- */

/* The emulator that runs this program, or NULL. User-mode emulators answer /proc/self/exe themselves, with the path of the
 * program. qemu-user and Valgrind leave /proc/thread-self/exe to the kernel, which names the emulator. Where both name one
 * file, or cannot be read, no emulator can be seen. */
static const char *emulator_of_process(void) {
  static char emulator[256];
  char program[sizeof emulator];
  const ssize_t program_bytes = readlink("/proc/self/exe", program, sizeof program - 1);
  const ssize_t bytes = readlink("/proc/thread-self/exe", emulator, sizeof emulator - 1);
  if (program_bytes < 0 || bytes < 0) return NULL;
  program[program_bytes] = emulator[bytes] = '\0';
  return strcmp(program, emulator) ? emulator : NULL;
}

/* Says which tier the build itself emulates; NULL: none. */
static const char *emulated_tier(void) {
#ifdef ATTN_EMULATE_AVX512
  return "this build emulates the avx512 tier on AVX2 (ATTN_EMULATE_AVX512=ON)";
#else
  return NULL;
#endif
}

const char *bench_emulation(void) {
  static char text[400];
  if (emulated_tier()) return emulated_tier();
  const char *declared = getenv("ATTN_EMULATED"), *emulator = emulator_of_process();
  if (emulator)
    snprintf(text, sizeof text, "this program runs under an emulator, %s", emulator);
  else if (declared && *declared && strcmp(declared, "0"))
    snprintf(text, sizeof text, "this machine is emulated (ATTN_EMULATED=%s)", declared);
  else
    return NULL;
  return text;
}

bool bench_refuses_to_time(const char *command) {
  const char *emulation = bench_emulation();
  if (emulation) fprintf(stderr, "attnbench %s: no times are taken here: %s; `attnbench check` works\n", command, emulation);
  return emulation != NULL;
}
