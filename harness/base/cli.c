/* SPDX-License-Identifier: MIT */
/* Parses options by a table. Every error is one sentence on stderr. */
#include "base/cli.h"

#include <ctype.h>
#include <errno.h>
#include <float.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { HELP_COLUMNS = 100, HELP_INDENT = 28 };
static const double LONGEST_DURATION_S = 3600e6;

/* ---- Words --------------------------------------------------------------------------------------------------------- */

enum { LONGEST_WORD = 63 };

/* Levenshtein's distance, of short words only. row[j] is the distance to the first j letters of b. */
static int edit_distance(const char *a, const char *b) {
  int row[LONGEST_WORD + 1];
  const size_t columns = strlen(b);
  if (strlen(a) > LONGEST_WORD || columns > LONGEST_WORD) return LONGEST_WORD;
  for (int j = 0; j <= (int)columns; j++) row[j] = j;
  for (; *a; a++) {
    int diagonal = row[0]++;
    for (int j = 1; b[j - 1]; j++) {
      const int above = row[j], replaced = diagonal + (tolower((unsigned char)*a) != tolower((unsigned char)b[j - 1]));
      const int shorter = above < row[j - 1] ? above : row[j - 1];
      row[j] = shorter + 1 < replaced ? shorter + 1 : replaced;
      diagonal = above;
    }
  }
  return row[columns];
}

const char *cli_nearest(const char *word, const char *const *names) {
  const char *best = NULL;
  int best_distance = (int)strlen(word) / 2 + 1; /* with more than half of the letters wrong, it is another word */
  for (; *names; names++) {
    const int distance = edit_distance(word, *names);
    if (distance >= best_distance) continue;
    best_distance = distance;
    best = *names;
  }
  return best;
}

/* The separator between "attnbench" and the command's name: none before "" and "-gbench", as in attnbench-gbench. */
static const char *joint(const char *command) { return *command == '-' || !*command ? "" : " "; }

int cli_fail(int code, const char *command, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fprintf(stderr, "attnbench%s%s: ", joint(command), command);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  return code;
}

int cli_unknown(const char *command, const char *what, const char *word, const char *const *names, const char *hint) {
  const char *near = cli_nearest(word, names);
  return cli_usage_error(command, "unknown %s '%s'; %s%s%s", what, word, near ? "did you mean " : hint, near ? near : "",
                         near ? "?" : "");
}

int cli_index_of(const char *word, const char *const *names) {
  for (int i = 0; names[i]; i++)
    if (!strcmp(word, names[i])) return i;
  return -1;
}

bool bench_say(char *text, size_t bytes, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, bytes, format, arguments);
  va_end(arguments);
  return false;
}

void bench_append(char *text, size_t bytes, const char *format, ...) {
  const size_t used = strlen(text);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, bytes - used, format, arguments);
  va_end(arguments);
}

void *bench_grown(void *items, int count, size_t item_bytes) {
  return count & (count - 1) ? items : realloc(items, (count ? 2 * (size_t)count : 1) * item_bytes);
}

bool cli_next_word(const char **text, char *word, size_t bytes) {
  if (!*text || !**text) return false;
  const size_t length = strcspn(*text, ",");
  snprintf(word, bytes, "%.*s", (int)length, *text);
  *text += length + ((*text)[length] == ',');
  return true;
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
  *value = strtod(text, &end);
  *rest = end;
  return end != text && isfinite(*value);
}

bool cli_read_real(const char *text, double *value) {
  const char *rest;
  double number;
  if (!read_real_prefix(text, &number, &rest) || *rest) return false;
  *value = number;
  return true;
}

static bool read_float(const char *text, double *value) {
  double number;
  if (!cli_read_real(text, &number) || fabs(number) > FLT_MAX || (number != 0 && fabs(number) < FLT_MIN)) return false;
  *value = number;
  return true;
}

static bool read_duration(const char *text, double *seconds) {
  static const struct {
    const char *unit;
    double seconds;
  } units[] = {{"", 1}, {"s", 1}, {"ms", 1e-3}, {"us", 1e-6}, {"m", 60}, {"min", 60}, {"h", 3600}};
  const char *rest;
  double number;
  if (!read_real_prefix(text, &number, &rest) || number < 0) return false;
  for (size_t i = 0; i < sizeof units / sizeof *units; i++)
    if (!strcmp(rest, units[i].unit) && number * units[i].seconds <= LONGEST_DURATION_S) {
      *seconds = number * units[i].seconds;
      return true;
    }
  return false;
}

static bool read_percent(const char *text, double *fraction) {
  const char *rest;
  double number;
  if (!read_real_prefix(text, &number, &rest) || (*rest && strcmp(rest, "%"))) return false;
  if (*rest) number /= 100;
  if (number < 0 || number > 1) return false;
  *fraction = number;
  return true;
}

static bool append(cli_list *list, const char *text) {
  if (list->count == CLI_LIST_MAX) return false;
  list->item[list->count++] = text;
  return true;
}

static bool read_whole(const char *text, const cli_whole *whole) {
  int64_t number;
  if (!cli_read_int(text, &number) || number < whole->least || number > whole->most) return false;
  *whole->value = number;
  return true;
}

/* Stores `text` in the option's target. Returns 0, or the exit code of an error. */
static int store_value(const char *command, const cli_option *option, const char *text) {
  const char *wanted = NULL;
  char range[96];
  switch (option->kind) {
    case CLI_STRING: *(const char **)option->target = text; break;
    case CLI_LIST:
      if (!append(option->target, text)) wanted = "given at most 64 times";
      break;
    case CLI_INT: {
      const cli_whole *whole = option->target;
      snprintf(range, sizeof range, "a whole number from %" PRId64 " to %" PRId64, whole->least, whole->most);
      if (!read_whole(text, whole)) wanted = range;
      break;
    }
    case CLI_REAL:
      if (!read_float(text, option->target)) wanted = "0 or a number of size 1.2e-38 to 3.4e38, as float32 holds";
      break;
    case CLI_DURATION:
      if (!read_duration(text, option->target)) wanted = "a time from 0 to 1e6h, such as 90s, 250ms, 5m or 1h";
      break;
    case CLI_PERCENT:
      if (!read_percent(text, option->target)) wanted = "a share from 0 to 100%, such as 1% or 0.01";
      break;
    default: break;
  }
  return wanted ? cli_usage_error(command, "--%s '%s': should be %s", option->name, text, wanted) : 0;
}

/* ---- Help ---------------------------------------------------------------------------------------------------------- */

void cli_print_wrapped(FILE *file, const char *text, int column, int indent, int width) {
  bool blank = false; /* before the next word, unless it begins a line */
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
  const char letter[4] = {option->letter ? '-' : ' ', option->letter ? option->letter : ' ', option->letter ? ',' : ' '};
  const int length =
      printf("  %s --%s%s%s", letter, option->name, option->value ? " " : "", option->value ? option->value : "");
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

/* The option that an argument names: "--name", "--name=value", "-n", "-nvalue". NULL if there is none. */
static const cli_option *find_option(const cli_option *options, const char *given) {
  const bool is_long = given[1] == '-';
  const size_t length = is_long ? strcspn(given + 2, "=") : 0;
  for (; options->kind != CLI_OPTIONS_END; options++) {
    if (options->kind == CLI_GROUP) continue;
    if (is_long ? strlen(options->name) == length && !strncmp(options->name, given + 2, length)
                : options->letter == given[1])
      return options;
  }
  return NULL;
}

static int unknown_option(const cli_command *command, const char *given) {
  enum { MAX_OPTIONS = 96 };
  const char *names[MAX_OPTIONS + 1], *name = given + 1 + (given[1] == '-');
  char word[64];
  int count = 0;
  snprintf(word, sizeof word, "%.*s", (int)(given[1] == '-' ? strcspn(name, "=") : strlen(name)), name);
  for (const cli_option *option = command->options; option->kind != CLI_OPTIONS_END && count < MAX_OPTIONS; option++)
    if (option->kind != CLI_GROUP) names[count++] = option->name;
  names[count] = NULL;
  const char *near = cli_nearest(word, names);
  if (near) return cli_usage_error(command->name, "unknown option '%s'; did you mean --%s?", given, near);
  return cli_usage_error(command->name, "unknown option '%s'; see attnbench%s%s --help", given, joint(command->name),
                         command->name);
}

/* True of "--json" in "--csv --json", which lacks the value of --csv. Negative numbers are values. */
static bool looks_like_option(const char *text) {
  return text[0] == '-' && text[1] && !isdigit((unsigned char)text[1]) && text[1] != '.';
}

/* The value that stands in the option's own argument: "--name=value", "-nvalue", "-n=value". NULL if there is none. */
static const char *own_value(const char *given) {
  if (given[1] != '-') return given[2] ? given + 2 + (given[2] == '=') : NULL;
  const char *equals = strchr(given, '=');
  return equals ? equals + 1 : NULL;
}

/* Takes option argv[*index], with its value if it has one, and advances *index to the last argument used. Returns 0, or the
 * exit code of an error. */
static int take_option(const cli_command *command, int argc, char **argv, int *index) {
  const char *given = argv[*index], *value = own_value(given);
  const cli_option *option = find_option(command->options, given);
  if (!option) return unknown_option(command, given);
  if (option->kind == CLI_FLAG) {
    if (value) return cli_usage_error(command->name, "--%s takes no value ('%s')", option->name, given);
    *(bool *)option->target = true;
    return 0;
  }
  if (!value && (*index + 1 >= argc || looks_like_option(argv[*index + 1])))
    return cli_usage_error(command->name, "--%s needs a value: --%s %s", option->name, option->name, option->value);
  return store_value(command->name, option, value ? value : argv[++*index]);
}

/* Prints what an argument asks for: --help in one of its forms. False if it is none. */
static bool print_asked(const cli_command *command, const char *argument) {
  static const struct {
    const char *form;
    void (*print)(const cli_command *);
  } forms[] = {{"--help", print_help}, {"-h", print_help}, {"--help=man", cli_print_man}, {"--help=words", cli_print_words}};
  for (size_t i = 0; i < sizeof forms / sizeof *forms; i++) {
    if (strcmp(argument, forms[i].form)) continue;
    forms[i].print(command);
    return true;
  }
  return false;
}

bool cli_parse(const cli_command *command, int argc, char **argv, int *exit_code) {
  bool options_end = false;
  *exit_code = BENCH_EXIT_OK;
  for (int i = 1; i < argc && !*exit_code; i++) {
    const char *argument = argv[i];
    if (options_end || argument[0] != '-' || !argument[1]) {
      if (!command->positionals || !append(command->positionals, argument))
        *exit_code = cli_usage_error(command->name, "unexpected argument '%s'; see attnbench%s%s --help", argument,
                                     joint(command->name), command->name);
    } else if (!strcmp(argument, "--")) {
      options_end = true;
    } else if (print_asked(command, argument)) {
      return false;
    } else {
      *exit_code = take_option(command, argc, argv, &i);
    }
  }
  return !*exit_code;
}
