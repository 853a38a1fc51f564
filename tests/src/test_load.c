/* SPDX-License-Identifier: MIT */
/* attn_load_kernels() in this process: the fault of a plug-in is named and none of its kernels stays; a right one comes
 * once; and a library's begin_run() and end_run() surround each run. test_plugins.py tests the installed library. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/registry/plugin.h"
#include "src/registry/registry.h"
#include "tests/support/idle_kernel.h"
#include "tests/support/support.h"

#ifdef PLUGIN_FOLDER
static const char *plugin(const char *name) {
  static char path[1024];
  snprintf(path, sizeof path, "%s/plugin_%s%s", PLUGIN_FOLDER, name, PLUGIN_SUFFIX);
  return path;
}

TEST(wrong_plugins_are_refused_in_words) {
  static const char *const wrong[][3] = {
      {"entry", "is no plug-in: it does not export attn_plugin_entry"},
      {"abi", "is built for version 99 of the kernel interface, and libattn ", " has version 3; build it"},
      {"size", "an attn_kernel has ", "and in libattn "},
      {"name", "kernel 1 of ", " is called 'Test-kernel'; a name has small letters"},
      {"taken", "has a kernel 'flash_c', and libattn itself has one of that name already"},
      {"twice", "has a kernel 'test_first', and the same file has one of that name already"},
      {"tier", "kernel 'test_first' of ", " is of tier 'sse2'; it must be one of c, "},
      {"member", "kernel 'test_first' of ", " lacks run"},
      {"start", "cannot start: it does not want to"},
      {"version", "belongs to libattn 0.0.7, and this is libattn "},
      {"count", "brings no kernel"}};
  const int count = attn_kernel_count();
  for (size_t i = 0; i < COUNT(wrong); i++) {
    test_refused(attn_load_kernels(plugin(wrong[i][0])), ATTN_UNSUPPORTED, wrong[i][1], wrong[i][2]);
    test_contains(attn_last_error(), plugin(wrong[i][0]));
    assert_int_equal(attn_kernel_count(), count);
    assert_null(attn_kernel_find("test_first"));
  }
}

/* Threads that one library starts keep no other plug-in from being loaded. */
TEST(right_plugins_come_once) {
  const int count = attn_kernel_count();
  setenv("OPENBLAS_NUM_THREADS", "2000000000", 1);
  test_refused(attn_load_kernels("./libattn_openblas.so"), ATTN_UNSUPPORTED,
               "the system does not allow the 2000000000 threads");
  unsetenv("OPENBLAS_NUM_THREADS");
  for (int i = 0; i < 2; i++) test_ok(attn_load_kernels(plugin("nothing")));
  assert_int_equal(attn_kernel_count(), count + 2);
  assert_string_equal(attn_kernel_get(count)->name, "test_first");
  assert_string_equal(attn_kernel_get(count + 1)->name, "test_second");
  assert_null(attn_kernel_get(count + 2));
  assert_string_equal(attn_kernel_file(attn_kernel_find("test_second")), plugin("nothing"));
}

static void refused_symbol(const char *name, const char *symbol, const char *words) {
  char named[1100];
  snprintf(named, sizeof named, "%s:%s", plugin(name), symbol);
  test_refused(attn_load_kernels(named), ATTN_UNSUPPORTED, words);
  test_contains(attn_last_error(), plugin(name));
}

/* FILE:SYMBOL. Kernels of the names that plugin_entry.so has under another_symbol are there by now. */
TEST(symbols_name_one_set_of_a_file) {
  refused_symbol("entry", "nothing", "is no plug-in of that name: it does not export nothing (ATTN_EXPORT_KERNELS_AS");
  refused_symbol("entry", "", "is no plug-in of that name: it does not export ");
  refused_symbol("entry", "older_symbol", ":older_symbol is built for version 98 of the kernel interface");
  refused_symbol("entry", "another_symbol", ":another_symbol has a kernel 'test_first', and ");
  refused_symbol("absent", "another_symbol", "cannot load ");
}
#endif

/* A plug-in given by its name is looked for beside the program, below that, and where plug-ins are installed. */
TEST(places_are_named) {
  static const char words[] = " is not in ";
  char expected[1100];
  test_refused(attn_load_kernels("nowhere"), ATTN_UNSUPPORTED, "there is no plug-in 'nowhere': ", words,
               "the loader says: ");
  const char *own = strstr(attn_last_error(), words) + strlen(words), *below = strstr(own, ", ");
  snprintf(expected, sizeof expected, "%.*s/attn-", (int)(below - own), own);
  assert_memory_equal(below + 2, expected, strlen(expected));
  const char *installed = strstr(below + 2, ", ");
  assert_non_null(installed);
  assert_non_null(strstr(installed, "/attn-"));
  test_invalid(attn_load_kernels(NULL), "plugin is NULL; it must be a name");
  test_invalid(attn_load_kernels("no name"), "plugin is 'no name'; it must be a name");
  char longest[ATTN_KERNEL_NAME_BYTES + 1] = "";
  memset(longest, 'a', ATTN_KERNEL_NAME_BYTES);
  test_invalid(attn_load_kernels(longest), "it must be a name");
  longest[ATTN_KERNEL_NAME_BYTES - 1] = 0;
  test_refused(attn_load_kernels(longest), ATTN_UNSUPPORTED, "there is no plug-in 'aaa");
}

/* A file of that name beside the program is the one that is loaded. */
TEST(files_beside_the_program_come_first) {
  char path[1100];
  test_refused(attn_load_kernels("planted"), ATTN_UNSUPPORTED, "no plug-in 'planted'");
  const char *file = strstr(attn_last_error(), "': ") + 3, *end = strstr(file, " is not in "),
             *own = end + strlen(" is not in ");
  snprintf(path, sizeof path, "%.*s/%.*s", (int)(strstr(own, ", ") - own), own, (int)(end - file), file);
  FILE *planted = fopen(path, "w");
  if (!planted) skip();
  fclose(planted);
  const attn_status status = attn_load_kernels("planted");
  remove(path);
  test_refused(status, ATTN_UNSUPPORTED, "cannot load ", path);
}

/* ---- A kernel and a product on a library, which count --------------------------------------------------------------------
 */

static int begun, tasks, ended;
static void begin_run(void) { begun++; }
static void end_run(void) { ended++; }

static void run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory, void *scratch) {
  (void)schedule, (void)args, (void)task, (void)unit_memory, (void)scratch;
  assert_int_equal(begun, ended + 1);
  tasks++;
}

static const attn_kernel counting = {
    .info = {.name = "counting", .algorithm = "none", .isa = "c", .library = "", .summary = "for tests"},
    .rejects = idle_rejects,
    .plan = idle_plan,
    .run = run,
    .library = &(const attn_library_hooks){.begin_run = begin_run, .end_run = end_run}};

TEST(runs_begin_and_end) {
  static const attn_kernel *const kernels[] = {&counting};
  static const attn_plugin added = {.kernels = kernels, .kernel_count = 1},
                           large = {.kernels = kernels, .kernel_count = 256};
  static float x[8];
  assert_true(attn_registry_add(&added, "this program"));
  assert_false(attn_registry_add(&large, "this program"));
  assert_true(attn_registry_has(&added));
  assert_false(attn_registry_has(&large));
  attn_problem p;
  attn_problem_init(&p, 1, 2, 2, 1, 1, 4, 4);
  const attn_args args = ATTN_STRUCT(attn_args, .q = x, .k = x, .v = x, .o = (float[8]){0});
  for (int i = 1; i <= 2; i++) {
    test_ok(test_run(&p, &args, &ATTN_STRUCT(attn_options, .kernel = "counting", .threads = 1)));
    assert_int_equal(begun, i);
    assert_int_equal(ended, i);
    assert_int_equal(tasks, 2 * i);
  }
}
