/* SPDX-License-Identifier: MIT */
/* The structs of attn.h and mha.h that callers fill in, for attn_struct_read and attn_struct_write (include/attn/extend.h).
 * `least` is where the fields end that a program cannot do without. The tables are static because libattn_nn needs some of
 * them too, and data that one shared library takes from another would be bound to its size. */
#ifndef ATTN_LAYOUTS_H
#define ATTN_LAYOUTS_H

#include <stddef.h>

#include "attn/extend.h"

/* A struct whose callers write ATTN_STRUCT(type, ...), or an initialiser without a size, which means the fields of version
 * 0.1. All fields are of that version; once one is added, `unsized` must become the offset of the first such field. `end` is
 * the first field that callers may lack. */
#define ATTN_LAYOUT(type, end)                                                                                  \
  {                                                                                                             \
    .name = #type, .maker = "ATTN_STRUCT(" #type ", ...)", .bytes = sizeof(type), .least = offsetof(type, end), \
    .unsized = sizeof(type),                                                                                    \
  }

static const attn_struct_layout attn_args_layout = ATTN_LAYOUT(attn_args, lse);
static const attn_struct_layout attn_options_layout = ATTN_LAYOUT(attn_options, parallel_for);
static const attn_struct_layout attn_mha_weights_layout = ATTN_LAYOUT(attn_mha_weights, b_qkv);

static const attn_struct_layout attn_problem_layout = {.name = "attn_problem",
                                                       .maker = "attn_problem_init",
                                                       .bytes = sizeof(attn_problem),
                                                       .least = offsetof(attn_problem, total_q)};

static const attn_struct_part attn_mha_problem_parts[] = {{offsetof(attn_mha_problem, attention), &attn_problem_layout},
                                                          {0, NULL}};
static const attn_struct_layout attn_mha_problem_layout = {
    .name = "attn_mha_problem",
    .maker = "attn_mha_problem_init",
    .bytes = sizeof(attn_mha_problem),
    .least = offsetof(attn_mha_problem, want_weights) - sizeof(attn_problem) + offsetof(attn_problem, total_q),
    .parts = attn_mha_problem_parts};

/* The caller's options; NULL is the default. Only their size is checked. */
static inline attn_status attn_options_read(const attn_options *theirs, attn_options *options) {
  *options = ATTN_STRUCT(attn_options, .kernel = NULL);
  return theirs ? attn_struct_read(&attn_options_layout, theirs, options) : ATTN_OK;
}

#endif
