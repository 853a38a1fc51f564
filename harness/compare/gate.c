/* SPDX-License-Identifier: MIT */
/* --fail-on: which rows make the comparison a failure. */
#include <stdlib.h>
#include <string.h>

#include "base/cli.h"
#include "compare/compare.h"

static const char *const failures[] = {"slower", "faster", "inconclusive", "missing", NULL};
enum { FAIL_SLOWER, FAIL_FASTER, FAIL_INCONCLUSIVE, FAIL_MISSING };

static int read_failure(const char *text, double *least) {
  char word[32], *end = NULL;
  const char *equals = strchr(text, '=');
  snprintf(word, sizeof word, "%.*s", equals ? (int)(equals - text) : 31, text);
  const int which = cli_index_of(word, failures);
  *least = 0;
  if (which < 0) return cli_unknown("compare", "failure", word, failures, "slower, faster, inconclusive, missing"), -1;
  if (!equals) return which;
  *least = strtod(equals + 1, &end);
  if (end != equals + 1 && !strcmp(end, "%")) *least /= 100, end++;
  if (which <= FAIL_FASTER && end != equals + 1 && !*end && *least >= 0 && *least <= 10) return which;
  (void)cli_usage_error("compare", "--fail-on '%s': should be a word, or slower or faster with a share: slower=3%%", text);
  return -1;
}

static bool fails(const bench_comparison *c, int which, double least) {
  static const bench_change verdicts[] = {BENCH_SLOWER, BENCH_FASTER, BENCH_INCONCLUSIVE};
  if (which == FAIL_MISSING || c->verdict != verdicts[which]) return false;
  return which == FAIL_SLOWER ? 1 / c->ratio - 1 >= least : which == FAIL_FASTER ? c->ratio - 1 >= least : true;
}

static int count_failures(const bench_matches *m, const char *text) {
  double least;
  const int which = read_failure(text, &least);
  int count = which == FAIL_MISSING ? m->unpaired_count : 0;
  for (int i = 0; i < m->table.count; i++) count += fails(&m->table.item[i], which, least);
  return count;
}

int bench_failures_conclude(const bench_matches *m, const cli_list *fail_on) {
  int code = BENCH_EXIT_OK;
  for (int i = 0; i < fail_on->count; i++) {
    const int count = count_failures(m, fail_on->item[i]);
    if (count) code = cli_fail(BENCH_EXIT_FAILED, "compare", "--fail-on %s: %d", fail_on->item[i], count);
  }
  return code;
}

bool bench_failures_known(const cli_list *fail_on) {
  double least;
  for (int i = 0; i < fail_on->count; i++)
    if (read_failure(fail_on->item[i], &least) < 0) return false;
  return true;
}
