/* SPDX-License-Identifier: MIT */
/* Says how attention over ranks would be divided, without a rank.
 *
 *   attn_mpi_explain ranks=64 tokens=1048576 queries=1048576 heads=32 kv=8 dim=128 gbit=100 latency_us=3 gmacs=2000
 *
 * queries: default tokens, causal; fewer are the last ones. gmacs: billions of multiply-adds a second of a rank; 0 =
 * measured. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/mpi.h"

static double number(int count, char **arguments, const char *name, double otherwise) {
  const size_t length = strlen(name);
  for (int i = 1; i < count; i++)
    if (!strncmp(arguments[i], name, length) && arguments[i][length] == '=') return atof(arguments[i] + length + 1);
  return otherwise;
}

int main(int count, char **arguments) {
#define NUMBER(name, otherwise) number(count, arguments, name, otherwise)
  const int64_t tokens = (int64_t)NUMBER("tokens", 1048576), queries = (int64_t)NUMBER("queries", (double)tokens);
  const int64_t dim = (int64_t)NUMBER("dim", 128);
  attn_problem problem;
  attn_problem_init(&problem, 1, (int64_t)NUMBER("heads", 32), (int64_t)NUMBER("kv", 8), queries, tokens, dim, dim);
  problem.dtype_q = problem.dtype_kv = problem.dtype_o = ATTN_BF16;
  attn_problem_set_causal(&problem, ATTN_ALIGN_BOTTOM_RIGHT);
  const attn_mpi_network network =
      ATTN_STRUCT(attn_mpi_network, .latency_s = 1e-6 * NUMBER("latency_us", 0), .bytes_per_s = 1.25e8 * NUMBER("gbit", 0),
                  .macs_per_s = 1e9 * NUMBER("gmacs", 0), .memory_per_s = 1e9 * NUMBER("memory_gb", 0));
  char text[2000];
  if (attn_mpi_explain(&problem, NULL, (int)NUMBER("ranks", 8), &network, text, sizeof text) != ATTN_OK) {
    fprintf(stderr, "attn_mpi_explain: %s\n", attn_last_error());
    return 2;
  }
  fputs(text, stdout);
  return 0;
}
