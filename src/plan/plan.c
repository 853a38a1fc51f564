/* SPDX-License-Identifier: MIT */
/* Plans: everything that can be decided or checked before the data is there, and the loop that runs it. */
#include "src/plan/plan.h"

#include <assert.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

#include "attn/extend.h"
#include "kernels/common/memory/aligned.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/pieces.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/layouts.h"
#include "src/api/problem.h"
#include "src/choice/dispatch.h"
#include "src/choice/paying_threads.h"
#include "src/choice/tuning.h"
#include "src/plan/by_length.h"
#include "src/plan/channels.h"
#include "src/plan/deal.h"
#include "src/plan/nodes.h"
#include "src/plan/parallel.h"
#include "src/plan/pieces.h"
#include "src/registry/cpu.h"
#include "src/registry/library_hooks.h"
#include "src/registry/registry.h"
#include "src/registry/tier_parts.h"

_Static_assert(offsetof(attn_schedule, own) % 8 == 0, "kernels keep structs there");

struct attn_plan {
  const attn_kernel *kernel;
  attn_schedule schedule;
  attn_options options; /* threads resolved and no more than have work; kernel and max_isa not kept */
  bool small;           /* more threads do not pay */
  uint64_t nodes;       /* NUMA nodes of its threads */
  attn_schedule *part;  /* with several: what the kernel sees in each part of a deal, in place of `schedule`; or NULL */
  size_t workspace_bytes;
  int64_t finished; /* offset in the workspace of the deal's counters (deal.h) */
  attn_choice choice;
  attn_channels *channels;     /* the plan without factors of channels, which runs instead of the schedule; NULL = none */
  attn_pieces *pieces;         /* the same of pieces */
  attn_by_length *ranges;      /* the same of ranges of lengths */
  _Atomic(char *) description; /* made when it is asked for */
};

/* ---- Memory: [unit 0 of the wave] [unit 1] ... [thread 0] [thread 1] ... [counters of the deal] ---- */

/* Whether the plan's own threads run the tasks; one thread and a caller's pool take them phase by phase. */
static bool deals_tasks(const attn_plan *plan) { return plan->options.threads > 1 && !plan->options.parallel_for; }

/* One thread takes unit by unit and packs each just before it is used. Several threads share a wave. It holds enough tasks
 * to balance their load, and enough work that threads seldom wait for its memory; more units would only cost memory. Each
 * NUMA node has as many. */
static int64_t choose_wave(const attn_schedule *schedule, int threads, uint64_t nodes) {
  if (!schedule->unit_bytes) return schedule->units;
  if (threads == 1) return 1;
  const int64_t tasks_per_thread = 8, bytes_per_thread = 1 << 20;
  const int64_t for_balance = ceil_div(tasks_per_thread * threads, max64(schedule->items[schedule->phases - 1], 1));
  const int64_t for_work = bytes_per_thread * threads / (int64_t)schedule->unit_bytes;
  const int parts = attn_deal_parts(threads, attn_nodes_count(nodes));
  return min64(round_up(max64(for_balance, for_work), parts), schedule->units);
}

/* No more threads than a wave has tasks: the others would have no work, but each would need its scratch. */
static int useful_threads(const attn_plan *plan) {
  const attn_schedule *schedule = &plan->schedule;
  const attn_library_hooks *hooks = attn_hooks_of(plan->kernel);
  int64_t tasks = 1;
  for (int phase = 0; phase < schedule->phases; phase++) tasks = max64(tasks, schedule->wave_units * schedule->items[phase]);
  if (hooks->most_threads) tasks = min64(tasks, hooks->most_threads());
  return (int)min64(tasks, plan->options.threads);
}

static bool size_workspace(attn_plan *plan) {
  attn_schedule *s = &plan->schedule;
  if (s->unit_bytes > INT64_MAX / 4 || s->scratch_bytes > INT64_MAX / 4) return false;
  s->unit_bytes = (size_t)round_up((int64_t)s->unit_bytes, ATTN_MEMORY_ALIGN);
  s->scratch_bytes = (size_t)round_up((int64_t)s->scratch_bytes, ATTN_MEMORY_ALIGN);
  s->wave_units = choose_wave(s, plan->options.threads, plan->nodes);
  plan->options.threads = useful_threads(plan);
  int64_t units_at, scratch_at, end = 0;
  const memory_part parts[] = {{&units_at, s->wave_units, (int64_t)s->unit_bytes},
                               {&scratch_at, plan->options.threads, (int64_t)s->scratch_bytes},
                               {&plan->finished, deals_tasks(plan) ? attn_deal_counters(s) : 0, sizeof(int64_t)}};
  const bool fits = LAY_OUT(parts, &end);
  plan->workspace_bytes = (size_t)end;
  return fits;
}

/* ---- Creating ---- */

enum { DESCRIPTION_BYTES = 6000 };

/* Which nodes pack and use a KV head, where there are several. */
static void describe_nodes(const attn_plan *plan, char *text, size_t bytes) {
  const int nodes = attn_nodes_count(plan->nodes), parts = attn_deal_parts(plan->schedule.wave_units, nodes);
  text[0] = 0;
  if (nodes == 1 || !deals_tasks(plan)) return;
  snprintf(text, bytes, " on %d NUMA nodes, %s", nodes,
           parts == nodes ? "each with KV heads of its own" : "some of which share KV heads: there are too few for all");
}

static void describe(const attn_plan *plan, char *text) {
  if (plan->channels) {
    attn_channels_describe(plan->channels, text, DESCRIPTION_BYTES);
    return;
  }
  if (plan->pieces) {
    attn_pieces_describe(plan->pieces, text, DESCRIPTION_BYTES);
    return;
  }
  if (plan->ranges) {
    attn_by_length_describe(plan->ranges, text, DESCRIPTION_BYTES);
    return;
  }
  const attn_schedule *s = &plan->schedule;
  const attn_kernel_info *info = &plan->kernel->info;
  char why[2000], on_nodes[120];
  attn_choice_describe(&plan->choice, &s->problem, why, sizeof why);
  describe_nodes(plan, on_nodes, sizeof on_nodes);
  snprintf(text, DESCRIPTION_BYTES,
           "kernel     %s: %s\n"
           "blocks     %" PRId64 " query rows, %" PRId64
           " keys\n"
           "tasks      %" PRId64 " KV heads x %" PRId64 " in %d phase%s, %" PRId64
           " KV heads in memory at a time\n"
           "threads    %d (%s%s%s)\n"
           "workspace  %zu bytes: %zu per KV head, %zu per thread\n"
           "choice     %s\n",
           info->name, info->summary, s->row_block, s->key_block, s->units, s->items[s->phases - 1], s->phases,
           s->phases == 1 ? "" : "s", s->wave_units, plan->options.threads,
           plan->options.threads == 1   ? "serial"
           : plan->options.parallel_for ? "the caller's pool"
                                        : "OpenMP",
           on_nodes, plan->small ? "; more do not pay for so small a call" : "", plan->workspace_bytes, s->unit_bytes,
           s->scratch_bytes, why);
}

static void print_if_verbose(const attn_plan *plan) {
  const char *verbose = getenv("ATTN_VERBOSE");
  if (verbose && verbose[0] == '1') fprintf(stderr, "attn plan\n%s", attn_plan_describe(plan));
}

/* Objects of another library, for the kernels that use one. */
static attn_status open_library(attn_plan *plan) {
  const attn_kernel *kernel = plan->kernel;
  char reason[300] = "";
  if (!attn_hooks_of(kernel)->open) return ATTN_OK;
  const attn_status status = kernel->library->open(&plan->schedule, reason, sizeof reason);
  return status == ATTN_OK ? ATTN_OK : attn_fail(status, "kernel '%s' cannot start: %s", kernel->info.name, reason);
}

static void close_library(attn_plan *plan) {
  if (attn_hooks_of(plan->kernel)->close) plan->kernel->library->close(&plan->schedule);
}

/* Blocks and tasks; false if a size overflows. Where the caller leaves the number of threads open, there are no more than
 * pay, and the tasks are cut for those. */
static bool plan_tasks(attn_plan *plan, const attn_choice *choice, bool open_threads) {
  const attn_kernel *kernel = plan->kernel;
  const attn_schedule before = plan->schedule;
  const int most = plan->options.threads;
  const attn_machine all = {.threads = most,
                            .prefetch = attn_class_prefetch,
                            .steps = attn_tier_parts_below(choice->cap).score_steps,
                            .caches = attn_class_caches};
  if (!kernel->plan(&before.problem, &all, &plan->schedule)) return false;
  if (!open_threads || most == 1 || before.units == 0) return true;
  const int64_t waves = ceil_div(before.units, choose_wave(&plan->schedule, most, plan->nodes));
  plan->options.threads = attn_paying_threads(choice->tuning, kernel, &before.problem, waves, most);
  if (plan->options.threads == most) return true;
  plan->nodes = attn_parallel_nodes(plan->options.threads);
  plan->small = true;
  plan->schedule = before;
  attn_machine fewer = all;
  fewer.threads = plan->options.threads;
  return kernel->plan(&before.problem, &fewer, &plan->schedule);
}

/* Whether other plans run instead of the schedule. */
static bool has_parts(const attn_plan *plan) { return plan->channels || plan->pieces || plan->ranges; }

/* Plans without factors of channels, of pieces or of ranges, where the problem needs them. */
static attn_status divide(attn_plan *plan, const attn_choice *choice, const attn_options *asked) {
  const attn_problem *p = &plan->schedule.problem;
  const attn_status status = attn_has_channel_factors(p) ? attn_channels_create(p, choice, asked, &plan->channels)
                             : attn_pieces_needed(p)     ? attn_pieces_create(p, choice, asked, &plan->pieces)
                                                         : attn_by_length_create(p, choice, asked, &plan->ranges);
  if (status != ATTN_OK) return status;
  if (plan->channels) {
    plan->workspace_bytes = attn_channels_workspace(plan->channels);
    plan->options.threads = attn_plan_threads(attn_channels_plan(plan->channels));
  }
  if (plan->pieces) {
    plan->workspace_bytes = attn_pieces_workspace(plan->pieces);
    plan->options.threads = attn_pieces_threads(plan->pieces);
  }
  if (plan->ranges) {
    plan->workspace_bytes = attn_by_length_workspace(plan->ranges);
    plan->options.threads = attn_by_length_threads(plan->ranges);
  }
  return ATTN_OK;
}

/* A kernel sees the units of one part alone: those behind them are another node's. False if memory is short. */
static bool divide_among_nodes(attn_plan *plan) {
  const attn_schedule *s = &plan->schedule;
  const int parts = attn_deal_parts(s->wave_units, attn_nodes_count(plan->nodes));
  if (parts == 1 || !deals_tasks(plan)) return true;
  plan->part = malloc((size_t)parts * sizeof *plan->part);
  for (int n = 0; plan->part && n < parts; n++) {
    plan->part[n] = *s;
    plan->part[n].units = attn_deal_border(s->units, parts, n + 1);
    plan->part[n].wave_units = attn_deal_border(s->wave_units, parts, n + 1) - attn_deal_border(s->wave_units, parts, n);
  }
  return plan->part;
}

/* Tasks, library objects and memory; on failure the plan holds none of them. */
static attn_status prepare(attn_plan *plan, const attn_choice *choice, const attn_options *asked) {
  const attn_kernel *kernel = plan->kernel;
  const bool open_threads = asked->threads == 0;
  const attn_status divided = divide(plan, choice, asked);
  if (divided != ATTN_OK || has_parts(plan)) return divided;
  plan->nodes = attn_parallel_nodes(plan->options.threads);
  bool fits = plan_tasks(plan, choice, open_threads);
  if (fits) {
    const attn_status status = open_library(plan);
    if (status != ATTN_OK) return status;
    fits = size_workspace(plan);
    if (fits && divide_among_nodes(plan)) return ATTN_OK;
    close_library(plan);
    if (fits) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: a plan for several NUMA nodes");
  }
  return attn_fail(
      ATTN_UNSUPPORTED,
      "the workspace of %s for this problem exceeds the address space; take a kernel that keeps no score matrix, "
      "or a smaller seq",
      kernel->info.name);
}

static attn_status make(const attn_problem *problem, const attn_choice *choice, const attn_options *asked,
                        attn_plan **result) {
  attn_options options;
  const attn_class *class;
  attn_status status = attn_parallel_resolve(asked, &options);
  if (status == ATTN_OK && asked->threads == 0) status = attn_class_here(&class); /* whose costs say how many pay */
  if (status != ATTN_OK) return status;
  attn_plan *plan = calloc(1, sizeof *plan);
  if (!plan) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_plan needs %zu bytes", sizeof *plan);
  plan->kernel = choice->kernel;
  plan->options = options;
  plan->schedule.problem = *problem;
  plan->schedule.units = problem->batch * problem->heads_kv;
  status = prepare(plan, choice, asked);
  if (status != ATTN_OK) {
    free(plan);
    return status;
  }
  plan->choice = *choice;
  (void)attn_tuning_hold(choice->tuning);
  print_if_verbose(plan);
  *result = plan;
  return ATTN_OK;
}

/* In the default floating-point mode: the estimates of a plan are inexact, and the caller may have traps for that. */
attn_status attn_plan_create_chosen(const attn_problem *problem, const attn_choice *choice, const attn_options *asked,
                                    attn_plan **result) {
  const uint64_t mode = attn_float_mode_enter();
  const attn_status status = make(problem, choice, asked, result);
  attn_float_mode_leave(mode);
  return status;
}

attn_status attn_plan_create(const attn_problem *problem, const attn_options *options, attn_plan **plan) {
  REQUIRE(plan, "plan is NULL; it must point to where the plan's address goes");
  *plan = NULL;
  attn_problem own;
  attn_options wanted;
  attn_choice choice;
  attn_status status = attn_problem_read(problem, &own);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  if (status == ATTN_OK) status = attn_dispatch(&own, &wanted, &choice);
  return status == ATTN_OK ? attn_plan_create_chosen(&own, &choice, &wanted, plan) : status;
}

attn_status attn_plan_create_for_kernel(const attn_problem *problem, const attn_kernel *kernel, const attn_options *options,
                                        attn_plan **plan) {
  assert(kernel && kernel->rejects && kernel->plan && kernel->run);
  *plan = NULL;
  attn_problem own;
  attn_options wanted;
  attn_status status = attn_problem_read(problem, &own);
  if (status == ATTN_OK) status = attn_options_read(options, &wanted);
  if (status != ATTN_OK) return status;
  char buffer[300];
  const char *reason = attn_kernel_refusal(kernel, &own, buffer, sizeof buffer);
  if (!reason) reason = attn_dispatch_claim(kernel);
  if (reason) return attn_fail(ATTN_UNSUPPORTED, "kernel '%s' refuses: %s", kernel->info.name, reason);
  const attn_choice choice = {.kernel = kernel,
                              .cap = attn_tier_isa(attn_tier_find(wanted.max_isa ? wanted.max_isa : "")),
                              .cause = ATTN_CAUSE_GIVEN};
  return attn_plan_create_chosen(&own, &choice, &wanted, plan);
}

void attn_plan_destroy(attn_plan *plan) {
  if (!plan) return;
  if (plan->channels)
    attn_channels_destroy(plan->channels);
  else if (plan->pieces)
    attn_pieces_destroy(plan->pieces);
  else if (plan->ranges)
    attn_by_length_destroy(plan->ranges);
  else
    close_library(plan);
  free(plan->part);
  attn_tuning_destroy((attn_tuning *)(uintptr_t)plan->choice.tuning);
  free(atomic_load(&plan->description));
  free(plan);
}

size_t attn_plan_workspace(const attn_plan *plan) { return plan ? plan->workspace_bytes : 0; }

/* The first thread that asks leaves the text for all others. */
const char *attn_plan_describe(const attn_plan *plan) {
  if (!plan) return "";
  _Atomic(char *) *kept = (_Atomic(char *) *)(uintptr_t)&plan->description;
  char *text = atomic_load(kept), *none = NULL;
  if (text) return text;
  text = malloc(DESCRIPTION_BYTES);
  if (!text) return "";
  const uint64_t mode = attn_float_mode_enter(); /* its numbers are inexact, and the caller may have traps for that */
  describe(plan, text);
  attn_float_mode_leave(mode);
  if (atomic_compare_exchange_strong(kept, &none, text)) return text;
  free(text);
  return none;
}

const char *attn_plan_kernel(const attn_plan *plan) { return plan ? plan->kernel->info.name : ""; }

const char *attn_plan_kernel_of(const attn_plan *plan, int64_t queries) {
  if (plan && plan->channels) return attn_plan_kernel_of(attn_channels_plan(plan->channels), queries);
  return attn_plan_kernel(plan && plan->ranges ? attn_by_length_plan(plan->ranges, queries) : plan);
}

int64_t attn_plan_piece_keys(const attn_plan *plan) {
  if (plan && plan->channels) return attn_plan_piece_keys(attn_channels_plan(plan->channels));
  return plan && attn_uses(&plan->schedule.problem, ATTN_USE_STATE) ? plan->schedule.key_block : 0;
}

int attn_plan_threads(const attn_plan *plan) { return plan->options.threads; }

/* ---- Running ---- */

typedef struct plan_run {
  const attn_plan *plan;
  const attn_args *args;
  char *workspace;
  const int64_t *sequences; /* NULL: all */
  int64_t first_unit;       /* in the wave, or the deal */
  int phase;                /* where all tasks of a phase run before the next one */
  attn_deal *deal;
  attn_plan_seen *seen; /* or NULL */
  void *seen_context;
} plan_run;

/* The unit at a place in the list of all sequences or of some. */
static int64_t unit_at(const plan_run *r, int64_t place) {
  const int64_t heads = r->plan->schedule.problem.heads_kv;
  return r->sequences ? r->sequences[place / heads] * heads + place % heads : place;
}

static void run_task(const plan_run *r, const attn_schedule *s, attn_task task, int64_t slot, int worker) {
  char *scratch = r->workspace + s->unit_bytes * (size_t)r->plan->schedule.wave_units;
  assert(worker >= 0 && worker < r->plan->options.threads && slot < r->plan->schedule.wave_units);
  task.unit = unit_at(r, task.unit);
  const uint64_t mode = attn_float_mode_enter();
  r->plan->kernel->run(s, r->args, task, r->workspace + (size_t)slot * s->unit_bytes,
                       scratch + (size_t)worker * s->scratch_bytes);
  attn_float_mode_leave(mode);
}

/* Phase by phase: one thread, or a caller's pool. */
static void run_of_phase(void *pointer, int64_t index, int worker) {
  const plan_run *r = pointer;
  const int64_t items = r->plan->schedule.items[r->phase], slot = index / items;
  const attn_task task = {.phase = r->phase, .unit = r->first_unit + slot, .item = index % items};
  run_task(r, &r->plan->schedule, task, slot, worker);
}

static void run_phases(plan_run *r, int64_t all) {
  const attn_schedule *s = &r->plan->schedule;
  for (r->first_unit = 0; r->first_unit < all; r->first_unit += s->wave_units)
    for (r->phase = 0; r->phase < s->phases; r->phase++)
      attn_parallel_run(&r->plan->options, min64(s->wave_units, all - r->first_unit) * s->items[r->phase], run_of_phase, r);
}

/* Task by task, as they are dealt out. */
static void run_dealt(void *pointer, int64_t i, int worker) {
  plan_run *r = pointer;
  const attn_plan *plan = r->plan;
  const int node = attn_nodes_here(plan->nodes, worker);
  attn_dealt next;
  (void)i;
  while (attn_deal_take(r->deal, worker, node, &next)) {
    attn_deal_wait(r->deal, &next);
    next.task.unit += r->first_unit;
    if (r->seen) r->seen(r->seen_context, &next.task, false);
    run_task(r, plan->part ? &plan->part[next.part] : &plan->schedule, next.task, next.slot, worker);
    if (r->seen) r->seen(r->seen_context, &next.task, true);
    attn_deal_finish(r->deal, &next);
  }
}

static void deal_out(plan_run *r, int64_t all) {
  const attn_plan *plan = r->plan;
  void *finished = deals_tasks(plan) ? r->workspace + plan->finished : NULL;
  attn_deal deal;
  r->deal = &deal;
  for (r->first_unit = 0; r->first_unit < all; r->first_unit += deal.units) {
    attn_deal_start(&deal, &plan->schedule, all - r->first_unit, plan->options.threads, attn_nodes_count(plan->nodes),
                    finished);
    if (r->seen)
      run_dealt(r, 0, 0);
    else
      attn_parallel_run(&plan->options, plan->options.threads, run_dealt, r);
  }
}

/* The units of all sequences, or of those in the list. */
static void run_units(plan_run *r, int64_t all) {
  const attn_plan *plan = r->plan;
  const attn_problem *p = &plan->schedule.problem;
  if (p->seq_q == 0 && p->operation == ATTN_FORWARD) return; /* many units may be there, none with work */
  const attn_library_hooks *hooks = attn_hooks_of(plan->kernel);
  if (hooks->begin_run) hooks->begin_run();
  (deals_tasks(plan) || r->seen ? deal_out : run_phases)(r, all);
  if (hooks->end_run) hooks->end_run();
}

void attn_plan_run_read(const attn_plan *plan, const attn_args *args, void *workspace) {
  if (plan->channels)
    attn_channels_run(plan->channels, args, workspace);
  else if (plan->pieces)
    attn_pieces_run(plan->pieces, args, workspace);
  else if (plan->ranges)
    attn_by_length_run(plan->ranges, args, workspace);
  else
    run_units(&(plan_run){.plan = plan, .args = args, .workspace = workspace}, plan->schedule.units);
}

void attn_plan_run_sequences(const attn_plan *plan, const attn_args *args, const int64_t *sequences, int64_t count,
                             void *workspace) {
  assert(!has_parts(plan));
  run_units(&(plan_run){.plan = plan, .args = args, .workspace = workspace, .sequences = sequences},
            count * plan->schedule.problem.heads_kv);
}

const attn_schedule *attn_plan_schedule(const attn_plan *plan) { return has_parts(plan) ? NULL : &plan->schedule; }

void attn_plan_run_seen(const attn_plan *plan, const attn_args *args, void *workspace, attn_plan_seen *seen, void *context) {
  assert(!has_parts(plan));
  run_units(&(plan_run){.plan = plan, .args = args, .workspace = workspace, .seen = seen, .seen_context = context},
            plan->schedule.units);
}

attn_status attn_plan_run(const attn_plan *plan, const attn_args *args, void *workspace, size_t workspace_bytes) {
  REQUIRE(plan, "plan is NULL; it must come from attn_plan_create");
  attn_args own;
  attn_status status = attn_args_read(&plan->schedule.problem, args, &own);
  if (status == ATTN_OK) status = attn_check_workspace("attn_plan", workspace, workspace_bytes, plan->workspace_bytes);
  if (status == ATTN_OK) attn_plan_run_read(plan, &own, workspace);
  return status;
}

attn_status attn_sdpa(const attn_problem *problem, const attn_args *args) {
  attn_plan *plan;
  attn_status status = attn_plan_create(problem, NULL, &plan);
  if (status != ATTN_OK) return status;
  size_t bytes = plan->workspace_bytes;
  void *workspace = bytes ? attn_aligned_alloc(ATTN_MEMORY_ALIGN, bytes) : NULL;
  if (bytes && !workspace)
    status =
        attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: the workspace of %s needs %zu bytes", plan->kernel->info.name, bytes);
  else
    status = attn_plan_run(plan, args, workspace, bytes);
  attn_aligned_free(workspace);
  attn_plan_destroy(plan);
  return status;
}
