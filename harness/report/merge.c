/* SPDX-License-Identifier: MIT */
/* Joins the journals of result folders. */
#include "report/merge.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/files.h"

enum { KEY = 48, VALUE = BENCH_PART_ITEM, PATH = 4096 };

/* ---- Heads ---------------------------------------------------------------------------------------------------------- */

/* Where the pairs of a head begin: behind {"journal": 2. */
static const char *pairs_of(const char *head) {
  const char *comma = strchr(head, ',');
  return comma ? comma : "";
}

/* The value of an item; "" if there is none. */
static void find_item(const char *head, const char *wanted, char value[VALUE]) {
  char key[KEY];
  for (const char *at = pairs_of(head); bench_json_next_pair(&at, key, sizeof key, value, VALUE);)
    if (!strcmp(key, wanted)) return;
  value[0] = 0;
}

static const bench_part *first_of(const bench_parts *parts, int machine) {
  for (const bench_part *part = parts->item; part < parts->item + parts->count; part++)
    if (part->machine == machine) return part;
  return NULL;
}

void bench_parts_item(const bench_parts *parts, int machine, const char *name, char value[BENCH_PART_ITEM]) {
  find_item(first_of(parts, machine)->head, name, value);
}

/* The first item of `head` that the other head lacks or has with another value. */
static const char *find_difference(const char *head, const char *other) {
  static char key[KEY];
  char one[VALUE], two[VALUE];
  for (const char *at = pairs_of(head); bench_json_next_pair(&at, key, sizeof key, one, sizeof one);) {
    find_item(other, key, two);
    if (strcmp(one, two) && strcmp(key, "shard") && strcmp(key, "affinity")) return key;
  }
  return NULL;
}

const char *bench_part_difference(const bench_parts *parts, const bench_part *part, int machine) {
  const char *head = first_of(parts, machine)->head, *key = find_difference(head, part->head);
  return key ? key : find_difference(part->head, head);
}

void bench_parts_head(const bench_parts *parts, int machine, bench_journal_head *head) {
  static char names[BENCH_HEAD_ITEMS][KEY];
  char value[VALUE];
  *head = (bench_journal_head){.count = 0};
  for (const char *at = pairs_of(first_of(parts, machine)->head); head->count < BENCH_HEAD_ITEMS;) {
    char *name = names[head->count];
    if (!bench_json_next_pair(&at, name, KEY, value, sizeof value)) return;
    bench_journal_describe(head, name, "%s", strcmp(name, "shard") ? value : "all");
  }
}

static void append_slug(const char *value, char *text, size_t bytes) {
  size_t used = strlen(text);
  if (used && used + 1 < bytes) text[used++] = '-';
  for (; *value && used + 1 < bytes; value++) {
    const char c = (char)tolower((unsigned char)*value);
    if (isalnum((unsigned char)c))
      text[used++] = c;
    else if (used && text[used - 1] != '-')
      text[used++] = '-';
  }
  while (used && text[used - 1] == '-') used--;
  text[used] = 0;
}

void bench_parts_slug(const bench_parts *parts, int machine, char *text, size_t bytes) {
  static const char *const items[] = {"cpu", "cpu_family", "cpu_model"};
  char value[VALUE];
  text[0] = 0;
  for (size_t i = 0; i < sizeof items / sizeof *items; i++) {
    bench_parts_item(parts, machine, items[i], value);
    append_slug(value, text, bytes);
  }
}

/* ---- Environments --------------------------------------------------------------------------------------------------- */

static bench_grade grade_of(const char *name) {
  for (int grade = 0; grade < BENCH_UNKNOWN; grade++)
    if (!strcmp(name, bench_grade_name((bench_grade)grade))) return (bench_grade)grade;
  return BENCH_UNKNOWN;
}

/* One line of env.json: "cpu": {"value": "...", "grade": "OK", "advice": "..."}. */
static void read_fact(const char *line, bench_environment *environment) {
  char name[KEY] = "", key[KEY], text[VALUE], value[VALUE] = "", advice[VALUE] = "";
  bench_grade grade = BENCH_UNKNOWN;
  const char *at = strchr(line, '{');
  if (!at || sscanf(line, " \"%47[^\"]\"", name) != 1) return;
  while (bench_json_next_pair(&at, key, sizeof key, text, sizeof text)) {
    if (!strcmp(key, "value")) snprintf(value, sizeof value, "%s", text);
    if (!strcmp(key, "grade")) grade = grade_of(text);
    if (!strcmp(key, "advice")) snprintf(advice, sizeof advice, "%s", text);
  }
  bench_fact_add(environment, name, grade, advice, "%s", value);
}

static void read_environment(const char *path, bench_environment *environment) {
  char *line = NULL;
  size_t room = 0;
  FILE *file = fopen(path, "re");
  while (file && getline(&line, &room, file) > 0) read_fact(line, environment);
  free(line);
  if (file) (void)fclose(file);
}

static void join_fact(bench_environment *all, const bench_fact *fact) {
  static const int rank[] = {[BENCH_OK] = 0, [BENCH_UNKNOWN] = 1, [BENCH_WARN] = 2, [BENCH_BAD] = 3};
  for (bench_fact *old = all->facts; old < all->facts + all->count; old++) {
    if (strcmp(old->name, fact->name)) continue;
    if (!strstr(old->value, fact->value)) bench_append(old->value, sizeof old->value, "; %s", fact->value);
    if (rank[fact->grade] > rank[old->grade]) {
      old->grade = fact->grade;
      memcpy(old->advice, fact->advice, sizeof old->advice);
    }
    return;
  }
  bench_fact_add(all, fact->name, fact->grade, fact->advice, "%s", fact->value);
}

void bench_parts_environment(const bench_parts *parts, int machine, bench_environment *environment) {
  environment->count = 0;
  for (const bench_part *part = parts->item; part < parts->item + parts->count; part++)
    for (int i = 0; part->machine == machine && i < part->environment.count; i++)
      join_fact(environment, &part->environment.facts[i]);
}

/* ---- Parts ---------------------------------------------------------------------------------------------------------- */

/* The number of the machine that the last part belongs to. */
static int machine_of_last(bench_parts *parts) {
  const bench_part *last = &parts->item[parts->count - 1];
  for (int machine = 0; machine < parts->machines; machine++)
    if (!bench_part_difference(parts, last, machine)) return machine;
  return parts->machines++;
}

static void list_runs(bench_part *part) {
  for (const bench_row *row = part->rows.item; row < part->rows.item + part->rows.count; row++)
    if (!strstr(part->runs, row->run_id))
      bench_append(part->runs, sizeof part->runs, "%s%s", part->runs[0] ? " " : "", row->run_id);
}

bool bench_parts_read(bench_parts *parts, const char *path) {
  char name[PATH], value[VALUE];
  bench_part *grown = bench_grown(parts->item, parts->count, sizeof *grown);
  if (!grown) return cli_fail(0, "merge", "out of memory"), false;
  parts->item = grown;
  bench_part *part = &parts->item[parts->count];
  *part = (bench_part){.path = path, .machine = -1};
  snprintf(name, sizeof name, "%s/journal.jsonl", path);
  if (!bench_journal_read(name, &part->head, &part->rows)) return free(part->head), bench_rows_clear(&part->rows), false;
  parts->count++;
  find_item(part->head, "shard", value);
  snprintf(part->shard, sizeof part->shard, "%.31s", value[0] ? value : "all");
  snprintf(name, sizeof name, "%s/env.json", path);
  read_environment(name, &part->environment);
  snprintf(name, sizeof name, "%s/results.csv", path);
  part->ended = bench_file_exists(name);
  list_runs(part);
  part->machine = machine_of_last(parts);
  return true;
}

void bench_parts_clear(bench_parts *parts) {
  for (bench_part *part = parts->item; part < parts->item + parts->count; part++) {
    free(part->head);
    bench_rows_clear(&part->rows);
  }
  free(parts->item);
  *parts = (bench_parts){0};
}

/* ---- Rows ----------------------------------------------------------------------------------------------------------- */

/* A row and its place among all. */
typedef struct placed {
  bench_row *row;
  int place;
} placed;

/* Rows of one case and kernel side by side: a timed one first, then in their order. */
static int by_name(const void *a, const void *b) {
  const placed *one = a, *two = b;
  int order = strcmp(one->row->case_id, two->row->case_id);
  if (!order) order = strcmp(one->row->kernel, two->row->kernel);
  if (!order) order = (two->row->time.n > 0) - (one->row->time.n > 0);
  return order ? order : one->place - two->place;
}

static int by_place(const void *a, const void *b) { return ((const placed *)a)->place - ((const placed *)b)->place; }

static bool is_repeated(const placed *one, const placed *before) {
  return !strcmp(one->row->case_id, before->row->case_id) && !strcmp(one->row->kernel, before->row->kernel);
}

/* Fills `all` with the rows of a machine. Returns how many there are; all may be NULL. */
static int gather(const bench_parts *parts, int machine, placed *all) {
  int count = 0;
  for (const bench_part *part = parts->item; part < parts->item + parts->count; part++)
    for (int i = 0; part->machine == machine && i < part->rows.count; i++, count++)
      if (all) all[count] = (placed){&part->rows.item[i], count};
  return count;
}

bool bench_parts_join(bench_parts *parts, int machine, bench_rows *rows, int *repeated) {
  const int count = gather(parts, machine, NULL);
  int kept = 0;
  placed *all = calloc((size_t)count + 1, sizeof *all);
  bool fine = all != NULL;
  if (fine) (void)gather(parts, machine, all);
  if (fine) qsort(all, (size_t)count, sizeof *all, by_name);
  for (int i = 0; fine && i < count; i++)
    if (!kept || !is_repeated(&all[i], &all[kept - 1])) all[kept++] = all[i];
  if (fine) qsort(all, (size_t)kept, sizeof *all, by_place);
  for (int i = 0; fine && i < kept; i++) fine = bench_rows_append(rows, all[i].row);
  *repeated = count - kept;
  free(all);
  return fine;
}
