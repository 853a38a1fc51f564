/* SPDX-License-Identifier: MIT */
/* Checks that every function of libattn_nn makes of its arguments, as tables. Each failure names the field and its value. */
#ifndef ATTN_NN_CHECK_H
#define ATTN_NN_CHECK_H

#include "attn/nn.h"
#include "src/api/error.h"
#include "src/api/layouts.h"

/* Copies a caller's struct, as attn_struct_read does. `argument` is its name, for the error if it is NULL. */
attn_status attn_nn_read(const attn_struct_layout *layout, const char *argument, const void *theirs, void *ours);

extern const attn_struct_layout attn_nn_sampling_layout;

#define NN_COUNT(array) (int)(sizeof(array) / sizeof *(array))

typedef struct attn_nn_size {
  const char *name;
  int64_t value, least;
} attn_nn_size;

/* Each size is at least `least` and at most 2^31, and their product is at most 2^58. */
attn_status attn_nn_check_sizes(const attn_nn_size *sizes, int count);

typedef struct attn_nn_pointer {
  const char *name;
  const void *pointer;
} attn_nn_pointer;

/* No pointer is NULL. */
attn_status attn_nn_check_pointers(const attn_nn_pointer *pointers, int count);

/* 64-byte aligned memory. NULL, with the sentence set, if there is not enough. `bytes` = 0 gives a small block. */
void *attn_nn_allocate(const char *purpose, size_t bytes);

/* A zeroed struct of a layer, pool or cache, `name`, to be given to free(). NULL, with the sentence set, if there is not
 * enough memory. */
void *attn_nn_new(const char *name, size_t bytes);

/* Memory as of attn_nn_allocate(), owned by whom it is given to by attn_nn_share(), which returns its argument, too. Each
 * owner calls attn_nn_unshare(), the last of which frees it. NULL is fine for both. */
void *attn_nn_allocate_shared(const char *purpose, size_t bytes);
void *attn_nn_share(void *memory);
void attn_nn_unshare(void *memory);

/* Nanoseconds of the monotonic clock. Without a profile: 0, and the clock is not read. */
double attn_nn_now_ns(const void *profile);

/* When a run began, had projected its inputs, had attended, and ended. */
typedef struct attn_nn_times {
  double begin, projected, attended, end;
} attn_nn_times;

/* Adds the times of a run to the profile, unless it is NULL. */
void attn_nn_add_times(attn_mha_profile *profile, const attn_nn_times *at);

/* Plans the problem and runs it once, with a workspace that it allocates and frees. */
attn_status attn_nn_run_once(const attn_problem *problem, const attn_args *args, const attn_options *options);

#endif
