/* SPDX-License-Identifier: MIT */
/* Says how attention over ranks would be divided, without a rank.
 *
 *   attn_mpi_explain ranks=64 tokens=1048576 queries=1048576 heads=32 kv=8 dim=128 gbit=100 latency_us=3 gmacs=2000
 *
 * queries: default tokens, causal; fewer are the last ones. gmacs: billions of multiply-adds a second of a rank; 0 =
 * measured. */
#include <stdio.h>

#include "arguments.h"
#include "attn/mpi.h"

int main(int count, char **arguments) {
#define NUMBER(name, otherwise) number(count, arguments, name, otherwise)
  const attn_problem problem = problem_named(count, arguments);
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
