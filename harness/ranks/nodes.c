/* SPDX-License-Identifier: MIT */
/* Which ranks work: one a node, on nodes whose rows may stand beside those of rank 0. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/files.h"
#include "ranks/ranks.h"
#include "report/merge.h"

/* attnbench opens the folder as it would for an ordinary run, and refuses what it would refuse. Returns its exit code. */
static int open_folder(const ranks_sweep *s, const char *folder, bool overwrite, const char *log) {
  const char *const more[] = {"-o", folder, overwrite ? "--overwrite" : "--resume", "--unmeasured", "-q", NULL};
  return ranks_child_run(s, more, "/dev/null", log);
}

/* The first line of a folder's journal; malloc. */
static char *read_head(const char *folder) {
  char path[RANKS_PATH];
  snprintf(path, sizeof path, "%.4000s/journal.jsonl", folder);
  char *text = ranks_file_text(path);
  if (text) text[strcspn(text, "\n")] = 0;
  return text;
}

/* Gives every rank the head of rank 0; malloc. */
static char *share_head(char *head) {
  int bytes = head ? (int)strlen(head) + 1 : 0;
  MPI_Bcast(&bytes, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (!head) head = calloc((size_t)bytes + 1, 1);
  MPI_Bcast(head, bytes, MPI_CHAR, 0, MPI_COMM_WORLD);
  return head;
}

/* The rule is that of attnbench merge: "its microcode is '7', that of rank 0 '8'". */
static void compare_heads(char *head, char *reference, char words[RANKS_WORDS]) {
  bench_part items[] = {{.head = reference, .machine = 0}, {.head = head, .machine = 1}};
  const bench_parts parts = {items, 2, 2};
  char value[BENCH_PART_ITEM], expected[BENCH_PART_ITEM];
  const char *item = bench_part_difference(&parts, &items[1], 0);
  if (!item) return;
  bench_parts_item(&parts, 1, item, value);
  bench_parts_item(&parts, 0, item, expected);
  snprintf(words, RANKS_WORDS, "its %s is '%.150s', that of rank 0 '%.150s'", item, value, expected);
}

/* Why this rank's rows may not stand beside those of rank 0; "" if they may. */
static void check_node(const ranks_sweep *s, char *reference, char words[RANKS_WORDS]) {
  char log[RANKS_PATH];
  ranks_scratch(s, "log", log);
  const int code = open_folder(s, s->scratch, true, log);
  char *head = read_head(s->scratch);
  if (!ranks_child_is_fine(code))
    ranks_child_explain(s, code, words, RANKS_WORDS);
  else if (head)
    compare_heads(head, reference, words);
  free(head);
}

/* Whether this is the first rank of its node. */
static bool is_first(void) {
  MPI_Comm node;
  int place = 0;
  MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, 0, MPI_INFO_NULL, &node);
  MPI_Comm_rank(node, &place);
  MPI_Comm_free(&node);
  return !place;
}

static void send_facts(const ranks_sweep *s) {
  char path[RANKS_PATH];
  ranks_scratch(s, "env.json", path);
  char *facts = ranks_file_text(path);
  MPI_Send(facts, (int)strlen(facts), MPI_CHAR, 0, TAG_NODE, MPI_COMM_WORLD);
  free(facts);
}

static void copy_text(void *text, FILE *file) { fputs(text, file); }

/* Gathers the facts about each node: DIR/nodes/HOST.json is its env.json. */
static void keep_facts(const ranks_sweep *s, const bool *works, char (*hosts)[MPI_MAX_PROCESSOR_NAME]) {
  char path[RANKS_PATH];
  ranks_letter letter = {0};
  snprintf(path, sizeof path, "%.4000s/nodes", s->folder);
  (void)bench_folder_create(path);
  for (int rank = 1; rank < s->ranks; rank++) {
    char *text;
    while (!(text = ranks_receive(&letter, rank, TAG_NODE))) usleep(1000);
    snprintf(path, sizeof path, "%.3500s/nodes/%.255s.json", s->folder, hosts[rank]);
    if (works[rank]) (void)bench_file_write(path, copy_text, text);
    free(text);
  }
}

static void explain_ranks(const ranks_sweep *s, const bool *works, char (*hosts)[MPI_MAX_PROCESSOR_NAME],
                          char (*words)[RANKS_WORDS]) {
  int waiting = 0, working = 0;
  for (int rank = 0; rank < s->ranks; rank++) {
    if (words[rank][0]) fprintf(stderr, "attnbench-mpi: rank %d on %s gets no case: %s\n", rank, hosts[rank], words[rank]);
    working += works[rank];
    waiting += !works[rank] && !words[rank][0];
  }
  fprintf(stderr, "attnbench-mpi: %d of %d ranks work", working, s->ranks);
  if (waiting) fprintf(stderr, "; %d wait, as ranks that time on one node disturb each other (--share lets them)", waiting);
  fputc('\n', stderr);
}

/* The opening of every rank, once that of rank 0 has succeeded. */
static void open_nodes(const ranks_sweep *s, bool *works, char (*hosts)[MPI_MAX_PROCESSOR_NAME], char (*all)[RANKS_WORDS]) {
  char words[RANKS_WORDS] = "";
  char *head = share_head(s->rank ? NULL : read_head(s->folder));
  bool able = is_first() || s->share || !strcmp(s->arguments[0], "check");
  if (able && s->rank) check_node(s, head, words);
  able = able && !words[0];
  free(head);
  MPI_Gather(words, RANKS_WORDS, MPI_CHAR, all, RANKS_WORDS, MPI_CHAR, 0, MPI_COMM_WORLD);
  MPI_Gather(&able, 1, MPI_C_BOOL, works, 1, MPI_C_BOOL, 0, MPI_COMM_WORLD);
  MPI_Gather(s->host, sizeof s->host, MPI_CHAR, hosts, sizeof s->host, MPI_CHAR, 0, MPI_COMM_WORLD);
  if (s->rank)
    send_facts(s);
  else
    keep_facts(s, works, hosts);
}

int ranks_open(const ranks_sweep *s, bool *works, char (*hosts)[MPI_MAX_PROCESSOR_NAME]) {
  int code = s->rank ? 0 : open_folder(s, s->folder, s->overwrite, NULL);
  MPI_Bcast(&code, 1, MPI_INT, 0, MPI_COMM_WORLD);
  if (!ranks_child_is_fine(code)) return code;
  char(*words)[RANKS_WORDS] = s->rank ? NULL : calloc((size_t)s->ranks, sizeof *words);
  open_nodes(s, works, hosts, words);
  if (!s->rank) explain_ranks(s, works, hosts, words);
  free(words);
  return 0;
}
