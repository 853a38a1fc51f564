/* SPDX-License-Identifier: MIT */
/* Arguments of the form NAME=VALUE that attn_mpi_explain and attn_mpi_simulate share. */
#ifndef ATTN_MPI_EXPLAIN_ARGUMENTS_H
#define ATTN_MPI_EXPLAIN_ARGUMENTS_H

#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"

static inline const char *word(int count, char **arguments, const char *name, const char *otherwise) {
  const size_t length = strlen(name);
  for (int i = 1; i < count; i++)
    if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=') return arguments[i] + length + 1;
  return otherwise;
}

static inline double number(int count, char **arguments, const char *name, double otherwise) {
  const char *value = word(count, arguments, name, NULL);
  return value ? atof(value) : otherwise;
}

/* Causal attention in bfloat16; the queries are the last ones. */
static inline attn_problem problem_named(int count, char **arguments) {
  const double tokens = number(count, arguments, "tokens", 1048576);
  const int64_t dim = (int64_t)number(count, arguments, "dim", 128);
  attn_problem problem;
  attn_problem_init(&problem, 1, (int64_t)number(count, arguments, "heads", 32), (int64_t)number(count, arguments, "kv", 8),
                    (int64_t)number(count, arguments, "queries", tokens), (int64_t)tokens, dim, dim);
  problem.dtype_q = problem.dtype_kv = problem.dtype_o = ATTN_BF16;
  attn_problem_set_causal(&problem, ATTN_ALIGN_BOTTOM_RIGHT);
  return problem;
}

#endif
