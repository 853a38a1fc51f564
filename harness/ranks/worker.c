/* SPDX-License-Identifier: MIT */
/* A rank that works: it gives the cases of a part to a child, and the child's rows to rank 0. */
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/cli.h"
#include "ranks/ranks.h"

/* Rank 0 and the others tell each other that they live. False if rank 0 has been silent for too long. */
static bool keep_in_touch(ranks_worker *w) {
  const double now = ranks_now_s(), patience_s = w->sweep->patience_s;
  if (w->sweep->rank == 0) return true; /* it deals to itself */
  char *said = ranks_receive(&w->dealer, 0, TAG_ALIVE);
  if (said || now > w->looked_s + patience_s / 4) w->heard_s = now; /* no silence, if this rank stood still */
  w->looked_s = now;
  free(said);
  if (now > w->told_s + patience_s / 10 && ranks_letter_is_gone(&w->alive)) {
    ranks_send(&w->alive, 0, TAG_ALIVE, calloc(1, 1));
    w->told_s = now;
  }
  w->abandoned = now > w->heard_s + patience_s;
  if (!w->abandoned) return true;
  fprintf(stderr, "attnbench-mpi: rank 0 is silent: rank %d on %s ends\n", w->sweep->rank, w->sweep->host);
  return false;
}

/* A part is "LIMIT_S\nCASE_ID\n...". */
static void begin(ranks_worker *w, char *part) {
  char journal[RANKS_PATH], log[RANKS_PATH], *rest = NULL;
  const char *more[2 * RANKS_MOST_CASES + 5] = {"-o", w->sweep->scratch, "--overwrite", "-q"};
  ranks_scratch(w->sweep, "journal.jsonl", journal);
  ranks_scratch(w->sweep, "log", log);
  (void)unlink(journal);
  (void)unlink(log);
  w->limit_s = strtod(strtok_r(part, "\n", &rest), NULL);
  for (int i = 4; i < 2 * RANKS_MOST_CASES + 4 && (more[i + 1] = strtok_r(NULL, "\n", &rest)); i += 2) more[i] = "--case";
  w->begun_s = ranks_now_s();
  w->child = ranks_child_start(w->sweep, more, log, log);
}

/* The whole lines of the child's journal behind its head. */
static char *read_rows(const ranks_sweep *s) {
  char path[RANKS_PATH];
  ranks_scratch(s, "journal.jsonl", path);
  char *text = ranks_file_text(path), *head = text ? strchr(text, '\n') : NULL, *end = head ? strrchr(text, '\n') : NULL;
  if (end) end[1] = 0;
  char *rows = strdup(head ? head + 1 : "");
  free(text);
  return rows;
}

/* A result is "SECONDS WORDS\nROWS"; words only if the child failed. */
static void report(ranks_worker *w, const char *words) {
  char *text = NULL, *rows = read_rows(w->sweep);
  size_t bytes = 0;
  FILE *memory = open_memstream(&text, &bytes);
  if (memory) fprintf(memory, "%.1f %s\n%s", ranks_now_s() - w->begun_s, words, rows ? rows : "");
  if (memory) (void)fclose(memory);
  free(rows);
  w->child = 0;
  ranks_send(&w->result, 0, TAG_RESULT, text);
}

/* Looks whether the child has ended. One that takes far longer than it should is ended. */
static void watch(ranks_worker *w) {
  char words[RANKS_WORDS] = "";
  int status = 0;
  const bool late = ranks_now_s() > w->begun_s + w->limit_s;
  if (late && w->child > 0) kill(w->child, SIGKILL);
  if (w->child > 0 && waitpid(w->child, &status, late ? 0 : WNOHANG) == 0) return;
  const int code = w->child > 0 ? ranks_exit_code(status) : BENCH_EXIT_INTERNAL;
  if (late)
    snprintf(words, sizeof words, "attnbench hung: it was ended after %.0f s", w->limit_s);
  else if (!ranks_child_is_fine(code))
    ranks_child_explain(w->sweep, code, words, sizeof words);
  report(w, words);
}

bool ranks_work(ranks_worker *w) {
  if (!keep_in_touch(w)) return false;
  if (w->child) return watch(w), true;
  char *part = ranks_letter_is_gone(&w->result) ? ranks_receive(&w->part, 0, TAG_PART) : NULL;
  const bool dismissed = part && !part[0];
  if (part && !dismissed) begin(w, part);
  free(part);
  return !dismissed;
}
