/* SPDX-License-Identifier: MIT */
/* The structs of attn.h and mha.h that callers fill in, for attn_struct_read and attn_struct_write (include/attn/extend.h).
 * `least` is where the fields end that a program cannot do without. The tables are static because libattn_nn needs some of
 * them too, and data that one shared library takes from another would be bound to its size. */
#ifndef ATTN_LAYOUTS_H
#define ATTN_LAYOUTS_H

#include <stddef.h>

#include "attn/extend.h"

/* A struct whose callers write ATTN_STRUCT(type, ...), or an initialiser without a size, which means the fields of version
 * 0.1. `end` is the first field that callers may lack. ATTN_LAYOUT: all fields are of that version. ATTN_LAYOUT_GROWN:
 * `added` is the first that is not. */
#define ATTN_LAYOUT_OF(type, end, first)                                                                        \
  {                                                                                                             \
    .name = #type, .maker = "ATTN_STRUCT(" #type ", ...)", .bytes = sizeof(type), .least = offsetof(type, end), \
    .unsized = (first),                                                                                         \
  }
#define ATTN_LAYOUT(type, end)              ATTN_LAYOUT_OF(type, end, sizeof(type))
#define ATTN_LAYOUT_GROWN(type, end, added) ATTN_LAYOUT_OF(type, end, offsetof(type, added))

static const attn_struct_layout attn_args_layout = ATTN_LAYOUT_GROWN(attn_args, lse, page_table);
static const attn_struct_layout attn_options_layout = ATTN_LAYOUT_GROWN(attn_options, parallel_for, steady);
static const attn_struct_layout attn_mha_weights_layout = ATTN_LAYOUT_GROWN(attn_mha_weights, b_qkv, q_norm_gain);

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
