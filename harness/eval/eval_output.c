/* SPDX-License-Identifier: MIT */
/* The outputs of `eval`: someone else's as the expected answer (the oracle's rows and limits, with the values of the
 * --expect files), and those of the kernels as files. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"

#include "check/expected.h"
#include "data/generate.h"
#include "eval/eval_private.h"

int eval_output_shape(const eval_input *input, int64_t dim, int64_t shape[NPY_MAX_DIMS]) {
  const attn_problem *p = &input->tensors.problem;
  const bool sequence_first = dim >= 0 && input->sequence_first;
  int dims = 0;
  if (input->rank == 4) shape[dims++] = p->batch;
  if (input->rank > 2 && !sequence_first) shape[dims++] = p->heads_q;
  shape[dims++] = p->uses & ATTN_USE_VARLEN ? p->total_q : p->seq_q;
  if (input->rank > 2 && sequence_first) shape[dims++] = p->heads_q;
  if (dim >= 0) shape[dims++] = dim;
  return dims;
}

/* ---- Expectations ------------------------------------------------------------------------------------------------ */

static void *copy(const void *from, size_t bytes) {
  void *to = malloc(bytes + 1);
  return to && bytes ? memcpy(to, from, bytes) : to; /* without bytes, from may be NULL */
}

static void set_row(bench_expected *expected, int64_t n, const eval_input *input) {
  const attn_problem *p = &expected->problem;
  bench_expected_row *row = &expected->row[n];
  const int64_t at = bench_row_place(p, &input->tensors.args, &p->o_stride, row);
  for (int64_t d = 0; input->expect && d < p->dim_v; d++)
    expected->o[n * p->dim_v + d] = input->expect[at + d * p->o_stride.d];
  if (input->expect_lse) row->facts.lse = input->expect_lse[bench_row_place(p, &input->tensors.args, &p->lse_stride, row)];
}

bench_expected *eval_expect(const bench_expected *oracle, const eval_input *input) {
  bench_expected *expected = copy(oracle, sizeof *oracle);
  if (!expected) return NULL;
  expected->reference = NULL; /* the oracle's own; files are compared in the oracle's rows */
  expected->row = copy(oracle->row, (size_t)oracle->rows * sizeof *oracle->row);
  expected->o = copy(oracle->o, (size_t)(oracle->rows * oracle->problem.dim_v) * sizeof *oracle->o);
  if (!expected->row || !expected->o) return eval_forget(expected), NULL;
  for (int64_t n = 0; n < expected->rows; n++) set_row(expected, n, input);
  return expected;
}

void eval_forget(bench_expected *expected) {
  if (!expected) return;
  free(expected->row);
  free(expected->o);
  free(expected);
}

/* Writes a row of the files to o and lse, in their types. */
static void store_row(const bench_expected *expected, int64_t n, const eval_input *input, const attn_args *args) {
  const attn_problem *p = &expected->problem;
  const bench_expected_row *row = &expected->row[n];
  const int64_t at = bench_row_place(p, &input->tensors.args, &p->o_stride, row);
  for (int64_t d = 0; d < p->dim_v; d++)
    bench_store(args->o, p->dtype_o, at + d * p->o_stride.d, expected->o[n * p->dim_v + d]);
  if (p->uses & ATTN_USE_LSE) args->lse[bench_row_place(p, args, &p->lse_stride, row)] = (float)row->facts.lse;
}

bench_verdict eval_check_expected(const bench_expected *oracle, const bench_expected *expected, const eval_input *input) {
  static const attn_numerics exact = {0};
  for (int64_t n = 0; n < expected->rows; n++) store_row(expected, n, input, &input->tensors.args);
  return bench_compare(oracle, &input->tensors.args, &exact);
}

/* ---- Files ------------------------------------------------------------------------------------------------------- */

/* One output to save. */
typedef struct saved_output {
  const void *data;
  attn_dtype dtype;
  attn_strides stride;
  int64_t dim;   /* -1: the LSE */
  double unused; /* for tokens of no sequence, which kernels don't write: the value of a row without keys */
} saved_output;

static void fill_unused_tokens(const eval_input *input, const saved_output *output, void *data) {
  const attn_problem *p = &input->tensors.problem;
  const int32_t *cu = input->tensors.args.cu_seqlens_q;
  for (int64_t t = 0; (p->uses & ATTN_USE_VARLEN) && t < p->total_q; t++)
    for (int64_t h = 0; (t < cu[0] || t >= cu[p->batch]) && h < p->heads_q; h++)
      for (int64_t d = 0; d < (output->dim < 0 ? 1 : output->dim); d++)
        bench_store(data, output->dtype, t * output->stride.s + h * output->stride.h + d, output->unused);
}

/* Saves a copy, because later checks need the output as the kernel wrote it. */
static bool save(const eval_input *input, const saved_output *output, const char *path) {
  npy_array array = {.type = npy_type_of(output->dtype), .count = 1};
  if (!path) return true;
  array.dims = eval_output_shape(input, output->dim, array.shape);
  for (int d = 0; d < array.dims; d++) array.count *= array.shape[d];
  array.data = copy(output->data, (size_t)array.count * attn_dtype_bytes(output->dtype));
  if (!array.data) return fprintf(stderr, "attnbench eval: %s: no memory for a copy of the output\n", path), false;
  fill_unused_tokens(input, output, array.data);
  const bool saved = npy_write(path, &array);
  npy_free(&array);
  return saved;
}

bool eval_save(const eval_input *input, const eval_task *task) {
  const attn_problem *p = &input->tensors.problem;
  const saved_output o = {input->tensors.args.o, p->dtype_o, p->o_stride, p->dim_v, 0.0};
  const saved_output lse = {input->tensors.args.lse, ATTN_F32, p->lse_stride, -1, -INFINITY};
  return save(input, &o, task->save_o) && save(input, &lse, task->save_lse);
}

/* ---- Before anything is read ------------------------------------------------------------------------------------- */

static bool is_same_file(const char *a, const char *b) {
  struct stat x, y;
  if (!strcmp(a, b)) return true;
  return !stat(a, &x) && !stat(b, &y) && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

static int check_output(const eval_options *options, const char *name, const char *path) {
  for (eval_file which = 0; path && which < EVAL_FILES; which++)
    if (options->path[which] && is_same_file(path, options->path[which]))
      return cli_usage_error("eval", "%s %s is also %s; outputs go to files of their own", name, path, eval_option(which));
  return path && !bench_file_writable(path) ? BENCH_EXIT_INTERNAL : 0;
}

int eval_check_outputs(const eval_options *options, const eval_task *task) {
  if (task->save_o && task->save_lse && is_same_file(task->save_o, task->save_lse))
    return cli_usage_error("eval", "--save-lse %s is also --save-o; outputs go to files of their own", task->save_lse);
  const int code = check_output(options, "--save-o", task->save_o);
  return code ? code : check_output(options, "--save-lse", task->save_lse);
}
