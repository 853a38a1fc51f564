/* SPDX-License-Identifier: MIT */
#include "src/choice/choice.h"

#include <stdio.h>
#include <string.h>

#include "src/api/text.h"
#include "src/choice/dispatch.h"
#include "src/registry/registry.h"

static void append_line(const attn_choice *c, char *text, size_t bytes) {
  char line[40];
  snprintf(line, sizeof line, "line %d", c->line);
  attn_append(text, bytes, ", ", line);
}

static void append_source(const attn_choice *c, char *text, size_t bytes) {
  char words[420];
  const char *class = c->source == c->tuning ? NULL : attn_tuning_class(c->source);
  if (!class)
    snprintf(words, sizeof words, "tuning file %.300s", attn_tuning_path(c->source));
  else if (c->class_named)
    snprintf(words, sizeof words, "automatic, by costs of %s (ATTN_MACHINE)", class);
  else
    snprintf(words, sizeof words, "automatic, by costs of %s, the nearest class of CPUs (distance %.0f %%%s)", class,
             100 * c->distance, c->class_adjusted ? " with a factor for each tier" : "");
  attn_append(text, bytes, "; ", words);
  if (!class) append_line(c, text, bytes);
}

static void append_margin(const attn_choice *c, const attn_problem *problem, char *text, size_t bytes) {
  char words[200] = "no other kernel with costs can run";
  if (c->second)
    snprintf(words, sizeof words, "%s takes %.2f times as long%s", c->second->info.name, c->margin,
             c->cause == ATTN_CAUSE_RULE ? " where it was measured" : "");
  attn_append(text, bytes, ": ", words);
  if (c->cause != ATTN_CAUSE_COSTS) return;
  snprintf(words, sizeof words, "error of costs %.0f %%", 100 * c->error);
  attn_append(text, bytes, ", ", words);
  if (c->dtype == attn_costs_shared(problem->dtype_kv)) return;
  snprintf(words, sizeof words, "those of %s, as there are none for %s%s", attn_dtype_of(c->dtype).name,
           attn_dtype_of(problem->dtype_kv).name, attn_costs_lack_factors(problem) ? " without factors" : "");
  attn_append(text, bytes, ", ", words);
}

/* All kernels of the operation that cannot run the problem here, and why. */
static void append_refused(const attn_choice *c, const attn_problem *problem, char *text, size_t bytes) {
  const attn_kernel *kernel;
  const char *before = "; cannot run it: ";
  char line[360];
  for (int i = 0; (kernel = attn_registry_get(i)); i++) {
    const char *reason = attn_refusal(kernel, problem, c->cap);
    if (!reason || kernel->operation != problem->operation) continue;
    snprintf(line, sizeof line, "%s (%s)", kernel->info.name, reason);
    attn_append(text, bytes, before, line);
    before = ", ";
  }
}

/* The reason why the tuning file did not decide: in full where a rule names a kernel that cannot run. */
static void append_not_tuned(const attn_choice *c, const attn_problem *problem, char *text, size_t bytes) {
  char words[800];
  const attn_tuning_rule *rule = c->tuning ? attn_tuning_find(c->tuning, problem) : NULL;
  const attn_kernel *kernel = rule ? attn_registry_find(rule->kernel) : NULL;
  const char *reason = kernel ? attn_refusal(kernel, problem, c->cap) : rule ? attn_registry_missing(rule->kernel) : NULL;
  if (kernel && !reason) reason = attn_dispatch_claim(kernel);
  if (rule && !kernel && !reason) reason = "no kernel of this process has that name";
  snprintf(words, sizeof words, "%.790s", c->not_tuned);
  if (reason)
    snprintf(words, sizeof words, "tuning file %.300s, line %d wants %s, which cannot run: %.300s",
             attn_tuning_path(c->tuning), rule->line, rule->kernel, reason);
  attn_append(text, bytes, "; ", words);
}

void attn_choice_describe(const attn_choice *c, const attn_problem *problem, char *text, size_t bytes) {
  *text = 0;
  if (c->steady) attn_append(text, bytes, "", "steady: the same bits of a row for any number of queries");
  if (c->not_tuned) append_not_tuned(c, problem, text, bytes);
  switch (c->cause) {
    case ATTN_CAUSE_GIVEN: attn_append(text, bytes, "; ", "given by the caller"); return;
    case ATTN_CAUSE_NAMED:
      attn_append(text, bytes, "; ", "named by ");
      attn_append(text, bytes, "", c->named_by);
      return;
    case ATTN_CAUSE_RULE:
    case ATTN_CAUSE_COSTS:
      append_source(c, text, bytes);
      append_margin(c, problem, text, bytes);
      break;
    case ATTN_CAUSE_RANK: attn_append(text, bytes, "; ", "automatic, the first in rank: none that can run it has costs");
  }
  append_refused(c, problem, text, bytes);
}
