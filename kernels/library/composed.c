/* SPDX-License-Identifier: MIT */
/* Attention composed of a library's products (composed.h).
 *
 * A product reads whole matrices, so masked values must be removed from them first: V is copied, with its non-finite rows
 * replaced by zeros, and rows that may see such a key are computed separately afterwards. Masked keys then add exact zeros,
 * whatever they hold. K is read in place if its strides suit the library: a non-finite key affects only its own column of S,
 * which is masked. */
#include "composed.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/rejects.h"

/* More than the library counts in 32 bits; NULL: not. */
static const char *too_large(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  const struct {
    const char *name;
    int64_t value;
  } sizes[] = {{"seq_q", p->seq_q}, {"seq_k", p->seq_k}, {"dim_qk", p->dim_qk}, {"dim_v", p->dim_v}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    if (sizes[i].value <= INT32_MAX - STEPS_KEYS) continue;
    snprintf(buffer, buffer_bytes, "%s is %" PRId64 "; the library counts rows and columns in 32 bits", sizes[i].name,
             sizes[i].value);
    return buffer;
  }
  return NULL;
}

const char *attn_composed_rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  static const char *const names[] = {[ATTN_SCORE_ADDITIVE] = "additive scores, sum w tanh(q + k), are no matrix product",
                                      [ATTN_SCORE_GAUSSIAN] =
                                          "gaussian scores are no matrix product; |q|^2 - 2 q k + |k|^2 would "
                                          "cancel"};
  if (p->score == ATTN_SCORE_ADDITIVE || p->score == ATTN_SCORE_GAUSSIAN) return names[p->score];
  const char *reason = takes_no_state(p, buffer, buffer_bytes);
  return reason ? reason : too_large(p, buffer, buffer_bytes);
}

/* ---- Memory of a unit: K rows unless read in place, V rows, and which V rows are finite ---- */

typedef struct unit_layout {
  int64_t k_stride, v_stride;  /* floats of a copied row; k_stride 0 = K is read in place, or not at all */
  int64_t k, v, finite, bytes; /* offsets in bytes, and the size */
} unit_layout;

static bool reads_k_in_place(const attn_problem *p) {
  return p->dtype_kv == ATTN_F32 && p->k_stride.d == 1 && p->k_stride.s >= p->dim_qk && p->k_stride.s <= INT32_MAX &&
         !attn_uses(p, ATTN_USE_PAGES | ATTN_USE_KV_SCALES);
}

/* False if a size overflows. */
static bool lay_out_unit(const attn_problem *p, unit_layout *layout) {
  const bool copies_k = p->score == ATTN_SCORE_DOT && !reads_k_in_place(p);
  *layout = (unit_layout){.k_stride = copies_k ? round_up(p->dim_qk, STEPS_LANES) : 0,
                          .v_stride = round_up(p->dim_v, STEPS_LANES)};
  const memory_part parts[] = {{&layout->k, p->seq_k, float_bytes(layout->k_stride)},
                               {&layout->v, p->seq_k, float_bytes(layout->v_stride)},
                               {&layout->finite, p->seq_k, sizeof(uint8_t)}};
  return LAY_OUT(parts, &layout->bytes);
}

static int64_t score_stride(const attn_problem *p) { return round_up(p->seq_k, STEPS_KEYS) + STEPS_LANES; }

/* Plan data. */
typedef struct composed_plan {
  const attn_score_steps *steps;
  unit_layout unit;
  scratch_layout scratch;
} composed_plan;
_Static_assert(sizeof(composed_plan) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

static const composed_plan *plan_in(const attn_schedule *schedule) { return (const void *)schedule->own; }

bool attn_composed_plan(const attn_problem *p, const attn_machine *machine, int64_t rows, attn_schedule *schedule) {
  composed_plan *own = (void *)schedule->own;
  if (!lay_out_unit(p, &own->unit) || !scratch_layout_for(p, rows, rows, score_stride(p), STEPS_LANES, &own->scratch))
    return false;
  own->steps = machine->steps;
  schedule->phases = 2;
  schedule->items[0] = ceil_div(p->seq_k, PACK_KEYS);
  schedule->items[1] = attn_group(p) * ceil_div(p->seq_q, rows);
  schedule->row_block = rows;
  schedule->key_block = p->seq_k;
  schedule->unit_bytes = (size_t)own->unit.bytes;
  schedule->scratch_bytes = (size_t)own->scratch.total;
  return true;
}

/* ---- Pack ---- */

static void pack(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory) {
  const unit_keys unit = keys_of_unit(&schedule->problem, args, task.unit);
  const attn_key_range keys = keys_of_item(&unit, task.item, PACK_KEYS);
  const attn_score_steps *steps = plan_in(schedule)->steps;
  const unit_layout *at = &plan_in(schedule)->unit;
  for (int64_t key = keys.begin, count; key < keys.end; key += count) {
    const attn_key_run run = run_of_unit(&unit, key);
    const attn_key_scales scales = scales_of_unit(&unit, key);
    const row_source k = scaled_rows(&unit, k_rows(&unit, run), scales.k, scales.k_step);
    const row_source v = scaled_rows(&unit, v_rows(&unit, run), scales.v, scales.v_step);
    count = min64(run.keys, keys.end - key);
    uint8_t *finite = (uint8_t *)memory + at->finite + key;
    steps->copy_rows(&v, count, floats_at(memory, at->v) + key * at->v_stride, at->v_stride, finite);
    if (at->k_stride) steps->copy_rows(&k, count, floats_at(memory, at->k) + key * at->k_stride, at->k_stride, NULL);
  }
}

/* ---- Compute ---- */

typedef struct composed_task {
  const attn_score_steps *steps;
  library_product_fn product;
  row_block block;
  int64_t k_stride;      /* floats from one key's row of K to the next's */
  const uint8_t *finite; /* for each key, whether its V is finite; where it is not, the copy of V holds zeros */
} composed_task;

/* Rows of the products: only those that the sequence has queries for, so that a sequence gives the same bits alone and
 * padded. The other rows see no key. */
static int64_t rows_with_queries(const row_block *block) { return min64(block->rows, block->seq->len_q - block->first_row); }

/* Copies given scores, which have the caller's strides. */
static void copy_scores(const row_block *block) {
  const attn_score_strides *stride = &block->problem->scores_stride;
  for (int64_t i = 0; i < block->rows; i++) {
    const attn_key_range keys = block->range[i];
    if (keys.begin >= keys.end) continue;
    const float *from =
        block->args->scores + attn_score_offset(stride, block->b, block->head, block->first_row + i, keys.begin);
    float *to = block->score + i * block->score_stride + keys.begin;
    for (int64_t j = 0; j < keys.end - keys.begin; j++) to[j] = from[j * stride->k];
  }
}

static void multiply_queries(const composed_task *task, attn_key_range keys) {
  const row_block *block = &task->block;
  task->product(&(library_product){.rows = rows_with_queries(block),
                                   .columns = keys.end - keys.begin,
                                   .depth = block->problem->dim_qk,
                                   .a = block->q,
                                   .a_stride = block->q_stride,
                                   .b = block->keys.k + keys.begin * task->k_stride,
                                   .b_stride = task->k_stride,
                                   .b_transposed = true,
                                   .c = block->score + keys.begin,
                                   .c_stride = block->score_stride});
}

static void weigh_values(const composed_task *task, attn_key_range keys) {
  const row_block *block = &task->block;
  task->product(&(library_product){.rows = rows_with_queries(block),
                                   .columns = block->problem->dim_v,
                                   .depth = keys.end - keys.begin,
                                   .a = block->score + keys.begin,
                                   .a_stride = block->score_stride,
                                   .b = block->keys.v + keys.begin * block->keys.v_stride,
                                   .b_stride = block->keys.v_stride,
                                   .c = block->acc,
                                   .c_stride = block->acc_stride});
}

static bool sees_non_finite(const row_block *block, int64_t i, const uint8_t *finite) {
  for (int64_t j = block->range[i].begin; j < block->range[i].end; j++)
    if (!finite[j] && attn_key_selected(block->problem, block->args, block->b, block->head, block->first_row + i, j))
      return true;
  return false;
}

/* Computes rows again that may see a V with NaN or infinity, because the products have read zeros instead. */
static void redo_non_finite(const row_block *block, attn_key_range keys, const uint8_t *finite) {
  if (!memchr(finite + keys.begin, 0, (size_t)(keys.end - keys.begin))) return;
  for (int64_t i = 0; i < block->rows; i++)
    if (sees_non_finite(block, i, finite))
      attn_exact_row(block->problem, block->args, block->b, block->head, block->first_row + i);
}

static void attend(const composed_task *task) {
  const row_block *block = &task->block;
  const attn_score_steps *steps = task->steps;
  const bool given = block->problem->score == ATTN_SCORE_PRECOMPUTED;
  steps->start_rows(block, block->rows);
  const attn_key_range keys = keys_of_block(block);
  if (keys.begin < keys.end) {
    if (given)
      copy_scores(block);
    else
      multiply_queries(task, keys);
    steps->softmax_rows(block, keys, given ? LOG2_E : 1.0f);
    weigh_values(task, keys);
  }
  steps->finish_rows(block);
  if (keys.begin < keys.end) redo_non_finite(block, keys, task->finite);
}

static void compute(const attn_schedule *schedule, const attn_args *args, attn_task task, void *memory, void *scratch,
                    library_product_fn product) {
  const attn_problem *p = &schedule->problem;
  const task_rows rows = task_rows_of(schedule, args, task);
  const composed_plan *own = plan_in(schedule);
  const unit_layout *unit = &own->unit;
  if (rows.rows <= 0) return;
  composed_task t = {.steps = own->steps,
                     .product = product,
                     .block = block_of_task(p, args, &rows, &own->scratch, scratch),
                     .k_stride = unit->k_stride ? unit->k_stride : p->k_stride.s,
                     .finite = (const uint8_t *)memory + unit->finite};
  t.block.adjusted = similarities_adjusted(p);
  t.block.keys = (packed_keys){.k = floats_at(memory, unit->k), .v = floats_at(memory, unit->v), .v_stride = unit->v_stride};
  if (!unit->k_stride && args->k && p->score == ATTN_SCORE_DOT)
    t.block.keys.k = (const float *)args->k + attn_key_run_at(p, args, &rows.seq, rows.head, 0).k;
  attend(&t);
}

void attn_composed_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                       void *scratch, library_product_fn product) {
  if (task.phase == 0)
    pack(schedule, args, task, unit_memory);
  else
    compute(schedule, args, task, unit_memory, scratch, product);
}

/* ---- Gradients ---- */

/* Plan data: the tier's, then its table. */
typedef struct composed_gradients {
  unsigned char of_tier[STEPS_OWN_BYTES];
  const attn_score_steps *steps;
} composed_gradients;
_Static_assert(sizeof(composed_gradients) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

const char *attn_composed_rejects_gradients(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  const char *reason = takes_dot_gradients(p, buffer, buffer_bytes);
  return reason ? reason : too_large(p, buffer, buffer_bytes);
}

bool attn_composed_plan_gradients(const attn_problem *p, const attn_machine *machine, int64_t rows,
                                  attn_schedule *schedule) {
  ((composed_gradients *)(void *)schedule->own)->steps = machine->steps;
  return machine->steps->plan_gradients(p, rows, schedule);
}

void attn_composed_run_gradients(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                                 void *scratch, library_product_fn product) {
  const composed_gradients *own = (const void *)schedule->own;
  own->steps->run_gradients(schedule, args, task, unit_memory, scratch, product);
}
