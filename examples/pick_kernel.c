/* SPDX-License-Identifier: MIT */
/* Four ways to pick a kernel: read the registry, let the library choose, name one, or time them all once.
 *
 * A program keeps the plan: it can be run any number of times, by any number of threads. */
#include <attn/attn.h>
#include <stdio.h>

enum { HEADS = 4, SEQ = 256, DIM = 64, COUNT = HEADS * SEQ * DIM };

static float q[COUNT], k[COUNT], v[COUNT], o[COUNT];

static void fill(float *values, unsigned seed) {
  for (int i = 0; i < COUNT; i++) {
    seed = seed * 1664525u + 1013904223u;
    values[i] = (float)(seed >> 8) * 0x1p-23f - 1.0f;
  }
}

/* Every kernel, best first, and why it cannot run here if it cannot. */
static void print_registry(const attn_problem *problem) {
  for (int i = 0; i < attn_kernel_count(); i++) {
    const char *refusal = attn_kernel_rejects(attn_kernel_get(i), problem);
    printf("  %-16s %s\n", attn_kernel_get(i)->name, refusal ? refusal : "takes it");
  }
}

/* Times all that can run for about 0.3 s and makes a plan of the quickest. */
static attn_status plan_quickest(const attn_problem *problem, const attn_args *args, attn_plan **plan) {
  attn_tune_report report;
  const attn_status status = attn_tune(problem, args, NULL, 0.3, &report);
  if (status != ATTN_OK) return status;
  for (int i = 0; i < report.timed; i++)
    printf("  %-16s %d threads  %9.1f us  %6.2f x\n", report.entry[i].kernel, report.entry[i].threads,
           1e-3 * report.entry[i].time_ns, report.entry[i].ratio);
  for (int i = report.timed; i < report.count; i++)
    printf("  %-16s %d threads  %s\n", report.entry[i].kernel, report.entry[i].threads, report.not_timed[i]);
  const attn_tune_entry *best = &report.entry[0];
  return attn_plan_create(problem, &ATTN_STRUCT(attn_options, .kernel = best->kernel, .threads = best->threads), plan);
}

int main(void) {
  fill(q, 1), fill(k, 2), fill(v, 3);
  attn_problem problem;
  attn_problem_init(&problem, 1, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  attn_problem_set_causal(&problem, ATTN_ALIGN_TOP_LEFT);
  const attn_args args = ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o);

  printf("this CPU allows: %s\n\nkernels, best first:\n", attn_cpu_tiers());
  print_registry(&problem);

  attn_plan *plan;
  if (attn_plan_create(&problem, NULL, &plan) != ATTN_OK) return puts(attn_last_error()), 1;
  printf("\nautomatic choice:\n%s", attn_plan_describe(plan));
  attn_plan_destroy(plan);

  puts("\nby time, quickest first:");
  if (plan_quickest(&problem, &args, &plan) != ATTN_OK) return puts(attn_last_error()), 1;
  printf("\nquickest here: %s\n", attn_plan_kernel(plan));
  attn_plan_destroy(plan);

  const attn_options mistaken = ATTN_STRUCT(attn_options, .kernel = "flash_mmx");
  const attn_status status = attn_plan_create(&problem, &mistaken, &plan); /* an error, never a silent replacement */
  printf("\na name that does not exist: %s\n  %s\n", attn_status_name(status), attn_last_error());
  return status == ATTN_UNKNOWN_KERNEL ? 0 : 1;
}
