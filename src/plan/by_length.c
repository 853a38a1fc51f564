/* SPDX-License-Identifier: MIT */
/* Packed sequences by length. One call holds prompts and single tokens, and the kernels that are quickest for a few queries
 * take no prompts. So the automatic choice is made for sequences of 1, 2, 4, 8, ... queries, until it falls on a kernel that
 * takes prompts as well: from there on all run on the kernel of the longest. A sequence belongs to the first range that its
 * number of queries is not above. Which kernel computes it, and so its bits, depends on that number and on
 * the problem, never on the sequences beside it.
 *
 * Each range is a plan of its own. A run lists the sequences of every range in the workspace, and the plans run one after
 * the other, each over its list. */
#include "src/plan/by_length.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/indexing.h"
#include "src/api/error.h"
#include "src/api/text.h"
#include "src/choice/dispatch.h"
#include "src/plan/plan.h"

enum { MOST_RANGES = 4, PROMPT_QUERIES = 4096 /* more than kernels of few queries take */ };

typedef struct length_range {
  int64_t most; /* queries of a sequence */
  attn_choice choice;
  attn_plan *plan;
} length_range;

struct attn_by_length {
  int64_t batch;
  int count;
  length_range range[MOST_RANGES]; /* from short to long */
  int64_t lists, work, bytes;      /* offsets in the workspace, and its size, in bytes */
};

/* ---- Ranges ---- */

/* The problem, if its sequences had no more than `most` queries. */
static attn_problem up_to(const attn_problem *problem, int64_t most) {
  attn_problem p = *problem;
  p.seq_q = most;
  p.total_q = min64(p.total_q, p.batch * most); /* at most 2^62 */
  return p;
}

/* Whether sequences may have kernels of their own. Pieces of keys end at borders of one kernel. */
static bool may_differ(const attn_problem *p, const attn_choice *choice) {
  const bool automatic = choice->cause > ATTN_CAUSE_NAMED && !choice->of_range;
  return automatic && attn_uses(p, ATTN_USE_VARLEN) && !attn_uses(p, ATTN_USE_STATE);
}

/* Ranges side by side on one kernel are one range. */
static void add_range(attn_by_length *ranges, int64_t most, const attn_choice *choice) {
  const bool joins = ranges->count > 0 && ranges->range[ranges->count - 1].choice.kernel == choice->kernel;
  length_range *range = &ranges->range[joins ? ranges->count - 1 : ranges->count++];
  *range = (length_range){.most = most, .choice = *choice};
  range->choice.of_range = true;
}

static attn_status find_ranges(const attn_problem *problem, const attn_choice *longest, const attn_options *options,
                               attn_by_length *ranges) {
  const attn_problem prompt = up_to(problem, max64(problem->seq_q, PROMPT_QUERIES));
  for (int64_t most = 1; most < problem->seq_q && ranges->count < MOST_RANGES - 1; most *= 2) {
    const attn_problem few = up_to(problem, most);
    attn_choice choice;
    const attn_status status = attn_dispatch(&few, options, &choice);
    if (status != ATTN_OK) return status;
    if (!attn_refusal(choice.kernel, &prompt, choice.cap)) break;
    add_range(ranges, most, &choice);
  }
  add_range(ranges, problem->seq_q, longest);
  return ATTN_OK;
}

/* ---- Creating ---- */

static attn_status make_plans(const attn_problem *problem, const attn_options *options, attn_by_length *ranges) {
  int64_t most_work = 0;
  attn_status status = ATTN_OK;
  for (int i = 0; i < ranges->count && status == ATTN_OK; i++) {
    length_range *range = &ranges->range[i];
    const attn_problem part = up_to(problem, range->most);
    status = attn_plan_create_chosen(&part, &range->choice, options, &range->plan);
    if (status == ATTN_OK) most_work = max64(most_work, (int64_t)attn_plan_workspace(range->plan));
  }
  if (status != ATTN_OK) return status;
  const memory_part parts[] = {{&ranges->lists, problem->batch, sizeof(int64_t)}, {&ranges->work, 1, most_work}};
  if (LAY_OUT(parts, &ranges->bytes)) return ATTN_OK;
  return attn_fail(ATTN_UNSUPPORTED, "the workspace of %d plans exceeds the address space; take a smaller batch or seq",
                   ranges->count);
}

attn_status attn_by_length_create(const attn_problem *problem, const attn_choice *choice, const attn_options *options,
                                  attn_by_length **result) {
  attn_by_length found = {.batch = problem->batch};
  *result = NULL;
  if (!may_differ(problem, choice)) return ATTN_OK;
  attn_status status = find_ranges(problem, choice, options, &found);
  if (status != ATTN_OK || found.count == 1) return status;
  attn_by_length *ranges = malloc(sizeof *ranges);
  if (!ranges) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_plan needs %zu bytes", sizeof *ranges);
  *ranges = found;
  status = make_plans(problem, options, ranges);
  if (status == ATTN_OK)
    *result = ranges;
  else
    attn_by_length_destroy(ranges);
  return status;
}

void attn_by_length_destroy(attn_by_length *ranges) {
  for (int i = 0; i < ranges->count; i++) attn_plan_destroy(ranges->range[i].plan);
  free(ranges);
}

size_t attn_by_length_workspace(const attn_by_length *ranges) { return (size_t)ranges->bytes; }

int attn_by_length_threads(const attn_by_length *ranges) {
  int most = 1;
  for (int i = 0; i < ranges->count; i++) {
    const int threads = attn_plan_threads(ranges->range[i].plan);
    most = threads > most ? threads : most;
  }
  return most;
}

/* The last range holds all that no other does. */
static int range_of(const attn_by_length *ranges, int64_t queries) {
  int i = 0;
  while (i < ranges->count - 1 && queries > ranges->range[i].most) i++;
  return i;
}

const attn_plan *attn_by_length_plan(const attn_by_length *ranges, int64_t queries) {
  return ranges->range[range_of(ranges, queries)].plan;
}

void attn_by_length_describe(const attn_by_length *ranges, char *text, size_t bytes) {
  char part[160];
  snprintf(text, bytes, "lengths    %d kernels, by the number of queries of each packed sequence. Workspace: %zu bytes\n",
           ranges->count, attn_by_length_workspace(ranges));
  for (int i = 0; i < ranges->count; i++) {
    snprintf(part, sizeof part, "---- sequences of up to %" PRId64 " queries\n", ranges->range[i].most);
    attn_append(text, bytes, "", part);
    attn_append(text, bytes, "", attn_plan_describe(ranges->range[i].plan));
  }
}

/* ---- Running ---- */

void attn_by_length_run(const attn_by_length *ranges, const attn_args *args, void *workspace) {
  int64_t *lists = (int64_t *)(void *)((char *)workspace + ranges->lists);
  int64_t listed = 0;
  for (int i = ranges->count - 1; i >= 0; i--) { /* the longest tasks first */
    const int64_t first = listed;
    for (int64_t b = 0; b < ranges->batch; b++) {
      const int64_t queries = args->cu_seqlens_q[b + 1] - args->cu_seqlens_q[b];
      if (queries > 0 && range_of(ranges, queries) == i) lists[listed++] = b;
    }
    attn_plan_run_sequences(ranges->range[i].plan, args, lists + first, listed - first, (char *)workspace + ranges->work);
  }
}
