/* SPDX-License-Identifier: MIT */
/* Command line options from a table: parsing, `--help`, and errors that name the nearest right word. commands/env.c is a
 * short example.
 *
 * argv[0] is the sub-command's name. `--name=value`, `--name value`, `-n value` and `-nvalue` are the same; `--` ends the
 * options. The last of several equal options wins, except that CLI_LIST keeps them all in order.
 */
#ifndef BENCH_CLI_H
#define BENCH_CLI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Exit codes of every sub-command. */
enum {
  BENCH_EXIT_OK = 0,
  BENCH_EXIT_FAILED = 1, /* a check or gate failed */
  BENCH_EXIT_USAGE = 2,
  BENCH_EXIT_NOTHING = 3,  /* nothing matched, or nothing could run */
  BENCH_EXIT_UNFIT = 4,    /* machine unfit to measure */
  BENCH_EXIT_INTERNAL = 5, /* input/output or internal error */
  BENCH_EXIT_SKIPPED = 77, /* this CPU runs none of the kernels asked for */
  BENCH_EXIT_INTERRUPTED = 130,
};

typedef enum cli_kind {
  CLI_OPTIONS_END,
  CLI_GROUP,    /* a heading in --help: only `name` is used */
  CLI_FLAG,     /* bool: set to true; takes no value */
  CLI_STRING,   /* const char *, into argv */
  CLI_LIST,     /* cli_list: every occurrence, in order */
  CLI_INT,      /* cli_whole: CLI_WITHIN(&variable, least, most) */
  CLI_REAL,     /* double: 0, or a normal float32 */
  CLI_DURATION, /* double, seconds >= 0: "90", "90s", "250ms", "5m", "1h" */
  CLI_PERCENT,  /* double, 0 to 1: 0.01 for "1%" (or "0.01") */
} cli_kind;

typedef struct cli_option {
  cli_kind kind;
  char letter;       /* 0 = none */
  const char *name;  /* without the dashes */
  const char *value; /* the value's name in --help, with its unit: "FILE"; NULL for flags */
  const char *help;  /* one sentence, with the default; wrapped to 100 columns */
  void *target;      /* bool, const char *, cli_list, cli_whole or double, by kind; holds the default before parsing */
} cli_option;

typedef struct cli_whole {
  int64_t *value, least, most;
} cli_whole;
#define CLI_WITHIN(value, least, most) \
  &(cli_whole) { value, least, most }

#define CLI_HEADING(title) \
  { CLI_GROUP, 0, title, NULL, NULL, NULL }
#define CLI_END \
  { CLI_OPTIONS_END, 0, NULL, NULL, NULL, NULL }

enum { CLI_LIST_MAX = 64, CLI_MOST_THREADS = 4096 /* attn_options.threads */ };
typedef struct cli_list {
  const char *item[CLI_LIST_MAX];
  int count;
} cli_list;

typedef struct cli_command {
  const char *name;          /* "run"; "-gbench" of the program attnbench-gbench */
  const char *usage;         /* the words behind "attnbench run " */
  const char *summary;       /* a sentence or two, wrapped */
  const cli_option *options; /* ended by CLI_END; --help is added */
  const char *epilogue;      /* printed after the options as it stands; NULL = nothing */
  cli_list *positionals;     /* NULL: none are allowed */
} cli_command;

/* True: go on. False: return *exit_code (0 after --help, 2 after an error, which has been said on stderr). */
bool cli_parse(const cli_command *command, int argc, char **argv, int *exit_code);

/* --help=man and --help=words, which cli_parse() knows: the manual page in roff, the options one a line (cli_man.c). */
void cli_print_man(const cli_command *command);
void cli_print_words(const cli_command *command);

/* A page made by hand: its head, and items below headings. */
void cli_man_open(const char *name, const char *usage, const char *summary);
void cli_man_item(const char *name, const char *text);

/* Prints "attnbench NAME: " and the message as one line on stderr. Returns the code. */
int cli_fail(int code, const char *command, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define cli_usage_error(...) cli_fail(BENCH_EXIT_USAGE, __VA_ARGS__)

/* The name nearest to `word` by edit distance, or NULL if none is near enough to be meant. names is ended by NULL. */
const char *cli_nearest(const char *word, const char *const *names);

/* Says "unknown WHAT 'WORD'", with the nearest of the names, or else the hint. Returns BENCH_EXIT_USAGE. */
int cli_unknown(const char *command, const char *what, const char *word, const char *const *names, const char *hint);

/* The place of a word among names, which NULL ends; -1 if it is none of them. */
int cli_index_of(const char *word, const char *const *names);

/* Writes a sentence, cut where it does not fit. False, so that whatever fails can return it. */
bool bench_say(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The same behind what `text` holds; nothing is returned. */
void bench_append(char *text, size_t bytes, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* An array of `count` items, with room for one more: it grows at powers of two. NULL if memory is short. */
void *bench_grown(void *items, int count, size_t item_bytes);

/* Copies the next comma-separated word of *text and moves *text behind it; false at the end. */
bool cli_next_word(const char **text, char *word, size_t bytes);

/* Prints words and a line break, wrapped at `width`: the first line starts at `column`, the others at `indent`. */
void cli_print_wrapped(FILE *file, const char *text, int column, int indent, int width);

/* Readers of single values: false unless all of `text` is one. */
bool cli_read_int(const char *text, int64_t *value);
bool cli_read_real(const char *text, double *value); /* finite only */

#endif
