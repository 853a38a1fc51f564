/* SPDX-License-Identifier: MIT */
/* The option parser: a table in, values or one clear sentence out. */
#include "base/cli.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMNS = 100, HELP_INDENT = 28 };

/* ---- Words --------------------------------------------------------------------------------------------------------- */

static int least(int a, int b, int c) { return a < b ? (a < c ? a : c) : (b < c ? b : c); }

/* Levenshtein distance; words longer than the row count as far away. */
static int edit_distance(const char *a, const char *b) {
  enum { LONGEST = 63 };
  int row[LONGEST + 1];
  const int rows = (int)strlen(a), columns = (int)strlen(b);
  if (rows > LONGEST || columns > LONGEST) return LONGEST;
  for (int j = 0; j <= columns; j++) row[j] = j;
  for (int i = 1; i <= rows; i++) {
    int diagonal = row[0];
    row[0] = i;
    for (int j = 1; j <= columns; j++) {
      const int above = row[j];
      const bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
      row[j] = least(above + 1, row[j - 1] + 1, diagonal + !same);
      diagonal = above;
    }
  }
  return row[columns];
}

const char *cli_nearest(const char *word, const char *const *names) {
  const char *best = NULL;
  int best_distance = (int)strlen(word) / 2 + 1; /* more than half of the letters wrong: not what was meant */
  for (; *names; names++) {
    const int distance = edit_distance(word, *names);
    if (distance < best_distance) {
      best_distance = distance;
      best = *names;
    }
  }
  return best;
}

/* What stands between "attnbench" and the command's name: nothing before "-gbench", a program of its own. */
static const char *joint(const char *command) { return *command == '-' ? "" : " "; }

int cli_usage_error(const char *command, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "attnbench%s%s: ", joint(command), command);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  return BENCH_EXIT_USAGE;
}

/* ---- Values -------------------------------------------------------------------------------------------------------- */

bool cli_read_int(const char *text, int64_t *value) {
  char *end;
  errno = 0;
  const long long number = strtoll(text, &end, 10);
  if (end == text || *end || errno) return false;
  *value = number;
  return true;
}

static bool read_real_prefix(const char *text, double *value, const char **rest) {
  char *end;
  const double number = strtod(text, &end);
  if (end == text || !isfinite(number)) return false;
  *value = number;
  *rest = end;
  return true;
}

bool cli_read_real(const char *text, double *value) {
  const char *rest;
  double number;
  if (!read_real_prefix(text, &number, &rest) || *rest) return false;
  *value = number;
  return true;
}

bool cli_read_duration(const char *text, double *seconds) {
  static const struct {
    const char *unit;
    double seconds;
  } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"m", 60}, {"min", 60}, {"h", 3600}};
  const char *rest;
  double number;
  if (!read_real_prefix(text, &number, &rest) || number < 0) return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (!strcmp(rest, units[i].unit)) {
      *seconds = number * units[i].seconds;
      return true;
    }
  return false;
}

bool cli_read_percent(const char *text, double *fraction) {
  const char *rest;
  double number;
  if (!read_real_prefix(text, &number, &rest) || number < 0) return false;
  if (!strcmp(rest, "%"))
    number /= 100;
  else if (*rest)
    return false;
  *fraction = number;
  return true;
}

/* Stores `text` in the option's target. NULL, or what the value should have been. */
static const char *store_value(const cli_option *option, const char *text) {
  switch (option->kind) {
    case CLI_STRING: *(const char **)option->target = text; return NULL;
    case CLI_INT: return cli_read_int(text, option->target) ? NULL : "a whole number";
    case CLI_REAL: return cli_read_real(text, option->target) ? NULL : "a finite number";
    case CLI_DURATION: return cli_read_duration(text, option->target) ? NULL : "a time such as 90s, 250ms, 5m or 1h";
    case CLI_PERCENT: return cli_read_percent(text, option->target) ? NULL : "a share such as 1% or 0.01";
    case CLI_LIST: {
      cli_list *list = option->target;
      if (list->count == CLI_LIST_MAX) return "given at most 64 times";
      list->item[list->count++] = text;
      return NULL;
    }
    default: return "no value";
  }
}

/* ---- Help ---------------------------------------------------------------------------------------------------------- */

void cli_print_wrapped(FILE *file, const char *text, int column, int indent, int width) {
  bool blank = false; /* due before the next word, unless a new line begins there */
  while (*text) {
    const int length = (int)strcspn(text, " ");
    if (column + blank + length > width && column > indent) {
      fprintf(file, "\n%*s", indent, "");
      column = indent;
      blank = false;
    }
    fprintf(file, "%s%.*s", blank ? " " : "", length, text);
    column += length + blank;
    text += length + (text[length] == ' ');
    blank = true;
  }
  fputc('\n', file);
}

static void print_option(const cli_option *option) {
  char left[96];
  char letter[4] = "   ";
  if (option->letter) snprintf(letter, sizeof letter, "-%c,", option->letter);
  const int length = snprintf(left, sizeof left, "  %s --%s%s%s", letter, option->name, option->value ? " " : "",
                              option->value ? option->value : "");
  fputs(left, stdout);
  if (length + 2 > HELP_INDENT)
    printf("\n%*s", HELP_INDENT, "");
  else
    printf("%*s", HELP_INDENT - length, "");
  cli_print_wrapped(stdout, option->help, HELP_INDENT, HELP_INDENT, HELP_COLUMNS);
}

static void print_help(const cli_command *command) {
  static const cli_option help = {CLI_FLAG, 'h', "help", NULL, "this text", NULL};
  printf("attnbench%s%s %s\n\n", joint(command->name), command->name, command->usage);
  cli_print_wrapped(stdout, command->summary, 0, 0, HELP_COLUMNS);
  for (const cli_option *option = command->options; option->kind != CLI_OPTIONS_END; option++)
    if (option->kind == CLI_GROUP)
      printf("\n%s\n", option->name);
    else
      print_option(option);
  print_option(&help);
  if (command->epilogue) printf("\n%s", command->epilogue);
}

/* ---- Parsing ------------------------------------------------------------------------------------------------------- */

static const cli_option *find_option(const cli_option *options, const char *name, size_t length, char letter) {
  for (; options->kind != CLI_OPTIONS_END; options++) {
    if (options->kind == CLI_GROUP) continue;
    if (letter ? options->letter == letter : strlen(options->name) == length && !strncmp(options->name, name, length))
      return options;
  }
  return NULL;
}

static int unknown_option(const cli_command *command, const char *given, const char *name, size_t length) {
  enum { MAX_OPTIONS = 96 };
  const char *names[MAX_OPTIONS + 1];
  char word[64];
  int count = 0;
  snprintf(word, sizeof word, "%.*s", (int)length, name);
  for (const cli_option *option = command->options; option->kind != CLI_OPTIONS_END && count < MAX_OPTIONS; option++)
    if (option->kind != CLI_GROUP) names[count++] = option->name;
  names[count] = NULL;
  const char *near = cli_nearest(word, names);
  if (near) return cli_usage_error(command->name, "unknown option '%s'; did you mean --%s?", given, near);
  return cli_usage_error(command->name, "unknown option '%s'; see attnbench%s%s --help", given, joint(command->name),
                         command->name);
}

/* A value that stands in the next argument must not look like a forgotten one: "--csv --json". Negative numbers are fine. */
static bool looks_like_option(const char *text) {
  return text[0] == '-' && text[1] && !isdigit((unsigned char)text[1]) && text[1] != '.';
}

/* Takes option argv[*index], with its value if it has one, and advances *index to the last argument used. Returns 0, or the
 * exit code of an error. */
static int take_option(const cli_command *command, int argc, char **argv, int *index) {
  const char *given = argv[*index];
  const bool is_long = given[1] == '-';
  const char *name = given + (is_long ? 2 : 1);
  const size_t length = is_long ? strcspn(name, "=") : 1;
  const cli_option *option = find_option(command->options, name, length, is_long ? 0 : *name);
  if (!option) return unknown_option(command, given, name, is_long ? length : strlen(name));

  const char *value = is_long ? (name[length] ? name + length + 1 : NULL) : (name[1] ? name + 1 + (name[1] == '=') : NULL);
  if (option->kind == CLI_FLAG) {
    if (value) return cli_usage_error(command->name, "--%s takes no value ('%s')", option->name, given);
    *(bool *)option->target = true;
    return 0;
  }
  if (!value) {
    if (*index + 1 >= argc || looks_like_option(argv[*index + 1]))
      return cli_usage_error(command->name, "--%s needs a value: --%s %s", option->name, option->name, option->value);
    value = argv[++*index];
  }
  const char *wanted = store_value(option, value);
  if (wanted) return cli_usage_error(command->name, "--%s '%s': should be %s", option->name, value, wanted);
  return 0;
}

bool cli_parse(const cli_command *command, int argc, char **argv, int *exit_code) {
  bool options_end = false;
  for (int i = 1; i < argc; i++) {
    const char *argument = argv[i];
    if (options_end || argument[0] != '-' || !argument[1]) {
      cli_list *list = command->positionals;
      if (!list || list->count == CLI_LIST_MAX) {
        *exit_code = cli_usage_error(command->name, "unexpected argument '%s'; see attnbench%s%s --help", argument,
                                     joint(command->name), command->name);
        return false;
      }
      list->item[list->count++] = argument;
    } else if (!strcmp(argument, "--")) {
      options_end = true;
    } else if (!strcmp(argument, "--help") || !strcmp(argument, "-h")) {
      print_help(command);
      *exit_code = BENCH_EXIT_OK;
      return false;
    } else if ((*exit_code = take_option(command, argc, argv, &i))) {
      return false;
    }
  }
  return true;
}
