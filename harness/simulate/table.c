/* SPDX-License-Identifier: MIT */
/* attnbench explain --simulate: a line for each number of threads, as table and JSON. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "base/files.h"
#include "simulate/simulate.h"

typedef struct sim_line {
  char case_id[BENCH_NAME];
  sim_row row;
} sim_line;

typedef struct sim_lines {
  sim_line *item;
  int count;
} sim_lines;

/* The case's name up to its threads. */
static size_t name_before_threads(const char *id) {
  const char *at = strstr(id, "/threads:");
  return at ? (size_t)(at - id) : strlen(id);
}

/* The case's name after its threads. */
static const char *name_behind_threads(const char *id) {
  const char *at = id + name_before_threads(id);
  return *at ? at + 1 + strcspn(at + 1, "/") : at;
}

static bool same_problem(const bench_case *a, const bench_case *b) {
  const size_t length = name_before_threads(a->case_id);
  return name_before_threads(b->case_id) == length && !memcmp(a->case_id, b->case_id, length) &&
         !strcmp(name_behind_threads(a->case_id), name_behind_threads(b->case_id));
}

double sim_efficiency(const sim_row *r) { return r->one_ns / (r->threads * r->result.ns); }

double sim_idle(const sim_row *r) {
  const sim_result *result = &r->result;
  return 1 - (result->work_ns + result->memory_ns) / (r->threads * result->ns);
}

static void print_head(const bench_case *bench) {
  const size_t length = name_before_threads(bench->case_id);
  printf("%.*s\n\n%7s  %-24s%8s%7s%12s%12s%12s%8s  %s\n", (int)length, bench->case_id, "threads", "kernel", "tasks", "rows",
         "predicted", "measured", "efficiency", "idle", "limited by");
}

static void print_row(const sim_row *r) {
  char measured[40] = "";
  if (r->measured_ns > 0)
    snprintf(measured, sizeof measured, "%.3f (%+.1f%%)", r->measured_ns * 1e-6, 100 * (r->of_measured - 1));
  printf("%7d  %-24s%8" PRId64 "%7" PRId64 "%9.3f ms%18s%8.3f%7.1f%%  %s\n", r->threads, r->kernel, r->tasks, r->rows,
         r->result.ns * 1e-6, measured, sim_efficiency(r), 100 * sim_idle(r), sim_limit(&r->result, r->planned));
}

static void write_json(void *context, FILE *file) {
  const sim_lines *lines = context;
  fputs("[", file);
  for (const sim_line *l = lines->item; l < lines->item + lines->count; l++) {
    const sim_row *r = &l->row;
    fputs(l == lines->item ? "\n  {" : ",\n  {", file);
    bench_json_pair(file, "", "case_id", l->case_id);
    bench_json_pair(file, ", ", "kernel", r->kernel);
    bench_json_pair(file, ", ", "limited_by", sim_limit(&r->result, r->planned));
    fprintf(file,
            ", \"threads\": %d, \"plan_threads\": %d, \"tasks\": %" PRId64 ", \"row_block\": %" PRId64
            ", \"key_block\": %" PRId64 ", \"predicted_ns\": %.0f",
            r->threads, r->planned, r->tasks, r->rows, r->keys, r->result.ns);
    if (r->measured_ns > 0)
      fprintf(file, ", \"measured_ns\": %.0f, \"predicted_of_measured\": %.4f", r->measured_ns, r->of_measured);
    fprintf(file, ", \"one_thread_ns\": %.0f, \"efficiency\": %.4f, \"idle\": %.4f, \"longest_task_ns\": %.0f", r->one_ns,
            sim_efficiency(r), sim_idle(r), r->result.longest_ns);
    fprintf(file,
            ", \"thread_ns\": {\"work\": %.0f, \"bandwidth\": %.0f, \"earlier_phases\": %.0f, \"over\": %.0f, "
            "\"loop\": %.0f}}",
            r->result.work_ns, r->result.memory_ns, r->result.waiting_ns, r->result.over_ns, r->result.loop_ns);
  }
  fputs("\n]\n", file);
}

/* One case. False after an error, said on stderr. */
static bool predict_case(sim_bench *sim, const bench_case *bench, const sim_machine *machine, sim_lines *lines) {
  char error[300];
  void *grown = bench_grown(lines->item, lines->count, sizeof *lines->item);
  if (!grown) return false;
  lines->item = grown;
  sim_line *line = &lines->item[lines->count];
  snprintf(line->case_id, sizeof line->case_id, "%s", bench->case_id);
  if (!sim_bench_predict(sim, bench->threads, machine, &line->row, error, sizeof error)) {
    cli_fail(0, "explain", "%s: %s", bench->case_id, error);
    return false;
  }
  lines->count++;
  return true;
}

int sim_explain(const bench_case *cases, int count, const sim_machine *machine, const char *json) {
  const bool prints = !json || strcmp(json, "-") != 0;
  sim_lines lines = {0};
  sim_bench *sim = NULL;
  bool fine = true;
  for (int i = 0; i < count && fine; i++) {
    char error[300];
    if (i == 0 || !same_problem(&cases[i - 1], &cases[i])) {
      sim_bench_close(sim);
      sim = sim_bench_open(&cases[i], error, sizeof error);
      if (!sim) cli_fail(0, "explain", "%s: %s", cases[i].case_id, error);
      if (sim && prints) printf("%s", i ? "\n" : ""), print_head(&cases[i]);
    }
    fine = sim && predict_case(sim, &cases[i], machine, &lines);
    if (fine && prints) print_row(&lines.item[lines.count - 1].row);
    fflush(stdout);
  }
  sim_bench_close(sim);
  const bool written = !json || !fine || bench_file_write(json, write_json, &lines);
  free(lines.item);
  return !written ? BENCH_EXIT_INTERNAL : fine ? BENCH_EXIT_OK : BENCH_EXIT_NOTHING;
}
