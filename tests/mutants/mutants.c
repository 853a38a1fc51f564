/* SPDX-License-Identifier: MIT */
/* A small flash kernel with a switch for every fault of mutants.def. It takes float32 and dot scores only, but every mask,
 * length, layout and option. Its phases have the same names as in kernels/. */
#include "tests/mutants/mutants.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/memory/partial.h"
#include "kernels/common/problem/indexing.h"

#define MUTANT(name, what)           FAULT_##name,
#define GUARD_MUTANT(name, what)     FAULT_##name,
#define STRUCTURE_MUTANT(name, what) FAULT_##name,
typedef enum fault {
#include "tests/mutants/mutants.def"
} fault;
#undef MUTANT
#undef GUARD_MUTANT
#undef STRUCTURE_MUTANT

enum { ROW_BLOCK = 8, KEY_BLOCK = 16 };

/* One query head of one sequence. */
typedef struct head {
  fault fault;
  attn_problem problem; /* a copy, because some faults change it */
  const attn_args *args;
  attn_sequence seq;
  int64_t b, h;
  int64_t kv_b, kv_h; /* where k and v are read: b and h, unless broken */
  int64_t key_block;  /* KEY_BLOCK, unless broken */
} head;

typedef struct row {
  int64_t i;
  attn_key_range keys;
  float max, sum;
  bool allowed[KEY_BLOCK]; /* in the tile at hand */
  float *acc;              /* [dim_v], in scratch */
} row;

/* A read that the compiler may not leave out. */
static void touch(const float *element) {
  const volatile float *seen = element;
  (void)*seen;
}

/* ---- Which keys ---- */

static attn_key_range allowed_keys(const head *t, int64_t i) {
  attn_key_range keys = attn_allowed_keys(&t->problem, t->args, &t->seq, t->b, i);
  if (keys.begin == keys.end) return keys;
  const int64_t seq_k = t->seq.len_k;
  if (t->fault == FAULT_misses_last_key) keys.end--;
  if (t->fault == FAULT_misses_tail_key && keys.end % KEY_BLOCK) keys.end--;
  if (t->fault == FAULT_misses_first_key) keys.begin++;
  if (t->fault == FAULT_leaks_masked_key && keys.end < seq_k) keys.end++;
  if (t->fault == FAULT_leaks_window_key && keys.begin > 0) keys.begin--;
  if (t->fault == FAULT_leaks_padding_key && keys.end == seq_k && seq_k < t->problem.seq_k) keys.end++;
  return keys;
}

static bool masked(const head *t, int64_t i, int64_t j) {
  const attn_problem *p = &t->problem;
  if (t->fault == FAULT_misses_border_key && j == 2 * KEY_BLOCK - 1) return true;
  const bool full = attn_key_listed(p, t->args, true, t->b, t->h, i, j);
  if (attn_lists_keys(p) && !full && !attn_key_listed(p, t->args, false, t->b, t->h, i, j)) return true;
  if (full && t->fault != FAULT_masks_full_blocks) return false;
  if (t->fault == FAULT_masks_oldest_keys && attn_masks_newest(p))
    return j < p->mask_keys && !t->args->mask[attn_score_offset(&p->mask_stride, t->b, t->h, i, j)];
  return attn_uses(p, ATTN_USE_MASK) && attn_mask_hides(p, t->args, t->b, t->h, i, j);
}

/* ---- One tile of keys ---- */

static attn_key_run run_at(const head *t, int64_t j) {
  attn_sequence seq = t->seq;
  seq.b = t->kv_b;
  return attn_key_run_at(&t->problem, t->args, &seq, t->kv_h, j);
}

static attn_key_scales scales_at(const head *t, int64_t j) {
  attn_sequence seq = t->seq;
  seq.b = t->kv_b;
  return attn_key_scales_at(&t->problem, t->args, &seq, t->kv_h, j);
}

static float dot(const head *t, int64_t i, int64_t j) {
  const attn_problem *p = &t->problem;
  const float *q = (const float *)t->args->q + attn_q_offset(p, &t->seq, t->b, t->h, i);
  const float *k = (const float *)t->args->k + run_at(t, j).k, scale = *scales_at(t, j).k;
  float sum = 0;
  for (int64_t d = 0; d < p->dim_qk; d++) sum += q[d * p->q_stride.d] * k[d * p->k_stride.d];
  if (t->fault != FAULT_ignores_k_scale) sum *= scale;
  if (t->fault == FAULT_reads_lane_after_q) touch(q + p->dim_qk * p->q_stride.d);
  if (t->fault == FAULT_reads_lane_after_k) touch(k + p->dim_qk * p->k_stride.d);
  if (t->fault == FAULT_reads_lane_before_k) touch(k - p->k_stride.d);
  return sum;
}

/* The terms that are added to the dot product: bias and ALiBi. */
static float added_score(const head *t, int64_t i, int64_t j) {
  const attn_problem *p = &t->problem;
  const int64_t offset = t->fault == FAULT_alibi_without_offset ? 0 : t->seq.offset;
  float sum = 0;
  if (attn_uses(p, ATTN_USE_BIAS)) sum += t->args->bias[attn_score_offset(&p->bias_stride, t->b, t->h, i, j)];
  if (t->fault == FAULT_clamps_bias) sum = fmaxf(sum, -1e9f);
  if (attn_uses(p, ATTN_USE_ALIBI)) sum -= t->args->alibi_slopes[t->h] * (float)llabs(i + offset - j);
  return sum;
}

static float score(const head *t, int64_t i, int64_t j) {
  const attn_problem *p = &t->problem;
  const float added = added_score(t, i, j);
  float s = t->fault == FAULT_mean_of_v ? 0 : p->scale * dot(t, i, j);
  if (t->fault == FAULT_softcap_after_bias) s += added;
  if (p->softcap > 0) s = p->softcap * tanhf(s / p->softcap);
  return t->fault == FAULT_softcap_after_bias ? s : s + added;
}

static bool masked_by_bias(const head *t, int64_t i, int64_t j) {
  const attn_problem *p = &t->problem;
  if (t->fault == FAULT_clamps_bias) return false;
  return attn_uses(p, ATTN_USE_BIAS) && t->args->bias[attn_score_offset(&p->bias_stride, t->b, t->h, i, j)] == -INFINITY;
}

static void score_tile(const head *t, row *r, int64_t first, float *tile) {
  for (int64_t c = 0; c < KEY_BLOCK; c++) {
    const int64_t j = first + c;
    const bool seen = c < t->key_block && j >= r->keys.begin && j < r->keys.end && !masked(t, r->i, j);
    r->allowed[c] = seen && !masked_by_bias(t, r->i, j);
    tile[c] = r->allowed[c] ? score(t, r->i, j) : -INFINITY;
    if (t->fault == FAULT_swallows_nan && isnan(tile[c])) tile[c] = -INFINITY;
    if (t->fault == FAULT_multiplies_masked && seen) r->allowed[c] = true;
  }
}

/* Gives keys that a bias of -inf masks a tiny weight. */
static void leak(const head *t, const row *r, int64_t first, float *tile) {
  for (int64_t j = first; j < first + t->key_block; j++)
    if (j >= r->keys.begin && j < r->keys.end && masked_by_bias(t, r->i, j)) tile[j - first] = 1e-12f;
}

static float weight(const head *t, float s, float max, int64_t c) {
  const float p = expf(s - max);
  if (t->fault == FAULT_rough_exp) return p * (c % 2 ? 1.00002f : 0.99998f);
  if (t->fault != FAULT_p_in_bf16) return p;
  uint32_t bits;
  memcpy(&bits, &p, sizeof bits);
  bits = (bits + 0x8000) & 0xffff0000;
  float rounded;
  memcpy(&rounded, &bits, sizeof rounded);
  return rounded;
}

/* Turns scores into weights relative to the new maximum, and rescales the sums that were relative to the old one. */
static void softmax_tile(const head *t, row *r, float *tile) {
  float max = r->max;
  bool any = r->sum > 0;
  for (int c = 0; c < KEY_BLOCK; c++) {
    max = tile[c] > max ? tile[c] : max;
    any |= tile[c] != -INFINITY;
  }
  if (!any) {
    memset(tile, 0, KEY_BLOCK * sizeof *tile);
    return;
  }
  if (t->fault == FAULT_no_maximum) max = 0;
  const float correction = r->max == -INFINITY ? 1 : expf(r->max - max);
  if (t->fault != FAULT_forgets_sum_rescale) r->sum *= correction;
  if (t->fault != FAULT_forgets_rescale)
    for (int64_t d = 0; d < t->problem.dim_v; d++) r->acc[d] *= correction;
  for (int c = 0; c < KEY_BLOCK; c++) r->sum += tile[c] = weight(t, tile[c], max, c);
  r->max = max;
}

static void accumulate_tile(const head *t, row *r, int64_t first, const float *tile) {
  const attn_problem *p = &t->problem;
  for (int64_t c = 0; c < KEY_BLOCK; c++) {
    int64_t j = first + c;
    if (!r->allowed[c] && tile[c] == 0) continue;
    if (t->fault == FAULT_next_key_of_v && j + 1 < t->seq.len_k) j++;
    const float *v = (const float *)t->args->v + run_at(t, j).v;
    const float scaled = tile[c] * *scales_at(t, t->fault == FAULT_earlier_v_scale && c > 0 ? j - 1 : j).v;
    for (int64_t d = 0; d < p->dim_v; d++) r->acc[d] += scaled * v[d * p->v_stride.d];
    if (t->fault == FAULT_reads_lane_after_v) touch(v + p->dim_v * p->v_stride.d);
  }
}

/* ---- One row ---- */

/* The sink is one more logit in the denominator, but no part of the LSE. */
static float denominator(const head *t, const row *r) {
  if (t->fault == FAULT_no_division) return 1;
  const bool sink = attn_uses(&t->problem, ATTN_USE_SINKS) && t->fault != FAULT_ignores_sinks;
  return sink ? r->sum + expf(t->args->sinks[t->h] - r->max) : r->sum;
}

static float log_sum_exp(const head *t, const row *r) {
  if (r->sum == 0) return t->fault == FAULT_lse_zero_for_empty_row ? 0 : -INFINITY;
  if (t->fault == FAULT_lse_base_two) return (r->max + logf(r->sum)) * 1.442695f;
  if (t->fault == FAULT_lse_with_sink) return r->max + logf(denominator(t, r));
  return (t->fault == FAULT_lse_without_maximum ? 0 : r->max) + logf(r->sum);
}

/* Writes beyond the row, but within the guard zones of the harness. */
static void write_beside_row(const head *t, float *o) {
  const int64_t step = t->problem.o_stride.d;
  if (llabs(step) > 4) return;
  if (t->fault == FAULT_writes_lane_too_far) o[t->problem.dim_v * step] = 1;
  if (t->fault == FAULT_writes_lane_before) o[-step] = 1;
}

static void finish_row(const head *t, const row *r) {
  const attn_problem *p = &t->problem;
  const bool empty = r->sum == 0 && t->fault != FAULT_nan_for_empty_row;
  const float divisor = denominator(t, r);
  float *o = (float *)t->args->o + attn_o_offset(p, &t->seq, t->b, t->h, r->i);
  for (int64_t d = 0; d < p->dim_v; d++)
    o[d * p->o_stride.d] = empty || t->fault == FAULT_writes_zeros ? 0 : r->acc[d] / divisor;
  if (t->fault == FAULT_misses_last_column) o[(p->dim_v - 1) * p->o_stride.d] = 0;
  if (t->fault == FAULT_one_nan && r->i == t->seq.rows - 1) o[(p->dim_v - 1) * p->o_stride.d] = NAN;
  write_beside_row(t, o);
  if (attn_uses(p, ATTN_USE_LSE) && t->fault != FAULT_lse_not_written)
    t->args->lse[attn_lse_offset(p, &t->seq, t->b, t->h, r->i)] = log_sum_exp(t, r);
}

/* Where keys come in pieces: what the row has seen of them. */
static void load_state(const head *t, row *r) {
  const float *state = t->args->state + attn_state_offset(&t->problem, &t->seq, t->b, t->h, r->i);
  const double reference = kept_reference(state, t->problem.dim_v);
  if (t->fault == FAULT_forgets_state || reference == -INFINITY) return;
  r->max = (float)(LN_2 * reference);
  r->sum = state[t->problem.dim_v];
  memcpy(r->acc, state, (size_t)t->problem.dim_v * sizeof(float));
}

static void store_state(const head *t, const row *r) {
  float *state = t->args->state + attn_state_offset(&t->problem, &t->seq, t->b, t->h, r->i);
  memcpy(state, r->acc, (size_t)t->problem.dim_v * sizeof(float));
  keep_sums(state, t->problem.dim_v, 1, &r->sum);
  keep_reference(state, t->problem.dim_v, LOG2_E_DOUBLE * (double)r->max);
}

static void run_row(const head *t, int64_t i, float *acc) {
  float tile[KEY_BLOCK];
  const bool carries = attn_uses(&t->problem, ATTN_USE_STATE);
  row r = {.i = i, .keys = allowed_keys(t, i), .max = -INFINITY, .acc = acc};
  if (t->fault != FAULT_stale_accumulator) memset(acc, 0, (size_t)t->problem.dim_v * sizeof *acc);
  if (carries) load_state(t, &r);
  for (int64_t first = r.keys.begin / t->key_block * t->key_block; first < r.keys.end; first += t->key_block) {
    score_tile(t, &r, first, tile);
    softmax_tile(t, &r, tile);
    if (t->fault == FAULT_faint_leak && r.sum > 0) leak(t, &r, first, tile);
    accumulate_tile(t, &r, first, tile);
  }
  if (carries) store_state(t, &r);
  finish_row(t, &r);
}

/* ---- The kernel ---- */

static void scale_q_in_place(const head *t, int64_t i) {
  float *q = (float *)(uintptr_t)t->args->q + attn_q_offset(&t->problem, &t->seq, t->b, t->h, i);
  for (int64_t d = 0; d < t->problem.dim_qk; d++) q[d * t->problem.q_stride.d] *= t->problem.scale;
}

static void break_problem(head *t) {
  attn_problem *p = &t->problem;
  switch (t->fault) {
    case FAULT_wrong_scale: p->scale *= 1.001f; break;
    case FAULT_default_scale: p->scale = 1 / sqrtf((float)p->dim_qk); break;
    case FAULT_misses_last_dim: p->dim_qk--; break;
    case FAULT_always_top_left: p->align = ATTN_ALIGN_TOP_LEFT; break;
    case FAULT_ignores_softcap: p->softcap = 0; break;
    case FAULT_ignores_mask: p->uses &= ~(uint32_t)ATTN_USE_MASK; break;
    case FAULT_ignores_key_blocks: p->uses &= ~(uint32_t)(ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS); break;
    case FAULT_forgets_full_blocks: p->uses &= ~(uint32_t)ATTN_USE_FULL_KEY_BLOCKS; break;
    case FAULT_ignores_bias: p->uses &= ~(uint32_t)ATTN_USE_BIAS; break;
    case FAULT_ignores_row_len: p->uses &= ~(uint32_t)ATTN_USE_ROW_LEN; break;
    case FAULT_computes_padded_rows: p->uses &= ~(uint32_t)ATTN_USE_Q_LEN; break;
    case FAULT_dense_columns: p->v_stride.d = p->v_stride.d > 1 ? 1 : p->v_stride.d; break;
    default: break;
  }
}

/* Another length of tiles changes only the roundings of the rescaling. */
static int64_t broken_key_block(fault f, const attn_schedule *schedule) {
  static int calls;
  if (f == FAULT_bits_by_call) return KEY_BLOCK - calls++ % 3;
  if (f == FAULT_bits_by_threads) return schedule->key_block;
  if (f == FAULT_bits_by_piece && attn_uses(&schedule->problem, ATTN_USE_STATE)) return KEY_BLOCK - 3;
  return f == FAULT_bits_by_batch && schedule->problem.batch > 1 ? KEY_BLOCK - 3 : KEY_BLOCK;
}

static head make_head(fault f, const attn_schedule *schedule, const attn_args *args, int64_t b, int64_t h) {
  const attn_problem *problem = &schedule->problem;
  head t = {.fault = f, .problem = *problem, .args = args, .b = b, .h = h, .kv_b = b, .kv_h = h};
  t.key_block = broken_key_block(f, schedule);
  break_problem(&t);
  t.seq = attn_sequence_of(&t.problem, args, b);
  const int64_t group = problem->heads_q / problem->heads_kv;
  if (f == FAULT_heads_modulo) t.kv_h = h % problem->heads_kv * group;
  if (f == FAULT_first_batch) t.kv_b = 0;
  return t;
}

static void run(fault f, const attn_schedule *schedule, const attn_args *args, attn_task task, float *scratch) {
  const attn_problem *p = &schedule->problem;
  const int64_t blocks = (p->seq_q + ROW_BLOCK - 1) / ROW_BLOCK, block = task.item % blocks;
  const int64_t group = p->heads_q / p->heads_kv, b = task.unit / p->heads_kv;
  head t = make_head(f, schedule, args, b, task.unit % p->heads_kv * group + task.item / blocks);
  if (f == FAULT_does_nothing || (f == FAULT_skips_last_block && block == blocks - 1)) return;
  const int64_t end = block * ROW_BLOCK + ROW_BLOCK < t.seq.rows ? block * ROW_BLOCK + ROW_BLOCK : t.seq.rows;
  for (int64_t i = block * ROW_BLOCK; i < end; i++) {
    if (f == FAULT_skips_last_row && i == t.seq.rows - 1) continue;
    if (f == FAULT_bits_by_place) t.key_block = KEY_BLOCK - i % ROW_BLOCK;
    run_row(&t, i, scratch);
    if (f == FAULT_scales_q_in_place) scale_q_in_place(&t, i);
  }
}

static const char *rejects(const attn_problem *p, char *buffer, size_t buffer_bytes) {
  (void)buffer, (void)buffer_bytes;
  if (p->dtype_q != ATTN_F32 || p->dtype_kv != ATTN_F32 || p->dtype_o != ATTN_F32) return "takes float32 only";
  if (p->score != ATTN_SCORE_DOT) return "takes dot scores only";
  return NULL;
}

static bool plan(const attn_problem *p, const attn_machine *machine, attn_schedule *schedule) {
  schedule->phases = 1;
  schedule->items[0] = p->heads_q / p->heads_kv * ((p->seq_q + ROW_BLOCK - 1) / ROW_BLOCK);
  schedule->scratch_bytes = (size_t)p->dim_v * sizeof(float);
  schedule->row_block = ROW_BLOCK;
  schedule->key_block = machine->threads > 1 ? KEY_BLOCK - 3 : KEY_BLOCK; /* only bits_by_threads looks at it */
  return true;
}

/* Each broken kernel has the name by which the zoo's registry knows it: attn_mutant_<name>. */
#define MUTANT(fault_name, what)                                                                                 \
  static void run_##fault_name(const attn_schedule *schedule, const attn_args *args, attn_task task, void *unit, \
                               void *scratch) {                                                                  \
    (void)unit;                                                                                                  \
    run(FAULT_##fault_name, schedule, args, task, scratch);                                                      \
  }                                                                                                              \
  extern const attn_kernel attn_mutant_##fault_name;                                                             \
  const attn_kernel attn_mutant_##fault_name = {.info = {.name = #fault_name,                                    \
                                                         .algorithm = "mutant",                                  \
                                                         .isa = "c",                                             \
                                                         .library = "",                                          \
                                                         .summary = what,                                        \
                                                         .numerics = {.exp_error = 0x1p-22}},                    \
                                                .key_blocks = true,                                              \
                                                .rejects = rejects,                                              \
                                                .plan = plan,                                                    \
                                                .run = run_##fault_name};
#define GUARD_MUTANT     MUTANT
#define STRUCTURE_MUTANT MUTANT
#include "tests/mutants/mutants.def"
#undef MUTANT
#undef GUARD_MUTANT
#undef STRUCTURE_MUTANT

#define MUTANT(name, what)           {.kernel = &attn_mutant_##name},
#define GUARD_MUTANT(name, what)     {.kernel = &attn_mutant_##name, .guard_only = true},
#define STRUCTURE_MUTANT(name, what) {.kernel = &attn_mutant_##name, .structure_only = true},
const mutant mutants[] = {
#include "tests/mutants/mutants.def"
};
const int mutant_count = sizeof mutants / sizeof *mutants;

const attn_kernel *mutant_find(const char *name) {
  for (int i = 0; i < mutant_count; i++)
    if (strcmp(mutants[i].kernel->info.name, name) == 0) return mutants[i].kernel;
  return NULL;
}
