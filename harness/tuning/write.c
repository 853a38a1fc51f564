/* SPDX-License-Identifier: MIT */
/* The text of a tuning file (docs/library.md, "Tuning files"). */
#include <inttypes.h>
#include <stdlib.h>

#include "cases/axes.h"
#include "tuning/tuning.h"

enum { FEWEST_TIMES = 8 /* that the costs of a kernel come from */ };

static void write_range(FILE *file, const char *name, const int64_t range[2]) {
  fprintf(file, " %s=%" PRId64 "..", name, range[0]);
  if (range[1] == INT64_MAX)
    fputc('*', file);
  else
    fprintf(file, "%" PRId64, range[1]);
}

static void write_rule(FILE *file, const bench_tune_rule *r) {
  fprintf(file, "rule %s %s", bench_dtype_name(r->dtype), r->causal ? "causal" : "full");
  write_range(file, "dim", r->dim);
  if (r->step < 32) fprintf(file, " step=%" PRId64, r->step);
  write_range(file, "group", r->group);
  write_range(file, "seq_k", r->seq_k);
  write_range(file, "seq_q", r->seq_q);
  fprintf(file, " kernel=%s second=%s margin=%.3f low=%.3f high=%.3f\n", r->kernel, r->second, r->margin, r->low, r->high);
}

static void write_costs(FILE *file, const bench_tune_result *result) {
  fprintf(file, "threads least_ns=%.0f\n", result->least_ns);
  for (int k = 0; k < TUNE_AUTO && attn_kernel_get(k); k++)
    for (int dtype = 0; dtype < 3; dtype++) {
      const bench_tune_cost *c = &result->costs[k][dtype];
      if (c->count >= FEWEST_TIMES)
        fprintf(file, "cost kernel=%s %s multiply_ns=%.4g element_ns=%.4g head_ns=%.4g\n", attn_kernel_get(k)->name,
                bench_dtype_name((attn_dtype)dtype), c->ns[0], c->ns[1], c->ns[2]);
    }
}

static void write_head(FILE *file) {
  const size_t bytes = attn_tuning_head(NULL, 0) + 1;
  char *head = malloc(bytes);
  if (head) (void)attn_tuning_head(head, bytes);
  fputs(head ? head : "", file);
  free(head);
}

void bench_tune_write(const bench_tune_result *result, FILE *file) {
  write_head(file);
  fprintf(file, "# Made by attnbench tune: %d problems were timed. Where no rule fits, the built-in choice suits.\n",
          result->points);
  for (int i = 0; i < result->rule_count; i++) write_rule(file, &result->rules[i]);
  if (result->least_ns >= 1) write_costs(file, result);
}

void bench_tune_clear(bench_tune_result *result) {
  free(result->rules);
  *result = (bench_tune_result){.rules = NULL};
}
