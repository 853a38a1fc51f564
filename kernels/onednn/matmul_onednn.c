/* SPDX-License-Identifier: MIT */
/* matmul_onednn: attention by oneDNN's primitives. Its matmul computes S = Q K^T and O = P V on blocks of rows and keys, and
 * its softmax computes P = softmax(S) on whole rows. Between them our code (kernels/library/score_steps.h) applies softcap,
 * bias, ALiBi and masks; the score of a masked key becomes -inf, which softmax turns into 0.
 *
 * The rules for every kernel hold here too, although the arithmetic is oneDNN's:
 *
 *   Bits: all products of a plan have one shape, filled up with zero queries and zero keys. So oneDNN runs the same code for
 *   every row, and a row's bits do not depend on the other rows (matmul_layout.h has the reason for the sizes).
 *
 *   Masks select: problems with masks read a copy of V, in which a row with NaN or infinity is replaced by zeros, because
 *   0 x NaN would spoil every row. Query rows that may see such a key are computed again on their own (attn_exact_row).
 *   Without masks, whole blocks of K and V are read in place.
 *
 * oneDNN allocates small objects while it runs. If that fails, the rows of the task are computed without oneDNN. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/rejects.h"
#include "matmul_layout.h"
#include "onednn.h"

/* Where a block of keys is read: in place, or packed. */
enum { IN_PLACE, PACKED, PLACES };

typedef struct matmul_state {
  matmul_layout layout;
  onednn_library library;
  onednn_operation scores[PLACES], sums[PLACES], softmax, narrow;
} matmul_state;

/* Plan data. */
typedef struct matmul_plan {
  const attn_score_steps *steps;
  matmul_state *state; /* made by open() */
} matmul_plan;
_Static_assert(sizeof(matmul_plan) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

static const matmul_plan *plan_in(const attn_schedule *schedule) { return (const void *)schedule->own; }

/* ---- Operations ---- */

static dnnl_data_type_t onednn_type(attn_dtype dtype) {
  switch (dtype) {
    case ATTN_F16: return dnnl_f16;
    case ATTN_BF16: return dnnl_bf16;
    case ATTN_F32:
    case ATTN_F8_E4M3: /* refused */
    case ATTN_F8_E5M2:
    case ATTN_I8:
    case ATTN_Q8_0:
    case ATTN_Q4_0: break;
  }
  return dnnl_f32;
}

static int64_t k_row(const attn_problem *p, int place) { return place == IN_PLACE ? p->k_stride.s : p->dim_qk; }
static int64_t v_row(const attn_problem *p, int place) { return place == IN_PLACE ? p->v_stride.s : p->dim_v; }

static bool reads(const matmul_layout *m, int place) {
  return place == IN_PLACE ? m->first_packed > 0 : m->first_packed < m->key_blocks;
}

static onednn_matrix scores_matrix(const matmul_layout *m, int64_t keys) {
  return (onednn_matrix){dnnl_f32, m->rows, keys, m->score_stride, 1};
}

/* The P that is multiplied with V: in place of the scores, or a copy of one block in the 16-bit type of V. */
static onednn_matrix p_matrix(const attn_problem *p, const matmul_layout *m) {
  if (p->dtype_kv == ATTN_F32) return scores_matrix(m, m->keys);
  return (onednn_matrix){onednn_type(p->dtype_kv), m->rows, m->keys, m->keys, 1};
}

static dnnl_status_t open_scores(matmul_state *s, const attn_problem *p, int place, bool create) {
  const matmul_layout *m = &s->layout;
  const dnnl_data_type_t type = onednn_type(p->dtype_kv);
  const onednn_product product = {
      .a = {type, m->rows, p->dim_qk, m->q_stride, 1},
      .b = {type, p->dim_qk, m->keys, 1, k_row(p, place)},
      .c = scores_matrix(m, m->keys),
  };
  if (p->score == ATTN_SCORE_PRECOMPUTED || !reads(m, place)) return dnnl_success;
  return attn_onednn_open_product(&s->library, &product, create, &s->scores[place]);
}

static dnnl_status_t open_sums(matmul_state *s, const attn_problem *p, int place, bool create) {
  const matmul_layout *m = &s->layout;
  const onednn_product product = {
      .a = p_matrix(p, m),
      .b = {onednn_type(p->dtype_kv), m->keys, p->dim_v, v_row(p, place), 1},
      .c = {dnnl_f32, m->rows, p->dim_v, m->acc_stride, 1},
      .accumulate = true,
  };
  if (!reads(m, place)) return dnnl_success;
  return attn_onednn_open_product(&s->library, &product, create, &s->sums[place]);
}

static dnnl_status_t open_softmax(matmul_state *s, bool create) {
  const onednn_matrix rows = scores_matrix(&s->layout, s->layout.score_stride);
  return s->layout.key_blocks ? attn_onednn_open_softmax(&s->library, &rows, create, &s->softmax) : dnnl_success;
}

static dnnl_status_t open_narrow(matmul_state *s, const attn_problem *p, bool create) {
  const onednn_matrix from = scores_matrix(&s->layout, s->layout.keys), to = p_matrix(p, &s->layout);
  if (p->dtype_kv == ATTN_F32 || !s->layout.key_blocks) return dnnl_success;
  return attn_onednn_open_conversion(&s->library, &from, &to, create, &s->narrow);
}

static void close_operations(matmul_state *s) {
  for (int place = 0; place < PLACES; place++) {
    attn_onednn_close_operation(&s->scores[place]);
    attn_onednn_close_operation(&s->sums[place]);
  }
  attn_onednn_close_operation(&s->softmax);
  attn_onednn_close_operation(&s->narrow);
  attn_onednn_close(&s->library);
}

/* Describes all operations that the problem needs; with `create`, oneDNN also generates their code. Returns NULL, or the
 * name of an operation that oneDNN does not have, with its answer in *status. The layout is filled in, the library open. */
static const char *ask_for_operations(matmul_state *s, const attn_problem *p, bool create, dnnl_status_t *status) {
  for (int place = 0; place < PLACES; place++) {
    if ((*status = open_scores(s, p, place, create)) != dnnl_success) return "product of queries and keys";
    if ((*status = open_sums(s, p, place, create)) != dnnl_success) return "product of probabilities and values";
  }
  if ((*status = open_softmax(s, create)) != dnnl_success) return "softmax";
  if ((*status = open_narrow(s, p, create)) != dnnl_success) return "conversion of probabilities";
  return NULL;
}

/* Also opens the library. Leaves nothing behind if an operation is missing. */
static const char *open_operations(matmul_state *s, const attn_problem *p, bool create, dnnl_status_t *status) {
  if ((*status = attn_onednn_open(&s->library)) != dnnl_success) return "CPU engine";
  const int threads = attn_onednn_hold_threads(&s->library);
  const char *missing = ask_for_operations(s, p, create, status);
  attn_onednn_restore_threads(&s->library, threads);
  if (missing) close_operations(s);
  return missing;
}

/* ---- rejects, plan, open, close ---- */

static void say_what_is_missing(const attn_problem *p, dnnl_status_t status, const char *what, char *reason, size_t bytes) {
  static const char *const types[] = {[ATTN_F32] = "float32", [ATTN_F16] = "float16", [ATTN_BF16] = "bfloat16"};
  attn_onednn_identify();
  snprintf(reason, bytes, "%s has no %s %s here: it answers '%s'", attn_onednn_text, types[p->dtype_kv], what,
           dnnl_status2str(status));
}

static const char *rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  if (p->score == ATTN_SCORE_ADDITIVE || p->score == ATTN_SCORE_GAUSSIAN)
    return "oneDNN multiplies matrices, and additive and gaussian scores are no products of matrices";
  if (!attn_dtype_is_float(p->dtype_kv)) return "it multiplies k and v of 16 or 32 bits; here they have 8 or fewer";
  if (p->score == ATTN_SCORE_DOT && p->dtype_q != p->dtype_kv)
    return "oneDNN multiplies matrices of one type, and q is float32 where k is not; store both alike";
  if (attn_uses(p, ATTN_USE_KV_SCALES)) return "it multiplies k and v as they are stored, without ATTN_USE_KV_SCALES";
  if (attn_uses(p, ATTN_USE_PAGES)) return "it reads all keys of a sequence at one stride, not in pages";
  if (attn_uses(p, ATTN_USE_STATE)) return takes_no_state(p, buffer, buffer_bytes);
  matmul_state state = {.layout = {.rows = 0}};
  dnnl_status_t status;
  if (!matmul_layout_of(p, &state.layout) || !attn_onednn_can_create()) return NULL; /* plan() and open() say so */
  const char *missing = open_operations(&state, p, false, &status);
  if (!missing) close_operations(&state);
  if (!missing || status == dnnl_out_of_memory) return NULL; /* open() says so */
  say_what_is_missing(p, status, missing, buffer, buffer_bytes);
  return buffer;
}

static bool matmul_onednn_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  matmul_layout m;
  if (!matmul_layout_of(p, &m)) return false;
  ((matmul_plan *)(void *)schedule->own)->steps = machine->steps;
  schedule->phases = reads(&m, PACKED) ? 2 : 1;
  schedule->items[0] = m.key_blocks - m.first_packed;
  schedule->items[schedule->phases - 1] = m.row_blocks * m.head_blocks;
  schedule->row_block = m.rows;
  schedule->key_block = m.keys;
  schedule->unit_bytes = (size_t)m.unit_bytes;
  schedule->scratch_bytes = (size_t)m.work_at;
  return true;
}

static size_t most_scratch(const matmul_state *s) {
  const onednn_operation *const all[] = {&s->scores[IN_PLACE], &s->scores[PACKED], &s->sums[IN_PLACE],
                                         &s->sums[PACKED],     &s->softmax,        &s->narrow};
  size_t most = 0;
  for (size_t i = 0; i < sizeof all / sizeof *all; i++)
    if (all[i]->scratch_bytes > most) most = all[i]->scratch_bytes;
  return most;
}

static attn_status open(attn_schedule *schedule, char *reason, size_t reason_bytes) {
  const attn_problem *p = &schedule->problem;
  matmul_state *s = calloc(1, sizeof *s);
  dnnl_status_t status;
  if (!s || !attn_onednn_can_create()) {
    free(s);
    return snprintf(reason, reason_bytes, "out of memory: oneDNN may need %d bytes", ONEDNN_CODE_BYTES), ATTN_OUT_OF_MEMORY;
  }
  (void)matmul_layout_of(p, &s->layout); /* plan() has tried the same */
  const char *missing = open_operations(s, p, true, &status);
  if (missing) {
    say_what_is_missing(p, status, missing, reason, reason_bytes);
    free(s);
    return status == dnnl_out_of_memory ? ATTN_OUT_OF_MEMORY : ATTN_UNSUPPORTED;
  }
  schedule->scratch_bytes += most_scratch(s);
  ((matmul_plan *)(void *)schedule->own)->state = s;
  return ATTN_OK;
}

static void close(attn_schedule *schedule) {
  matmul_state *s = ((matmul_plan *)(void *)schedule->own)->state;
  close_operations(s);
  free(s);
}

/* ---- Packing ---- */

/* Copies `count` elements that are `stride` apart to adjacent ones. */
static void copy_elements(const void *from, size_t bytes, int64_t offset, int64_t stride, int64_t count, void *to) {
  if (stride == 1) {
    memcpy(to, (const char *)from + offset * (int64_t)bytes, (size_t)count * bytes);
  } else if (bytes == sizeof(float)) {
    for (int64_t d = 0; d < count; d++) ((float *)to)[d] = ((const float *)from)[offset + d * stride];
  } else {
    for (int64_t d = 0; d < count; d++) ((uint16_t *)to)[d] = ((const uint16_t *)from)[offset + d * stride];
  }
}

/* An element is finite unless all bits of its exponent are set. */
static bool all_finite(attn_dtype dtype, const void *elements, int64_t count) {
  uint32_t infinite = 0;
  if (dtype == ATTN_F32) {
    for (int64_t d = 0; d < count; d++) infinite |= (((const uint32_t *)elements)[d] & 0x7f800000u) == 0x7f800000u;
  } else {
    const uint32_t exponent = dtype == ATTN_BF16 ? 0x7f80u : 0x7c00u;
    for (int64_t d = 0; d < count; d++) infinite |= (((const uint16_t *)elements)[d] & exponent) == exponent;
  }
  return !infinite;
}

/* Copies block `task.item` of the unit's KV head: dense rows of K and V, zeros beyond the sequence, and which rows of V are
 * finite. */
static void pack_keys(const attn_schedule *schedule, const attn_args *args, attn_task task, char *unit) {
  const attn_problem *p = &schedule->problem;
  const matmul_layout *m = &plan_in(schedule)->state->layout;
  const int64_t b = attn_batch_of_unit(p, task.unit), head = attn_head_of_unit(p, task.unit);
  const attn_sequence seq = attn_sequence_of(p, args, b);
  const size_t k_bytes = (size_t)p->dim_qk * m->element_bytes, v_bytes = (size_t)p->dim_v * m->element_bytes;
  for (int64_t row = task.item * m->keys; row < (task.item + 1) * m->keys; row++) {
    char *k = unit + m->k_at + (size_t)row * k_bytes, *v = unit + m->v_at + (size_t)row * v_bytes;
    uint8_t *finite = (uint8_t *)unit + m->finite_at + row;
    const int64_t key = m->first_packed * m->keys + row;
    const bool exists = key < seq.len_k, dot = p->score == ATTN_SCORE_DOT;
    const attn_key_run run = attn_key_run_at(p, args, &seq, head, key);
    if (dot && exists)
      copy_elements(args->k, m->element_bytes, run.k, p->k_stride.d, p->dim_qk, k);
    else if (dot)
      memset(k, 0, k_bytes);
    if (exists) copy_elements(args->v, m->element_bytes, run.v, p->v_stride.d, p->dim_v, v);
    *finite = !exists || all_finite(p->dtype_kv, v, p->dim_v);
    if (!exists || !*finite) memset(v, 0, v_bytes);
  }
}

/* ---- One block of rows ---- */

/* A task: its rows, and the key blocks [first, end) that any of them may see. */
typedef struct matmul_task {
  const attn_score_steps *steps;
  const matmul_state *state;
  row_block block;
  attn_sequence seq;
  int64_t first, end;
  const char *unit;
  char *scratch;
} matmul_task;

/* The task's rows: those from first_row on of one head, or all rows of several heads. False if there are none. */
static bool start_task(const attn_schedule *schedule, const attn_args *args, attn_task task, char *unit, char *scratch,
                       matmul_task *t) {
  const attn_problem *p = &schedule->problem;
  const matmul_state *s = plan_in(schedule)->state;
  const matmul_layout *m = &s->layout;
  const int64_t group = attn_group(p), head = task.item % m->head_blocks * m->heads;
  const int64_t b = task.unit / p->heads_kv;
  *t = (matmul_task){
      .steps = plan_in(schedule)->steps, .state = s, .seq = attn_sequence_of(p, args, b), .unit = unit, .scratch = scratch};
  row_block *block = &t->block;
  *block = (row_block){.problem = p, .args = args, .seq = &t->seq, .b = b, .head = task.unit % p->heads_kv * group + head};
  block->first_row = (m->row_blocks - 1 - task.item / m->head_blocks) * m->rows; /* causal: the longest come first */
  block->rows_per_head = min64(m->rows, attn_rows(p, &t->seq) - block->first_row);
  if (block->rows_per_head <= 0) return false;
  block->rows = block->rows_per_head * min64(m->heads, group - head);
  block->acc = (float *)(void *)(scratch + m->acc_at);
  block->row_max = (float *)(void *)(scratch + m->max_at);
  block->row_sum = (float *)(void *)(scratch + m->sum_at);
  block->range = (attn_key_range *)(void *)(scratch + m->range_at);
  block->score = (float *)(void *)(scratch + m->score_at);
  block->q_stride = m->q_stride;
  block->acc_stride = m->acc_stride;
  block->score_stride = m->score_stride;
  block->adjusted = similarities_adjusted(p);
  t->steps->start_rows(block, m->rows);
  return true;
}

static void find_key_blocks(matmul_task *t) {
  const attn_key_range used = keys_of_block(&t->block);
  const int64_t keys = t->state->layout.keys;
  t->first = used.begin / keys;
  t->end = (used.end + keys - 1) / keys;
}

static int place_of(const matmul_task *t, int64_t n) { return n < t->state->layout.first_packed ? IN_PLACE : PACKED; }

/* K, or V, of key block n. */
static const void *keys_at(const matmul_task *t, int64_t n, const void *in_place, int64_t offset, int64_t row,
                           int64_t packed_at) {
  const matmul_layout *m = &t->state->layout;
  const int64_t bytes = m->keys * row * (int64_t)m->element_bytes;
  if (place_of(t, n) == PACKED) return t->unit + packed_at + (n - m->first_packed) * bytes;
  return (const char *)in_place + offset * (int64_t)m->element_bytes + n * bytes;
}

/* All keys of the task, where they are read in place. */
static attn_key_run keys_in_place(const row_block *block) {
  return attn_key_run_at(block->problem, block->args, block->seq, block->head, 0);
}

static const void *k_at(const matmul_task *t, int64_t n) {
  const row_block *block = &t->block;
  return keys_at(t, n, block->args->k, keys_in_place(block).k, k_row(block->problem, place_of(t, n)), t->state->layout.k_at);
}

static const void *v_at(const matmul_task *t, int64_t n) {
  const row_block *block = &t->block;
  return keys_at(t, n, block->args->v, keys_in_place(block).v, v_row(block->problem, place_of(t, n)), t->state->layout.v_at);
}

/* Rows without keys may hold anything and are not read. */
static void load_queries(const matmul_task *t) {
  const row_block *block = &t->block;
  const attn_problem *p = block->problem;
  const matmul_layout *m = &t->state->layout;
  const size_t row_bytes = (size_t)p->dim_qk * m->element_bytes;
  for (int64_t i = 0; i < m->rows; i++) {
    char *to = t->scratch + m->q_at + (size_t)i * row_bytes;
    const problem_row row = problem_row_of(block, i);
    if (i >= block->rows || block->range[i].begin >= block->range[i].end)
      memset(to, 0, row_bytes);
    else
      copy_elements(block->args->q, m->element_bytes, attn_q_offset(p, block->seq, block->b, row.head, row.query),
                    p->q_stride.d, p->dim_qk, to);
  }
}

/* Given scores in place of products. */
static void load_scores(const matmul_task *t) {
  const row_block *block = &t->block;
  const attn_problem *p = block->problem;
  for (int64_t i = 0; i < block->rows; i += block->rows_per_head) {
    const problem_row row = problem_row_of(block, i);
    const row_source from = {.from = {block->args->scores, ATTN_F32},
                             .offset = attn_score_offset(&p->scores_stride, block->b, row.head, row.query, 0),
                             .row_stride = p->scores_stride.q,
                             .column_stride = p->scores_stride.k,
                             .columns = min64(t->end * t->state->layout.keys, t->seq.len_k)};
    t->steps->copy_rows(&from, block->rows_per_head, block->score + i * block->score_stride, block->score_stride, NULL);
  }
}

static bool execute(const matmul_task *t, const onednn_operation *operation, const void *a, const void *b, const void *c) {
  void *const operands[ONEDNN_OPERANDS] = {(void *)a, (void *)b, (void *)c}; /* oneDNN's handles know no const */
  return attn_onednn_execute(&t->state->library, operation, operands, t->scratch + t->state->layout.work_at) == dnnl_success;
}

/* S = Q K^T, block by block. */
static bool score_rows(const matmul_task *t) {
  const matmul_layout *m = &t->state->layout;
  if (t->block.problem->score == ATTN_SCORE_PRECOMPUTED) return load_scores(t), true;
  load_queries(t);
  for (int64_t n = t->first; n < t->end; n++)
    if (!execute(t, &t->state->scores[place_of(t, n)], t->scratch + m->q_at, k_at(t, n), t->block.score + n * m->keys))
      return false;
  return true;
}

/* P = softmax(S) over the keys of all blocks. Blocks that no row may see have scores of -inf. */
static bool softmax_rows(const matmul_task *t) {
  const row_block *block = &t->block;
  const attn_problem *p = block->problem;
  const attn_score_steps *steps = t->steps;
  const attn_key_range keys = {0, block->score_stride};
  steps->mask_rows(block, keys, p->score == ATTN_SCORE_DOT ? p->scale * LOG2_E : LOG2_E);
  if (!execute(t, &t->state->softmax, block->score, block->score, NULL)) return false;
  steps->take_softmax(block, keys);
  return true;
}

/* acc = P V, block by block. */
static bool accumulate_rows(const matmul_task *t) {
  const matmul_layout *m = &t->state->layout;
  for (int64_t n = t->first; n < t->end; n++) {
    const void *weights = t->block.score + n * m->keys;
    if (t->state->narrow.primitive) {
      if (!execute(t, &t->state->narrow, weights, t->scratch + m->p_at, NULL)) return false;
      weights = t->scratch + m->p_at;
      t->steps->add_narrowed(&t->block, weights, m->keys, m->keys);
    }
    if (!execute(t, &t->state->sums[place_of(t, n)], weights, v_at(t, n), t->block.acc)) return false;
  }
  return true;
}

static void mark_row(const row_block *block, int64_t i) { block->acc[i * block->acc_stride] = NAN; }

/* Packing has replaced rows of V that are not finite. Query rows that may see one are marked, so that finish_rows computes
 * them again. */
static void mark_rows(const matmul_task *t) {
  const row_block *block = &t->block;
  const matmul_layout *m = &t->state->layout;
  const uint8_t *finite = (const uint8_t *)t->unit + m->finite_at;
  const int64_t packed = m->first_packed * m->keys;
  for (int64_t j = max64(t->first * m->keys, packed); j < t->end * m->keys; j++) {
    if (finite[j - packed]) continue;
    for (int64_t i = 0; i < block->rows; i++) {
      const problem_row row = problem_row_of(block, i);
      if (j >= block->range[i].begin && j < block->range[i].end &&
          attn_key_selected(block->problem, block->args, block->b, row.head, row.query, j))
        mark_row(block, i);
    }
  }
}

static void compute_rows(const attn_schedule *schedule, const attn_args *args, attn_task task, char *unit, char *scratch) {
  matmul_task t;
  if (!start_task(schedule, args, task, unit, scratch, &t)) return;
  find_key_blocks(&t);
  if (t.first < t.end) {
    const onednn_library *library = &t.state->library;
    const int threads = attn_onednn_hold_threads(library);
    const bool done = attn_onednn_can_execute() && score_rows(&t) && softmax_rows(&t) && accumulate_rows(&t);
    attn_onednn_restore_threads(library, threads);
    if (done) mark_rows(&t);
    for (int64_t i = 0; i < t.block.rows && !done; i++) mark_row(&t.block, i);
  }
  t.steps->finish_rows(&t.block);
}

static void matmul_onednn_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                              void *scratch) {
  if (task.phase < schedule->phases - 1)
    pack_keys(schedule, args, task, unit_memory);
  else
    compute_rows(schedule, args, task, unit_memory, scratch);
}

const attn_kernel attn_matmul_onednn = {
    .info =
        {.name = "matmul_onednn",
         .algorithm = "matmul",
         .isa = "c",
         .library = attn_onednn_text,
         .summary = "oneDNN's matmul on blocks of rows and keys, its softmax on whole rows, our masks between them",
         /* its softmax: at most 3.7e-7 over a dense sample of float32 arguments on AVX2, the division by the sum included */
         .numerics = {.exp_error = 0x1p-21, .p_rounding = 0x1p-8, .input_flush = 0x1p-126}}, /* its bf16 products flush */
    .rejects = rejects,
    .plan = matmul_onednn_plan,
    .run = matmul_onednn_run,
    .library =
        &(const attn_library_hooks){
            .open = open, .close = close, .identify = attn_onednn_identify, .unusable = attn_onednn_unusable},
};
