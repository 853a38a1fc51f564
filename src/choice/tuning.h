/* SPDX-License-Identifier: MIT */
/* Tuning files: their text, read into rules and costs, and what these say of a problem. docs/library.md, "Tuning files",
 * describes the text. */
#ifndef ATTN_TUNING_H
#define ATTN_TUNING_H

#include <stdatomic.h>

#include "attn/kernel.h"
#include "src/choice/costs.h"
#include "src/registry/plugin.h"

enum { ATTN_TUNING_FORMAT = 5, ATTN_TUNING_PATH_BYTES = 400 /* bytes of a path in messages */ };

/* The version of a kernel's code, as tuning files name it. */
const char *attn_tuning_code(const attn_kernel_info *kernel);

/* One rule: the kernel that was quickest in a box of problems. Borders are inclusive; INT64_MAX = open. */
typedef struct attn_tuning_rule {
  attn_dtype dtype_q, dtype_kv;
  bool causal;
  int64_t dim[2];   /* for the mean of dim_qk and dim_v */
  int64_t step;     /* the largest of 8, 16 and 32 that divides both */
  int64_t group[2]; /* query heads of a KV head */
  int64_t seq_k[2], seq_q[2];
  char kernel[ATTN_KERNEL_NAME_BYTES], second[ATTN_KERNEL_NAME_BYTES];
  double margin, low, high; /* time of the second over the winner's: geometric mean, least and most */
  int line;
} attn_tuning_rule;

/* The text as it was read. Only tuning.c and machine_class.c look into it. */
struct attn_tuning {
  attn_tuning_rule *rules;
  attn_kernel_costs *costs;
  int rule_count, cost_count, rule_room, cost_room;
  double least_ns; /* time that a thread has to save in a wave; 0 = not measured */
  attn_prefetch prefetch;
  attn_caches caches;
  bool has_cpu, has_library;
  char class[60], tiers[120];
  _Atomic int users;
  bool fixed;                                      /* costs has cost_room elements, and is not to be freed */
  bool stale;                                      /* made by another CPU or build */
  char refusal[700], path[ATTN_TUNING_PATH_BYTES]; /* why it is refused */
};

/* The rule whose box holds the problem; NULL if there is none. Boxes hold dot scores of head dimensions that 8 divides,
 * without softcap, window (but a causal one), or any argument beside lengths and lse. */
const attn_tuning_rule *attn_tuning_find(const attn_tuning *tuning, const attn_problem *problem);

/* The costs of the file: `*count` of them. Those of kernels that are not here were left out. */
const attn_kernel_costs *attn_tuning_costs(const attn_tuning *tuning, int *count);

/* The costs of one kernel that count for a problem (attn_costs_dtype); NULL = none. */
const attn_kernel_costs *attn_tuning_costs_of(const attn_tuning *tuning, const attn_kernel *kernel,
                                              const attn_problem *problem);

/* Nanoseconds that a thread has to save in each wave to pay; 0 = not measured. */
double attn_tuning_least_ns(const attn_tuning *tuning);

/* How CPUs of the class want K and V prefetched. */
attn_prefetch attn_tuning_prefetch(const attn_tuning *tuning);

/* The caches of the class; zeros without such a line. */
attn_caches attn_tuning_caches(const attn_tuning *tuning);

/* The class that the file is of, and its tiers, from low to high: "c portable avx2". NULL, if it is one machine's. */
const char *attn_tuning_class(const attn_tuning *tuning);
const char *attn_tuning_tiers(const attn_tuning *tuning);

/* One more user of the file, which attn_tuning_destroy() ends. NULL stays NULL. */
const attn_tuning *attn_tuning_hold(const attn_tuning *tuning);

/* The file that ATTN_TUNING names, read once. *tuning is NULL without one, or where it is refused: *refused is then the
 * reason, else NULL. An error if it cannot be read. */
attn_status attn_tuning_named(const attn_tuning **tuning, const char **refused);

/* Reads the text of a class of CPUs, whose costs go to costs[0 .. room - 1]. Allocates nothing. */
attn_status attn_tuning_read_class(const char *name, const char *text, attn_kernel_costs *costs, int room,
                                   attn_tuning *tuning);

/* Reads the text of a file called `path`. */
attn_status attn_tuning_read(const char *path, const char *text, size_t bytes, attn_tuning **tuning);

/* The path that it was read from. */
const char *attn_tuning_path(const attn_tuning *tuning);

#endif
