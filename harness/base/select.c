/* SPDX-License-Identifier: MIT */
/* Kernel filters. */
#include "base/select.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "base/plugins.h"

enum { WORD = 64 };

#define ATTN_TIER(isa, ...) #isa,
const char *const bench_tier_names[] = {
#include "kernels/tiers.def"
    NULL};
#undef ATTN_TIER

typedef enum property { NAME, ALGORITHM, ISA, PROPERTIES } property;
static const char *const property_names[] = {"kernel", "algorithm", "tier"};

static const char *get(const attn_kernel_info *kernel, property what) {
  return what == NAME ? kernel->name : what == ALGORITHM ? kernel->algorithm : kernel->isa;
}

/* Steps through the words of a list, whose items hold words with commas between. Starts as {.list = ...}. */
typedef struct words {
  const cli_list *list;
  int item;
  const char *text; /* the rest of the item before */
  char word[WORD];
} words;

static bool next(words *w) {
  while (!cli_next_word(&w->text, w->word, sizeof w->word)) {
    if (w->item == w->list->count) return false;
    w->text = w->list->item[w->item++];
  }
  return true;
}

/* True if a word of the list matches; of the words that begin with "!" if `excludes`, else of the others. *any is set if
 * there are such words at all. */
static bool list_matches(const cli_list *list, const char *value, bool excludes, bool *any) {
  bool found = false;
  *any = false;
  for (words w = {.list = list}; next(&w);) {
    if ((w.word[0] == '!') != excludes || !strcmp(w.word, "auto")) continue;
    *any = true;
    found |= !fnmatch(w.word + excludes, value, 0);
  }
  return found;
}

/* Returns 0 if a kernel matches the pattern, else an exit code. */
static int check_pattern(const char *pattern, property what, const char *command) {
  const char *names[BENCH_MAX_KERNELS + 1] = {NULL}, *name, *reason;
  for (int i = 0; i < attn_kernel_count() && i < BENCH_MAX_KERNELS; i++) {
    names[i] = get(attn_kernel_get(i), what);
    if (!fnmatch(pattern, names[i], 0)) return 0;
  }
  for (int i = 0; what == NAME && (name = attn_kernel_not_built(i, &reason)); i++)
    if (!fnmatch(pattern, name, 0))
      return cli_fail(BENCH_EXIT_NOTHING, command, "kernel '%s' is not here: %s", name, reason);
  if (strpbrk(pattern, "*?[")) /* a glob */
    return cli_fail(BENCH_EXIT_NOTHING, command, "'%s' matches no %s; see attnbench list kernels", pattern,
                    property_names[what]);
  return cli_unknown(command, property_names[what], pattern, names, "see attnbench list kernels");
}

/* Every word must match something. *automatic is set if "auto" is among the kernels. */
static int check_words(const cli_list *list, property what, const char *command, bool *automatic) {
  int code = 0;
  for (words w = {.list = list}; !code && next(&w);) {
    if (what == NAME && !strcmp(w.word, "auto"))
      *automatic = true;
    else
      code = check_pattern(w.word + (w.word[0] == '!'), what, command);
  }
  return code;
}

static bool wanted(const cli_list *list, const char *value) {
  bool any;
  if (list_matches(list, value, true, &any)) return false;
  const bool included = list_matches(list, value, false, &any);
  return included || !any;
}

/* NAME=FILE[:SYMBOL]: the plug-in FILE is to be loaded, and its kernel NAME to be run. Splits such items of --kernel. */
static int split_files(const bench_filter *filter, const char *command, cli_list *kernels, cli_list *load) {
  static char names[CLI_LIST_MAX][WORD];
  *kernels = filter->kernels;
  *load = filter->load;
  for (int i = 0; i < kernels->count; i++) {
    const char *item = kernels->item[i], *equals = strchr(item, '=');
    if (!equals) continue;
    if (equals == item || equals - item >= WORD || !equals[1] || load->count == CLI_LIST_MAX)
      return cli_usage_error(command, "--kernel '%s' should be NAME=FILE[:SYMBOL]: a kernel, and the plug-in that brings it",
                             item);
    snprintf(names[i], sizeof names[i], "%.*s", (int)(equals - item), item);
    kernels->item[i] = names[i];
    load->item[load->count++] = equals + 1;
  }
  return 0;
}

int bench_select(const bench_filter *filter, const char *command, bench_selection *selection) {
  cli_list kernels, load;
  const cli_list *lists[PROPERTIES] = {&kernels, &filter->algorithms, &filter->isas};
  bool includes, excludes;
  *selection = (bench_selection){0};
  int code = split_files(filter, command, &kernels, &load);
  if (!code) code = bench_plugins_load(&load, command);
  for (property p = 0; p < PROPERTIES && !code; p++) code = check_words(lists[p], p, command, &selection->automatic);
  (void)list_matches(&kernels, "", false, &includes);
  (void)list_matches(&kernels, "", true, &excludes);
  const bool narrowed = includes || excludes || filter->algorithms.count || filter->isas.count;
  if (code || (selection->automatic && !narrowed)) return code; /* `--kernel auto` alone asks for nothing else */
  for (int i = 0; i < attn_kernel_count() && selection->count < BENCH_MAX_KERNELS; i++) {
    bool passes = true;
    for (property p = 0; p < PROPERTIES; p++) passes = passes && wanted(lists[p], get(attn_kernel_get(i), p));
    if (passes) selection->kernel[selection->count++] = attn_kernel_get(i);
  }
  if (selection->count || selection->automatic) return 0;
  return cli_fail(BENCH_EXIT_NOTHING, command,
                  "no kernel passes all of --kernel, --algo and --isa; see attnbench list kernels");
}
