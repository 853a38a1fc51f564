/* SPDX-License-Identifier: MIT */
/* `attnbench eval`: one problem on the user's own tensors. eval_load.c turns options and .npy files into a problem with its
 * data, eval_run.c runs the kernels on it. */
#ifndef BENCH_EVAL_H
#define BENCH_EVAL_H

#include "base/cli.h"
#include "base/select.h"
#include "check/check.h"
#include "data/npy.h"

/* Every file that eval reads: constant, option, the tensor that it fills, or at the end the output that it is compared with.
 */
#define EVAL_FILE_LIST(FILE)                                                 \
  FILE(Q, "--q", BENCH_Q)                                                    \
  FILE(K, "--k", BENCH_K)                                                    \
  FILE(V, "--v", BENCH_V)                                                    \
  FILE(K_SCALE, "--k-scale", BENCH_K_SCALE)                                  \
  FILE(V_SCALE, "--v-scale", BENCH_V_SCALE)                                  \
  FILE(BIAS, "--bias", BENCH_BIAS)                                           \
  FILE(MASK, "--mask", BENCH_MASK)                                           \
  FILE(SCORES, "--scores", BENCH_SCORES)                                     \
  FILE(SCORE_WEIGHT, "--score-weight", BENCH_SCORE_WEIGHT)                   \
  FILE(KV_LEN, "--kv-len", BENCH_KV_LEN)                                     \
  FILE(Q_LEN, "--q-len", BENCH_Q_LEN)                                        \
  FILE(CU_SEQLENS_Q, "--cu-seqlens-q", BENCH_CU_SEQLENS_Q)                   \
  FILE(CU_SEQLENS_K, "--cu-seqlens-k", BENCH_CU_SEQLENS_K)                   \
  FILE(OFFSET, "--offset", BENCH_OFFSETS)                                    \
  FILE(ALIBI, "--alibi", BENCH_ALIBI_SLOPES)                                 \
  FILE(SINKS, "--sinks", BENCH_SINKS)                                        \
  FILE(KV_NUM_BLOCKS, "--kv-num-blocks", BENCH_KV_NUM_BLOCKS)                \
  FILE(KV_INDICES, "--kv-indices", BENCH_KV_INDICES)                         \
  FILE(FULL_KV_NUM_BLOCKS, "--full-kv-num-blocks", BENCH_FULL_KV_NUM_BLOCKS) \
  FILE(FULL_KV_INDICES, "--full-kv-indices", BENCH_FULL_KV_INDICES)          \
  FILE(EXPECT, "--expect", BENCH_O)                                          \
  FILE(EXPECT_LSE, "--expect-lse", BENCH_LSE)

typedef enum eval_file {
#define FILE_CONSTANT(constant, ...) EVAL_##constant,
  EVAL_FILE_LIST(FILE_CONSTANT)
#undef FILE_CONSTANT
      EVAL_FILES
} eval_file;

/* An output of some operation: its files, and which option of the problem asks the kernels for it. */
typedef struct eval_output {
  bench_tensor tensor;
  eval_file expect;
  const char *save; /* "--save-o" */
  uint32_t use;     /* 0: it is always there */
  double unused;    /* the value of a row without keys, for tokens of no sequence, which kernels don't write */
} eval_output;

enum { EVAL_OUTPUTS = EVAL_FILES - EVAL_EXPECT };
extern const eval_output eval_outputs[EVAL_OUTPUTS];

typedef struct eval_options {
  const char *path[EVAL_FILES];      /* NULL = not given; EVAL_OFFSET may have a whole number instead of a file */
  const char *layout;                /* "bhsd" or "bshd" */
  const char *dtype;                 /* NULL = the files' own, "f32", "f16", "bf16" */
  const char *kv_format;             /* NULL = K and V are no uint8, "e4m3", "e5m2", "q8_0", "q4_0" */
  const char *causal;                /* "none", "top-left", "bottom-right", "offset" */
  const char *score;                 /* NULL = "precomputed" with EVAL_SCORES, else "dot" */
  double scale;                      /* NaN = the default */
  double softcap;                    /* 0 = off */
  int64_t window_left, window_right; /* -1 = open */
  int64_t block_queries, block_keys; /* sizes of the blocks that have lists */
  uint32_t uses;                     /* ATTN_USE_... of the outputs that the kernels are asked for */
} eval_options;

/* Options that a case of libattn.conformance stands for. */
enum { EVAL_WORDS = 64 };
typedef struct eval_words {
  char *word[EVAL_WORDS];
  int count;
  char text[20000];
} eval_words;

/* place: INDEX:NAME, such as "cases/index.json:causal/5x5". False with a sentence in error. */
bool eval_case_words(const char *place, eval_words *words, char *error, size_t error_bytes);

/* A problem and its data. */
typedef struct eval_input {
  bench_tensors tensors;        /* holds the problem as well; outputs are not written yet */
  int rank;                     /* dimensions of q, and so of o: 2, 3 or 4 */
  bool sequence_first;          /* o is [..., seq, heads, dim] */
  double *given[BENCH_TENSORS]; /* the --expect files in the order of their outputs; NULL = not given */
  int exit_code; /* after a failure: BENCH_EXIT_USAGE for what does not fit, BENCH_EXIT_INTERNAL for unreadable files */
  char error[800];
} eval_input;

/* False with exit_code and error set. Checks every length, so that kernels and oracle stay within the tensors. */
bool eval_load(const eval_options *options, eval_input *input);
void eval_unload(eval_input *input);

/* The work on the input: which outputs are saved, on how many threads, and whether it is timed. */
typedef struct eval_task {
  const char *save[EVAL_OUTPUTS]; /* NULL = not saved */
  int threads;
  bool time;
  double budget_s; /* for timing */
} eval_task;

/* 0, or an exit code after a sentence on stderr: an output that is also an input or another output, or that cannot be
 * written. Reads and writes nothing, so ask before eval_load(). */
int eval_check_outputs(const eval_options *options, const eval_task *task);

/* Runs, checks and perhaps times the kernels, and prints one row for each. Returns the exit code. */
int eval_run(const eval_task *task, eval_input *input, const bench_selection *selection);

/* ---- What the files of this room share ---------------------------------------------------------------------------- */

typedef struct eval_loader {
  const eval_options *options;
  eval_input *input;
  npy_array file[EVAL_FILES]; /* data == NULL: not given */
  int64_t offset;             /* where --offset is a number */
  bool of_bytes;              /* K and V are uint8 that hold problem.dtype_kv */
  attn_problem problem;
} eval_loader;

bool eval_has(const eval_loader *loader, eval_file which);

/* "--kv-len" */
const char *eval_option(eval_file which);

/* Reads all files, without conversions. */
bool eval_read_files(eval_loader *loader);
void eval_free_files(eval_loader *loader);

/* Set input->error and input->exit_code, and return false. eval_fail_shape names the file and its shape before `wanted`. */
#define eval_fail_with(loader, code, ...) \
  ((loader)->input->exit_code = (code), bench_say((loader)->input->error, sizeof(loader)->input->error, __VA_ARGS__))
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

/* Finds out what --kv-format says of K and V: a type that files store as uint8. */
bool eval_load_format(eval_loader *loader);

/* Sizes and strides of q, k, v and o. */
bool eval_load_shape(eval_loader *loader);

/* Sets the shape of an output in the layout of q's file and returns the number of dimensions. Where rows are single numbers,
 * heads come before queries. */
int eval_output_shape(const eval_input *input, const attn_operand *output, int64_t shape[NPY_MAX_DIMS]);

/* Checks the values of the --expect files against the oracle. Overwrites the outputs. */
bench_verdict eval_check_given(const bench_expected *oracle, const bench_expected *given, const eval_input *input);

/* Writes the outputs that the task asks for, as .npy in q's layout; bfloat16 as uint16. False after an error, said on
 * stderr. */
bool eval_save(const eval_input *input, const eval_task *task);

#endif
