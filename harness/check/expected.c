/* SPDX-License-Identifier: MIT */
/* The oracle's answer to one problem, and the rows that it is computed for. */
#include <math.h>
#include <stdlib.h>

#include "attn/extend.h"
#include "check/check.h"
#include "data/generate.h"
#include "kernels/common/problem/indexing.h"
#include "machine/affinity.h"

static const double WORTH_THREADS = 1e6; /* multiply-adds: a few milliseconds; waking threads for less costs more */

int64_t bench_row_place(const attn_problem *p, const attn_args *args, const attn_strides *stride,
                        const bench_expected_row *row) {
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const int64_t start = varlen ? args->cu_seqlens_q[row->b] * stride->s : row->b * stride->b;
  return start + row->h * stride->h + row->i * stride->s;
}

int64_t bench_sequences_of(const attn_problem *p, bench_tensor output) {
  const bool tokens = output < (bench_tensor)ATTN_ROW_OPERANDS || p->batch == 0;
  return tokens ? p->batch : attn_operand_of(p, (attn_operand_id)output).extent[0];
}

int64_t bench_rows_of(const attn_problem *p, const attn_args *args, bench_tensor output, int64_t b) {
  const attn_operand o = attn_operand_of(p, (attn_operand_id)output);
  if (output >= (bench_tensor)ATTN_ROW_OPERANDS) return o.extent[2];
  if (!o.of_keys) return attn_oracle_f64_rows(p, args, b);
  return p->uses & ATTN_USE_VARLEN ? args->cu_seqlens_k[b + 1] - args->cu_seqlens_k[b] : p->seq_k;
}

int64_t bench_key_place(const attn_problem *p, const attn_args *args, const attn_strides *stride,
                        const bench_expected_row *row, int64_t j) {
  const int64_t head = row->h / (p->heads_q / p->heads_kv) * stride->h;
  if (p->uses & ATTN_USE_PAGES) {
    const int64_t page = args->page_table[row->b * p->page_table_stride + j / p->page_tokens];
    return page * stride->b + head + j % p->page_tokens * stride->s;
  }
  return head +
         (p->uses & ATTN_USE_VARLEN ? (args->cu_seqlens_k[row->b] + j) * stride->s : row->b * stride->b + j * stride->s);
}

double bench_v_scale(const attn_problem *p, const attn_args *args, const bench_expected_row *row, int64_t j, int64_t d) {
  if (!(p->uses & ATTN_USE_KV_SCALES)) return 1;
  return (double)args->v_scale[bench_key_place(p, args, &p->v_scale_stride, row, j) + d * p->v_scale_stride.d];
}

/* The mean of V over the allowed keys of row n: those whose score is not negative. */
static void compute_mean(bench_expected *e, const attn_args *args, int64_t n, const double *score) {
  const attn_problem *p = &e->problem;
  const bench_expected_row *row = &e->row[n];
  const double share = 1.0 / (double)row->facts.allowed;
  double *mean = e->mean_v + n * p->dim_v;
  for (int64_t d = 0; d < p->dim_v; d++) mean[d] = 0.0;
  for (int64_t j = 0; j < p->seq_k; j++) {
    if (score[j] < 0.0) continue;
    const int64_t at = bench_key_place(p, args, &p->v_stride, row, j);
    for (int64_t d = 0; d < p->dim_v; d++)
      mean[d] += share * bench_v_scale(p, args, row, j, d) * attn_oracle_load(args->v, p->dtype_kv, at + d * p->v_stride.d);
  }
}

static int by_size(const void *a, const void *b) {
  const double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

static const double ROUNDOFF = 0x1p-24; /* half of the last place of a float32 below 1 is at most so much */

static double most_error(double p) { return fmin(1, p / ROUNDOFF); }

/* Pairs of weights that a float32 sum rounds alike, in the order of their size: those that float32 does not tell apart, as a
 * score errs by some u * S, and those of the largest group within half a place of the sum. A weight below u, which cannot
 * change the sum by u, counts less. */
static double count_ties(const double *p, int64_t count, double abs_sum) {
  const double same = 1 + 2 * ROUNDOFF * (1 + abs_sum);
  double ties = 0, before = 0, near = 0, most = 0;
  for (int64_t j = 0, first = 0, first_near = 0; j < count; before += most_error(p[j++])) {
    while (p[j] > p[first] * same) before -= most_error(p[first++]);
    while (p[j] > p[first_near] + ROUNDOFF) near -= most_error(p[first_near++]);
    ties += 2 * before * most_error(p[j]);
    most = fmax(most, near += most_error(p[j]));
  }
  return ties + most * fmax(most - 1, 0);
}

/* Computes row n. The oracle leaves p in the scratch of allowed keys and does not touch the others: a negative mark tells
 * them apart, for the mean of V over the allowed keys. */
void bench_expected_attend(bench_expected *e, const attn_args *args, int64_t n, double *score) {
  const attn_problem *p = &e->problem;
  bench_expected_row *row = &e->row[n];
  const attn_oracle_output out = {e->o + n * p->dim_v, e->m + n * p->dim_v, e->w + n * p->dim_v, score};
  for (int64_t j = 0; j < p->seq_k; j++) score[j] = -1.0;
  row->facts = attn_oracle_f64_row(p, args, (attn_oracle_index){row->b, row->h, row->i}, &out);
  compute_mean(e, args, n, score);
  int64_t count = 0;
  for (int64_t j = 0; j < p->seq_k; j++)
    if (score[j] >= 0.0) score[count++] = score[j];
  qsort(score, (size_t)count, sizeof *score, by_size);
  row->facts.ties = count_ties(score, count, row->facts.abs_sum);
}

/* The oracle's answer to a row of a gradient. Lists of one number a head are one row. */
void bench_expected_differentiate(bench_expected *e, const attn_args *args, int64_t n, double *scratch) {
  static const attn_oracle_sum sums[BENCH_TENSORS] = {[BENCH_D_BIAS] = ATTN_ORACLE_D_BIAS,
                                                      [BENCH_D_SCORES] = ATTN_ORACLE_D_SCORES,
                                                      [BENCH_D_SCORE_WEIGHT] = ATTN_ORACLE_D_SCORE_WEIGHT,
                                                      [BENCH_D_ALIBI_SLOPES] = ATTN_ORACLE_D_ALIBI_SLOPES,
                                                      [BENCH_D_SINKS] = ATTN_ORACLE_D_SINKS};
  const attn_problem *p = &e->problem;
  bench_expected_row *row = &e->row[n];
  const bool list = row->of == BENCH_D_ALIBI_SLOPES || row->of == BENCH_D_SINKS, weight = row->of == BENCH_D_SCORE_WEIGHT;
  (void)scratch;
  row->facts = (attn_oracle_row){.exists = true};
  for (int64_t h = 0; h < (list ? p->heads_q : 1); h++) {
    const int64_t at = row->at + h;
    const attn_oracle_gradient to = {e->o + at, e->m + at, e->w + at, e->proven + at, e->sharp + at};
    const attn_oracle_index index = list     ? (attn_oracle_index){0, h, 0}
                                    : weight ? (attn_oracle_index){0, row->i, 0}
                                             : (attn_oracle_index){row->b, row->h, row->i};
    attn_oracle_gradient_facts facts;
    if (row->of == BENCH_D_Q)
      facts = attn_oracle_f64_query_gradient(p, args, index, &to);
    else if (row->of == BENCH_D_K || row->of == BENCH_D_V)
      facts = attn_oracle_f64_key_gradient(p, args, row->b, row->h, row->i, row->of == BENCH_D_V, &to);
    else
      facts = attn_oracle_f64_sum_gradient(p, args, sums[row->of], index, &to);
    row->facts.allowed = facts.pairs > row->facts.allowed ? facts.pairs : row->facts.allowed;
    row->facts.max_v = fmax(row->facts.max_v, facts.max_factor);
  }
}

/* False if memory is short. */
static bool compute_rows(bench_expected *e, const attn_args *args) {
  const attn_problem *p = &e->problem;
  const bool large = e->rows > 1 && (double)e->rows * (double)p->seq_k * (double)(p->dim_qk + p->dim_v) > WORTH_THREADS;
  const int threads = large ? attn_parallel_default_threads() : 1;
  bool enough = true;
  (void)threads; /* not used without OpenMP */
#pragma omp parallel num_threads(attn_parallel_available(threads)) reduction(&& : enough)
  {
    bench_thread_settle();
    double *score = malloc((size_t)(p->seq_k + 1) * sizeof *score);
    if (!score) enough = false;
#pragma omp for schedule(dynamic)
    for (int64_t n = 0; n < e->rows; n++)
      if (score) bench_answers[p->operation].compute_row(e, args, n, score);
    free(score);
  }
  return enough;
}

/* Takes over e, whose rows are chosen. NULL if memory is short. */
static bench_expected *compute(bench_expected *e, const attn_args *args) {
  const bool by_output = bench_answers[e->problem.operation].by_output;
  bool enough = e->row;
  double **const values[] = {&e->o, &e->m, &e->w, by_output ? &e->proven : &e->mean_v, &e->sharp};
  int64_t count = by_output ? 0 : e->rows * e->problem.dim_v;
  for (int64_t n = 0; by_output && enough && n < e->rows; n++) {
    e->row[n].at = count;
    count += attn_operand_of(&e->problem, (attn_operand_id)e->row[n].of).extent[3];
  }
  for (int i = 0; i < (by_output ? 5 : 4); i++) {
    *values[i] = malloc((size_t)(count + 1) * sizeof(double));
    enough = enough && *values[i];
  }
  if (enough && compute_rows(e, args)) return e;
  return bench_expected_destroy(e), NULL;
}

bench_expected *bench_expected_create(const attn_problem *problem, const attn_args *args, uint64_t seed, bool zero_mean) {
  bench_expected *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  *e = (bench_expected){.problem = *problem, .zero_mean = zero_mean, .reference = calloc(1, sizeof *e->reference)};
  if (e->reference && bench_expected_choose(e, args, seed)) return compute(e, args);
  return bench_expected_destroy(e), NULL;
}

bench_expected *bench_expected_of_row(const attn_problem *problem, const attn_args *args, const bench_expected_row *row,
                                      bool zero_mean) {
  bench_expected *e = calloc(1, sizeof *e);
  if (!e) return NULL;
  *e = (bench_expected){.problem = *problem, .zero_mean = zero_mean, .rows = 1, .row = malloc(sizeof *e->row)};
  if (e->row) *e->row = *row;
  return compute(e, args);
}

void bench_expected_destroy(bench_expected *e) {
  if (!e) return;
  const bench_reference none = {0}, *r = e->reference ? e->reference : &none;
  for (int i = 0; i < BENCH_TENSORS; i++) free(r->output[i]);
  void *const memory[] = {r->m, e->reference, e->row, e->o, e->m, e->w, e->mean_v, e->proven, e->sharp, e};
  for (size_t i = 0; i < sizeof memory / sizeof *memory; i++) free(memory[i]);
}

/* ---- Which rows the oracle computes ------------------------------------------------------------------------------- */
/* Small problems get every row checked. Larger ones get the rows where kernels change their path (first and last row,
 * borders of common tile heights, borders of masks and lengths), and seeded rows in between. Where even these would take
 * seconds, each head gets some of them. */

static const double ALL_ROWS_COST = 1e8; /* multiply-adds up to which every row is checked */
static const double MOST_COST = 4e8;     /* multiply-adds of the oracle for one problem: one or two seconds of one core */
static const double MOST_ELEMENTS = 2e6; /* outputs kept: 64 MB of doubles */

enum { SEEDED_ROWS = 64, MOST_CANDIDATES = 160 };

typedef struct candidates {
  int64_t row[MOST_CANDIDATES];
  int count;
  int64_t rows; /* rows of the sequence: candidates are in */
} candidates;

static void consider(candidates *c, int64_t i) {
  if (i < 0 || i >= c->rows || c->count == MOST_CANDIDATES) return;
  for (int known = 0; known < c->count; known++)
    if (c->row[known] == i) return;
  c->row[c->count++] = i;
}

static void consider_border(candidates *c, int64_t i) {
  for (int step = -1; step <= 1; step++) consider(c, attn_saturating_add(i, step));
}

/* The rows at which one side of the window passes the first or the last key. */
static void consider_window(candidates *c, const attn_sequence *seq, int64_t window) {
  consider_border(c, attn_saturating_add(attn_saturating_add(0, -seq->offset), window));
  consider_border(c, attn_saturating_add(attn_saturating_add(seq->len_k, -seq->offset), window));
}

/* Rows around which the set of allowed keys starts, stops growing or ends; positions are i + offset. */
static void consider_mask_borders(candidates *c, const attn_problem *p, const attn_sequence *seq) {
  consider_border(c, seq->len_q);
  if (attn_lists_keys(p)) consider_border(c, p->block_queries);
  if (p->window_left >= 0) consider_window(c, seq, p->window_left);
  if (p->window_right >= 0) consider_window(c, seq, -p->window_right);
  const int64_t borders[] = {p->window_first, p->key_begin, p->key_end};
  for (int side = 0; side < 2; side++)
    for (size_t n = 0; n < sizeof borders / sizeof *borders; n++) {
      const int64_t window = side ? -p->window_right : p->window_left;
      if (borders[n] > 0 && (side ? p->window_right : p->window_left) >= 0)
        consider_border(c, attn_saturating_add(borders[n] - seq->offset, window));
    }
}

static void consider_tile_borders(candidates *c) {
  static const int64_t tile_heights[] = {6, 16, 64, 96, 128, 256};
  for (size_t t = 0; t < sizeof tile_heights / sizeof *tile_heights; t++) {
    consider_border(c, tile_heights[t]);
    consider_border(c, c->rows / tile_heights[t] * tile_heights[t]);
  }
}

static void consider_seeded_rows(candidates *c, uint64_t seed, int64_t head_of_batch) {
  for (int s = 0; s < SEEDED_ROWS; s++) {
    const uint64_t index = (uint64_t)(head_of_batch * SEEDED_ROWS + s);
    consider(c, bench_value_below(seed, BENCH_STREAM_CHECKED_ROWS, index, c->rows));
  }
}

static void consider_all(candidates *c, const attn_problem *p, const attn_args *args, uint64_t seed, int64_t b, int64_t h) {
  const attn_sequence seq = attn_sequence_of(p, args, b);
  if (c->rows == 0) return;
  consider(c, c->rows - 1);
  consider(c, 0);
  consider_tile_borders(c);
  consider_mask_borders(c, p, &seq);
  consider_seeded_rows(c, seed, b * p->heads_q + h);
}

/* Multiply-adds of the oracle for a row. */
static double row_cost(const attn_problem *p, bench_tensor output) {
  const double keys = (double)(p->seq_k + 1), queries = (double)(p->seq_q + 1), each = (double)(p->dim_qk + p->dim_v);
  const attn_score_strides *by = output == BENCH_D_SCORES ? &p->d_scores_stride : &p->d_bias_stride;
  const double group = (double)(p->heads_q / p->heads_kv), gradient = 3 * each; /* with its error limits */
  switch (output) {
    case BENCH_D_Q: return gradient * keys;
    case BENCH_D_K:
    case BENCH_D_V: return gradient * group * queries;
    case BENCH_D_BIAS:
    case BENCH_D_SCORES:
      return gradient * keys * (by->b ? 1 : (double)p->batch) * (by->h ? 1 : (double)p->heads_q) * (by->q ? 1 : queries);
    case BENCH_D_SCORE_WEIGHT:
    case BENCH_D_ALIBI_SLOPES:
    case BENCH_D_SINKS: return gradient * (double)p->batch * (double)p->heads_q * queries * keys;
    default: return keys * each;
  }
}

/* The rows that were chosen, and what they cost. */
typedef struct chosen {
  int64_t rows;
  double cost, values;
} chosen;

/* Goes through the rows of an output to check, stores them where expected->row has room, and counts them. share 0: all rows.
 * Else one candidate in `share`; each head starts at another place of its list, so that the heads together cover the list.
 * Gradients that are no rows of queries or keys are checked in all rows. */
static void choose_of(bench_expected *expected, const attn_args *args, uint64_t seed, int64_t share, bench_tensor output,
                      chosen *all) {
  const attn_problem *p = &expected->problem;
  const attn_operand o = attn_operand_of(p, (attn_operand_id)output);
  const bool few = output >= (bench_tensor)ATTN_ROW_OPERANDS && output != BENCH_D_BIAS && output != BENCH_D_SCORES;
  const int64_t heads = o.extent[1], step = share && !few ? share : 1, before = all->rows;
  for (int64_t head = 0; head < bench_sequences_of(p, output) * heads; head++) {
    const int64_t b = head / heads, h = head % heads;
    candidates c = {.rows = bench_rows_of(p, args, output, b)};
    if (share) consider_all(&c, p, args, seed, b, h);
    const bool listed = share && !few;
    for (int64_t n = listed ? head % share : 0; n < (listed ? c.count : c.rows); n += step, all->rows++)
      if (expected->row)
        expected->row[all->rows] = (bench_expected_row){.b = b, .h = h, .i = listed ? c.row[n] : n, .of = output};
  }
  all->cost += (double)(all->rows - before) * row_cost(p, output);
  all->values += (double)(all->rows - before) * (double)o.extent[3];
}

/* The rows of all outputs; outputs of attention have the same ones. */
static chosen choose(bench_expected *expected, const attn_args *args, uint64_t seed, int64_t share) {
  const attn_problem *p = &expected->problem;
  chosen all = {0};
  for (const bench_output *output = bench_outputs_of(p); output->right; output++) {
    if (!bench_answers[p->operation].by_output) return choose_of(expected, args, seed, share, output->tensor, &all), all;
    if (attn_operand_of(p, (attn_operand_id)output->tensor).present)
      choose_of(expected, args, seed, share, output->tensor, &all);
  }
  return all;
}

/* 0: all rows may be checked. */
static int64_t choose_share(bench_expected *expected, const attn_args *args, uint64_t seed) {
  chosen all = choose(expected, args, seed, 0);
  if (all.cost <= ALL_ROWS_COST && all.values <= MOST_ELEMENTS) return 0;
  all = choose(expected, args, seed, 1);
  return 1 + (int64_t)fmax(all.cost / MOST_COST, all.values / MOST_ELEMENTS);
}

bool bench_expected_choose(bench_expected *expected, const attn_args *args, uint64_t seed) {
  const int64_t share = choose_share(expected, args, seed), rows = choose(expected, args, seed, share).rows;
  expected->complete = !share;
  expected->row = malloc((size_t)rows * sizeof *expected->row + 1);
  if (expected->row) expected->rows = choose(expected, args, seed, share).rows;
  return expected->row;
}
