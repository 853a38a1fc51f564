/* SPDX-License-Identifier: MIT */
/* flash_backward_c: the gradients of attention in plain C, to be read first.
 *
 * The forward call has left O and the log-sum-exp of each row, so that P need not be kept: it is computed again, row by row
 * (Dao et al. 2022, https://arxiv.org/abs/2205.14135, section B.2). For one query and all keys that it sees,
 *
 *     P = exp(S - lse)                     recompute_row
 *     dP = dO V^T,  dS = P (dP - delta)    differentiate_row; dropout is a factor of dP, and of P from here on
 *     dV += P dO,  dK += dS Q,  dQ = dS K  accumulate_row
 *
 * where delta is rowsum(dO O). A task is one KV head: the queries of all heads that share it add to dK and dV in a fixed
 * order. */
#include <string.h>

#include "attn/kernel.h"
#include "kernels/common/memory/memory.h"
#include "kernels/common/problem/exact_row.h"
#include "kernels/common/problem/rejects.h"
#include "scores_c.h"

/* Offsets in a task's scratch, in bytes: the plan data. */
typedef struct backward_layout {
  int64_t k, k_lanes, v_lanes, d_k, d_v, p, d_s, slope, q, d_o, d_q, total;
} backward_layout;
_Static_assert(sizeof(backward_layout) <= ATTN_OWN_BYTES, "attn_schedule.own holds it");

static bool layout_of(const attn_problem *p, backward_layout *at) {
  const int64_t keys = p->seq_k, dim_qk = p->score == ATTN_SCORE_PRECOMPUTED ? 0 : p->dim_qk;
  const memory_part parts[] = {{&at->k, keys, float_bytes(dim_qk)},
                               {&at->k_lanes, keys, float_bytes(dim_qk)},
                               {&at->v_lanes, keys, float_bytes(p->dim_v)},
                               {&at->d_k, keys, float_bytes(dim_qk)},
                               {&at->d_v, keys, float_bytes(p->dim_v)},
                               {&at->p, keys, float_bytes(1)},
                               {&at->d_s, keys, float_bytes(1)},
                               {&at->slope, keys, float_bytes(1)},
                               {&at->q, 1, float_bytes(dim_qk)},
                               {&at->d_o, 1, float_bytes(p->dim_v)},
                               {&at->d_q, 1, float_bytes(dim_qk)}};
  at->total = 0;
  return LAY_OUT(parts, &at->total);
}

/* One KV head, and the row of a query head that it is at. */
typedef struct gradients {
  query_head head; /* for scores_c.h; its keys are k_lanes */
  int64_t dim_qk;  /* 0 for given scores */
  float *k;        /* [keys][dim_qk] */
  float *k_lanes;  /* [dim_qk][keys] */
  float *v_lanes;  /* [dim_v][keys] */
  float *d_k, *d_v;
  float *p, *d_s, *slope; /* [keys]: of the row; slope: the softcap's derivative */
  float *q, *d_o, *d_q;   /* the row's */
  attn_key_range keys;
  row_terms terms;
} gradients;

/* ---- Rows in and out --------------------------------------------------------------------------------------------- */

static void load_row(attn_storage from, int64_t at, int64_t step, int64_t columns, float *row) {
  for (int64_t d = 0; d < columns; d++) row[d] = attn_load_f32(from, at + d * step);
}

static int64_t place(const gradients *g, const attn_strides *stride, int64_t i) {
  return attn_row_offset(g->head.problem, stride, g->head.b, g->head.h, g->head.seq.first_q + i);
}

/* K as rows and with keys side by side, V with keys side by side: of the keys that some row may see. */
static void load_keys(gradients *g, attn_key_range used) {
  const attn_problem *p = g->head.problem;
  const int64_t keys = g->head.seq.len_k;
  for (int64_t j = used.begin; j < used.end; j++) {
    const attn_key_run run = attn_key_run_at(p, g->head.args, &g->head.seq, g->head.h, j);
    if (g->dim_qk) load_row(attn_k_storage(p, g->head.args), run.k, p->k_stride.d, g->dim_qk, g->k + j * g->dim_qk);
    for (int64_t d = 0; d < g->dim_qk; d++) g->k_lanes[d * keys + j] = g->k[j * g->dim_qk + d];
    for (int64_t d = 0; d < p->dim_v; d++)
      g->v_lanes[d * keys + j] = attn_load_f32(attn_v_storage(p, g->head.args), run.v + d * p->v_stride.d);
  }
  g->head.k = (key_view){g->k_lanes, 1, keys};
}

static bool is_finite(const float *row, int64_t columns) {
  float poison = 0.0f; /* 0 * x is NaN for NaN and infinity */
  for (int64_t d = 0; d < columns; d++) poison += 0.0f * row[d];
  return poison == 0.0f;
}

/* ---- One row ----------------------------------------------------------------------------------------------------- */

/* P of the keys in range; 0 for those that a mask takes away. */
static void recompute_row(gradients *g, int64_t i) {
  const attn_problem *p = g->head.problem;
  const int64_t begin = g->keys.begin, count = g->keys.end - begin;
  const float lse = (float)g->terms.lse;
  float *score = g->p + begin;
  if (p->score == ATTN_SCORE_PRECOMPUTED) {
    given_scores(&g->head, i, g->keys, score);
  } else {
    memset(score, 0, (size_t)count * sizeof *score);
    for (int64_t d = 0; d < g->dim_qk; d++) add_dimension(&g->head, d, begin, count, score);
    for (int64_t j = 0; p->score == ATTN_SCORE_DOT && j < count; j++) score[j] *= p->scale;
  }
  for (int64_t j = 0; j < count; j++) {
    const float capped = p->softcap > 0 ? tanhf(score[j] / p->softcap) : 0.0f;
    g->slope[begin + j] = 1.0f - capped * capped;
  }
  adjust_scores(&g->head, i, g->keys, score);
  for (int64_t j = 0; j < count; j++) score[j] = expf(score[j] - lse);
}

/* dS of the sums over the head dimension. */
static void differentiate_row(gradients *g, int64_t i) {
  const attn_problem *p = g->head.problem;
  const int64_t begin = g->keys.begin, count = g->keys.end - begin, keys = g->head.seq.len_k;
  const float delta = (float)g->terms.delta;
  float *d_s = g->d_s + begin;
  memset(d_s, 0, (size_t)count * sizeof *d_s);
  for (int64_t d = 0; d < p->dim_v; d++) add_multiple(d_s, g->d_o[d], g->v_lanes + d * keys + begin, count);
  for (int64_t j = 0; j < count; j++) {
    const float factor = kept(&g->head, i, begin + j);
    d_s[j] = g->p[begin + j] * (factor * d_s[j] - delta) * g->slope[begin + j];
    g->p[begin + j] *= factor;
  }
  for (int64_t j = begin; has_selection(p) && j < g->keys.end; j++)
    if (!selected(&g->head, i, j)) g->d_s[j] = 0.0f; /* not 0 times what V holds there */
}

/* Adds a pair's parts of dQ and dK where the score is no dot product: d_s times the derivative of its sum. */
static void add_other_slopes(const gradients *g, int64_t j) {
  const attn_problem *p = g->head.problem;
  const float *k = g->k + j * g->dim_qk;
  for (int64_t d = 0; d < g->dim_qk; d++) {
    const float w =
        attn_uses(p, ATTN_USE_SCORE_WEIGHT) ? g->head.args->score_weight[g->head.h * p->score_weight_stride_h + d] : 1.0f;
    const float t = p->score == ATTN_SCORE_ADDITIVE ? tanhf(g->q[d] + k[d]) : 0.0f;
    const float of_k = g->d_s[j] * (p->score == ATTN_SCORE_ADDITIVE ? w * (1.0f - t * t) : w * w * (g->q[d] - k[d]));
    g->d_k[j * g->dim_qk + d] += of_k;
    g->d_q[d] += p->score == ATTN_SCORE_ADDITIVE ? of_k : -of_k;
  }
}

static void accumulate_row(gradients *g, int64_t i) {
  const attn_problem *p = g->head.problem;
  const bool selects = has_selection(p);
  for (int64_t j = g->keys.begin; j < g->keys.end; j++) {
    if (selects && !selected(&g->head, i, j)) continue;
    add_multiple(g->d_v + j * p->dim_v, g->p[j], g->d_o, p->dim_v);
    if (p->score == ATTN_SCORE_DOT) {
      add_multiple(g->d_k + j * g->dim_qk, p->scale * g->d_s[j], g->q, g->dim_qk);
      add_multiple(g->d_q, p->scale * g->d_s[j], g->k + j * g->dim_qk, g->dim_qk);
    } else {
      add_other_slopes(g, j);
    }
  }
}

static void finish_query(const gradients *g, int64_t i) {
  const attn_problem *p = g->head.problem;
  if (!g->head.args->d_q) return;
  if (!is_finite(g->d_q, g->dim_qk)) {
    attn_exact_query_gradient(p, g->head.args, g->head.b, g->head.h, i);
    return;
  }
  const int64_t at = place(g, &p->d_q_stride, i);
  for (int64_t d = 0; d < g->dim_qk; d++)
    attn_put_gradient(p, g->head.args->d_q, p->dtype_q, at + d * p->d_q_stride.d, (double)g->d_q[d]);
}

static void differentiate_query(gradients *g, int64_t i) {
  const attn_problem *p = g->head.problem;
  memset(g->d_q, 0, (size_t)g->dim_qk * sizeof *g->d_q);
  g->keys = attn_allowed_keys(p, g->head.args, &g->head.seq, g->head.b, i);
  g->terms = (row_terms){.lse = -INFINITY};
  if (g->keys.begin < g->keys.end) g->terms = attn_row_terms(p, g->head.args, &g->head.seq, g->head.h, i);
  if (g->terms.lse != -INFINITY) {
    if (g->dim_qk) load_row(attn_q_storage(p, g->head.args), place(g, &p->q_stride, i), p->q_stride.d, g->dim_qk, g->q);
    load_row((attn_storage){g->head.args->d_o, p->dtype_o}, place(g, &p->d_o_stride, i), p->d_o_stride.d, p->dim_v, g->d_o);
    recompute_row(g, i);
    differentiate_row(g, i);
    accumulate_row(g, i);
  }
  finish_query(g, i);
}

/* ---- One KV head ------------------------------------------------------------------------------------------------- */

static void finish_key(const gradients *g, int64_t kv_head, int64_t j) {
  const attn_problem *p = g->head.problem;
  const attn_args *args = g->head.args;
  const float *d_k = g->d_k + j * g->dim_qk, *d_v = g->d_v + j * p->dim_v;
  const int64_t token = g->head.seq.first_k + j;
  const int64_t k_at = attn_row_offset(p, &p->d_k_stride, g->head.b, kv_head, token);
  const int64_t v_at = attn_row_offset(p, &p->d_v_stride, g->head.b, kv_head, token);
  if (!is_finite(d_k, g->dim_qk))
    attn_exact_key_gradient(p, args, g->head.b, kv_head, j, false);
  else
    for (int64_t d = 0; args->d_k && d < g->dim_qk; d++)
      attn_put_gradient(p, args->d_k, p->dtype_kv, k_at + d * p->d_k_stride.d, (double)d_k[d]);
  if (!is_finite(d_v, p->dim_v))
    attn_exact_key_gradient(p, args, g->head.b, kv_head, j, true);
  else
    for (int64_t d = 0; args->d_v && d < p->dim_v; d++)
      attn_put_gradient(p, args->d_v, p->dtype_kv, v_at + d * p->d_v_stride.d, (double)d_v[d]);
}

/* All keys of the tensors: those beyond the sequence's length get zeros. */
static int64_t keys_to_write(const attn_problem *p, const attn_sequence *seq) {
  return attn_uses(p, ATTN_USE_VARLEN) ? seq->len_k : p->seq_k;
}

static void flash_backward_run(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit_memory,
                               void *scratch) {
  const attn_problem *p = &schedule->problem;
  const backward_layout *at = (const void *)schedule->own;
  const int64_t b = attn_batch_of_unit(p, task.unit), first = attn_head_of_unit(p, task.unit), group = attn_group(p);
  (void)unit_memory;
  if (task.phase == 1) {
    attn_exact_score_gradients(p, args, b, first + task.item);
    return;
  }
  gradients g = {.head = {.problem = p, .args = args, .seq = attn_sequence_of(p, args, b), .b = b, .h = first},
                 .dim_qk = p->score == ATTN_SCORE_PRECOMPUTED ? 0 : p->dim_qk,
                 .k = floats_at(scratch, at->k),
                 .k_lanes = floats_at(scratch, at->k_lanes),
                 .v_lanes = floats_at(scratch, at->v_lanes),
                 .d_k = floats_at(scratch, at->d_k),
                 .d_v = floats_at(scratch, at->d_v),
                 .p = floats_at(scratch, at->p),
                 .d_s = floats_at(scratch, at->d_s),
                 .slope = floats_at(scratch, at->slope),
                 .q = floats_at(scratch, at->q),
                 .d_o = floats_at(scratch, at->d_o),
                 .d_q = floats_at(scratch, at->d_q)};
  const int64_t keys = keys_to_write(p, &g.head.seq);
  g.head.query = g.q;
  memset(g.d_k, 0, (size_t)(keys * g.dim_qk) * sizeof *g.d_k);
  memset(g.d_v, 0, (size_t)(keys * p->dim_v) * sizeof *g.d_v);
  load_keys(&g, attn_keys_of_sequence(p, args, &g.head.seq, b));
  for (g.head.h = first; g.head.h < first + group; g.head.h++)
    for (int64_t i = 0; i < attn_rows(p, &g.head.seq); i++) differentiate_query(&g, i);
  for (int64_t j = 0; j < keys; j++) finish_key(&g, first / group, j);
}

static bool flash_backward_plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  backward_layout *at = (void *)schedule->own;
  (void)machine;
  if (!layout_of(p, at)) return false;
  schedule->phases = 2;
  schedule->items[0] = 1;
  schedule->items[1] = attn_group(p);
  schedule->row_block = 1;
  schedule->key_block = p->seq_k;
  schedule->scratch_bytes = (size_t)at->total;
  return true;
}

const attn_kernel attn_flash_backward_c = {
    .info = {.name = "flash_backward_c",
             .algorithm = "flash_backward",
             .isa = "c",
             .library = "",
             .summary = "gradients of attention: P computed again from the LSE, row by row; plain C",
             .numerics = {.exp_error = 0x1p-23}}, /* expf of the C library: at most 1 ulp in glibc */
    .operation = ATTN_BACKWARD,
    .dropout = true,
    .rejects = takes_everything,
    .plan = flash_backward_plan,
    .run = flash_backward_run,
};
