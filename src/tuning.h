/* SPDX-License-Identifier: MIT */
/* Tuning files: their text, read into rules and costs, and what these say of a problem. docs/library.md, "Tuning files",
 * describes the text. */
#ifndef ATTN_TUNING_H
#define ATTN_TUNING_H

#include "attn/kernel.h"
#include "cost_terms.h"
#include "plugin.h"

enum { ATTN_TUNING_FORMAT = 4 };

/* What a kernel's code is, as tuning files name it. */
const char *attn_tuning_code(const attn_kernel_info *kernel);

/* One rule: what was quickest in a box of problems. Borders are inclusive; INT64_MAX = open. */
typedef struct attn_tuning_rule {
  attn_dtype dtype_q, dtype_kv;
  bool causal;
  int64_t dim[2];   /* of the mean of dim_qk and dim_v */
  int64_t step;     /* the largest of 8, 16 and 32 that divides both */
  int64_t group[2]; /* query heads of a KV head */
  int64_t seq_k[2], seq_q[2];
  char kernel[ATTN_KERNEL_NAME_BYTES], second[ATTN_KERNEL_NAME_BYTES];
  double margin, low, high; /* times as long as the winner the second took: geometric mean, least and most */
  int line;
} attn_tuning_rule;

/* NULL, or the reason why tuning files say nothing of such problems. Static text. */
const char *attn_tuning_excludes(const attn_problem *problem);

/* The rule whose box holds the problem; NULL if there is none. */
const attn_tuning_rule *attn_tuning_find(const attn_tuning *tuning, const attn_problem *problem);

/* What the file's costs say of the problem, as attn_expect(). */
int attn_tuning_expect(const attn_tuning *tuning, const attn_problem *problem,
                       attn_expected_cost expected[ATTN_EXPECTED_COSTS]);

/* How many threads pay, by the file's costs; 0 if it has none for the kernel. As attn_paying_threads(). */
int attn_tuning_threads(const attn_tuning *tuning, const attn_kernel_info *kernel, const attn_problem *problem,
                        int64_t waves, int threads);

/* The file that ATTN_TUNING names, read once. *tuning is NULL without one, or where it is refused: *refused is then the
 * reason, else NULL. An error if it cannot be read. */
attn_status attn_tuning_named(const attn_tuning **tuning, const char **refused);

/* Reads the text of a file called `path`. */
attn_status attn_tuning_read(const char *path, const char *text, size_t bytes, attn_tuning **tuning);

/* The path that it was read from. */
const char *attn_tuning_path(const attn_tuning *tuning);

#endif
