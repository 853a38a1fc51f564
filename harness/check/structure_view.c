/* SPDX-License-Identifier: MIT */
/* Views: parts of a case as problems of their own, by pointers and strides where possible, else by copies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "check/check.h"
#include "check/structure_private.h"
#include "kernels/common/memory/aligned.h"

static const void *shift(const void *data, int64_t elements, size_t bytes) {
  return data ? (const char *)data + elements * (int64_t)bytes : NULL;
}

static const void *shift_elements(const void *data, attn_dtype dtype, int64_t elements) {
  return data ? attn_element_at(data, dtype, elements) : NULL;
}

void *bench_view_allocate(bench_view *v, int64_t count, size_t bytes) {
  const size_t all = (size_t)count * bytes;
  void *memory = attn_aligned_alloc(64, all ? all : 1);
  if (!memory || v->owned_count == (int)(sizeof v->owned / sizeof *v->owned)) {
    attn_aligned_free(memory);
    v->out_of_memory = true;
    return NULL;
  }
  v->owned[v->owned_count++] = memory;
  return memset(memory, 0, all);
}

void bench_view_clear(bench_view *v) {
  for (int i = 0; i < v->owned_count; i++) attn_aligned_free(v->owned[i]);
  v->owned_count = 0;
}

/* ---- Parts ----------------------------------------------------------------------------------------------------------- */

/* Uses each alignment where it says where query 0 stands, and an offset only where none does: so all three are tested. */
static void align(bench_view *v, int64_t offset) {
  attn_problem *p = &v->problem;
  v->offset = (int32_t)offset;
  p->align = ATTN_ALIGN_OFFSET;
  if (offset == p->seq_k - p->seq_q && !attn_uses(p, ATTN_USE_ROW_LEN)) p->align = ATTN_ALIGN_BOTTOM_RIGHT;
  if (offset == 0) p->align = ATTN_ALIGN_TOP_LEFT;
}

/* Rows of keys of the sequence, with these strides, as [heads_kv][keys][dim]; keys that no row may see hold NaN. */
static const void *gather(bench_structure *s, const void *data, attn_dtype dtype, attn_strides from, int64_t dim,
                          attn_strides *stride) {
  const attn_problem *p = &s->tensors->problem;
  const attn_args *a = &s->tensors->args;
  const int64_t keys = s->seq.len_k;
  const int64_t row = attn_row_elements(dtype, dim), together = attn_dtype_of(dtype).values;
  const int64_t elements = p->heads_kv * keys * row;
  const attn_needed_keys needed = attn_keys_needed(p, a, &s->seq, s->seq.b);
  char *copy = bench_view_allocate(&s->dense, attn_elements_bytes(dtype, elements), 1);
  if (copy) memset(copy, bench_poison_of(dtype), (size_t)attn_elements_bytes(dtype, elements));
  for (int64_t n = 0; copy && n < p->heads_kv * KEY_PIECES; n++)
    for (int64_t j = needed.of[n % KEY_PIECES].begin, h = n / KEY_PIECES; j < needed.of[n % KEY_PIECES].end; j++) {
      const int64_t at = attn_key_offset(p, a, &s->seq, h * attn_group(p), j, &from);
      for (int64_t d = 0; d < dim; d += together)
        memcpy(copy + attn_elements_bytes(dtype, (h * keys + j) * row + d), attn_element_at(data, dtype, at + d * from.d),
               (size_t)attn_elements_bytes(dtype, 1));
    }
  *stride = (attn_strides){p->heads_kv * keys * row, keys * row, row, dim > 1};
  return copy;
}

/* Factors of the sequence's keys, or, where they are of channels, those of its heads in their place. */
static const float *gather_factors(bench_structure *s, const float *data, attn_strides from, attn_strides *stride) {
  if (!from.d) return gather(s, data, ATTN_F32, from, 1, stride);
  *stride = from;
  return data + attn_row_offset(&s->tensors->problem, &from, s->seq.b, 0, 0);
}

/* The sequence's lists of key blocks, of those that are full or of the others, but for entries behind its last key. */
static void gather_lists(bench_structure *s, bool full) {
  const attn_problem *p = &s->tensors->problem;
  const int64_t lists = ceil_div(s->seq.len_q, p->block_queries), blocks = ceil_div(s->seq.len_k, p->block_keys);
  int32_t *counts = bench_view_allocate(&s->dense, p->heads_kv * lists, sizeof *counts);
  int32_t *entries = bench_view_allocate(&s->dense, p->heads_kv * lists * blocks, sizeof *entries);
  s->dense.problem.kv_num_blocks_stride = (attn_strides){0, lists, 1, 1};
  s->dense.problem.kv_indices_stride = (attn_strides){0, lists * blocks, blocks, 1};
  *(full ? &s->dense.args.full_kv_num_blocks : &s->dense.args.kv_num_blocks) = counts;
  *(full ? &s->dense.args.full_kv_indices : &s->dense.args.kv_indices) = entries;
  for (int64_t n = 0; counts && entries && n < p->heads_kv * lists; n++) {
    const int64_t h = n / lists * attn_group(p), i = n % lists * p->block_queries;
    const attn_key_list list = attn_key_list_of(p, &s->tensors->args, full, s->seq.b, h, i);
    memset(entries + n * blocks, 0xff, (size_t)blocks * sizeof *entries);
    for (int64_t k = 0; k < list.count; k++)
      if (list.at[k * list.step] < blocks) entries[n * blocks + counts[n]++] = list.at[k * list.step];
  }
}

bool bench_view_gather_keys(bench_structure *s) {
  const attn_problem *whole = &s->tensors->problem;
  const attn_args *given = &s->tensors->args;
  attn_problem *p = &s->dense.problem;
  attn_args *a = &s->dense.args;
  if (given->k_scale) a->k_scale = gather_factors(s, given->k_scale, whole->k_scale_stride, &p->k_scale_stride);
  if (given->v_scale) a->v_scale = gather_factors(s, given->v_scale, whole->v_scale_stride, &p->v_scale_stride);
  if (attn_uses(whole, ATTN_USE_KEY_BLOCKS)) gather_lists(s, false);
  if (attn_uses(whole, ATTN_USE_FULL_KEY_BLOCKS)) gather_lists(s, true);
  if (!attn_uses(whole, ATTN_USE_PAGES)) return !s->dense.out_of_memory;
  a->k = gather(s, given->k, whole->dtype_kv, whole->k_stride, whole->dim_qk, &p->k_stride);
  if (given->v) a->v = gather(s, given->v, whole->dtype_kv, whole->v_stride, whole->dim_v, &p->v_stride);
  return !s->dense.out_of_memory;
}

/* Moves lists of key blocks and their numbers of entries. */
static void shift_lists(attn_args *a, int64_t counts, int64_t entries) {
  a->kv_num_blocks = shift(a->kv_num_blocks, counts, sizeof(int32_t));
  a->full_kv_num_blocks = shift(a->full_kv_num_blocks, counts, sizeof(int32_t));
  a->kv_indices = shift(a->kv_indices, entries, sizeof(int32_t));
  a->full_kv_indices = shift(a->full_kv_indices, entries, sizeof(int32_t));
}

/* The pointers of one sequence. The view's problem has the sequence's own lengths, so lengths of sequences are no input
 * any more. */
static attn_args args_of_sequence(const bench_structure *s) {
  const attn_problem *whole = &s->tensors->problem;
  const int64_t b = s->seq.b;
  attn_args a = s->tensors->args;
  a.q = shift_elements(a.q, whole->dtype_q, attn_q_offset(whole, &s->seq, b, 0, 0));
  if (attn_uses(whole, ATTN_USE_PAGES)) {
    a.k = s->dense.args.k;
    a.v = s->dense.args.v;
  } else {
    const attn_key_run run = attn_key_run_at(whole, &a, &s->seq, 0, 0);
    a.k = shift_elements(a.k, whole->dtype_kv, run.k);
    a.v = shift_elements(a.v, whole->dtype_kv, run.v);
  }
  a.k_scale = s->dense.args.k_scale;
  a.v_scale = s->dense.args.v_scale;
  a.bias = shift(a.bias, b * whole->bias_stride.b, sizeof(float));
  a.mask = shift(a.mask, b * whole->mask_stride.b, 1);
  a.scores = shift(a.scores, b * whole->scores_stride.b, sizeof(float));
  a.row_len = shift(a.row_len, b * whole->seq_q, sizeof(int32_t));
  a.kv_num_blocks = s->dense.args.kv_num_blocks;
  a.kv_indices = s->dense.args.kv_indices;
  a.full_kv_num_blocks = s->dense.args.full_kv_num_blocks;
  a.full_kv_indices = s->dense.args.full_kv_indices;
  return a;
}

bench_view bench_view_of_sequence(const bench_structure *s) {
  bench_view v = {.problem = s->tensors->problem, .args = args_of_sequence(s)};
  v.problem.batch = 1;
  v.problem.seq_q = s->seq.len_q;
  v.problem.seq_k = s->seq.len_k;
  if (attn_uses(&v.problem, ATTN_USE_PAGES)) {
    v.problem.k_stride = s->dense.problem.k_stride;
    v.problem.v_stride = s->dense.problem.v_stride;
  }
  v.problem.k_scale_stride = s->dense.problem.k_scale_stride;
  v.problem.v_scale_stride = s->dense.problem.v_scale_stride;
  v.problem.kv_num_blocks_stride = s->dense.problem.kv_num_blocks_stride;
  v.problem.kv_indices_stride = s->dense.problem.kv_indices_stride;
  v.problem.uses &= ~(uint32_t)(ATTN_USE_KV_LEN | ATTN_USE_Q_LEN | ATTN_USE_VARLEN | ATTN_USE_PAGES);
  if (attn_is_output(&v.problem, ATTN_OPERAND_LSE)) v.problem.uses |= ATTN_USE_LSE;
  align(&v, s->seq.offset);
  return v;
}

/* Moves bias, mask and scores to begin at a head, row and key. */
static void shift_pairs(bench_view *v, int64_t head, int64_t row, int64_t key) {
  const attn_problem *p = &v->problem;
  attn_args *a = &v->args;
  a->bias = shift(a->bias, attn_score_offset(&p->bias_stride, 0, head, row, key), sizeof(float));
  a->mask = shift(a->mask, attn_score_offset(&p->mask_stride, 0, head, row, key), 1);
  a->scores = shift(a->scores, attn_score_offset(&p->scores_stride, 0, head, row, key), sizeof(float));
}

bench_view bench_view_of_kv_head(const bench_structure *s) {
  bench_view view = bench_view_of_sequence(s);
  attn_problem *p = &view.problem;
  attn_args *a = &view.args;
  const int64_t kv_head = bench_structure_pick(s, BENCH_PICK_HEAD, p->heads_kv);
  const int64_t group = attn_group(p), h = kv_head * group;
  a->q = shift_elements(a->q, p->dtype_q, h * p->q_stride.h);
  a->k = shift_elements(a->k, p->dtype_kv, kv_head * p->k_stride.h);
  a->v = shift_elements(a->v, p->dtype_kv, kv_head * p->v_stride.h);
  a->k_scale = shift(a->k_scale, kv_head * p->k_scale_stride.h, sizeof(float));
  a->v_scale = shift(a->v_scale, kv_head * p->v_scale_stride.h, sizeof(float));
  a->score_weight = shift(a->score_weight, h * p->score_weight_stride_h, sizeof(float));
  a->alibi_slopes = shift(a->alibi_slopes, h, sizeof(float));
  a->sinks = shift(a->sinks, h, sizeof(float));
  shift_pairs(&view, h, 0, 0);
  shift_lists(a, kv_head * p->kv_num_blocks_stride.h, kv_head * p->kv_indices_stride.h);
  p->kv_num_blocks_stride.h = p->kv_indices_stride.h = 0; /* tests may repeat the head */
  p->heads_q = group;
  p->heads_kv = 1;
  view.head = h;
  return view;
}

/* A bool mask in place of all that `sees` looks at. */
static void select_by_mask(bench_view *v, bool (*sees)(const bench_view *v, int64_t h, int64_t i, int64_t j)) {
  attn_problem *p = &v->problem;
  uint8_t *mask = bench_view_allocate(v, p->heads_q * p->seq_q * p->seq_k, 1), *to = mask;
  for (int64_t h = 0; mask && h < p->heads_q; h++)
    for (int64_t i = 0; i < p->seq_q; i++)
      for (int64_t j = 0; j < p->seq_k; j++) *to++ = sees(v, h, i, j);
  v->args.mask = mask;
  p->mask_stride = (attn_score_strides){0, p->seq_q * p->seq_k, p->seq_k, 1};
  p->mask_keys = 0;
  p->uses = (p->uses & ~(uint32_t)(ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS)) | ATTN_USE_MASK;
}

/* Whether lists and mask leave the key to the row. */
static bool lists_select(const bench_view *v, int64_t h, int64_t i, int64_t j) {
  attn_problem p = v->problem;
  p.uses &= ~(uint32_t)ATTN_USE_BIAS;
  return attn_key_selected(&p, &v->args, 0, h, i, j);
}

/* A mask of all keys instead of lists, whose blocks would begin at other rows and keys, or of a mask of the newest keys. */
static void forget_lists(bench_view *v) {
  if (attn_has_block_kinds(&v->problem)) select_by_mask(v, lists_select);
}

void bench_view_keep_rows(bench_view *v, int64_t first, int64_t count) {
  attn_problem *p = &v->problem;
  forget_lists(v);
  v->args.q = shift_elements(v->args.q, p->dtype_q, first * p->q_stride.s);
  v->args.row_len = shift(v->args.row_len, first, sizeof(int32_t));
  shift_pairs(v, 0, first, 0);
  p->seq_q = count;
  v->row += first;
  align(v, v->offset + first);
}

/* Lengths of rows count from the first key that is kept. */
static void cut_row_lengths(bench_view *v, int64_t first) {
  const attn_problem *p = &v->problem;
  const int32_t *old = v->args.row_len;
  if (!attn_uses(p, ATTN_USE_ROW_LEN)) return;
  int32_t *length = bench_view_allocate(v, p->seq_q, sizeof *length);
  for (int64_t i = 0; length && i < p->seq_q; i++) length[i] = (int32_t)min64(max64(old[i] - first, 0), p->seq_k);
  v->args.row_len = length;
}

/* First keys and piece, once the first key is key `first`; a piece that ends before it has no keys. */
static void cut_piece(attn_problem *p, int64_t first) {
  p->window_first = max64(p->window_first - first, 0);
  p->key_begin = max64(p->key_begin - first, 0);
  if (p->key_end == 0) return;
  const bool none = p->key_end <= first;
  p->key_end = none ? 1 : p->key_end - first;
  if (none) p->key_begin = 1;
}

void bench_view_keep_keys(bench_view *v, int64_t first, int64_t end, int64_t step) {
  attn_problem *p = &v->problem;
  forget_lists(v);
  v->args.k = shift_elements(v->args.k, p->dtype_kv, first * p->k_stride.s);
  v->args.v = shift_elements(v->args.v, p->dtype_kv, first * p->v_stride.s);
  v->args.k_scale = shift(v->args.k_scale, first * p->k_scale_stride.s, sizeof(float));
  v->args.v_scale = shift(v->args.v_scale, first * p->v_scale_stride.s, sizeof(float));
  shift_pairs(v, 0, 0, first);
  p->k_stride.s *= step;
  p->v_stride.s *= step;
  p->k_scale_stride.s *= step;
  p->v_scale_stride.s *= step;
  p->bias_stride.k *= step;
  p->mask_stride.k *= step;
  p->scores_stride.k *= step;
  p->seq_k = (end - first + step - 1) / step;
  cut_row_lengths(v, first);
  cut_piece(p, first);
  p->shared_prefix = 0; /* a view has one sequence, which shares its keys with none */
  align(v, v->offset - first);
}

bool bench_view_is_positional(const bench_view *v) {
  return v->problem.window_left >= 0 || v->problem.window_right >= 0 || v->problem.key_begin > 0 || v->problem.key_end > 0 ||
         attn_uses(&v->problem, ATTN_USE_ALIBI | ATTN_USE_ROW_LEN) || attn_has_block_kinds(&v->problem);
}

/* ---- Copies ---------------------------------------------------------------------------------------------------------- */

/* An array as a dense copy [heads][rows][columns]. */
typedef struct array {
  int64_t heads, rows, columns;
  int64_t stride[3];
  size_t bytes; /* bytes of an element */
} array;

/* Keys are rows of K and V, and columns of bias, mask and scores. */
static const void *copy_array(bench_view *v, const void *data, array a, const int64_t *row_order,
                              const int64_t *column_order) {
  char *copy = bench_view_allocate(v, a.heads * a.rows * a.columns, a.bytes), *to = copy;
  for (int64_t h = 0; copy && h < a.heads; h++)
    for (int64_t i = 0; i < a.rows; i++)
      for (int64_t j = 0; j < a.columns; j++, to += a.bytes) {
        const int64_t row = row_order ? row_order[i] : i, column = column_order ? column_order[j] : j;
        memcpy(to, shift(data, h * a.stride[0] + row * a.stride[1] + column * a.stride[2], a.bytes), a.bytes);
      }
  return copy;
}

static const void *copy_rows(bench_view *v, const void *data, attn_strides *stride, int64_t dim, const int64_t *order) {
  const attn_problem *p = &v->problem;
  const int64_t row = attn_row_elements(p->dtype_kv, dim), together = attn_dtype_of(p->dtype_kv).values;
  const array a = {p->heads_kv, /* blocks are copied as elements are */
                   p->seq_k,
                   row / together,
                   {stride->h / together, stride->s / together, stride->d},
                   (size_t)attn_elements_bytes(p->dtype_kv, 1)};
  *stride = (attn_strides){p->heads_kv * p->seq_k * row, p->seq_k * row, row, 1};
  return copy_array(v, data, a, order, NULL);
}

static const void *copy_scales(bench_view *v, const float *data, attn_strides *stride, const int64_t *order) {
  const attn_problem *p = &v->problem;
  const array a = {p->heads_kv, p->seq_k, 1, {stride->h, stride->s, 1}, sizeof *data};
  if (stride->d) return data; /* the same for all keys */
  *stride = (attn_strides){p->heads_kv * p->seq_k, p->seq_k, 1, 0};
  return copy_array(v, data, a, order, NULL);
}

static const void *copy_pairs(bench_view *v, const void *data, attn_score_strides *stride, size_t bytes,
                              const int64_t *order) {
  const attn_problem *p = &v->problem;
  const array a = {p->heads_q, p->seq_q, p->seq_k, {stride->h, stride->q, stride->k}, bytes};
  *stride = (attn_score_strides){0, p->seq_q * p->seq_k, p->seq_k, 1};
  return copy_array(v, data, a, NULL, order);
}

void bench_view_copy_keys(bench_view *v, const int64_t *order) {
  attn_problem *p = &v->problem;
  attn_args *a = &v->args;
  if (p->score == ATTN_SCORE_PRECOMPUTED)
    a->scores = copy_pairs(v, a->scores, &p->scores_stride, sizeof(float), order);
  else
    a->k = copy_rows(v, a->k, &p->k_stride, p->dim_qk, order);
  a->v = copy_rows(v, a->v, &p->v_stride, p->dim_v, order);
  if (a->k_scale) a->k_scale = copy_scales(v, a->k_scale, &p->k_scale_stride, order);
  if (a->v_scale) a->v_scale = copy_scales(v, a->v_scale, &p->v_scale_stride, order);
  if (attn_uses(p, ATTN_USE_BIAS)) a->bias = copy_pairs(v, a->bias, &p->bias_stride, sizeof(float), order);
  if (attn_uses(p, ATTN_USE_MASK) && !attn_masks_newest(p)) /* or there is no order: bench_view_forget_positions() */
    a->mask = copy_pairs(v, a->mask, &p->mask_stride, 1, order);
}

/* ---- Which rows see which keys --------------------------------------------------------------------------------------- */

bool bench_view_sees_but_for_bias(const bench_view *v, int64_t h, int64_t i, int64_t j) {
  attn_problem p = v->problem;
  attn_args args = v->args;
  args.offsets = &v->offset;
  p.uses &= ~(uint32_t)ATTN_USE_BIAS;
  const attn_sequence seq = attn_sequence_of(&p, &args, 0);
  const attn_key_range keys = attn_allowed_keys(&p, &args, &seq, 0, i);
  return j >= keys.begin && j < keys.end && attn_key_selected(&p, &args, 0, h, i, j) &&
         !attn_between_windows(&p, &seq, i, j);
}

bool bench_view_sees(const bench_view *v, int64_t h, int64_t i, int64_t j) {
  return bench_view_sees_but_for_bias(v, h, i, j) && attn_key_selected(&v->problem, &v->args, 0, h, i, j);
}

void bench_view_forget_positions(bench_view *v) {
  attn_problem *p = &v->problem;
  select_by_mask(v, bench_view_sees_but_for_bias);
  p->uses &= ~(uint32_t)ATTN_USE_ROW_LEN;
  p->window_left = p->window_right = -1;
  p->window_first = p->key_begin = p->key_end = 0;
}

int64_t bench_structure_pick(const bench_structure *s, int use, int64_t count) {
  return bench_value_below(s->seed, BENCH_STREAM_STRUCTURE, (uint64_t)use, count);
}

/* ---- Running --------------------------------------------------------------------------------------------------------- */

enum { POISON = 0xff };

static void *allocate_poisoned(bench_view *v, int64_t count, size_t bytes) {
  void *memory = bench_view_allocate(v, count, bytes);
  return memory ? memset(memory, POISON, (size_t)count * bytes) : NULL;
}

static bool allocate_outputs(bench_view *v) {
  attn_problem *p = &v->problem;
  for (const bench_output *output = bench_outputs_of(p); output->right; output++) {
    const attn_operand_id which = (attn_operand_id)output->tensor;
    const int64_t count = attn_operand_set_dense(p, which);
    attn_operand_point(p, which, &v->args, allocate_poisoned(v, count, attn_operand_of(p, which).element_bytes));
  }
  return !v->out_of_memory;
}

attn_status bench_structure_run(const bench_structure *s, const attn_problem *problem, const attn_args *args,
                                const attn_options *options) {
  attn_plan *plan = NULL;
  const attn_args used = bench_used_args(problem, args);
  attn_status status = s->subject->create_plan(s->subject->context, problem, options, &plan);
  if (status == ATTN_OK) status = bench_run_once(plan, &used);
  attn_plan_destroy(plan);
  return status;
}

bench_outcome bench_view_run(bench_structure *s, bench_view *v) {
  if (v->out_of_memory || !allocate_outputs(v)) return bench_outcome_of(s, BENCH_CANNOT_RUN, "out of memory");
  v->args.offsets = &v->offset;
  const attn_status status = bench_structure_run(s, &v->problem, &v->args, &ATTN_STRUCT(attn_options, .threads = 1));
  if (status == ATTN_OK) return BENCH_HOLDS;
  if (status == ATTN_UNSUPPORTED) return BENCH_NOT_APPLICABLE;
  return bench_outcome_of(s, BENCH_CANNOT_RUN, "%s", status == ATTN_OUT_OF_MEMORY ? "out of memory" : attn_last_error());
}

bench_outcome bench_view_check(bench_structure *s, bench_view *view, bench_likeness likeness, const char *what) {
  bench_outcome outcome = bench_view_run(s, view);
  if (outcome == BENCH_HOLDS) outcome = bench_view_compare(s, view, likeness, what);
  bench_view_clear(view);
  return outcome;
}

/* ---- Values ---------------------------------------------------------------------------------------------------------- */

/* One element of an output: its head and row in the case's sequence, and its column. */
typedef struct output_place {
  const bench_output *output;
  int64_t h, i, d;
} output_place;

static attn_operand operand_of(const attn_problem *p, output_place at) {
  return attn_operand_of(p, (attn_operand_id)at.output->tensor);
}

static bench_expected_row row_of_view(const bench_view *v, output_place at) {
  return (bench_expected_row){.h = at.h - v->head, .i = at.i - v->row};
}

static double view_value(const bench_view *v, output_place at) {
  const attn_operand operand = operand_of(&v->problem, at);
  const bench_expected_row row = row_of_view(v, at);
  return bench_output_value(&v->problem, &v->args, &operand, &row, at.d);
}

static double case_value(const bench_structure *s, output_place at) {
  const attn_operand operand = operand_of(&s->tensors->problem, at);
  const bench_expected_row row = {.b = s->seq.b, .h = at.h, .i = at.i};
  return bench_output_value(&s->tensors->problem, &s->tensors->args, &operand, &row, at.d);
}

static bench_outcome broken(bench_structure *s, const char *what, output_place at, double got, double expected) {
  const attn_operand operand = operand_of(&s->tensors->problem, at);
  char column[32] = "";
  if (!operand.single) snprintf(column, sizeof column, ", column %lld", (long long)at.d);
  return bench_outcome_of(s, BENCH_BROKEN, "%s[batch %lld, head %lld, query %lld%s] is %.9g %s, should be %.9g",
                          operand.name, (long long)s->seq.b, (long long)at.h, (long long)at.i, column, got, what, expected);
}

/* ---- Bits ------------------------------------------------------------------------------------------------------------ */

static bool same_element(const bench_view *v, const bench_structure *s, output_place at) {
  const attn_operand own = operand_of(&v->problem, at), whole = operand_of(&s->tensors->problem, at);
  const bench_expected_row row = row_of_view(v, at), same = {.b = s->seq.b, .h = at.h, .i = at.i};
  const int64_t bytes = (int64_t)own.element_bytes;
  const char *mine = attn_operand_at(&own, &v->args), *theirs = attn_operand_at(&whole, &s->tensors->args);
  return !memcmp(mine + bytes * bench_output_place(&v->problem, &v->args, &own, &row, at.d),
                 theirs + bytes * bench_output_place(&s->tensors->problem, &s->tensors->args, &whole, &same, at.d),
                 own.element_bytes);
}

/* Alike in every bit, or, where that is asked for, both zeros. */
static bool is_alike(const bench_view *v, const bench_structure *s, bench_likeness likeness, output_place at) {
  return same_element(v, s, at) || (likeness == BENCH_SAME_VALUES && view_value(v, at) == 0 && case_value(s, at) == 0);
}

static bench_outcome same_row(bench_structure *s, const bench_view *v, bench_likeness likeness, int64_t h, int64_t i,
                              const char *what) {
  for (const bench_output *output = bench_outputs_of(&v->problem); output->right; output++) {
    output_place at = {output, v->head + h, v->row + i, 0};
    const attn_operand whole = operand_of(&s->tensors->problem, at);
    for (; whole.present && at.d < whole.extent[3]; at.d++)
      if (!is_alike(v, s, likeness, at)) return broken(s, what, at, view_value(v, at), case_value(s, at));
  }
  return BENCH_HOLDS;
}

bench_likeness bench_likeness_of(const bench_structure *s, const bench_view *view) {
  const attn_problem *whole = &s->tensors->problem;
  const bool same_size = view->problem.seq_q == whole->seq_q && view->problem.seq_k == whole->seq_k;
  return s->subject->rows_stand_alone || same_size ? BENCH_SAME_BITS : BENCH_WITHIN_LIMITS;
}

bench_outcome bench_view_compare(bench_structure *s, const bench_view *v, bench_likeness likeness, const char *what) {
  if (likeness > BENCH_SAME_VALUES) return bench_view_within_limits(s, v, NULL, likeness == BENCH_MERGED, what);
  bench_outcome outcome = BENCH_HOLDS;
  for (int64_t h = 0; h < v->problem.heads_q && outcome == BENCH_HOLDS; h++)
    for (int64_t i = 0; i < v->problem.seq_q && outcome == BENCH_HOLDS; i++) outcome = same_row(s, v, likeness, h, i, what);
  return outcome;
}

/* ---- Limits ---------------------------------------------------------------------------------------------------------- */

/* A merged answer has the error limit of a kernel whose weights have one more relative error: the rounding of a part's LSE,
 * whose magnitude is at most S + ln n. */
static bench_row_limits limits_of(const bench_structure *s, const attn_oracle_row *facts, bool merged) {
  const bench_expected *e = s->expected;
  attn_numerics numerics = *s->subject->numerics;
  const bench_row_limits limits = bench_limits_of_row(&e->problem, &numerics, facts, e->zero_mean);
  if (!merged || !facts->allowed) return limits;
  numerics.exp_error += limits.lse + 0x1p-22 * (facts->abs_sum + log((double)facts->allowed));
  return bench_limits_of_row(&e->problem, &numerics, facts, e->zero_mean);
}

/* Each of the two answers may be off by its limit. Where the case's own output type overflowed, only the view can tell; an
 * output that the case does not have is what the oracle says. */
static bench_outcome near_output(bench_structure *s, const bench_view *v, int64_t n, const bench_output *output,
                                 const bench_row_limits *limits, const char *what) {
  const bench_expected_row *row = &s->expected->row[n];
  output_place at = {output, row->h, row->i, 0};
  const attn_operand own = operand_of(&v->problem, at), whole = operand_of(&s->tensors->problem, at);
  for (; own.present && at.d < own.extent[3]; at.d++) {
    bench_right right = output->right(s->expected, n, at.d);
    const double got = view_value(v, at);
    if (whole.present) right.value = case_value(s, at);
    if (isinf(right.value) && own.dtype != whole.dtype) continue;
    if (!(output->ratio(limits, right, got) <= 2)) return broken(s, what, at, got, right.value);
  }
  return BENCH_HOLDS;
}

static bench_outcome near_row(bench_structure *s, const bench_view *v, int64_t n, bool merged, const char *what) {
  const bench_row_limits limits = limits_of(s, &s->expected->row[n].facts, merged);
  bench_outcome outcome = BENCH_HOLDS;
  for (const bench_output *output = bench_outputs_of(&v->problem); output->right && outcome == BENCH_HOLDS; output++)
    outcome = near_output(s, v, n, output, &limits, what);
  return outcome;
}

bench_outcome bench_view_within_limits(bench_structure *s, const bench_view *v, const unsigned char *leave_out, bool merged,
                                       const char *what) {
  bench_outcome outcome = BENCH_HOLDS;
  for (int64_t n = 0; n < s->expected->rows && outcome == BENCH_HOLDS; n++) {
    const bench_expected_row *row = &s->expected->row[n];
    const int64_t h = row->h - v->head, i = row->i - v->row;
    if (row->b != s->seq.b || h < 0 || h >= v->problem.heads_q || i < 0 || i >= v->problem.seq_q) continue;
    if (!leave_out || !leave_out[h * v->problem.seq_q + i]) outcome = near_row(s, v, n, merged, what);
  }
  return outcome;
}
