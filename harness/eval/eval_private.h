/* SPDX-License-Identifier: MIT */
/* What eval_files.c (files and their elements), eval_shapes.c (sizes), eval_load.c (the problem and its data), eval_output.c
 * (outputs) and eval_run.c share. */
#ifndef BENCH_EVAL_PRIVATE_H
#define BENCH_EVAL_PRIVATE_H

#include "base/cli.h"
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
bool eval_fail_with(eval_loader *loader, int exit_code, const char *format, ...) __attribute__((format(printf, 3, 4)));
#define eval_fail(loader, ...) eval_fail_with(loader, BENCH_EXIT_USAGE, __VA_ARGS__)
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

/* The oracle's rows and limits with the values of the --expect files; it shares what else the oracle has. NULL if memory is
 * short. */
bench_expected *eval_expect(const bench_expected *oracle, const eval_input *input);
void eval_forget(bench_expected *expected); /* NULL is fine */

/* Checks the values of the --expect files against the oracle. Overwrites o and lse. */
bench_verdict eval_check_expected(const bench_expected *oracle, const bench_expected *expected, const eval_input *input);

/* Writes o and the LSE where the task asks for it, as .npy in q's layout; bfloat16 as uint16. False after an error, said on
 * stderr. */
bool eval_save(const eval_input *input, const eval_task *task);

#endif
