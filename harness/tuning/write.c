/* SPDX-License-Identifier: MIT */
/* The text of a tuning file (docs/library.md, "Tuning files"). */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "cases/axes.h"
#include "src/choice/machine_class.h"
#include "src/choice/tuning.h"
#include "src/registry/cpu.h"
#include "src/registry/registry.h"
#include "tuning/tuning.h"

/* Kernels that are never the quickest would only make the choice slower. */
bool bench_tune_has_line(const bench_tune_result *result, int kernel, attn_dtype dtype) {
  const bench_tune_cost *c = &result->costs[kernel][dtype];
  return c->count >= TUNE_FEWEST_TIMES && c->leads >= TUNE_WORTH_A_LINE * result->random[dtype];
}

bool bench_tune_has_costs(const bench_tune_result *result) {
  for (int k = 0; k < TUNE_KERNELS; k++)
    for (int dtype = 0; dtype < TUNE_TYPES; dtype++)
      if (bench_tune_has_line(result, k, (attn_dtype)dtype)) return true;
  return false;
}

static const double LEAST_NS = 1e-6; /* least cost of a term: times ten million elements it would be 10 ns */

/* The error is what is left beside the slowness of moments, which all kernels of a problem share. */
static void write_costs(FILE *file, const bench_tune_result *result, int kernel, attn_dtype dtype) {
  const bench_tune_cost *c = &result->costs[kernel][dtype];
  if (!bench_tune_has_line(result, kernel, dtype)) return;
  const attn_kernel *k = attn_registry_get(kernel);
  fprintf(file, "cost kernel=%s %s error=%.3f", k->info.name, bench_dtype_name(dtype), c->error);
  for (int i = 0; i < k->terms.count; i++)
    if (c->ns[i] >= LEAST_NS) fprintf(file, " %s=%.4g", k->terms.names[i], c->ns[i]);
  fputc('\n', file);
}

static void write_head(FILE *file) {
  const size_t bytes = attn_tuning_head(NULL, 0) + 1;
  char *head = malloc(bytes);
  if (head) (void)attn_tuning_head(head, bytes);
  fputs(head ? head : "", file);
  free(head);
}

/* Whether a kernel of the tier has a line. */
static bool has_costs_of(const bench_tune_result *result, const char *isa) {
  for (int k = 0; k < TUNE_KERNELS && attn_kernel_get(k); k++)
    for (int dtype = 0; dtype < TUNE_TYPES; dtype++)
      if (strcmp(attn_kernel_get(k)->isa, isa) == 0 && bench_tune_has_line(result, k, (attn_dtype)dtype)) return true;
  return false;
}

/* Plain C comes behind all that have costs. A tier whose kernels run by name only is none of the class. */
static void write_class(FILE *file, const bench_tune_result *result) {
  char cpu[200];
  fprintf(file, "attn-tuning %d\nclass %s %s", ATTN_TUNING_FORMAT, result->class, attn_tier_isa(0));
  for (int i = 1; attn_tier_isa(i); i++)
    if (has_costs_of(result, attn_tier_isa(i))) fprintf(file, " %s", attn_tier_isa(i));
  attn_cpu_identity(cpu, sizeof cpu);
  fprintf(file, "\n# Of %s\n", cpu);
}

/* The lines of this CPU's class: costs were measured with them. */
static void write_memory(FILE *file) {
  const attn_prefetch cpu = attn_class_prefetch();
  const attn_caches caches = attn_class_caches();
  if (caches.level2 > 0) fprintf(file, "caches level1=%" PRId64 " level2=%" PRId64 "\n", caches.level1, caches.level2);
  if (cpu.none_up_to > 0 || cpu.twice_beyond > 0)
    fprintf(file, "prefetch none_up_to=%.0f twice_beyond=%.0f\n", cpu.none_up_to, cpu.twice_beyond);
}

int bench_tune_points(const bench_tune_result *result) {
  int points = 0;
  for (int dtype = 0; dtype < TUNE_TYPES; dtype++) points += result->points[dtype];
  return points;
}

void bench_tune_write(const bench_tune_result *result, FILE *file) {
  if (result->class)
    write_class(file, result);
  else
    write_head(file);
  fprintf(file, "# Made by attnbench tune: %d problems were timed.\n", bench_tune_points(result));
  for (int dtype = 0; dtype < TUNE_TYPES; dtype++)
    for (int k = 0; k < TUNE_KERNELS && attn_kernel_get(k); k++) write_costs(file, result, k, (attn_dtype)dtype);
  if (result->least_ns >= 1) fprintf(file, "threads least_ns=%.0f\n", result->least_ns);
  if (result->class) write_memory(file);
}
