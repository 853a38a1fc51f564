/* SPDX-License-Identifier: MIT */
/* A program that links libattn.so and does what its arguments say, for tests/src/test_plugins.py:
 *
 *     load PLUGIN      attn_load_kernels(): prints the status and the sentence
 *     race PLUGIN      the same from eight threads at once, which look for kernels and compute meanwhile
 *     kernels          every kernel and the file that it came from
 *     missing          the kernels that are not here, and why
 *     run KERNEL       attention by that kernel ("auto": the library's choice): prints the kernel's name
 *     product NAME     a dense layer likewise
 *     threads          how many threads the process has */
#include <dirent.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "attn/attn.h"
#include "attn/product.h"

enum { DIM = 8, HEADS = 2, SEQ = 5, ELEMENTS = HEADS * SEQ * DIM, THREADS = 8 };

static bool good(attn_status status) {
  if (status != ATTN_OK) printf("%s: %s\n", attn_status_name(status), attn_last_error());
  return status == ATTN_OK;
}

static void load(const char *plugin) {
  if (good(attn_load_kernels(plugin))) puts("ATTN_OK");
}

static bool look(void) {
  for (int i = 0; i < attn_kernel_count(); i++)
    if (!attn_kernel_get(i) || !attn_kernel_find(attn_kernel_get(i)->name)) return false;
  return true;
}

/* Finds a kernel and computes, automatically and by name. */
static bool compute(void) {
  float x[ELEMENTS] = {1}, o[ELEMENTS];
  attn_problem problem;
  attn_problem_init(&problem, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  const attn_args args = {.q = x, .k = x, .v = x, .o = o};
  return attn_sdpa(&problem, &args) == ATTN_OK && attn_kernel_find("flash_c");
}

static void *load_and_look(void *plugin) {
  const bool before = compute(), loaded = attn_load_kernels(plugin) == ATTN_OK;
  return before && loaded && look() && compute() ? plugin : NULL;
}

static void race(const char *plugin) {
  pthread_t threads[THREADS];
  bool all = true;
  for (int i = 0; i < THREADS; i++) pthread_create(&threads[i], NULL, load_and_look, (void *)(uintptr_t)plugin);
  for (int i = 0; i < THREADS; i++) {
    void *result;
    pthread_join(threads[i], &result);
    all &= result != NULL;
  }
  puts(all ? "ATTN_OK" : "a thread failed");
}

static void print_kernels(const char *unused) {
  (void)unused;
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    printf("%s %s\n", kernel->name, attn_kernel_file(kernel) ? attn_kernel_file(kernel) : "-");
  }
}

static void print_missing(const char *unused) {
  (void)unused;
  const char *name, *reason;
  for (int i = 0; (name = attn_kernel_not_built(i, &reason)); i++) printf("%s %s\n", name, reason);
}

static void run(const char *kernel) {
  static float x[ELEMENTS], o[ELEMENTS];
  static _Alignas(64) char workspace[1 << 20];
  for (int i = 0; i < ELEMENTS; i++) x[i] = (float)(i % 7) - 3;
  attn_problem problem;
  attn_plan *plan;
  attn_problem_init(&problem, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  const attn_options options = {.kernel = strcmp(kernel, "auto") ? kernel : NULL, .threads = 1};
  if (!good(attn_plan_create(&problem, &options, &plan))) return;
  const attn_args args = {.q = x, .k = x, .v = x, .o = o};
  if (good(attn_plan_run(plan, &args, workspace, sizeof workspace)) && o[0] != 0) puts(attn_plan_kernel(plan));
  attn_plan_destroy(plan);
}

static void make_product(const char *name) {
  static const float weight[DIM * DIM];
  attn_product *product;
  const attn_product_weights weights = {
      .depth = DIM, .columns = DIM, .dtype = ATTN_F32, .weight = weight, .stride_depth = DIM, .stride_column = 1};
  const attn_options options = {.kernel = name, .threads = 1};
  if (!good(attn_product_create(&weights, &options, &product))) return;
  puts(attn_product_name(product));
  attn_product_destroy(product);
}

static void print_threads(const char *unused) {
  (void)unused;
  DIR *tasks = opendir("/proc/self/task");
  int count = 0;
  for (const struct dirent *entry; tasks && (entry = readdir(tasks));) count += entry->d_name[0] != '.';
  if (tasks) closedir(tasks);
  printf("%d\n", count);
}

int main(int count, char **arguments) {
  static const struct {
    const char *word;
    void (*act)(const char *argument);
    int takes; /* arguments */
  } acts[] = {{"load", load, 1},
              {"race", race, 1},
              {"kernels", print_kernels, 0},
              {"missing", print_missing, 0},
              {"run", run, 1},
              {"product", make_product, 1},
              {"threads", print_threads, 0}};
  for (int i = 1; i < count; i++)
    for (size_t a = 0; a < sizeof acts / sizeof *acts; a++) {
      if (strcmp(arguments[i], acts[a].word) != 0) continue;
      i += acts[a].takes;
      acts[a].act(acts[a].takes && i < count ? arguments[i] : "");
      break;
    }
  return 0;
}
