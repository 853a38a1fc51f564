/* SPDX-License-Identifier: MIT */
/* A command's options for other readers than --help's: a manual page, and words for a shell to complete. */
#include <ctype.h>
#include <string.h>

#include "attn/attn.h"
#include "base/cli.h"

/* Text as roff takes it: a backslash and a hyphen are escaped, and no line begins with a control character. */
static void put(const char *text) {
  bool begins = true;
  for (; *text; text++) {
    if (begins && (*text == '.' || *text == '\'')) fputs("\\&", stdout);
    if (*text == '\\' || *text == '-') putchar('\\');
    putchar(*text == '\\' ? 'e' : *text);
    begins = *text == '\n';
  }
}

static void put_title(const char *name) {
  fputs(".TH \"ATTNBENCH", stdout);
  for (const char *at = name; *at; at++) {
    if (at == name && *at != '-') putchar('-');
    putchar(toupper((unsigned char)*at));
  }
  printf("\" 1 \"\" \"attnbench %s\" \"attention on the CPU\"\n", attn_version());
}

static void put_section(const char *title, const char *text) {
  printf(".SH %s\n", title);
  put(text);
  putchar('\n');
}

static void put_option(const cli_option *o) {
  fputs(".TP\n\\fB", stdout);
  if (o->letter) printf("\\-%c\\fR, \\fB", o->letter);
  fputs("\\-\\-", stdout);
  put(o->name);
  fputs("\\fR", stdout);
  if (o->value) {
    fputs(" \\fI", stdout);
    put(o->value);
    fputs("\\fR", stdout);
  }
  putchar('\n');
  put(o->help);
  putchar('\n');
}

void cli_man_open(const char *name, const char *usage, const char *summary) {
  const size_t sentence = strcspn(summary, ".:");
  char first[200];
  put_title(name);
  snprintf(first, sizeof first, "attnbench%s%s - %.*s", *name ? "-" : "", name, (int)sentence, summary);
  put_section("NAME", first);
  snprintf(first, sizeof first, "attnbench%s%s %.150s", *name ? " " : "", name, usage);
  put_section("SYNOPSIS", first);
  put_section("DESCRIPTION", summary);
}

void cli_man_item(const char *name, const char *text) {
  printf(".TP\n\\fB%s\\fR\n", name);
  put(text);
  putchar('\n');
}

void cli_print_man(const cli_command *command) {
  cli_man_open(command->name, command->usage, command->summary);
  puts(".SH OPTIONS");
  for (const cli_option *o = command->options; o->kind != CLI_OPTIONS_END; o++)
    if (o->kind == CLI_GROUP)
      printf(".SS %s\n", o->name);
    else
      put_option(o);
  if (command->epilogue) {
    fputs(".SH NOTES\n.nf\n", stdout);
    put(command->epilogue);
    puts(".fi");
  }
}

void cli_print_words(const cli_command *command) {
  for (const cli_option *o = command->options; o->kind != CLI_OPTIONS_END; o++) {
    if (o->kind == CLI_GROUP) continue;
    if (o->letter) printf("-%c\n", o->letter);
    printf("--%s\n", o->name);
  }
  puts("--help");
}
