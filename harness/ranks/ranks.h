/* SPDX-License-Identifier: MIT */
/* attnbench-mpi: one sweep of `attnbench run` or `check` over ranks. Each rank that works measures in a child, an ordinary
 * attnbench with the cases it is given, so that no MPI is in the process that times, and a child that dies costs its cases
 * only. Rank 0 also deals the cases and keeps the journal, which is that of an ordinary run. */
#ifndef BENCH_RANKS_H
#define BENCH_RANKS_H

#include <mpi.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/types.h>

enum { RANKS_PATH = 4096, RANKS_WORDS = 512, RANKS_MOST_CASES = 32 /* a part's; CLI_LIST_MAX has room for more */ };

/* Messages. An empty part dismisses a rank. */
enum { TAG_NODE, TAG_ALIVE, TAG_PART, TAG_RESULT };

typedef struct ranks_sweep {
  const char *folder, *attnbench;
  bool share, overwrite;
  double patience_s;
  int argument_count;
  char **arguments; /* run -p prefill ... */
  int rank, ranks;
  char host[MPI_MAX_PROCESSOR_NAME];
  char scratch[RANKS_PATH]; /* this rank's folder, for its child */
} ranks_sweep;

/* ---- Children (child.c) ------------------------------------------------------------------------------------------- */

/* Starts `attnbench ARGUMENTS MORE`; `more` ends with NULL. Output goes to the files; NULL: where that of this process
 * goes. The child ends with this process. -1 if it cannot be started. */
pid_t ranks_child_start(const ranks_sweep *sweep, const char *const *more, const char *out, const char *err);

/* Starts it and waits. Returns its exit code, or 128 and the number of the signal that ended it. */
int ranks_child_run(const ranks_sweep *sweep, const char *const *more, const char *out, const char *err);

/* Whether rows of a child with this exit code are complete: failed checks and skipped rows are rows too. */
bool ranks_child_is_fine(int code);

/* "was ended by signal 9 (Killed)", "ended with exit code 2", and the last line of its log. */
void ranks_child_explain(const ranks_sweep *sweep, int code, char *words, size_t bytes);

int ranks_exit_code(int status);                               /* from the status of waitpid() */
void ranks_scratch(const ranks_sweep *, const char *, char *); /* the path of a file in the scratch folder */
char *ranks_file_text(const char *path);                       /* the file as a string, "" if there is none; malloc */

/* ---- Nodes (nodes.c) ---------------------------------------------------------------------------------------------- */

/* Collective. Opens the result folder on rank 0, and says which ranks work: works[r], on rank 0. A rank whose journal could
 * not continue that of rank 0 does not, nor do ranks that would disturb another of their node. hosts[r]: on rank 0. Returns
 * 0 or an exit code. */
int ranks_open(const ranks_sweep *sweep, bool *works, char (*hosts)[MPI_MAX_PROCESSOR_NAME]);

/* ---- Messages (messages.c) ---------------------------------------------------------------------------------------- */

/* A text that is sent without waiting. The text is freed once it has arrived. */
typedef struct ranks_letter {
  MPI_Request request;
  char *text;
} ranks_letter;

bool ranks_letter_is_gone(ranks_letter *letter);
void ranks_send(ranks_letter *letter, int to, int tag, char *text);

/* A text that arrives in parts: NULL while it is not there. malloc. */
char *ranks_receive(ranks_letter *letter, int from, int tag);

double ranks_now_s(void);

/* ---- Working (worker.c) ------------------------------------------------------------------------------------------- */

typedef struct ranks_worker {
  const ranks_sweep *sweep;
  pid_t child; /* 0: idle */
  double begun_s, limit_s, told_s, heard_s, looked_s;
  bool abandoned; /* rank 0 is silent */
  ranks_letter part, result, alive, dealer;
} ranks_worker;

/* Looks after the child and the messages of rank 0. False once this rank is dismissed, or rank 0 is silent. */
bool ranks_work(ranks_worker *worker);

/* ---- Dealing (dealer.c) ------------------------------------------------------------------------------------------- */

typedef struct ranks_dealer ranks_dealer;

/* Lists the cases that are missing, longest first by attnbench's guess. NULL after an error, said on stderr. */
ranks_dealer *ranks_deal_open(const ranks_sweep *sweep, const bool *works, char (*hosts)[MPI_MAX_PROCESSOR_NAME]);

/* Takes results and gives cases to ranks that are free. */
void ranks_deal(ranks_dealer *dealer);

/* Says what was lost: *lost is set if a rank was. Returns how many cases could not be measured, and frees the dealer. */
int ranks_deal_close(ranks_dealer *dealer, bool *lost);

#endif
