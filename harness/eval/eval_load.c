/* SPDX-License-Identifier: MIT */
/* From .npy files to a problem with its data. What the files say is checked against each other here, so that neither the
 * library nor the oracle gets a length or a shape that does not fit. eval_files.c does the sizes. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval/eval.h"
#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/indexing.h"

/* NumPy's broadcasting to `dims` sizes, by strides of 0. `sizes` are the sizes in words. */
static bool broadcast_to(eval_loader *l, eval_file which, int dims, const int64_t *size, const char *sizes,
                         int64_t *stride) {
  const npy_array *array = &l->file[which];
  int64_t step = 1;
  bool fits = array->dims <= dims;
  for (int d = dims - 1, a = array->dims - 1; d >= 0; d--, a--) {
    stride[d] = fits && a >= 0 && array->shape[a] != 1 ? step : 0;
    if (!fits || a < 0) continue;
    fits = array->shape[a] == size[d] || array->shape[a] == 1;
    step *= array->shape[a];
  }
  char text[EVAL_SHAPE_TEXT], wanted[EVAL_SHAPE_TEXT + 80];
  snprintf(wanted, sizeof wanted, "it must broadcast to %s = %s", sizes, eval_shape_text(size, dims, text));
  return fits || eval_fail_shape(l, which, wanted);
}

static bool broadcast(eval_loader *l, eval_file which) {
  attn_problem *p = &l->problem;
  int64_t stride[4];
  if (!broadcast_to(l, which, 4, (int64_t[]){p->batch, p->heads_q, p->seq_q, p->seq_k}, "[batch, heads_q, seq_q, seq_k]",
                    stride))
    return false;
  *(which == EVAL_BIAS   ? &p->bias_stride
    : which == EVAL_MASK ? &p->mask_stride
                         : &p->scores_stride) = (attn_score_strides){stride[0], stride[1], stride[2], stride[3]};
  return true;
}

static bool load_pairs(eval_loader *l, eval_file which) {
  if (which != EVAL_MASK) return eval_to_dtype(l, which, ATTN_F32) && broadcast(l, which);
  if (l->file[EVAL_MASK].type == NPY_U8 || l->file[EVAL_MASK].type == NPY_BOOL) return broadcast(l, which);
  return eval_fail(l, "--mask %s holds neither bool nor uint8; 1 lets a key be seen (a mask that is added goes to --bias)",
                   l->options->path[EVAL_MASK]);
}

/* ---- What the options say ---------------------------------------------------------------------------------------- */

/* The type that the kernels get of a file: its own (f64 becomes f32), or what --dtype asks for; K and V of 8 bits stay. */
static attn_dtype dtype_of(const eval_loader *l, eval_file which, attn_dtype asked) {
  if (which != EVAL_Q && l->of_bytes) return l->problem.dtype_kv;
  if (which != EVAL_Q && l->file[which].type == NPY_I8) return ATTN_I8;
  return !l->options->dtype && l->file[which].type == NPY_F16 ? ATTN_F16 : asked;
}

static bool load_dtypes(eval_loader *l) {
  const char *words[ATTN_FLOAT_COUNT + 1] = {NULL};
  for (attn_dtype d = 0; attn_dtype_is_float(d); d++) words[d] = attn_dtype_of(d).name;
  const int asked = l->options->dtype ? eval_find_word(l, "--dtype", l->options->dtype, words) : ATTN_F32;
  if (asked < 0) return false;
  const attn_dtype q = dtype_of(l, EVAL_Q, (attn_dtype)asked), k = dtype_of(l, EVAL_K, (attn_dtype)asked),
                   v = dtype_of(l, EVAL_V, (attn_dtype)asked);
  for (eval_file which = EVAL_Q; which <= EVAL_V; which++)
    if (eval_has(l, which) && (which == EVAL_Q || attn_dtype_is_float(dtype_of(l, which, (attn_dtype)asked))) &&
        !eval_to_dtype(l, which, dtype_of(l, which, (attn_dtype)asked)))
      return false;
  if (eval_has(l, EVAL_K) && k != v)
    return eval_fail(l, "--k %s holds %s, but --v %s holds %s; they must agree (--dtype converts both)",
                     l->options->path[EVAL_K], attn_dtype_of(k).name, l->options->path[EVAL_V], attn_dtype_of(v).name);
  l->problem.dtype_kv = v;
  l->problem.dtype_q = l->problem.dtype_o = eval_has(l, EVAL_Q) ? q : attn_dtype_is_float(v) ? v : ATTN_F32;
  return true;
}

/* The other options must be those of the score. */
static bool check_score(eval_loader *l, int score, const char *word) {
  const bool scores = eval_has(l, EVAL_SCORES), weight = eval_has(l, EVAL_SCORE_WEIGHT);
  const bool additive = score == ATTN_SCORE_ADDITIVE, gaussian = score == ATTN_SCORE_GAUSSIAN;
  if ((score == ATTN_SCORE_PRECOMPUTED) != scores)
    return eval_fail(l, "--score %s %s --scores; only precomputed scores have it", word,
                     scores ? "doesn't go with" : "needs");
  if (!isnan(l->options->scale) && score != ATTN_SCORE_DOT)
    return eval_fail(l, "--scale %g: only dot scores are scaled, and --score is %s", l->options->scale, word);
  if (weight ? !additive && !gaussian : additive)
    return eval_fail(l, "--score %s %s --score-weight; additive needs it and gaussian may have it", word,
                     weight ? "doesn't go with" : "needs");
  return true;
}

static bool load_score(eval_loader *l) {
  const eval_options *o = l->options;
  const char *word = o->score ? o->score : eval_has(l, EVAL_SCORES) ? "precomputed" : "dot";
  const int score = eval_find_word(l, "--score", word, bench_axis_get(AXIS_SCORE)->words);
  if (score < 0 || !check_score(l, score, word)) return false;
  l->problem.score = (attn_score)score;
  if (!isnan(o->scale)) l->problem.scale = (float)o->scale;
  l->problem.softcap = (float)o->softcap;
  return true;
}

static bool is_vector(const npy_array *array, int64_t count) { return array->dims == 1 && array->count == count; }

static bool load_offset_file(eval_loader *l) {
  if (!is_vector(&l->file[EVAL_OFFSET], l->problem.batch)) return eval_fail_shape(l, EVAL_OFFSET, "it must be [batch]");
  return eval_to_lengths(l, EVAL_OFFSET, INT32_MIN, INT32_MAX);
}

/* Turns the number into the array that a file would hold. */
static bool load_offset_number(eval_loader *l) {
  const int64_t batch = l->problem.batch;
  if (l->offset < INT32_MIN || l->offset > INT32_MAX)
    return eval_fail(l, "--offset %lld has more than 32 bits", (long long)l->offset);
  int32_t *offsets = calloc((size_t)batch + 1, sizeof *offsets);
  if (!offsets) return eval_fail_with(l, BENCH_EXIT_INTERNAL, "no memory for the offsets of %lld batches", (long long)batch);
  for (int64_t b = 0; b < batch; b++) offsets[b] = (int32_t)l->offset;
  l->file[EVAL_OFFSET] = (npy_array){.type = NPY_I32, .dims = 1, .shape = {batch}, .count = batch, .data = offsets};
  return true;
}

/* Causal masks, windows and their alignment. */
static bool load_position(eval_loader *l) {
  const eval_options *o = l->options;
  const int causal = eval_find_word(l, "--causal", o->causal, bench_axis_get(AXIS_CAUSAL)->words);
  if (causal < 0) return false;
  const bool none = !causal, offset = o->path[EVAL_OFFSET] != NULL, by_offset = causal - 1 == ATTN_ALIGN_OFFSET;
  if (offset ? !none && !by_offset : by_offset)
    return eval_fail(l, "--causal %s %s --offset", o->causal, offset ? "doesn't go with" : "needs");
  if (!none && o->window_right >= 0)
    return eval_fail(l, "--window-right %lld doesn't go with --causal %s, which is a right window of 0",
                     (long long)o->window_right, o->causal);
  l->problem.window_right = o->window_right;
  if (offset) l->problem.align = ATTN_ALIGN_OFFSET;
  if (!none) attn_problem_set_causal(&l->problem, (attn_align)(causal - 1));
  l->problem.window_left = o->window_left;
  return !offset || (eval_has(l, EVAL_OFFSET) ? load_offset_file(l) : load_offset_number(l));
}

/* ---- Files that a problem may have ------------------------------------------------------------------------------ */

static bool load_score_weight(eval_loader *l, eval_file which) {
  attn_problem *p = &l->problem;
  const npy_array *w = &l->file[which];
  if (w->dims < 1 || w->dims > 2 || w->shape[w->dims - 1] != p->dim_qk || (w->dims == 2 && w->shape[0] != p->heads_q))
    return eval_fail_shape(l, which, "it must be [dim_qk] or [heads_q, dim_qk]");
  p->score_weight_stride_h = w->dims == 2 ? p->dim_qk : 0;
  return eval_to_dtype(l, which, ATTN_F32);
}

/* --kv-len is [batch], or [batch, seq_q] for a length of each row. */
static bool load_kv_len(eval_loader *l, eval_file which) {
  attn_problem *p = &l->problem;
  const npy_array *array = &l->file[which];
  const bool rows = array->dims == 2;
  if (array->dims < 1 || array->dims > 2 || array->shape[0] != p->batch || (rows && array->shape[1] != p->seq_q))
    return eval_fail_shape(l, which, "it must be [batch] or [batch, seq_q]");
  p->uses |= rows ? ATTN_USE_ROW_LEN : ATTN_USE_KV_LEN;
  return eval_to_lengths(l, which, 0, p->seq_k);
}

static bool load_q_len(eval_loader *l, eval_file which) {
  if (!is_vector(&l->file[which], l->problem.batch)) return eval_fail_shape(l, which, "it must be [batch]");
  return eval_to_lengths(l, which, 0, l->problem.seq_q);
}

static bool load_head_values(eval_loader *l, eval_file which) {
  if (!is_vector(&l->file[which], l->problem.heads_q)) return eval_fail_shape(l, which, "it must be [heads_q]");
  return eval_to_dtype(l, which, ATTN_F32);
}

/* A factor of each key or value; where only the other file is given, 1. */
static bool load_scale(eval_loader *l, eval_file which) {
  attn_problem *p = &l->problem;
  attn_strides *strides = which == EVAL_K_SCALE ? &p->k_scale_stride : &p->v_scale_stride;
  const bool packed = attn_uses(p, ATTN_USE_VARLEN);
  int64_t stride[3];
  if (which == EVAL_K_SCALE && eval_has(l, EVAL_SCORES)) return eval_fail(l, "--k-scale doesn't go with --scores");
  if (!eval_to_dtype(l, which, ATTN_F32) ||
      !broadcast_to(l, which, 3, (int64_t[]){packed ? 1 : p->batch, p->heads_kv, packed ? p->total_k : p->seq_k},
                    packed ? "[1, heads_kv, tokens]" : "[batch, heads_kv, seq_k]", stride))
    return false;
  *strides = (attn_strides){.b = stride[0], .h = stride[1], .s = stride[2]};
  const eval_file other = which == EVAL_K_SCALE ? EVAL_V_SCALE : EVAL_K_SCALE;
  if (eval_has(l, other)) return true;
  float *one = malloc(sizeof *one);
  if (!one) return eval_fail_with(l, BENCH_EXIT_INTERNAL, "no memory for a factor");
  *one = 1;
  l->file[other] = (npy_array){.type = NPY_F32, .count = 1, .data = one};
  return true;
}

/* ---- Lists of key blocks ---- */

/* Those of the two files from `counts` on. Kernels check them, too; the oracle and whoever counts pairs do not. */
static bool check_entries(eval_loader *l, eval_file counts, int64_t blocks) {
  const int32_t *count = l->file[counts].data, *entry = l->file[counts + 1].data;
  for (int64_t list = 0; list < l->file[counts].count; list++)
    for (int64_t n = 0; n < count[list]; n++)
      if (entry[list * blocks + n] < 0 || entry[list * blocks + n] >= blocks)
        return eval_fail(l, "%s %s: entry %lld of list %lld is %d; it must be in 0..%lld", eval_option(counts + 1),
                         l->options->path[counts + 1], (long long)n, (long long)list, (int)entry[list * blocks + n],
                         (long long)blocks - 1);
  return true;
}

static bool need_both(eval_loader *l, eval_file counts) {
  const eval_file entries = counts + 1, missing = eval_has(l, counts) ? entries : counts;
  if (eval_has(l, missing)) return true;
  return eval_fail(l, "%s needs %s: how many entries the lists have, and the lists",
                   eval_option(missing == entries ? counts : entries), eval_option(missing));
}

static bool load_key_list(eval_loader *l, eval_file counts) {
  attn_problem *p = &l->problem;
  const eval_file entries = counts + 1;
  const int64_t size[4] = {p->batch, p->heads_kv, (p->seq_q + p->block_queries - 1) / p->block_queries,
                           (p->seq_k + p->block_keys - 1) / p->block_keys};
  int64_t step[4], of_counts[3];
  if (!need_both(l, counts) ||
      !broadcast_to(l, entries, 4, size, "[batch, heads_kv, blocks of queries, blocks of keys]", step) ||
      !broadcast_to(l, counts, 3, size, "[batch, heads_kv, blocks of queries]", of_counts))
    return false;
  const int64_t lists = size[3] > 0 ? l->file[entries].count / size[3] : 0;
  if (step[2] != (size[2] == 1 ? 0 : size[3]) || (size[3] > 1 && step[3] != 1) || l->file[counts].count != lists)
    return eval_fail_shape(l, entries, "it must be that of the numbers of entries, with a column for each block of keys");
  const attn_strides n = {of_counts[0], of_counts[1], of_counts[2], 1}, entry = {step[0], step[1], step[2], 1};
  if (attn_lists_keys(p) && memcmp(&n, &p->kv_num_blocks_stride, sizeof n) != 0)
    return eval_fail_shape(l, counts, "it must be that of --kv-num-blocks");
  p->kv_num_blocks_stride = n;
  p->kv_indices_stride = entry;
  return eval_to_lengths(l, counts, 0, size[3]) && eval_to_lengths(l, entries, INT32_MIN, INT32_MAX) &&
         check_entries(l, counts, size[3]);
}

static bool load_key_lists(eval_loader *l) {
  static const struct {
    eval_file counts;
    uint32_t use;
  } kinds[] = {{EVAL_KV_NUM_BLOCKS, ATTN_USE_KEY_BLOCKS}, {EVAL_FULL_KV_NUM_BLOCKS, ATTN_USE_FULL_KEY_BLOCKS}};
  l->problem.block_queries = l->options->block_queries;
  l->problem.block_keys = l->options->block_keys;
  for (int i = 0; i < 2; i++) {
    if (!eval_has(l, kinds[i].counts) && !eval_has(l, kinds[i].counts + 1)) continue;
    if (!load_key_list(l, kinds[i].counts)) return false;
    l->problem.uses |= kinds[i].use;
  }
  return true;
}

static bool load_optional(eval_loader *l) {
  static const struct {
    eval_file which;
    bool (*load)(eval_loader *, eval_file);
    uint32_t uses;
  } files[] = {{EVAL_SCORE_WEIGHT, load_score_weight, ATTN_USE_SCORE_WEIGHT},
               {EVAL_K_SCALE, load_scale, ATTN_USE_KV_SCALES},
               {EVAL_V_SCALE, load_scale, ATTN_USE_KV_SCALES},
               {EVAL_KV_LEN, load_kv_len, 0},
               {EVAL_Q_LEN, load_q_len, ATTN_USE_Q_LEN},
               {EVAL_BIAS, load_pairs, ATTN_USE_BIAS},
               {EVAL_MASK, load_pairs, ATTN_USE_MASK},
               {EVAL_SCORES, load_pairs, 0},
               {EVAL_ALIBI, load_head_values, ATTN_USE_ALIBI},
               {EVAL_SINKS, load_head_values, ATTN_USE_SINKS}};
  for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
    if (!eval_has(l, files[i].which)) continue;
    if (!files[i].load(l, files[i].which)) return false;
    l->problem.uses |= files[i].uses;
  }
  return load_key_lists(l);
}

static bool load_given(eval_loader *l, const eval_output *output) {
  const eval_file which = output->expect;
  npy_array *array = &l->file[which];
  if (!eval_has(l, which)) return true;
  int64_t shape[NPY_MAX_DIMS];
  const attn_operand operand = attn_operand_of(&l->problem, (attn_operand_id)output->tensor);
  const int dims = eval_output_shape(l->input, &operand, shape);
  if (array->dims != dims || memcmp(array->shape, shape, (size_t)dims * sizeof *shape) != 0) {
    char text[EVAL_SHAPE_TEXT], wanted[EVAL_SHAPE_TEXT + 40];
    snprintf(wanted, sizeof wanted, "this problem's output has shape %s", eval_shape_text(shape, dims, text));
    return eval_fail_shape(l, which, wanted);
  }
  if (!eval_to_doubles(l, which)) return false;
  l->input->given[output->tensor] = array->data;
  array->data = NULL;
  return true;
}

static bool load_all_given(eval_loader *l) {
  bool fine = true;
  for (int i = 0; fine && i < EVAL_OUTPUTS; i++) fine = load_given(l, &eval_outputs[i]);
  return fine;
}

/* Outputs that are saved or compared. */
static uint32_t wanted_outputs(const eval_loader *l) {
  uint32_t uses = l->options->uses;
  for (int i = 0; i < EVAL_OUTPUTS; i++)
    if (eval_has(l, eval_outputs[i].expect)) uses |= eval_outputs[i].use;
  return uses;
}

/* ---- Together ---------------------------------------------------------------------------------------------------- */

static bool validate(eval_loader *l) {
  return attn_problem_validate(&l->problem) == ATTN_OK || eval_fail(l, "%s", attn_last_error());
}

/* Copies a file to its tensor. Both are dense and have the same order. */
static bool fill_tensor(eval_loader *l, eval_file which) {
  static const bench_tensor tensors[] = {
#define TENSOR(constant, option, tensor) tensor,
      EVAL_FILE_LIST(TENSOR)
#undef TENSOR
  };
  const bool rows = which == EVAL_KV_LEN && l->problem.uses & ATTN_USE_ROW_LEN;
  const bench_buffer *buffer = &l->input->tensors.buffers[rows ? BENCH_ROW_LEN : tensors[which]];
  const npy_array *array = &l->file[which];
  if (!array->data || !buffer->present || buffer->bytes == 0) return true;
  if (buffer->bytes > (size_t)array->count * buffer->element_bytes)
    return eval_fail_with(l, BENCH_EXIT_INTERNAL, "%s is smaller than its tensor", eval_option(which));
  memcpy(buffer->data, array->data, buffer->bytes);
  return true;
}

/* The tensors have guard zones, unlike the files. */
static bool fill_tensors(eval_loader *l) {
  if (!bench_tensors_create_empty(&l->problem, &l->input->tensors))
    return eval_fail_with(l, BENCH_EXIT_INTERNAL, "no memory for the problem's tensors");
  for (eval_file which = EVAL_Q; which < EVAL_EXPECT; which++)
    if (!fill_tensor(l, which)) return false;
  return true;
}

bool eval_load(const eval_options *options, eval_input *input) {
  *input = (eval_input){0};
  eval_loader loader = {.options = options, .input = input}, *l = &loader;
  bool fine = eval_read_files(l) && eval_load_format(l) && eval_load_shape(l) && validate(l) && load_dtypes(l) &&
              load_score(l) && load_position(l) && load_optional(l);
  l->problem.uses |= wanted_outputs(l);
  fine = fine && validate(l) && fill_tensors(l) && load_all_given(l);
  eval_free_files(l);
  if (!fine) eval_unload(input);
  return fine;
}

void eval_unload(eval_input *input) {
  bench_tensors_destroy(&input->tensors);
  for (int i = 0; i < BENCH_TENSORS; i++) free(input->given[i]);
  memset(input->given, 0, sizeof input->given);
}
