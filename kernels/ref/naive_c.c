/* SPDX-License-Identifier: MIT */
/* naive attention in plain C: the textbook algorithm, and the baseline of all speed-ups.
 *
 * It computes softmax(Q K^T) V with the whole score matrix of one head in memory, in three passes: score_rows, softmax_rows,
 * weighted_sum (Vaswani et al. 2017, section 3.2.1). It takes every problem that the library defines, so read it to see what
 * the options do.
 *
 * A fair baseline lets the compiler use vectors: the innermost loops run over keys (scores) and over output columns
 * (weighted sum), whose elements do not depend on each other. For that K is transposed once per head, unless there are too
 * few queries to pay for it. */
#include "attn/kernel.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/rejects.h"
#include "scores_c.h"

/* Transposing K costs about as much as scoring this many queries against K as it lies. */
enum { TRANSPOSE_QUERIES = 4 };

/* Keys transposed together: one cache line of each row of the result. */
enum { TRANSPOSE_KEYS = 16 };

/* Keys scored together when K is read as it lies: this many rows of K stay in the level 1 cache while d walks along them. */
enum { STRIDED_KEYS = 64 };

/* ---- Memory ------------------------------------------------------------------------------------------------------ */

static bool copies_v(const attn_problem *p) {
  return p->dtype_kv != ATTN_F32 || p->v_stride.d != 1 || attn_uses(p, ATTN_USE_PAGES | ATTN_USE_KV_SCALES);
}

static bool transposes_k(const attn_problem *p) {
  const bool copies =
      p->dtype_kv != ATTN_F32 || p->seq_q >= TRANSPOSE_QUERIES || attn_uses(p, ATTN_USE_PAGES | ATTN_USE_KV_SCALES);
  return p->score != ATTN_SCORE_PRECOMPUTED && copies;
}

/* Offsets in a task's scratch, in bytes: the plan data. */
typedef struct head_layout {
  int64_t scores, lses, query, output, keys, values, total;
} head_layout;
_Static_assert(sizeof(head_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

/* False if a size overflows. */
static bool head_layout_of(const attn_problem *p, head_layout *at) {
  const memory_part parts[] = {{&at->scores, p->seq_q, float_bytes(p->seq_k)},
                               {&at->lses, p->seq_q, float_bytes(1)},
                               {&at->query, 1, float_bytes(p->dim_qk)},
                               {&at->output, 1, float_bytes(p->dim_v)},
                               {&at->keys, transposes_k(p) ? p->seq_k : 0, float_bytes(p->dim_qk)},
                               {&at->values, copies_v(p) ? p->seq_k : 0, float_bytes(p->dim_v)}};
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

static attn_key_run run_at(const query_head *head, int64_t j) {
  return attn_key_run_at(head->problem, head->args, &head->seq, head->h, j);
}

static attn_key_scales scales_at(const query_head *head, int64_t j) {
  return attn_key_scales_at(head->problem, head->args, &head->seq, head->h, j);
}

static void open_keys(query_head *head, attn_key_range used, float *memory) {
  const attn_problem *p = head->problem;
  if (p->score == ATTN_SCORE_PRECOMPUTED) return;
  const int64_t keys = head->seq.len_k;
  if (!transposes_k(p)) {
    head->k = (key_view){keys == 0 ? NULL : (const float *)head->args->k + run_at(head, 0).k, p->k_stride.s, p->k_stride.d};
    return;
  }
  for (int64_t first = used.begin, count; first < used.end; first += count) {
    const attn_key_run run = run_at(head, first);
    const attn_key_scales scales = scales_at(head, first);
    count = min64(min64(run.keys, TRANSPOSE_KEYS), used.end - first);
    for (int64_t d = 0; d < p->dim_qk; d++)
      for (int64_t j = 0; j < count; j++)
        memory[d * keys + first + j] =
            scales.k[j * scales.k_step] *
            attn_load_f32(attn_k_storage(p, head->args), run.k + j * p->k_stride.s + d * p->k_stride.d);
  }
  head->k = (key_view){memory, 1, keys};
}

static void open_values(query_head *head, attn_key_range used, float *memory) {
  const attn_problem *p = head->problem;
  const int64_t keys = head->seq.len_k;
  if (!copies_v(p)) {
    head->v = keys == 0 ? NULL : (const float *)head->args->v + run_at(head, 0).v;
    head->v_step = p->v_stride.s;
    return;
  }
  for (int64_t first = used.begin, count; first < used.end; first += count) {
    const attn_key_run run = run_at(head, first);
    const attn_key_scales scales = scales_at(head, first);
    count = min64(run.keys, used.end - first);
    for (int64_t j = 0; j < count; j++)
      for (int64_t d = 0; d < p->dim_v; d++)
        memory[(first + j) * p->dim_v + d] =
            scales.v[j * scales.v_step] *
            attn_load_f32(attn_v_storage(p, head->args), run.v + j * p->v_stride.s + d * p->v_stride.d);
  }
  head->v = memory;
  head->v_step = p->dim_v;
}

static float *score_row(const query_head *head, int64_t i) { return head->score + i * head->seq.len_k; }

static attn_key_range allowed_keys(const query_head *head, int64_t i) {
  return attn_allowed_keys(head->problem, head->args, &head->seq, head->b, i);
}

/* ---- Pass 1: scores ---------------------------------------------------------------------------------------------- */

/* The sums over the head dimension for one row. Each adds its terms in the order of d, whatever the strides of K and the
 * number of keys at a time. */
static void similarities(const query_head *head, int64_t i, attn_key_range keys, float *score) {
  const attn_problem *p = head->problem;
  const int64_t q_at = attn_q_offset(p, &head->seq, head->b, head->h, i);
  const int64_t block = head->k.key_step == 1 ? keys.end - keys.begin : STRIDED_KEYS;
  for (int64_t d = 0; d < p->dim_qk; d++)
    head->query[d] = attn_load_f32(attn_q_storage(p, head->args), q_at + d * p->q_stride.d);
  for (int64_t j = keys.begin; j < keys.end; j++) score[j] = 0.0f;
  for (int64_t j = keys.begin; j < keys.end; j += block) {
    const int64_t count = keys.end - j < block ? keys.end - j : block;
    for (int64_t d = 0; d < p->dim_qk; d++) add_dimension(head, d, j, count, score + j);
  }
  if (p->score != ATTN_SCORE_DOT) return;
  for (int64_t j = keys.begin; j < keys.end; j++) score[j] *= p->scale;
}

static void score_rows(const query_head *head) {
  for (int64_t i = 0; i < head->seq.len_q; i++) {
    const attn_key_range keys = allowed_keys(head, i);
    if (keys.begin >= keys.end) continue; /* q may be NULL where there are no keys */
    float *score = score_row(head, i);
    if (head->problem->score == ATTN_SCORE_PRECOMPUTED) {
      given_scores(head, i, keys, score + keys.begin);
    } else {
      similarities(head, i, keys, score);
    }
    adjust_scores(head, i, keys, score + keys.begin);
  }
}

/* ---- Pass 2: softmax --------------------------------------------------------------------------------------------- */

/* Turns S into P. P is divided by its sum before the product with V, so that a weighted mean of large values cannot
 * overflow. Rows without an allowed key, with NaN or with infinite scores become NaN here, and finish_row computes them
 * again. */
static void softmax_rows(const query_head *head) {
  const bool sinks = attn_uses(head->problem, ATTN_USE_SINKS);
  for (int64_t i = 0; i < head->seq.len_q; i++) {
    const attn_key_range keys = allowed_keys(head, i);
    float *score = score_row(head, i);
    float largest = -INFINITY, sum = 0.0f;
    for (int64_t j = keys.begin; j < keys.end; j++) largest = score[j] > largest ? score[j] : largest;
    for (int64_t j = keys.begin; j < keys.end; j++) {
      score[j] = expf(score[j] - largest);
      sum += score[j];
    }
    head->lse[i] = largest + logf(sum);
    if (sinks) sum += expf(head->args->sinks[head->h] - largest);
    for (int64_t j = keys.begin; j < keys.end; j++) score[j] /= sum;
  }
}

/* ---- Pass 3: output ---------------------------------------------------------------------------------------------- */

static void accumulate_row(const query_head *head, int64_t i) {
  const int64_t dim = head->problem->dim_v;
  const bool selects = has_selection(head->problem);
  const attn_key_range keys = allowed_keys(head, i);
  const float *p = score_row(head, i);
  for (int64_t d = 0; d < dim; d++) head->output[d] = 0.0f;
  for (int64_t j = keys.begin; j < keys.end; j++)
    if (!selects || selected(head, i, j))
      add_multiple(head->output, p[j] * kept(head, i, j), head->v + j * head->v_step, dim);
}

/* Stores a row whose elements are all finite. Other rows are computed again, in double and from their allowed keys alone. */
static void finish_row(const query_head *head, int64_t i) {
  const attn_problem *p = head->problem;
  bool finite = isfinite(head->lse[i]);
  for (int64_t d = 0; d < p->dim_v; d++) finite = finite && isfinite(head->output[d]);
  if (!finite) {
    attn_exact_row(p, head->args, head->b, head->h, i);
    return;
  }
  const int64_t o_at = attn_o_offset(p, &head->seq, head->b, head->h, i);
  for (int64_t d = 0; d < p->dim_v; d++)
    attn_store_f32(head->args->o, p->dtype_o, o_at + d * p->o_stride.d, head->output[d]);
  if (attn_uses(p, ATTN_USE_LSE)) head->args->lse[attn_lse_offset(p, &head->seq, head->b, head->h, i)] = head->lse[i];
}

static void weighted_sum(const query_head *head) {
  for (int64_t i = 0; i < head->seq.len_q; i++) {
    accumulate_row(head, i);
    finish_row(head, i);
  }
  for (int64_t i = head->seq.len_q; i < attn_rows(head->problem, &head->seq); i++)
    attn_exact_row(head->problem, head->args, head->b, head->h, i); /* rows beyond q_len: 0 and -inf */
}

/* ---- The contract of kernel.h ------------------------------------------------------------------------------------ */

/* One task per query head: it needs all of that head's scores at once. */
static bool naive_c_plan(const attn_problem *problem, const attn_machine *machine, attn_schedule *schedule) {
  head_layout *at = (void *)schedule->own;
  (void)machine;
  if (!head_layout_of(problem, at)) return false;
  schedule->phases = 1;
  schedule->items[0] = attn_group(problem);
  schedule->unit_bytes = 0;
  schedule->row_block = problem->seq_q;
  schedule->key_block = problem->seq_k;
  schedule->scratch_bytes = (size_t)at->total;
  return true;
}

static void naive_c_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                        void *scratch) {
  const attn_problem *p = &schedule->problem;
  const int64_t b = attn_batch_of_unit(p, task.unit);
  const head_layout *at = (const void *)schedule->own;
  (void)unit_memory;
  query_head head = {.problem = p, .args = args, .b = b, .h = attn_head_of_unit(p, task.unit) + task.item};
  head.seq = attn_sequence_of(p, args, b);
  head.score = floats_at(scratch, at->scores);
  head.lse = floats_at(scratch, at->lses);
  head.query = floats_at(scratch, at->query);
  head.output = floats_at(scratch, at->output);
  const attn_key_range used = attn_keys_of_sequence(p, args, &head.seq, b);
  open_keys(&head, used, floats_at(scratch, at->keys));
  open_values(&head, used, floats_at(scratch, at->values));
  score_rows(&head);
  softmax_rows(&head);
  weighted_sum(&head);
}

/* exp_error: expf of the C library, documented at 1 ulp or better in glibc and musl; 1 ulp is at most 2^-23 of the value. */
const attn_kernel attn_naive_c = {
    .info = {.name = "naive_c",
             .algorithm = "naive",
             .isa = "c",
             .library = "",
             .summary = "textbook: whole score matrix of one head, three passes, plain C; takes every problem",
             .numerics = {.exp_error = 0x1p-23, .p_rounding = 0.0, .input_flush = 0.0}},
    .key_blocks = true,
    .dropout = true,
    .rejects = takes_no_state,
    .plan = naive_c_plan,
    .run = naive_c_run,
};
