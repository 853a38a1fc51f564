/* SPDX-License-Identifier: MIT */
/* Dispatch: a named kernel or a clear error; otherwise the quickest by the costs of a tuning file or of this machine's
 * class, and behind all kernels that have costs the first of the registry. */
#include "src/choice/dispatch.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/problem.h"
#include "src/api/text.h"
#include "src/choice/tuning.h"
#include "src/registry/cpu.h"
#include "src/registry/library_hooks.h"
#include "src/registry/plugin.h"
#include "src/registry/registry.h"

/* An unset or empty variable is no request. */
static const char *environment(const char *name) {
  const char *value = getenv(name);
  return value && *value ? value : NULL;
}

static attn_status check_cap(const char *source, const char *cap) {
  if (!cap || attn_tier_find(cap) >= 0) return ATTN_OK;
  char names[160] = "";
  for (int i = 0; attn_tier_isa(i); i++) attn_append(names, sizeof names, ", ", attn_tier_isa(i));
  return attn_fail(ATTN_INVALID_ARGUMENT, "%s is '%s'; it must be one of %s", source, cap, names);
}

static const char *lower_cap(const char *a, const char *b) {
  if (!a || !b) return a ? a : b;
  return attn_tier_find(a) < attn_tier_find(b) ? a : b;
}

/* NULL = this CPU can run the kernel; else why not. Thread-local or static text. */
static const char *unusable(const attn_kernel *kernel, const char *cap) {
  const char *reason = attn_tier_unusable(attn_tier_find(kernel->info.isa), cap);
  return reason || !attn_hooks_of(kernel)->unusable ? reason : kernel->library->unusable(cap);
}

/* Why a kernel of this arithmetic runs only where it is named; NULL if it may be chosen. */
static const char *too_coarse(const attn_numerics *n) {
  if (n->input_rounding > 0) return "it rounds Q, K, P and V in its products, so it runs only where it is named";
  if (n->query_rounding > 0) return "it rounds Q to integers in its products, so it runs only where it is named";
  return NULL;
}

bool attn_is_automatic(const attn_kernel_info *kernel) { return !too_coarse(&kernel->numerics); }

const char *attn_refusal(const attn_kernel *kernel, const attn_problem *problem, const char *cap) {
  static _Thread_local char buffer[300];
  const char *reason = unusable(kernel, cap);
  return reason ? reason : attn_kernel_refusal(kernel, problem, buffer, sizeof buffer);
}

/* Why the kernel cannot serve attn_options.steady; NULL if it can, or need not. */
static const char *unsteady(const attn_kernel *kernel, bool steady) {
  if (!steady || kernel->steady) return NULL;
  return "it does not promise the same bits of a row for any number of queries (attn_options.steady)";
}

/* Why the automatic choice leaves the kernel out; NULL if it does not. */
static const char *not_automatic(const attn_kernel *kernel, bool steady) {
  const char *reason = too_coarse(&kernel->info.numerics);
  return reason ? reason : unsteady(kernel, steady);
}

static void list_usable(const attn_problem *problem, const attn_choice *choice, char *names, size_t bytes) {
  const attn_kernel *kernel;
  for (int i = 0; (kernel = attn_registry_get(i)); i++)
    if (!unsteady(kernel, choice->steady) && !attn_refusal(kernel, problem, choice->cap))
      attn_append(names, bytes, ", ", kernel->info.name);
  if (!*names) snprintf(names, bytes, "none");
}

const char *attn_dispatch_claim(const attn_kernel *kernel) { return attn_tier_claim(attn_tier_find(kernel->info.isa)); }

/* The list of usable kernels is for errors alone: to make it asks every kernel, and libraries take long to answer. */
static attn_status choose_named(const attn_problem *problem, const char *name, const char *source, const char *cap,
                                attn_choice *choice) {
  char why[300] = "", usable[400] = "";
  const attn_kernel *kernel = attn_registry_find(name);
  const char *reason = kernel ? unsteady(kernel, choice->steady) : attn_registry_missing(name);
  if (kernel && !reason) reason = attn_refusal(kernel, problem, cap);
  if (!reason) reason = kernel ? attn_dispatch_claim(kernel) : "no kernel of this build is called so";
  if (reason) {
    snprintf(why, sizeof why, "%s", reason); /* list_usable overwrites the text */
    list_usable(problem, choice, usable, sizeof usable);
  }
  if (!kernel)
    return attn_fail(ATTN_UNKNOWN_KERNEL, "%s is '%s', which is not here: %s; kernels that take this problem here: %s",
                     source, name, why, usable);
  if (reason)
    return attn_fail(ATTN_UNSUPPORTED, "%s is '%s', which cannot run: %s; kernels that can: %s", source, name, why, usable);
  choice->kernel = kernel;
  choice->cause = ATTN_CAUSE_NAMED;
  choice->named_by = source;
  return ATTN_OK;
}

/* ---- Automatically ---- */

typedef struct question {
  const attn_problem *problem;
  bool steady;
  const char *cap;
  const char *denied; /* a tier to which the system refuses its registers; NULL = none */
} question;

static bool can_run(const attn_kernel *kernel, void *context) {
  const question *a = context;
  if (not_automatic(kernel, a->steady)) return false;
  return !(a->denied && strcmp(kernel->info.isa, a->denied) == 0) && !attn_refusal(kernel, a->problem, a->cap);
}

/* Costs may be 0. */
static double times_as_long(double ns, double least) {
  if (ns <= least) return 1;
  return least > 0 ? ns / least : INFINITY;
}

/* The quickest by costs. False if none has costs and can run. */
static bool choose_by_costs(const attn_problem *problem, const attn_tuning *source, attn_choice *choice) {
  int count;
  attn_expected best[2];
  question context = {.problem = problem, .steady = choice->steady, .cap = choice->cap};
  const attn_kernel_costs *costs = attn_tuning_costs(source, &count);
  attn_expect(costs, count, problem, can_run, &context, best);
  if (best[0].costs && attn_dispatch_claim(best[0].costs->kernel)) {
    context.denied = best[0].costs->kernel->info.isa;
    attn_expect(costs, count, problem, can_run, &context, best);
  }
  if (!best[0].costs) return false;
  choice->kernel = best[0].costs->kernel;
  choice->cause = ATTN_CAUSE_COSTS;
  choice->source = source;
  choice->line = best[0].costs->line;
  choice->dtype = best[0].costs->dtype;
  choice->error = best[0].costs->error;
  choice->second = best[1].costs ? best[1].costs->kernel : NULL;
  choice->margin = times_as_long(best[1].ns, best[0].ns);
  return true;
}

/* Chooses by the first rule of the file whose box holds the problem. False if there is none, or if it names a kernel that
 * cannot run. */
static bool choose_by_rule(const attn_problem *problem, attn_choice *choice) {
  const attn_tuning_rule *rule = attn_tuning_find(choice->tuning, problem);
  const attn_kernel *kernel = rule ? attn_registry_find(rule->kernel) : NULL;
  if (rule) choice->not_tuned = "the kernel that a rule of the tuning file names cannot run";
  if (!kernel || attn_refusal(kernel, problem, choice->cap) || attn_dispatch_claim(kernel)) return false;
  choice->kernel = kernel;
  choice->cause = ATTN_CAUSE_RULE;
  choice->source = choice->tuning;
  choice->not_tuned = NULL;
  choice->line = rule->line;
  choice->second = attn_registry_find(rule->second);
  choice->margin = rule->margin;
  return true;
}

static bool choose_by_file(const attn_problem *problem, attn_choice *choice) {
  if (!choice->tuning) return false;
  if ((!choice->steady && choose_by_rule(problem, choice)) || choose_by_costs(problem, choice->tuning, choice)) return true;
  if (!choice->not_tuned) choice->not_tuned = "no kernel that can run the problem has costs in the tuning file";
  return false;
}

static attn_status choose_by_class(const attn_problem *problem, attn_choice *choice, bool *chosen) {
  const attn_class *class;
  const attn_status status = attn_class_here(&class);
  if (status != ATTN_OK) return status;
  choice->distance = class->distance;
  choice->class_named = class->named;
  choice->class_adjusted = class->adjusted;
  *chosen = choose_by_costs(problem, class->costs, choice);
  return ATTN_OK;
}

/* The first of the registry that can run. */
static attn_status choose_by_rank(const attn_problem *problem, attn_choice *choice) {
  char refused[1850] = "", line[360];
  const attn_kernel *kernel;
  for (int i = 0; (kernel = attn_registry_get(i)); i++) {
    const char *reason = not_automatic(kernel, choice->steady);
    if (!reason) reason = attn_refusal(kernel, problem, choice->cap);
    if (!reason) reason = attn_dispatch_claim(kernel);
    if (!reason) break;
    snprintf(line, sizeof line, "%s (%s)", kernel->info.name, reason);
    attn_append(refused, sizeof refused, ", ", line);
  }
  choice->kernel = kernel;
  choice->cause = ATTN_CAUSE_RANK;
  return kernel ? ATTN_OK : attn_fail(ATTN_UNSUPPORTED, "no kernel takes this problem here: %s", refused);
}

/* The problem that a steady choice looks at: all that decides is the same for every call on a sequence. */
static attn_problem steady_view(const attn_problem *problem) {
  attn_problem view = *problem;
  view.seq_q = view.seq_k = 1024;
  return view;
}

static attn_status choose_automatically(const attn_problem *problem, attn_choice *choice) {
  bool chosen = choose_by_file(problem, choice);
  const attn_status status = chosen ? ATTN_OK : choose_by_class(problem, choice, &chosen);
  return status == ATTN_OK && !chosen ? choose_by_rank(problem, choice) : status;
}

/* The tier's own text: the caller's may not last. */
static const char *static_name(const char *cap) { return cap ? attn_tier_isa(attn_tier_find(cap)) : NULL; }

attn_status attn_dispatch_cap(const attn_options *options, const char **cap) {
  const char *asked = options->max_isa, *variable = environment("ATTN_MAX_ISA");
  attn_status status = check_cap("attn_options.max_isa", asked);
  if (status == ATTN_OK) status = check_cap("ATTN_MAX_ISA", variable);
  if (status == ATTN_OK) *cap = static_name(lower_cap(asked, variable));
  return status;
}

bool attn_dispatch_names_kernel(void) { return environment("ATTN_KERNEL"); }

attn_status attn_dispatch(const attn_problem *problem, const attn_options *options, attn_choice *choice) {
  assert(attn_problem_validate(problem) == ATTN_OK);
  const char *cap;
  REQUIRE(options->steady == 0 || options->steady == 1, "attn_options.steady is %d; it must be 0 or 1", options->steady);
  attn_status status = attn_plugins_check_named();
  if (status == ATTN_OK) status = attn_class_check_name();
  if (status == ATTN_OK) status = attn_dispatch_cap(options, &cap);
  if (status != ATTN_OK) return status;
  *choice = (attn_choice){.cap = cap, .tuning = options->tuning, .steady = options->steady == 1};
  const attn_problem view = choice->steady ? steady_view(problem) : *problem;
  if (!choice->tuning) status = attn_tuning_named(&choice->tuning, &choice->not_tuned);
  if (status != ATTN_OK) return status;
  if (options->kernel) return choose_named(problem, options->kernel, "attn_options.kernel", cap, choice);
  const char *variable_kernel = environment("ATTN_KERNEL");
  if (variable_kernel) return choose_named(problem, variable_kernel, "ATTN_KERNEL", cap, choice);
  const uint64_t mode = attn_float_mode_enter(); /* costs are inexact, and the caller may have traps for that */
  status = choose_automatically(&view, choice);
  attn_float_mode_leave(mode);
  return status;
}

/* ---- The registry's public questions ---- */

static const char *keep(const char *reason) {
  static _Thread_local char kept[400];
  if (!reason) return NULL;
  snprintf(kept, sizeof kept, "%s", reason);
  return kept;
}

const char *attn_kernel_unusable(const attn_kernel_info *info) {
  const attn_kernel *kernel = info ? attn_registry_find(info->name) : NULL;
  if (!kernel) return "no kernel of this build has that name";
  const char *cap = environment("ATTN_MAX_ISA");
  if (check_cap("ATTN_MAX_ISA", cap) != ATTN_OK) return keep(attn_last_error());
  return keep(unusable(kernel, cap));
}

const char *attn_kernel_rejects(const attn_kernel_info *info, const attn_problem *problem) {
  const char *unusable = attn_kernel_unusable(info);
  if (unusable) return unusable;
  attn_problem own;
  if (attn_problem_read(problem, &own) != ATTN_OK) return keep(attn_last_error());
  return keep(attn_refusal(attn_registry_find(info->name), &own, NULL));
}
