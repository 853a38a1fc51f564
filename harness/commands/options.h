/* SPDX-License-Identifier: MIT */
/* The options that sub-commands share: which cases, which kernels, how to measure, where to write. */
#ifndef BENCH_OPTIONS_H
#define BENCH_OPTIONS_H

#include <limits.h>

#include "base/plugins.h"
#include "base/select.h"
#include "cases/cases.h"

typedef struct bench_options {
  const char *command;
  /* cases */
  cli_list axes, presets, case_ids;
  const char *default_preset; /* if no case is asked for; NULL = the defaults of the axes */
  const char *threads;
  int64_t cases;     /* number of cases of a seeded selection; 0 = all */
  const char *shard; /* "2/8": of eight parts the second; NULL = all */
  int64_t seed;
  /* kernels */
  bench_filter filter;
  const char *require;
  /* measuring */
  bool timed;
  const char *cpus;
  double budget_s, case_budget_s, precision;
  int64_t rounds;
  bool strict_env, gate;
  /* output */
  const char *folder, *csv, *json, *samples;
  bool resume, overwrite, unmeasured, dry_run, repro, quiet, verbose;
  int argc;
  char **argv;
} bench_options;

/* The defaults. */
bench_options bench_options_default(const char *command, const char *preset, int argc, char **argv);

/* Rows of an option table; `o` points to a bench_options. */
// clang-format off
#define BENCH_CASE_OPTIONS(o)                                                                                          \
  CLI_HEADING("Cases"),                                                                                                \
  {CLI_LIST, 'a', "axis", "AXIS=VALUES",                                                                               \
   "repeatable: seq=128:8192:*2, head_dim=64,128, causal=none,bottom-right; see attnbench list axes", &(o)->axes},     \
  {CLI_LIST, 'p', "preset", "NAME",                                                                                    \
   "repeatable: grids of cases, see attnbench list presets; -a replaces their axes", &(o)->presets},                   \
  {CLI_LIST, 0, "case", "CASE_ID",                                                                                     \
   "repeatable: exactly this case, by the case_id of a result file; -a, -p and --cases then choose none",              \
   &(o)->case_ids},                                                                                                    \
  {CLI_STRING, 't', "threads", "N[,N...]",                                                                             \
   "threads of the kernels; all = every CPU allowed (default 1)", &(o)->threads},                                      \
  {CLI_INT, 0, "cases", "N", "at most N cases, a seeded selection of them (default all)",                               \
   CLI_WITHIN(&(o)->cases, 1, INT_MAX)},                \
  {CLI_INT, 0, "seed", "N", "of the generated inputs and all random choices (default 1)",                               \
   CLI_WITHIN(&(o)->seed, 0, INT64_MAX)}

#define BENCH_SHARD_OPTION(o)                                                                                          \
  {CLI_STRING, 0, "shard", "I/N",                                                                                      \
   "part I of N: the cases are split by what they cost, alike on every machine; attnbench merge joins the results",    \
   &(o)->shard}

#define BENCH_KERNEL_OPTIONS(o)                                                                                       \
  CLI_HEADING("Kernels"),                                                                                             \
  {CLI_LIST, 'k', "kernel", "GLOB",                                                                                   \
   "repeatable: only these, !GLOB leaves out; auto = the library's own choice (default all); "                        \
   "mine=./libmine.so[:SYMBOL] = your kernel, from a plug-in", &(o)->filter.kernels},                         \
  {CLI_LIST, 0, "algo", "GLOB", "only these algorithms: naive, blocked, flash, ...", &(o)->filter.algorithms},        \
  {CLI_LIST, 0, "isa", "GLOB", "only these tiers: c, avx2, avx512, ...", &(o)->filter.isas},                   \
  BENCH_LOAD_OPTION(&(o)->filter.load)

#define BENCH_OUTPUT_OPTIONS(o)                                                                                       \
  CLI_HEADING("Output"),                                                                                              \
  {CLI_STRING, 'o', "output", "DIR",                                                                                  \
   "write results.csv, samples.csv, results.json, env.json, journal.jsonl and table.txt there", &(o)->folder},        \
  {CLI_STRING, 0, "csv", "FILE", "write the rows as CSV", &(o)->csv},                                                 \
  {CLI_STRING, 0, "json", "FILE", "write JSON for Google Benchmark's compare.py, every sample",                       \
   &(o)->json},                                                                                                       \
  {CLI_STRING, 0, "samples", "FILE", "write every single sample as CSV", &(o)->samples},                              \
  {CLI_FLAG, 0, "resume", NULL, "with -o: skip the rows that DIR's journal holds and add the others", &(o)->resume},  \
  {CLI_FLAG, 0, "overwrite", NULL, "with -o: replace the results that DIR holds", &(o)->overwrite},                   \
  {CLI_FLAG, 0, "unmeasured", NULL,                                                                                    \
   "with -o: measure nothing, write the files of what DIR's journal holds; what it lacks is SKIP",                     \
   &(o)->unmeasured},                                                                                                  \
  {CLI_FLAG, 'n', "dry-run", NULL,                                                                                     \
   "list the cases, with --resume the missing ones, and an estimate of the time; run nothing", &(o)->dry_run},         \
  {CLI_FLAG, 0, "repro", NULL, "print below each row the command line that reruns it", &(o)->repro},                  \
  {CLI_FLAG, 'v', "verbose", NULL, "print every row, however many", &(o)->verbose},                                   \
  {CLI_FLAG, 'q', "quiet", NULL, "no progress on stderr", &(o)->quiet}

// clang-format on

/* The cases that the options ask for. Returns 0 or an exit code, having said why on stderr. */
int bench_options_cases(const bench_options *options, bench_case_list *list);

/* Refuses cases that no problem is, and threads as below if they are timed. Returns 0 or BENCH_EXIT_USAGE. */
int bench_refuse_impossible(const bench_options *options, const bench_case_list *list);

/* Refuses threads that cannot be timed: more than CPUs, or more than OpenMP and the system give. Returns 0 or
 * BENCH_EXIT_USAGE. */
int bench_refuse_threads(const char *command, int threads);

/* Whether -a names an axis, beside kernel=... */
bool bench_options_have_axes(const bench_options *options);

/* The kernels likewise; `-a kernel=...` counts as --kernel. */
int bench_options_kernels(bench_options *options, bench_selection *selection);

/* Refuses a value of ATTN_MAX_ISA that is no tier. Returns 0 or BENCH_EXIT_USAGE. */
int bench_check_overrides(const char *command);

#endif
