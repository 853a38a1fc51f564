/* SPDX-License-Identifier: MIT */
/* A case of libattn.conformance (docs/conformance.md) as options of eval. Its index has a case on each line: the file with
 * the case's arrays, and the options, where an array's name takes the place of a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"

/* The text behind "key": " up to the next quote; empty where the line has none. Names and options have no escapes. */
static void find_text(const char *line, const char *key, char *text, size_t bytes) {
  char quoted[40];
  snprintf(quoted, sizeof quoted, "\"%s\": \"", key);
  const char *at = strstr(line, quoted);
  at = at ? at + strlen(quoted) : "";
  snprintf(text, bytes, "%.*s", (int)strcspn(at, "\""), at);
}

static bool takes_file(const char *option) {
  for (eval_file which = 0; which < EVAL_FILES; which++)
    if (strcmp(option, eval_option(which)) == 0) return true;
  return false;
}

static bool is_number(const char *word) { return word[strspn(word, "-0123456789")] == 0; }

/* Words of the case's options, into words->text. */
static bool split_options(eval_words *words, const char *options, const char *arrays) {
  size_t used = 0;
  for (const char *word = options; *word; word += strspn(word, " ")) {
    const int length = (int)strcspn(word, " ");
    char *to = words->text + used;
    const size_t left = sizeof words->text - used;
    snprintf(to, left, "%.*s", length, word);
    const bool file = words->count && takes_file(words->word[words->count - 1]) && !is_number(to);
    const int needed = file ? snprintf(to, left, "%s/%.*s.npy", arrays, length, word) : length;
    if ((size_t)needed + 1 > left || words->count == EVAL_WORDS) return false;
    words->word[words->count++] = to;
    used += (size_t)needed + 1;
    word += length;
  }
  return true;
}

static bool find_line(FILE *file, const char *name, char **line, size_t *bytes) {
  char found[200];
  while (getline(line, bytes, file) >= 0) {
    find_text(*line, "name", found, sizeof found);
    if (strncmp(*line, "{\"name\"", 7) == 0 && strcmp(found, name) == 0) return true;
  }
  return false;
}

bool eval_case_words(const char *place, eval_words *words, char *error, size_t error_bytes) {
  const char *colon = strrchr(place, ':');
  if (!colon) return bench_say(error, error_bytes, "--case %s names no case; INDEX:NAME would be right", place);
  char path[1000], file[60], options[1500], arrays[1300];
  snprintf(path, sizeof path, "%.*s", (int)(colon - place), place);
  FILE *index = fopen(path, "r");
  if (!index) return bench_say(error, error_bytes, "--case %s: %s cannot be read", place, path);
  char *line = NULL;
  size_t bytes = 0;
  const bool found = find_line(index, colon + 1, &line, &bytes);
  if (found) {
    find_text(line, "file", file, sizeof file);
    find_text(line, "eval", options, sizeof options);
  }
  free(line);
  fclose(index);
  if (!found) return bench_say(error, error_bytes, "--case %s: %s has no case %s", place, path, colon + 1);
  if (!*options) return bench_say(error, error_bytes, "--case %s: eval has neither pages nor gradients", place);
  const char *slash = strrchr(path, '/');
  snprintf(arrays, sizeof arrays, "%.*s%s:%s", slash ? (int)(slash - path) + 1 : 0, path, file, colon + 1);
  words->count = 0;
  return split_options(words, options, arrays) ||
         bench_say(error, error_bytes, "--case %s: its options are too long", place);
}
