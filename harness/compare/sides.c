/* SPDX-License-Identifier: MIT */
/* Describes two sides, decides whether they may be compared, names the command that could decide between them, and finds
 * results that are saved under a name. */
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/files.h"
#include "compare/compare.h"

/* ---- Facts ---------------------------------------------------------------------------------------------------------- */

void bench_side_describe(const bench_side *side, char *text, size_t bytes) {
  static const char *const facts[] = {"date", "commit", "cpu"};
  snprintf(text, bytes, " (%d run%s", side->count, side->count == 1 ? "" : "s");
  for (int i = 0; i < 3; i++) {
    const char *fact = bench_result_fact(side->run[0], facts[i]);
    if (*fact) bench_append(text, bytes, ", %s%.*s", i == 1 ? "commit " : "", i == 1 ? 10 : 60, fact);
  }
  bench_append(text, bytes, ")");
}

/* Says what differs. Returns how many facts do. */
static int differing_facts(const bench_result *a, const bench_result *b) {
  int count = 0;
  for (int i = 0; bench_result_facts[i]; i++) {
    if (!a->fact[i][0] || !b->fact[i][0] || !strcmp(a->fact[i], b->fact[i])) continue;
    fprintf(stderr, "%s differs: '%s' and '%s'\n", bench_result_facts[i], a->fact[i], b->fact[i]);
    count++;
  }
  return count;
}

/* Whether two results share no number of threads. */
static bool threads_differ(const bench_rows *a, const bench_rows *b) {
  for (int i = 0; i < a->count; i++)
    for (int k = 0; k < b->count; k++)
      if (a->item[i].threads == b->item[k].threads) return false;
  return a->count && b->count;
}

int bench_sides_check(const bench_side *a, const bench_side *b, bool across) {
  const bench_result *first = a->run[0];
  int count = 0;
  for (int i = 1; i < a->count; i++) count += differing_facts(first, a->run[i]);
  for (int i = 0; i < b->count; i++) count += differing_facts(first, b->run[i]);
  if (threads_differ(&first->rows, &b->run[0]->rows)) {
    fprintf(stderr, "threads differ: %d and %d\n", (int)first->rows.item[0].threads, (int)b->run[0]->rows.item[0].threads);
    count++;
  }
  if (!count || across) return 0;
  return cli_usage_error("compare", "these are not results of one machine and build; --across compares them all the same");
}

/* ---- Advice --------------------------------------------------------------------------------------------------------- */

/* Four times as many rounds halve the error that comes from them. */
static void advise_rounds(const bench_matches *m) {
  int most = 0;
  for (int i = 0; i < m->table.count; i++)
    if (m->table.item[i].verdict == BENCH_INCONCLUSIVE && m->table.item[i].rounds > most) most = m->table.item[i].rounds;
  if (most) printf("\nTo decide, take more rounds: --rounds %d\n", 4 * most);
}

void bench_sides_advise(const bench_side *a, const bench_side *b, const bench_matches *m) {
  if (m->table.design == BENCH_PAIRED_ROUNDS) {
    advise_rounds(m);
    return;
  }
  const bench_comparison *first = NULL;
  for (int i = 0; i < m->table.count && !first; i++)
    if (m->table.item[i].verdict == BENCH_INCONCLUSIVE) first = &m->table.item[i];
  if (!first) return;
  const char *from = bench_result_fact(a->run[0], "commit"), *to = bench_result_fact(b->run[0], "commit");
  printf(
      "\nTo decide, time both builds side by side, in every round:\n"
      "  attnbench compare --paired BUILD_A BUILD_B -k %s --case %s\n",
      first->a->kernel, first->a->case_id);
  if (*from && *to && strcmp(from, to)) printf("  scripts/ab.sh %.10s %.10s -k %s\n", from, to, first->a->kernel);
  if (m->table.design == BENCH_ONE_RUN)
    printf("or give five runs a side, made in turns: attnbench compare A1,A2,A3,A4,A5 B1,B2,B3,B4,B5\n");
}

/* ---- Saved results -------------------------------------------------------------------------------------------------- */

static bool name_baseline(const char *name, char *path, size_t bytes, char *error, size_t error_bytes) {
  const char *state = getenv("XDG_STATE_HOME"), *home = getenv("HOME");
  if (!*name || name[0] == '.' || strchr(name, '/'))
    return bench_say(error, error_bytes, "'%s' is no name of a baseline: no '/', and no '.' at its start", name);
  if (state && *state)
    snprintf(path, bytes, "%s/attn/baselines/%s", state, name);
  else if (home && *home)
    snprintf(path, bytes, "%s/.local/state/attn/baselines/%s", home, name);
  else
    return bench_say(error, error_bytes, "baselines need a folder: neither XDG_STATE_HOME nor HOME is set");
  return true;
}

int bench_baseline_path(const char *name, const char *option, char path[BENCH_BASELINE_PATH]) {
  char error[400];
  if (name_baseline(name, path, BENCH_BASELINE_PATH, error, sizeof error)) return 0;
  return cli_usage_error("compare", "%s %s", option, error);
}

static void copy_file(void *context, FILE *file) {
  (void)bench_file_copy(context, file); /* whether it could be written is seen when the file is closed */
}

int bench_baseline_save(const bench_side *side, const char *name) {
  static const char *const files[] = {"results.csv", "samples.csv", "env.json"};
  char folder[BENCH_BASELINE_PATH], from[5000], to[5000];
  if (side->count != 1) return cli_usage_error("compare", "--save: A should be one result folder");
  const int code = bench_baseline_path(name, "--save", folder);
  if (code) return code;
  if (!bench_folder_create(folder)) return BENCH_EXIT_INTERNAL;
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    snprintf(from, sizeof from, "%s/%s", side->run[0]->path, files[i]);
    snprintf(to, sizeof to, "%s/%s", folder, files[i]);
    if (!bench_file_exists(from)) return cli_usage_error("compare", "--save: %s is no result folder", side->run[0]->path);
    if (!bench_file_write(to, copy_file, from)) return BENCH_EXIT_INTERNAL;
  }
  fprintf(stderr, "saved: %s\n", folder);
  return BENCH_EXIT_OK;
}
