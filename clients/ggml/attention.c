/* SPDX-License-Identifier: MIT */
#include "attention.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/attn.h"
#include "mask.h"
#include "python/native/plans.h"

enum { Q, K, V, MASK, SINKS }; /* places in src */

/* Types of K and V, with the bytes and values of a block. */
static const struct {
  enum ggml_type theirs;
  attn_dtype ours;
  size_t bytes;
  int64_t values;
} types[] = {{GGML_TYPE_F32, ATTN_F32, 4, 1},
             {GGML_TYPE_F16, ATTN_F16, 2, 1},
             {GGML_TYPE_BF16, ATTN_BF16, 2, 1},
             {GGML_TYPE_Q8_0, ATTN_Q8_0, 34, 32},
             {GGML_TYPE_Q4_0, ATTN_Q4_0, 18, 32}};
enum { TYPES = sizeof types / sizeof *types };

static int find_type(enum ggml_type type) {
  for (int i = 0; i < TYPES; i++)
    if (types[i].theirs == type) return i;
  return -1;
}

static float parameter(const struct ggml_tensor *op, int number) {
  float value;
  memcpy(&value, &op->op_params[number], sizeof value);
  return value;
}

/* Rows that lie dense, at strides of whole blocks. */
static bool has_dense_rows(const struct ggml_tensor *t) {
  const int type = find_type(t->type);
  if (type < 0 || t->nb[0] != types[type].bytes || t->ne[0] % types[type].values) return false;
  for (int i = 1; i < 4; i++)
    if (t->nb[i] % types[type].bytes) return false;
  return true;
}

/* One mask for all heads, sequences or both, or one for each; rows beyond the queries only behind all others. */
static bool takes_mask(const struct ggml_tensor *t, const struct ggml_tensor *q, int64_t keys) {
  return t->ne[0] == keys && (t->ne[2] == 1 || t->ne[2] == q->ne[2]) && (t->ne[3] == 1 || t->ne[3] == q->ne[3]) &&
         (t->ne[1] == q->ne[1] || t->ne[2] * t->ne[3] == 1);
}

bool attention_takes(const struct ggml_tensor *op) {
  const struct ggml_tensor *q = op->src[Q], *k = op->src[K], *v = op->src[V];
  return op->type == GGML_TYPE_F32 && q->type == GGML_TYPE_F32 && k->type == v->type && has_dense_rows(q) &&
         has_dense_rows(k) && has_dense_rows(v) && k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] && q->ne[3] == k->ne[3] &&
         q->ne[2] % k->ne[2] == 0 && k->ne[1] <= INT32_MAX && (!op->src[MASK] || takes_mask(op->src[MASK], q, k->ne[1]));
}

static attn_strides strides_of(const struct ggml_tensor *t) {
  const int type = find_type(t->type);
  const int64_t bytes = (int64_t)types[type].bytes, values = types[type].values;
  return (attn_strides){.b = (int64_t)t->nb[3] / bytes * values,
                        .h = (int64_t)t->nb[2] / bytes * values,
                        .s = (int64_t)t->nb[1] / bytes * values,
                        .d = 1};
}

/* All but the mask. */
static void describe(const struct ggml_tensor *op, attn_problem *p, attn_args *args) {
  const struct ggml_tensor *q = op->src[Q], *k = op->src[K], *v = op->src[V];
  attn_problem_init(p, q->ne[3], q->ne[2], k->ne[2], q->ne[1], k->ne[1], q->ne[0], v->ne[0]);
  p->dtype_kv = types[find_type(k->type)].ours;
  p->q_stride = strides_of(q);
  p->k_stride = strides_of(k);
  p->v_stride = strides_of(v);
  p->o_stride = (attn_strides){.b = q->ne[1] * q->ne[2] * v->ne[0], .h = v->ne[0], .s = q->ne[2] * v->ne[0], .d = 1};
  p->scale = parameter(op, 0);
  p->softcap = parameter(op, 2);
  *args = ATTN_STRUCT(attn_args, .q = q->data, .k = k->data, .v = v->data, .o = op->data);
  if (!op->src[SINKS]) return;
  args->sinks = op->src[SINKS]->data;
  p->uses |= ATTN_USE_SINKS;
}

/* Memory of one call. */
typedef struct scratch {
  int32_t *lengths;
  void *scores; /* bits or a bias */
  float *slopes;
} scratch;

static bool refuse_memory(size_t bytes) {
  fprintf(stderr, "libattn: out of memory: a mask needs %zu bytes\n", bytes);
  return false;
}

/* The longest row of each sequence, in place of the lengths of rows. */
static void take_longest(const mask *m, int32_t *lengths) {
  for (int64_t b = 0; b < m->sequences; b++) {
    int32_t most = 0;
    for (int64_t i = 0; i < m->rows; i++) most = lengths[b * m->rows + i] > most ? lengths[b * m->rows + i] : most;
    lengths[b] = most; /* b <= b rows: that of another sequence is not overwritten before it is read */
  }
}

/* A number for each sequence, where the mask has one for several. */
static void repeat(int32_t *numbers, int64_t have, int64_t want, int64_t row) {
  for (int64_t b = have; b < want; b++) memcpy(numbers + b * row, numbers + b % have * row, (size_t)row * sizeof *numbers);
}

static attn_score_strides strides_of_scores(const mask *m, int64_t heads, int64_t batch) {
  const int64_t of_head = m->rows * m->keys;
  return (attn_score_strides){
      .b = m->sequences == batch ? heads * of_head : 0, .h = heads > 1 ? of_head : 0, .q = m->keys, .k = 1};
}

static bool take_mask(const struct ggml_tensor *op, attn_problem *p, attn_args *args, scratch *s) {
  const struct ggml_tensor *t = op->src[MASK];
  const float max_bias = parameter(op, 1);
  const mask m = {t->data, t->ne[3], t->ne[2], p->seq_q, t->ne[0]};
  const size_t length_bytes = (size_t)(p->batch * p->seq_q + p->batch) * sizeof *s->lengths;
  if (!(s->lengths = malloc(length_bytes))) return refuse_memory(length_bytes);
  const mask_kind kind = mask_read(&m, s->lengths);
  if (kind == MASK_LENGTHS) {
    repeat(s->lengths, m.sequences, p->batch, m.rows);
    args->row_len = s->lengths;
    p->uses |= ATTN_USE_ROW_LEN;
    return true;
  }
  take_longest(&m, s->lengths);
  repeat(s->lengths, m.sequences, p->batch, 1);
  args->kv_len = s->lengths;
  p->uses |= ATTN_USE_KV_LEN;
  const int64_t heads = kind == MASK_BIAS && max_bias > 0 ? p->heads_q : m.heads;
  const size_t size = kind == MASK_BIAS ? sizeof(float) : 1;
  const size_t bytes = (size_t)(m.sequences * heads * m.rows * m.keys) * size;
  if (!(s->scores = malloc(bytes))) return refuse_memory(bytes);
  if (kind == MASK_BITS) {
    mask_write_bits(&m, s->scores);
    args->mask = s->scores;
    p->mask_stride = strides_of_scores(&m, heads, p->batch);
    p->uses |= ATTN_USE_MASK;
    return true;
  }
  if (max_bias > 0) {
    if (!(s->slopes = malloc((size_t)heads * sizeof *s->slopes))) return refuse_memory((size_t)heads * sizeof *s->slopes);
    mask_slopes(max_bias, heads, s->slopes);
  }
  mask_write_bias(&m, s->slopes, heads, s->scores);
  args->bias = s->scores;
  p->bias_stride = strides_of_scores(&m, heads, p->batch);
  p->uses |= ATTN_USE_BIAS;
  return true;
}

static bool run(const request *wanted, const attn_args *args) {
  const attn_status status = planned_compute(wanted, args);
  if (status != ATTN_OK) fprintf(stderr, "libattn: %s\n", attn_last_error());
  return status == ATTN_OK;
}

bool attention_compute(const struct ggml_tensor *op, int threads) {
  request wanted;
  attn_args args;
  scratch s = {0};
  memset(&wanted, 0, sizeof wanted); /* its bytes are compared */
  describe(op, &wanted.problem, &args);
  wanted.threads = threads;
  const bool done = (!op->src[MASK] || take_mask(op, &wanted.problem, &args, &s)) && run(&wanted, &args);
  free(s.lengths);
  free(s.scores);
  free(s.slopes);
  return done;
}
