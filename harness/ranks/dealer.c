/* SPDX-License-Identifier: MIT */
/* Rank 0 deals: the longest case that waits goes to the rank that is free. A case whose child dies, or whose rank falls
 * silent, is dealt once more. Finished rows go to the journal at once. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/files.h"
#include "ranks/ranks.h"
#include "report/report.h"

enum { MOST_TRIES = 2 };
/* A child takes a fraction of a second to start. So cases are dealt together until their part takes PART_S, or an
 * eighth of an even share of all cases. */
static const double PART_S = 2, PARTS_OF_A_RANK = 8;

typedef enum job_state { WAITING, DEALT, DONE, GIVEN_UP } job_state;

typedef struct job {
  char *case_id;
  double guess_s;
  job_state state;
  int rank, tries, place;
} job;

/* A rank, as rank 0 sees it. */
typedef struct peer {
  bool busy, lost;
  double heard_s;
  ranks_letter part, alive, said, result;
} peer;

struct ranks_dealer {
  const ranks_sweep *sweep;
  const bool *works;
  char (*hosts)[MPI_MAX_PROCESSOR_NAME];
  job *jobs;
  int count;
  peer *peers;
  FILE *journal, *runs;
  double part_s, told_s, looked_s;
  bool dismissed, failed;
};

/* ---- Opening -------------------------------------------------------------------------------------------------------- */

static int by_length(const void *a, const void *b) {
  const job *one = a, *two = b;
  if (one->guess_s != two->guess_s) return one->guess_s < two->guess_s ? 1 : -1;
  return one->place - two->place;
}

/* Takes "    4.123 s  CASE_ID"; other lines of a dry run say other things. */
static bool add_job(ranks_dealer *d, char *line) {
  char *end;
  const double guess_s = strtod(line, &end);
  if (end == line || strncmp(end, " s  ", 4)) return true;
  job *grown = bench_grown(d->jobs, d->count, sizeof *grown);
  if (!grown) return false;
  d->jobs = grown;
  d->jobs[d->count] = (job){.case_id = strdup(end + 4), .guess_s = guess_s + 1e-3, .place = d->count};
  return d->jobs[d->count++].case_id != NULL;
}

static bool list_jobs(ranks_dealer *d) {
  const char *const more[] = {"-o", d->sweep->folder, "--resume", "--dry-run", NULL};
  char list[RANKS_PATH], *rest = NULL;
  ranks_scratch(d->sweep, "list", list);
  (void)unlink(list);
  if (ranks_child_run(d->sweep, more, list, NULL)) return false;
  char *text = ranks_file_text(list);
  bool fine = text != NULL;
  for (char *line = strtok_r(text, "\n", &rest); fine && line; line = strtok_r(NULL, "\n", &rest)) fine = add_job(d, line);
  free(text);
  if (fine && d->count) qsort(d->jobs, (size_t)d->count, sizeof *d->jobs, by_length);
  return fine;
}

static void clear_jobs(ranks_dealer *d) {
  for (job *j = d->jobs; j < d->jobs + d->count; j++) free(j->case_id);
  free(d->jobs);
}

/* The cases that lack rows, as attnbench lists them. */
static int count_missing(const ranks_sweep *s) {
  ranks_dealer left = {.sweep = s};
  const bool listed = list_jobs(&left);
  const int count = left.count;
  clear_jobs(&left);
  return listed ? count : 1;
}

static void set_part(ranks_dealer *d) {
  double all_s = 0;
  int working = 0;
  for (int i = 0; i < d->count; i++) all_s += d->jobs[i].guess_s;
  for (int rank = 0; rank < d->sweep->ranks; rank++) working += d->works[rank];
  d->part_s = fmin(PART_S, all_s / (PARTS_OF_A_RANK * fmax(working, 1)));
}

/* A file of the result folder, to be continued. */
static FILE *open_file(const ranks_sweep *s, const char *name) {
  char path[RANKS_PATH];
  snprintf(path, sizeof path, "%.4000s/%s", s->folder, name);
  FILE *file = fopen(path, "ae");
  if (!file) fprintf(stderr, "attnbench-mpi: %s: %s\n", path, strerror(errno));
  if (file) (void)fseek(file, 0, SEEK_END);
  return file;
}

ranks_dealer *ranks_deal_open(const ranks_sweep *s, const bool *works, char (*hosts)[MPI_MAX_PROCESSOR_NAME]) {
  ranks_dealer *d = calloc(1, sizeof *d);
  if (!d) return NULL;
  *d = (ranks_dealer){.sweep = s, .works = works, .hosts = hosts, .looked_s = ranks_now_s()};
  d->peers = calloc((size_t)s->ranks, sizeof *d->peers);
  if (d->peers && list_jobs(d) && (d->journal = open_file(s, "journal.jsonl")) && (d->runs = open_file(s, "runs.csv"))) {
    if (!ftell(d->runs)) fputs("run_id,rank,host\n", d->runs);
    set_part(d);
    return d;
  }
  (void)ranks_deal_close(d, &(bool){false});
  return NULL;
}

/* ---- Dealing -------------------------------------------------------------------------------------------------------- */

static int count_jobs(const ranks_dealer *d, job_state state) {
  int count = 0;
  for (int i = 0; i < d->count; i++) count += d->jobs[i].state == state;
  return count;
}

/* Whether the case may join a part of so many cases and seconds: one that failed is tried alone. */
static bool fits(const ranks_dealer *d, const job *j, int cases, double guess_s) {
  return j->state == WAITING && (!cases || (!j->tries && guess_s < d->part_s && cases < RANKS_MOST_CASES));
}

static void give_job(job *j, int rank, FILE *ids) {
  j->tries++;
  j->state = DEALT;
  j->rank = rank;
  fprintf(ids, "%s\n", j->case_id);
}

/* Chooses a part for the rank, and writes it. Returns its guess in seconds; 0: nothing waits. */
static double choose(ranks_dealer *d, int rank, FILE *ids) {
  double guess_s = 0;
  int cases = 0;
  bool alone = false;
  for (job *j = d->jobs; j < d->jobs + d->count && !alone; j++) {
    if (!fits(d, j, cases, guess_s)) continue;
    guess_s += j->guess_s;
    alone = j->tries > 0;
    cases++;
    give_job(j, rank, ids);
  }
  return guess_s;
}

static void give(ranks_dealer *d, int rank) {
  char *ids = NULL, *part = NULL;
  size_t bytes = 0;
  FILE *memory = open_memstream(&ids, &bytes);
  const double guess_s = memory ? choose(d, rank, memory) : 0;
  if (memory) (void)fclose(memory);
  if (guess_s > 0 && (memory = open_memstream(&part, &bytes))) {
    fprintf(memory, "%.1f\n%s", d->sweep->patience_s + 10 * guess_s, ids);
    (void)fclose(memory);
    ranks_send(&d->peers[rank].part, rank, TAG_PART, part);
    d->peers[rank].busy = true;
  }
  free(ids);
}

/* ---- Results -------------------------------------------------------------------------------------------------------- */

/* Whether the journal's lines have a row of the case. */
static bool has_row(const char *rows, const char *case_id) {
  char pair[RANKS_PATH];
  snprintf(pair, sizeof pair, "\"case_id\": \"%s\"", case_id);
  return strstr(rows, pair) != NULL;
}

static void settle(ranks_dealer *d, job *j, const char *rows, const char *words) {
  const char *host = d->hosts[j->rank];
  if (has_row(rows, j->case_id)) {
    j->state = DONE;
    return;
  }
  if (j->state != DEALT) return; /* was taken from a rank that came back */
  j->state = j->tries < MOST_TRIES ? WAITING : GIVEN_UP;
  fprintf(stderr, "attnbench-mpi: rank %d on %s, %s: %s; %s\n", j->rank, host, j->case_id,
          words[0] ? words : "no row was written", j->state == WAITING ? "it is dealt again" : "it is given up");
}

static void note_run(ranks_dealer *d, int rank, const char *rows) {
  static const char key[] = "\"run_id\": \"";
  const char *id = strstr(rows, key);
  if (!id) return;
  id += sizeof key - 1;
  fprintf(d->runs, "%.*s,%d,%s\n", (int)strcspn(id, "\""), id, rank, d->hosts[rank]);
}

static void take(ranks_dealer *d, int rank, char *result) {
  char *rows = strchr(result, '\n'), *words = strchr(result, ' ');
  const double seconds = strtod(result, NULL);
  if (!rows || !words) return;
  *rows++ = 0;
  fputs(rows, d->journal);
  note_run(d, rank, rows);
  if (!bench_journal_flush(d->journal) || fflush(d->runs)) d->failed = true;
  for (job *j = d->jobs; j < d->jobs + d->count; j++)
    if (j->rank == rank && (j->state == DEALT || (j->state == WAITING && j->tries))) settle(d, j, rows, words + 1);
  fprintf(stderr, "[%d/%d] rank %d on %s, %.1f s\n", count_jobs(d, DONE), d->count, rank, d->hosts[rank], seconds);
}

/* ---- Life and death ------------------------------------------------------------------------------------------------- */

static void lose(ranks_dealer *d, int rank) {
  int taken = 0;
  for (job *j = d->jobs; j < d->jobs + d->count; j++) {
    if (j->rank != rank || j->state != DEALT) continue;
    j->state = j->tries < MOST_TRIES ? WAITING : GIVEN_UP;
    taken++;
  }
  d->peers[rank].lost = true;
  fprintf(stderr, "attnbench-mpi: rank %d on %s has been silent for %.0f s: it is lost, and others get its %d case%s\n",
          rank, d->hosts[rank], d->sweep->patience_s, taken, taken == 1 ? "" : "s");
}

static void hear(ranks_dealer *d, int rank, double now) {
  peer *p = &d->peers[rank];
  char *said = ranks_receive(&p->said, rank, TAG_ALIVE), *result = ranks_receive(&p->result, rank, TAG_RESULT);
  if (said || result || p->heard_s <= 0 || rank == 0) p->heard_s = now;
  if ((said || result) && p->lost) fprintf(stderr, "attnbench-mpi: rank %d on %s is back\n", rank, d->hosts[rank]);
  if (said || result) p->lost = false;
  if (result) p->busy = false;
  if (result) take(d, rank, result);
  free(said);
  free(result);
  if (!p->lost && now > p->heard_s + d->sweep->patience_s) lose(d, rank);
}

/* All other ranks learn that rank 0 lives. */
static void tell(ranks_dealer *d, double now) {
  if (now < d->told_s + d->sweep->patience_s / 10) return;
  d->told_s = now;
  for (int rank = 1; rank < d->sweep->ranks; rank++)
    if (ranks_letter_is_gone(&d->peers[rank].alive)) ranks_send(&d->peers[rank].alive, rank, TAG_ALIVE, calloc(1, 1));
}

/* If rank 0 itself stood still, the others were not silent. */
static void forgive(ranks_dealer *d, double now) {
  if (now > d->looked_s + d->sweep->patience_s / 4)
    for (int rank = 0; rank < d->sweep->ranks; rank++) d->peers[rank].heard_s = now;
  d->looked_s = now;
}

static void dismiss(ranks_dealer *d) {
  for (int rank = 0; rank < d->sweep->ranks; rank++) {
    peer *p = &d->peers[rank];
    if (ranks_letter_is_gone(&p->part)) ranks_send(&p->part, rank, TAG_PART, calloc(1, 1));
  }
  d->dismissed = true;
}

void ranks_deal(ranks_dealer *d) {
  const double now = ranks_now_s();
  if (d->dismissed) return;
  forgive(d, now);
  tell(d, now);
  for (int rank = 0; rank < d->sweep->ranks; rank++) {
    peer *p = &d->peers[rank];
    hear(d, rank, now);
    if (d->works[rank] && !p->busy && !p->lost && !d->failed && ranks_letter_is_gone(&p->part)) give(d, rank);
  }
  if (!count_jobs(d, DEALT) && (d->failed || !count_jobs(d, WAITING))) dismiss(d);
}

int ranks_deal_close(ranks_dealer *d, bool *lost) {
  const int failed = d->journal ? count_missing(d->sweep) : 0;
  for (int rank = 0; d->peers && rank < d->sweep->ranks; rank++) *lost = *lost || d->peers[rank].lost;
  if (failed) fprintf(stderr, "attnbench-mpi: %d cases could not be measured; the same command tries again\n", failed);
  if (d->journal) (void)fclose(d->journal);
  if (d->runs) (void)fclose(d->runs);
  clear_jobs(d);
  free(d->peers);
  free(d);
  return failed;
}
