/* SPDX-License-Identifier: MIT */
/* --shard I/N: splits the cases of a sweep into N parts of about equal cost. All parts have to agree on the split, whatever
 * machine they run on. So the cost of a case is that of the kernels in plain C, which every build has. */
#include <stdlib.h>
#include <string.h>

#include "commands/session.h"

enum { MOST_SHARDS = 100000 };

typedef struct costed {
  int index, shard;
  double cost;
} costed;

/* Sorts cases by falling cost; cases of equal cost keep their order. */
static int by_cost(const void *a, const void *b) {
  const costed *one = a, *two = b;
  if (one->cost != two->cost) return one->cost < two->cost ? 1 : -1;
  return one->index - two->index;
}

static int by_index(const void *a, const void *b) { return ((const costed *)a)->index - ((const costed *)b)->index; }

static double cost_of(const bench_case *bench, const bench_case_settings *settings) {
  const attn_kernel_info *plain[] = {attn_kernel_find("naive_c"), attn_kernel_find("flash_c")};
  return bench_case_guess(bench, plain, 2, settings);
}

/* Gives each case, from dear to cheap, to the shard with the least so far (Graham's rule: the fullest shard holds at most
 * 4/3 of what it would in the best split). */
static void deal(costed *cases, int count, double *loads, int shards) {
  qsort(cases, (size_t)count, sizeof *cases, by_cost);
  for (int i = 0; i < count; i++) {
    for (int shard = 1; shard < shards; shard++)
      if (loads[shard] < loads[cases[i].shard]) cases[i].shard = shard;
    loads[cases[i].shard] += cases[i].cost;
  }
  qsort(cases, (size_t)count, sizeof *cases, by_index);
}

static bool split(const bench_options *options, bench_case_list *list, int wanted, int shards) {
  const bench_case_settings settings = {
      .timed = options->timed, .case_budget_s = options->case_budget_s, .rounds = (int)options->rounds};
  costed *cases = calloc((size_t)list->count + 1, sizeof *cases);
  double *loads = calloc((size_t)shards, sizeof *loads);
  const int count = list->count;
  const bool fine = cases && loads;
  for (int i = 0; fine && i < count; i++) cases[i] = (costed){.index = i, .cost = cost_of(&list->item[i], &settings)};
  if (fine) deal(cases, count, loads, shards);
  for (int i = list->count = 0; fine && i < count; i++)
    if (cases[i].shard == wanted) list->item[list->count++] = list->item[i];
  free(loads);
  free(cases);
  return fine;
}

bool bench_shard_read(const char *text, int64_t *wanted, int64_t *shards) {
  char word[24];
  const char *slash = strchr(text, '/');
  if (!slash || slash - text >= (long)sizeof word) return false;
  snprintf(word, sizeof word, "%.*s", (int)(slash - text), text);
  if (!cli_read_int(word, wanted) || !cli_read_int(slash + 1, shards)) return false;
  return *wanted >= 1 && *wanted <= *shards && *shards <= MOST_SHARDS;
}

int bench_shard_keep(const bench_options *options, bench_case_list *list) {
  int64_t wanted, shards;
  const int all = list->count;
  if (!bench_shard_read(options->shard, &wanted, &shards))
    return cli_usage_error(options->command, "--shard '%s' should be I/N, such as 2/8: 1 <= I <= N <= %d", options->shard,
                           MOST_SHARDS);
  if (!split(options, list, (int)wanted - 1, (int)shards))
    return cli_fail(BENCH_EXIT_INTERNAL, options->command, "out of memory");
  if (list->count) return 0;
  return cli_fail(BENCH_EXIT_NOTHING, options->command, "--shard %s has no case: there are %d", options->shard, all);
}
