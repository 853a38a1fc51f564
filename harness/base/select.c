/* SPDX-License-Identifier: MIT */
/* Kernel filters. */
#include "base/select.h"

#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

enum { WORD = 64 };

#define ATTN_TIER(isa, ...) #isa,
const char *const bench_tier_names[] = {
#include "kernels/tiers.def"
    NULL};
#undef ATTN_TIER

typedef enum property { NAME, ALGORITHM, ISA } property;
static const char *const property_names[] = {"kernel", "algorithm", "tier"};

static const char *get(const attn_kernel_info *kernel, property what) {
  return what == NAME ? kernel->name : what == ALGORITHM ? kernel->algorithm : kernel->isa;
}

static bool is_glob(const char *pattern) { return strpbrk(pattern, "*?["); }

/* Copies the next comma-separated word of *text and moves on; false at the end. */
static bool next_word(const char **text, char *word) {
  if (!*text || !**text) return false;
  const size_t length = strcspn(*text, ",");
  snprintf(word, WORD, "%.*s", (int)length, *text);
  *text += length + ((*text)[length] == ',');
  return true;
}

static bool matches_any(const char *pattern, property what) {
  for (int i = 0; i < attn_kernel_count(); i++)
    if (!fnmatch(pattern, get(attn_kernel_get(i), what), 0)) return true;
  return false;
}

/* Does any word of the list match? `excludes` looks at the words that begin with "!" instead. *any tells whether there was
 * such a word at all. */
static bool list_matches(const cli_list *list, const char *value, bool excludes, bool *any) {
  char word[WORD];
  bool found = false;
  *any = false;
  for (int i = 0; i < list->count; i++)
    for (const char *text = list->item[i]; next_word(&text, word);) {
      if ((word[0] == '!') != excludes || !strcmp(word, "auto")) continue;
      *any = true;
      found |= !fnmatch(word + excludes, value, 0);
    }
  return found;
}

static int say_not_built(const char *command, const char *word) {
  const char *name, *reason;
  for (int i = 0; (name = attn_kernel_not_built(i, &reason)); i++)
    if (!fnmatch(word, name, 0)) {
      (void)cli_usage_error(command, "kernel '%s' is not in this build: %s", name, reason);
      return BENCH_EXIT_NOTHING;
    }
  return 0;
}

static int say_unknown(const char *command, const char *word, property what) {
  const char *names[BENCH_MAX_KERNELS + 1];
  int count = 0;
  for (; count < attn_kernel_count() && count < BENCH_MAX_KERNELS; count++) names[count] = get(attn_kernel_get(count), what);
  names[count] = NULL;
  if (is_glob(word)) {
    (void)cli_usage_error(command, "'%s' matches no %s; see attnbench list kernels", word, property_names[what]);
    return BENCH_EXIT_NOTHING;
  }
  const char *near = cli_nearest(word, names);
  if (near) return cli_usage_error(command, "unknown %s '%s'; did you mean %s?", property_names[what], word, near);
  return cli_usage_error(command, "unknown %s '%s'; see attnbench list kernels", property_names[what], word);
}

/* Every word must mean something. */
static int check_words(const cli_list *list, property what, const char *command, bool *automatic) {
  char word[WORD];
  for (int i = 0; i < list->count; i++)
    for (const char *text = list->item[i]; next_word(&text, word);) {
      const char *pattern = word + (word[0] == '!');
      if (what == NAME && !strcmp(word, "auto")) {
        *automatic = true;
      } else if (!matches_any(pattern, what)) {
        const int code = what == NAME ? say_not_built(command, pattern) : 0;
        return code ? code : say_unknown(command, pattern, what);
      }
    }
  return 0;
}

static bool wanted(const cli_list *list, const char *value) {
  bool any;
  if (list_matches(list, value, true, &any)) return false;
  const bool included = list_matches(list, value, false, &any);
  return included || !any;
}

/* `--kernel auto` alone asks for nothing else. */
static bool only_automatic(const bench_filter *filter, const bench_selection *selection) {
  bool includes, excludes;
  (void)list_matches(&filter->kernels, "", false, &includes);
  (void)list_matches(&filter->kernels, "", true, &excludes);
  return selection->automatic && !includes && !excludes && !filter->algorithms.count && !filter->isas.count;
}

int bench_select(const bench_filter *filter, const char *command, bench_selection *selection) {
  *selection = (bench_selection){0};
  int code = check_words(&filter->kernels, NAME, command, &selection->automatic);
  if (!code) code = check_words(&filter->algorithms, ALGORITHM, command, NULL);
  if (!code) code = check_words(&filter->isas, ISA, command, NULL);
  if (code) return code;
  if (only_automatic(filter, selection)) return 0;
  for (int i = 0; i < attn_kernel_count() && selection->count < BENCH_MAX_KERNELS; i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (wanted(&filter->kernels, kernel->name) && wanted(&filter->algorithms, kernel->algorithm) &&
        wanted(&filter->isas, kernel->isa))
      selection->kernel[selection->count++] = kernel;
  }
  if (selection->count || selection->automatic) return 0;
  (void)cli_usage_error(command, "no kernel passes all of --kernel, --algo and --isa; see attnbench list kernels");
  return BENCH_EXIT_NOTHING;
}
