/* SPDX-License-Identifier: MIT */
/* What eval_files.c (files and their elements), eval_shapes.c (sizes) and eval_load.c (the problem and its data) share. */
#ifndef BENCH_EVAL_PRIVATE_H
#define BENCH_EVAL_PRIVATE_H

#include "eval/eval.h"

typedef struct eval_loader {
  const eval_options *options;
  eval_input *input;
  npy_array file[EVAL_FILES]; /* data == NULL: not given */
  int64_t offset;             /* where --offset is a number */
  attn_problem problem;
} eval_loader;

bool eval_has(const eval_loader *loader, eval_file which);

/* "--kv-len" */
const char *eval_option(eval_file which);

/* Reads all files, without conversions. */
bool eval_read_files(eval_loader *loader);
void eval_free_files(eval_loader *loader);

/* Set input->error and input->exit_code, and return false. eval_fail_shape names the file and its shape before `wanted`. */
bool eval_fail(eval_loader *loader, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool eval_fail_internal(eval_loader *loader, const char *format, ...) __attribute__((format(printf, 2, 3)));
bool eval_fail_shape(eval_loader *loader, eval_file which, const char *wanted);

/* The index of `word` among words, which NULL ends; -1 with a sentence that names the option. */
int eval_find_word(eval_loader *loader, const char *option, const char *word, const char *const *words);

enum { EVAL_SHAPE_TEXT = 24 * NPY_MAX_DIMS };

/* "[2, 12, 128, 32]" */
const char *eval_shape_text(const int64_t *shape, int dims, char text[EVAL_SHAPE_TEXT]);

/* Turn the elements of a file into another type, in place. Floats are rounded to nearest, and a finite one that would become
 * infinite is an error; whole numbers must be in low..high. */
bool eval_to_dtype(eval_loader *loader, eval_file which, attn_dtype dtype);
bool eval_to_doubles(eval_loader *loader, eval_file which);
bool eval_to_lengths(eval_loader *loader, eval_file which, int64_t low, int64_t high);

/* Sizes and strides of q, k, v and o. */
bool eval_load_shape(eval_loader *loader);

/* Sets the shape of o in the layout of q's file and returns the number of dimensions. dim < 0: of the LSE, where heads come
 * before queries. */
int eval_output_shape(const eval_input *input, int64_t dim, int64_t shape[NPY_MAX_DIMS]);

#endif
