/* SPDX-License-Identifier: MIT */
/* The table of sub-commands, and the choice among them. */
#include "commands/commands.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "attn/attn.h"
#include "base/cli.h"
#include "base/files.h"
#include "base/handlers.h"
#include "machine/affinity.h"
#include "machine/resources.h"
#include "timing/rates.h"

typedef struct command {
  const char *name;
  int (*main)(int argc, char **argv);
  const char *summary; /* NULL: not in the list of commands */
} command;

static int help_main(int argc, char **argv);
static int version_main(int argc, char **argv);
static int man_main(int argc, char **argv);
static int words_main(int argc, char **argv);

static const command commands[] = {
    {"run", bench_run_main, "check kernels, then time them: table, CSV, JSON (the default, with preset quick)"},
    {"check", bench_check_main, "check only: any kernels on any cases, or a whole suite"},
    {"compare", bench_compare_main, "two results, or two builds: FASTER, SLOWER, SAME or INCONCLUSIVE, case by case"},
    {"merge", bench_merge_main, "join the result folders of --shard, each machine's by itself"},
    {"plot", bench_plot_main, "draw the figures of result folders: rates, roofline, threads and more"},
    {"report", bench_report_main, "one HTML page about result folders, for colleagues"},
    {"eval", bench_eval_main, "run kernels on your own tensors in .npy files, checked and on request timed"},
    {"list", bench_list_main, "kernels, presets, axes, cases"},
    {"explain", bench_explain_main, "for one problem: the kernel that is chosen, and why others are refused"},
    {"peak", bench_peak_main, "what this CPU could do: multiply-add rate per tier, read bandwidth per cache"},
    {"tune", bench_tune_main, "write a tuning file of this machine, or say how much time its choices lose"},
    {"env", bench_env_main, "what this machine is, and what on it disturbs measuring"},
    {"help", help_main, NULL},
    {"--help", help_main, NULL},
    {"-h", help_main, NULL},
    {"--help=man", man_main, NULL},
    {"--help=words", words_main, NULL},
    {"--version", version_main, NULL},
};
enum { COMMANDS = sizeof commands / sizeof *commands };

static const command *find(const char *name) {
  for (int i = 0; i < COMMANDS; i++)
    if (!strcmp(name, commands[i].name)) return &commands[i];
  return NULL;
}

static int unknown_command(const char *word) {
  const char *names[COMMANDS + 1] = {NULL};
  int count = 0;
  for (int i = 0; i < COMMANDS; i++)
    if (commands[i].name[0] != '-') names[count++] = commands[i].name;
  return cli_unknown("", "command", word, names, "see attnbench help");
}

static int version_main(int argc, char **argv) {
  (void)argc;
  (void)argv;
  printf("attnbench %s\n", attn_version());
  return BENCH_EXIT_OK;
}

static int print_help(void) {
  printf("attnbench %s: attention kernels for CPUs, validated and timed\n\nattnbench [COMMAND] [options]\n\n",
         attn_version());
  for (int i = 0; i < COMMANDS; i++)
    if (commands[i].summary) printf("  %-9s %s\n", commands[i].name, commands[i].summary);
  printf(
      "\nattnbench COMMAND --help lists its options. Try:\n\n"
      "    attnbench                                          a short benchmark, about two minutes\n"
      "    attnbench run -a seq=128:4096:*2 -a causal=none,bottom-right -o results\n"
      "    attnbench run --preset decode --kernel 'flash_*'\n"
      "    attnbench check --suite edge\n"
      "    attnbench explain -a seq_q=1 -a seq_k=4096 -a dtype=bf16\n");
  return BENCH_EXIT_OK;
}

/* `help` alone, or `help COMMAND`. */
static int help_main(int argc, char **argv) {
  char help[] = "--help";
  if (strcmp(argv[0], "help") || argc < 2) return print_help();
  const command *about = find(argv[1]);
  char *with_help[] = {argv[1], help, NULL};
  return about && about->summary ? about->main(2, with_help) : unknown_command(argv[1]);
}

static void print_items(void) {
  puts(".SH COMMANDS");
  for (int i = 0; i < COMMANDS; i++)
    if (commands[i].summary) cli_man_item(commands[i].name, commands[i].summary);
}

/* attnbench(1). */
static int man_main(int argc, char **argv) {
  (void)argc;
  (void)argv;
  cli_man_open("", "[COMMAND] [options]",
               "attention kernels for CPUs, validated and timed. Each command has a page of its own: attnbench-run(1).");
  print_items();
  return BENCH_EXIT_OK;
}

/* For shells to complete, and for those who make manual pages: the names of the commands. */
static int words_main(int argc, char **argv) {
  (void)argc;
  (void)argv;
  for (int i = 0; i < COMMANDS; i++)
    if (commands[i].summary) puts(commands[i].name);
  return BENCH_EXIT_OK;
}

static int run_command(int argc, char **argv) {
  static char run[] = "run";
  char *just_run[] = {run, NULL};
  (void)bench_highest_tier(); /* asks for AMX once, so that lists know whether this process gets it */
  if (argc < 2) return bench_run_main(1, just_run);
  const command *named = find(argv[1]);
  if (named) return named->main(argc - 1, argv + 1);
  if (argv[1][0] == '-') return bench_run_main(argc, argv); /* attnbench --kernel ... is attnbench run --kernel ... */
  return unknown_command(argv[1]);
}

int bench_main(int argc, char **argv) {
  bench_open_standard_files();
  if (bench_resources_check()) return BENCH_EXIT_INTERNAL;
  bench_handlers_note();
  bench_threads_limit();
  const int code = run_command(argc, argv);
  if (!fflush(stdout) && !ferror(stdout)) return code;
  fprintf(stderr, "attnbench: cannot write to stdout: %s\n", strerror(errno));
  return BENCH_EXIT_INTERNAL;
}
