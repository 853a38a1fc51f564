/* SPDX-License-Identifier: MIT */
/* A session: one `run` or `check`, from its options to its files and its exit code. session.c does what all sessions
 * share; the steps do what differs. */
#ifndef BENCH_SESSION_H
#define BENCH_SESSION_H

#include <stdio.h>

#include "base/clock.h"
#include "check/structure.h"
#include "commands/options.h"
#include "machine/environment.h"
#include "report/report.h"
#include "timing/setup.h"

enum { BENCH_PATH_BYTES = 4096 };

typedef struct bench_session bench_session;

/* Functions and settings that differ between sessions. An exit code that is not 0 has been explained on stderr. */
typedef struct bench_session_steps {
  int rounds;          /* default of --rounds; 0 = as many as needed */
  const char *items;   /* the steps of a session: "cases" */
  const char *goes_on; /* after an interrupt: how to continue in a folder */
  bool gate;           /* --gate makes sense */
  int (*open)(bench_session *session, const bench_selection *selection); /* chooses what is measured; an exit code */
  void (*close)(bench_session *session);                                 /* frees what it opened in `own`; NULL: nothing */
  void (*list)(const bench_session *session);                            /* prints it for a dry run */
  double (*guess)(const bench_session *session);                         /* seconds */
  void (*print_extent)(const bench_session *session, FILE *file);        /* "2 cases x 3 kernels" */
  void (*run)(bench_session *session);                                   /* measures and prints it, keeps the rows */
  bool (*write)(const bench_session *session);   /* adds files to the folder; false: failed; NULL: none */
  int (*conclude)(const bench_session *session); /* the exit code if no row is FAIL or ERROR */
} bench_session_steps;

/* Every case with every kernel. */
extern const bench_session_steps bench_cases_steps;

struct bench_session {
  bench_options *options;
  const bench_session_steps *steps;
  const attn_kernel_info *kernels[BENCH_MAX_KERNELS + 1];
  int kernel_count;
  int structure_runs[BENCH_MAX_KERNELS + 1][BENCH_STRUCTURE_TESTS]; /* cases on which each structural test ran */
  bench_case_list cases;                                            /* for bench_cases_steps */
  void *own;                                                        /* for other steps */
  bench_case_settings settings;                                     /* *settings.stop is nonzero after Ctrl-C */
  bench_environment environment;
  bench_row fresh[BENCH_MAX_KERNELS + 1]; /* the running case's: too many for the stack */
  bench_rows rows;                        /* in the order of the files */
  bench_rows old;                         /* from the journal that is resumed */
  FILE *journal;
  int lock; /* the folder's */
  bench_progress progress;
  bench_table table;
  char run_id[48], date[48];
  const char *case_name; /* name of the case that runs */
  double started_s, guess_left_s;
  bool io_failed;
};

/* The end of --help. */
#define BENCH_SESSION_EXIT_CODES                                                                       \
  "Exit codes: 0 all passed, 1 a check failed, 2 usage, 3 nothing matched or could run, 4 machine\n"   \
  "unfit (--strict-env), 5 input/output, 77 this CPU runs none of the kernels, 130 interrupted (the\n" \
  "files are written).\n"

/* Catches signals: the first one (Ctrl-C) sets the returned number, the second one ends the process. */
volatile const int *bench_interrupts_catch(void);

/* Runs what the options ask for and returns the exit code. */
int bench_session_run(bench_options *options, const bench_session_steps *steps);

/* Seconds since the session began. */
double bench_session_elapsed(const bench_session *session);

/* Moves the row to the results, and to the journal if it is to be `durable`. A row without the id of a run gets that of this
 * one. Sets io_failed after an error, said on stderr. */
void bench_session_keep(bench_session *session, bench_row *row, bool durable);
void bench_session_flush(bench_session *session);

/* Machine, library, what is measured, and the environment variables in force. */
void bench_session_print_opening(const bench_session *session, FILE *file);

/* On how many cases each structural test ran, by kernel: 0 means that nothing was tested, not that all passed. */
void bench_session_print_structure(const bench_session *session, FILE *file);

/* False if a file that was asked for cannot be written; said on stderr. */
bool bench_session_can_write(const bench_session *session);

/* Writes all files that were asked for. Sets io_failed after an error, said on stderr. */
void bench_session_write(bench_session *session);

/* The path of a file in the result folder. */
void bench_session_path(const bench_session *session, const char *name, char *path);

/* Reads "2/8", the shard `wanted` of `shards`. */
bool bench_shard_read(const char *text, int64_t *wanted, int64_t *shards);

/* Keeps the cases of the shard that the options name (shard.c). Returns 0 or an exit code, having said why. */
int bench_shard_keep(const bench_options *options, bench_case_list *list);

/* True if the options name a preset with goals. */
bool bench_limits_wanted(const bench_options *options);

extern const bench_session_steps bench_limits_steps;

#endif
