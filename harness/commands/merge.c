/* SPDX-License-Identifier: MIT */
/* attnbench merge: joins the result folders of a sweep's shards. Rows of different machines, builds or settings never stand
 * in one table: each machine gets a folder of its own. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/cli.h"
#include "base/files.h"
#include "commands/commands.h"
#include "commands/session.h"
#include "report/merge.h"

enum { PATH = 4096 };

static const char *folder;
static bool overwrite;
static cli_list paths;

static const cli_option options[] = {
    {CLI_STRING, 'o', "output", "DIR", "write the joined results there; of several machines, into one folder each below it",
     &folder},
    {CLI_FLAG, 0, "overwrite", NULL, "replace the results that DIR holds", &overwrite},
    CLI_END,
};

static const cli_command command = {
    .name = "merge",
    .usage = "-o DIR PART...",
    .summary =
        "Joins result folders of `run` or `check`, such as those of --shard, into one with the same files, and runs.csv, "
        "which says where the rows of each run_id come from. Rows of other CPUs, builds, libraries or settings are kept "
        "apart. A sweep that lacks cases can be completed there: the same command without --shard, with -o DIR --resume.",
    .options = options,
    .epilogue = "Exit codes: 0, 2 usage, 5 a file cannot be read or written. What is missing is a warning on stderr.\n",
    .positionals = &paths};

/* The results of one machine, and the folder that they are written to. */
typedef struct merged {
  bench_parts *parts;
  int machine;
  char path[PATH];
  bench_rows rows;
  bench_environment environment;
  bench_report report;
} merged;

/* ---- Warnings ------------------------------------------------------------------------------------------------------- */

static void warn_of_unfinished(const bench_parts *parts) {
  for (const bench_part *part = parts->item; part < parts->item + parts->count; part++)
    if (!part->ended)
      fprintf(stderr, "warning: %s: its run has not ended; start it again with --resume, then merge again\n", part->path);
}

/* How many parts are shard `wanted` of `shards`. */
static int count_shards(const bench_parts *parts, int64_t wanted, int64_t shards) {
  int64_t i, n;
  int found = 0;
  for (const bench_part *part = parts->item; part < parts->item + parts->count; part++)
    found += bench_shard_read(part->shard, &i, &n) && i == wanted && n == shards;
  return found;
}

static void warn_of_missing(const bench_parts *parts) {
  int64_t i, shards;
  if (!bench_shard_read(parts->item[0].shard, &i, &shards)) return;
  for (int64_t wanted = 1; wanted <= shards; wanted++)
    if (!count_shards(parts, wanted, shards))
      fprintf(stderr, "warning: shard %" PRId64 "/%" PRId64 " is missing\n", wanted, shards);
}

/* ---- Files ---------------------------------------------------------------------------------------------------------- */

static void write_runs(void *context, FILE *file) {
  static const char *const facts[] = {"host", "date", "affinity", "load", "argv"};
  const merged *m = context;
  fputs("run_ids,part,shard,host,date,affinity,load,argv\n", file);
  for (const bench_part *part = m->parts->item; part < m->parts->item + m->parts->count; part++) {
    if (part->machine != m->machine) continue;
    fprintf(file, "%s,", part->runs);
    bench_csv_field(file, part->path);
    fprintf(file, ",%s", part->shard);
    for (size_t f = 0; f < sizeof facts / sizeof *facts; f++) {
      fputc(',', file);
      bench_csv_field(file, bench_environment_get(&part->environment, facts[f]));
    }
    fputc('\n', file);
  }
}

static void write_environment(void *context, FILE *file) {
  bench_environment_write_json(&((const merged *)context)->environment, file);
}

static void write_table(void *context, FILE *file) {
  const merged *m = context;
  char way[BENCH_PART_ITEM], seed[BENCH_PART_ITEM];
  int parts = 0;
  bench_parts_item(m->parts, m->machine, "command", way);
  bench_parts_item(m->parts, m->machine, "seed", seed);
  const bench_table table = {
      .file = file, .command = way, .timed = strcmp(way, "check") != 0, .seed = strtoull(seed, NULL, 10)};
  for (int i = 0; i < m->parts->count; i++) parts += m->parts->item[i].machine == m->machine;
  fprintf(file, "%d rows of %d part%s, joined; %s\n\n", m->rows.count, parts, parts == 1 ? "" : "s",
          bench_environment_get(&m->environment, "cpu"));
  bench_table_cases(&table, &m->rows);
  bench_table_summary(&table, &m->rows);
}

static bool write_journal(const merged *m) {
  char path[PATH + 16];
  bench_journal_head head;
  snprintf(path, sizeof path, "%s/journal.jsonl", m->path);
  bench_parts_head(m->parts, m->machine, &head);
  FILE *journal = bench_journal_create(path, &head);
  if (!journal) return false;
  for (int i = 0; i < m->rows.count; i++) bench_journal_append(journal, &m->rows.item[i]);
  const bool fine = bench_journal_flush(journal);
  return !fclose(journal) && fine;
}

static bool write_folder(merged *m) {
  const struct {
    const char *name;
    bench_write_fn write;
    void *context;
  } files[] = {{"results.csv", bench_write_csv, &m->report},
               {"samples.csv", bench_write_samples, &m->report},
               {"results.json", bench_write_json_medians, &m->report},
               {"env.json", write_environment, m},
               {"table.txt", write_table, m},
               {"runs.csv", write_runs, m}};
  char path[PATH + 16];
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    snprintf(path, sizeof path, "%s/%s", m->path, files[i].name);
    if (!bench_file_write(path, files[i].write, files[i].context)) return false;
  }
  return write_journal(m);
}

/* ---- One machine ---------------------------------------------------------------------------------------------------- */

/* Results of one machine go to DIR, those of several to DIR/NAME each. A name that is taken gets a number. */
static void name_folder(merged *m) {
  char name[200], other[200];
  int alike = 0;
  snprintf(m->path, sizeof m->path, "%s", folder);
  if (m->parts->machines == 1) return;
  bench_parts_slug(m->parts, m->machine, name, sizeof name);
  for (int machine = 0; machine < m->machine; machine++) {
    bench_parts_slug(m->parts, machine, other, sizeof other);
    alike += !strcmp(name, other);
  }
  bench_append(m->path, sizeof m->path, "/%s", name);
  if (alike) bench_append(m->path, sizeof m->path, "-%d", alike + 1);
}

/* Why this machine differs from all those before it. */
static void explain(const merged *m) {
  const bench_part *part = m->parts->item;
  while (part->machine != m->machine) part++;
  for (int machine = 0; machine < m->machine; machine++)
    printf("%s%s", machine ? ", " : "  apart: other ", bench_part_difference(m->parts, part, machine));
  if (m->machine) putchar('\n');
}

static int count_cases(const bench_rows *rows) {
  int cases = 0;
  for (int i = 0, before; i < rows->count; i++, cases += before < 0) {
    before = i - 1;
    while (before >= 0 && strcmp(rows->item[i].case_id, rows->item[before].case_id)) before--;
  }
  return cases;
}

static int refuse_old(const char *path) {
  char file[PATH + 16];
  snprintf(file, sizeof file, "%s/journal.jsonl", path);
  if (overwrite || !bench_file_exists(file)) return 0;
  return cli_usage_error("merge", "%s holds results: --overwrite replaces them", path);
}

static int merge_machine(merged *m) {
  int repeated = 0, code = refuse_old(m->path);
  if (code) return code;
  bench_parts_environment(m->parts, m->machine, &m->environment);
  m->report = (bench_report){.rows = &m->rows,
                             .run_id = "merged",
                             .executable = "attnbench",
                             .date = bench_environment_get(&m->environment, "date"),
                             .environment = &m->environment};
  if (!bench_parts_join(m->parts, m->machine, &m->rows, &repeated))
    return cli_fail(BENCH_EXIT_INTERNAL, "merge", "out of memory");
  if (repeated) fprintf(stderr, "warning: %d rows stand in several parts: a timed one counts, else the first\n", repeated);
  if (!bench_folder_create(m->path)) return BENCH_EXIT_INTERNAL;
  const int lock = bench_folder_lock(m->path);
  const bool fine = lock >= 0 && write_folder(m);
  if (lock >= 0) (void)close(lock);
  if (!fine) return BENCH_EXIT_INTERNAL;
  const int cases = count_cases(&m->rows);
  printf("%s: %d rows of %d case%s\n", m->path, m->rows.count, cases, cases == 1 ? "" : "s");
  explain(m);
  return BENCH_EXIT_OK;
}

static int merge_machines(bench_parts *parts) {
  int code = BENCH_EXIT_OK;
  for (int machine = 0; !code && machine < parts->machines; machine++) {
    merged *m = calloc(1, sizeof *m);
    if (!m) return cli_fail(BENCH_EXIT_INTERNAL, "merge", "out of memory");
    *m = (merged){.parts = parts, .machine = machine};
    name_folder(m);
    code = merge_machine(m);
    bench_rows_clear(&m->rows);
    free(m);
  }
  return code;
}

int bench_merge_main(int argc, char **argv) {
  int code;
  bench_parts parts = {.count = 0};
  folder = NULL;
  overwrite = false;
  paths.count = 0;
  if (!cli_parse(&command, argc, argv, &code)) return code;
  if (!folder || !paths.count) return cli_usage_error("merge", "needs -o DIR and the folders to join");
  bool fine = true;
  for (int i = 0; fine && i < paths.count; i++) fine = bench_parts_read(&parts, paths.item[i]);
  if (fine) {
    warn_of_unfinished(&parts);
    warn_of_missing(&parts);
  }
  code = fine ? merge_machines(&parts) : BENCH_EXIT_INTERNAL;
  bench_parts_clear(&parts);
  return code;
}
