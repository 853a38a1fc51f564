/* SPDX-License-Identifier: MIT */
/* Attention with its projections that learns. One product makes all columns that come from the same rows: Q, K and V of x in
 * self-attention, else Q of x, and K and V of the memory. Attention takes them there by strides and leaves their gradients
 * alike, so that one product each has the gradients of the rows and of all their weights. */
#include <inttypes.h>
#include <string.h>

#include "kernels/common/memory/aligned.h"
#include "src/train/tasks.h"

static const attn_struct_layout layout = ATTN_LAYOUT(attn_multi_head, x);
static const uint32_t gradients = ATTN_USE_D_BIAS | ATTN_USE_D_ALIBI | ATTN_USE_D_SINKS | ATTN_USE_D_SCORE_WEIGHT;

/* Rows that are projected. */
typedef struct side {
  const char *name; /* "attn_multi_head.x" */
  int64_t rows, width, columns;
  const float *x;
  float *d_x;
  attn_linear map;
  attn_linear_grad d_map;
} side;

/* The layer, its problem with strides, and the parts of what is kept. */
typedef struct attention_run {
  attn_multi_head l;
  attn_problem problem;
  attn_args args;
  side side[2]; /* x, and the memory */
  int sides;
  int64_t rows_q, rows_k, queries, keys, values, heads_width; /* columns of Q, K, V and O */
  attn_options options; /* without a kernel's name: forward and backward have different ones */
} attention_run;

static bool uses(const attention_run *r, uint32_t use) { return (r->problem.uses & use) != 0; }

/* ---- Shape ---- */

static attn_status check_sizes(attention_run *r) {
  const attn_problem *p = &r->problem;
  const bool varlen = uses(r, ATTN_USE_VARLEN);
  const attn_nn_size batch = {"attention.batch", varlen ? 1 : p->batch, 0};
  const attn_nn_size queries = {varlen ? "attention.total_q" : "attention.seq_q", varlen ? p->total_q : p->seq_q, 0};
  const attn_nn_size keys = {varlen ? "attention.total_k" : "attention.seq_k", varlen ? p->total_k : p->seq_k, 0};
  const attn_nn_size heads_q = {"attention.heads_q", p->heads_q, 1}, heads_kv = {"attention.heads_kv", p->heads_kv, 1};
  const attn_nn_size dim_qk = {"attention.dim_qk", p->dim_qk, 1}, dim_v = {"attention.dim_v", p->dim_v, 1};
  const attn_nn_size arrays[][4] = {{batch, queries, heads_q, dim_qk},
                                    {batch, keys, heads_kv, dim_qk},
                                    {batch, keys, heads_kv, dim_v},
                                    {batch, queries, heads_q, dim_v}};
  attn_status status = ATTN_OK;
  for (int i = 0; status == ATTN_OK && i < 4; i++) status = attn_nn_check_sizes(arrays[i], 4);
  r->rows_q = batch.value * queries.value;
  r->rows_k = batch.value * keys.value;
  return status;
}

static attn_status check_problem(const attention_run *r) {
  const attn_problem *p = &r->problem;
  const uint32_t refused = ATTN_USE_PAGES | ATTN_USE_STATE | ATTN_USE_KV_SCALES | ATTN_USE_KEY_BLOCKS |
                           ATTN_USE_FULL_KEY_BLOCKS | ATTN_USE_D_LSE | ATTN_USE_ACCUMULATE;
  const bool precomputed = p->score == ATTN_SCORE_PRECOMPUTED;
  REQUIRE(p->operation == ATTN_FORWARD, "attention.operation is %d; it must be ATTN_FORWARD", (int)p->operation);
  REQUIRE(!(p->uses & refused), "attention.uses is 0x%x; a layer that learns does not take the bits 0x%x", p->uses,
          p->uses & refused);
  REQUIRE(p->dtype_q == ATTN_F32 && p->dtype_kv == ATTN_F32 && p->dtype_o == ATTN_F32,
          "attention has dtypes %d, %d and %d; all must be ATTN_F32", (int)p->dtype_q, (int)p->dtype_kv, (int)p->dtype_o);
  REQUIRE(r->l.width_memory || r->rows_q == r->rows_k,
          "attention has %" PRId64 " rows of queries and %" PRId64 " of keys; without a memory they are equal", r->rows_q,
          r->rows_k);
  REQUIRE(!precomputed || (!r->l.width_memory && !r->l.plain_values),
          "attn_multi_head has %s with ATTN_SCORE_PRECOMPUTED; values come from x by `in`",
          r->l.width_memory ? "a memory" : "plain_values");
  return ATTN_OK;
}

static void lay_out_sides(attention_run *r) {
  const attn_multi_head *l = &r->l;
  const int64_t of_keys = r->keys + r->values;
  r->sides = l->width_memory ? 2 : 1;
  r->side[0] = (side){
      "attn_multi_head.x", r->rows_q, l->width, r->queries + (r->sides == 2 ? 0 : of_keys), l->x, l->d_x, l->in, l->d_in};
  r->side[1] = (side){
      "attn_multi_head.memory", r->rows_k, l->width_memory, of_keys, l->memory, l->d_memory, l->in_memory, l->d_in_memory};
}

/* Rows of heads side by side, in columns of wider rows. */
static attn_strides rows_of(int64_t seq, int64_t stride, int64_t dim) {
  return (attn_strides){.b = seq * stride, .h = dim, .s = stride, .d = 1};
}

static attn_status lay_out(attention_run *r) {
  attn_problem *p = &r->problem;
  const bool precomputed = p->score == ATTN_SCORE_PRECOMPUTED;
  r->heads_width = p->heads_q * p->dim_v;
  r->queries = precomputed ? 0 : p->heads_q * p->dim_qk;
  r->keys = precomputed ? 0 : p->heads_kv * p->dim_qk;
  r->values = r->l.plain_values ? 0 : p->heads_kv * p->dim_v;
  lay_out_sides(r);
  const side *of_keys = &r->side[r->sides - 1];
  REQUIRE(!r->l.plain_values || of_keys->width == p->heads_kv * p->dim_v,
          "rows of keys have %" PRId64 " elements; with plain_values these are heads_kv dim_v, %" PRId64, of_keys->width,
          p->heads_kv * p->dim_v);
  attn_problem dense;
  attn_problem_init(&dense, p->batch, p->heads_q, p->heads_kv, p->seq_q, p->seq_k, p->dim_qk, p->dim_v);
  if (uses(r, ATTN_USE_VARLEN)) attn_problem_set_varlen(&dense, p->total_q, p->total_k);
  p->lse_stride = dense.lse_stride;
  p->q_stride = rows_of(p->seq_q, r->side[0].columns, p->dim_qk);
  p->k_stride = rows_of(p->seq_k, of_keys->columns, p->dim_qk);
  p->v_stride = rows_of(p->seq_k, r->l.plain_values ? of_keys->width : of_keys->columns, p->dim_v);
  p->o_stride = rows_of(p->seq_q, r->heads_width, p->dim_v);
  return ATTN_OK;
}

static attn_status begin(const attn_multi_head *layer, const attn_options *options, attention_run *r) {
  attn_status status = attn_nn_read(&layout, "layer", layer, &r->l);
  if (status != ATTN_OK) return status;
  REQUIRE(r->l.attention, "attn_multi_head.attention is NULL; it must point to an attn_problem");
  r->args = ATTN_STRUCT(attn_args, .q = NULL);
  status = attn_struct_read(&attn_problem_layout, r->l.attention, &r->problem);
  if (status == ATTN_OK && r->l.arrays) status = attn_struct_read(&attn_args_layout, r->l.arrays, &r->args);
  if (status == ATTN_OK) status = attn_options_read(options, &r->options);
  if (status == ATTN_OK) status = check_sizes(r);
  if (status == ATTN_OK) status = check_problem(r);
  if (status != ATTN_OK) return status;
  const attn_nn_size sizes[] = {{"attn_multi_head.width", r->l.width, 1}};
  const attn_nn_size memory[] = {{"attn_multi_head.width_memory", r->l.width_memory, 0}};
  status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK) status = attn_nn_check_sizes(memory, NN_COUNT(memory));
  r->options.kernel = NULL;
  return status == ATTN_OK ? lay_out(r) : status;
}

/* ---- Memory ---- */

/* Q, K, V or their gradients, one side after the other. */
static int64_t projected(const attention_run *r) { return r->rows_q * r->queries + r->rows_k * (r->keys + r->values); }

static float *projected_of(const attention_run *r, int which, float *all) {
  return which == 0 ? all : all + r->rows_q * r->queries;
}

int64_t attn_multi_head_kept(const attn_multi_head *layer) {
  attention_run r = {0};
  if (begin(layer, NULL, &r) != ATTN_OK) return -1;
  return projected(&r) + r.rows_q * (r.problem.heads_q + (r.l.out.weight ? r.heads_width : 0));
}

/* q, k and v, or their gradients. */
typedef struct heads {
  float *q, *k, *v;
} heads;

static heads heads_of(const attention_run *r, float *all) {
  float *keys = r->sides == 2 ? projected_of(r, 1, all) : all + r->queries;
  return (heads){r->queries ? all : NULL, r->keys ? keys : NULL, r->values ? keys + r->keys : NULL};
}

/* Points the arguments to what the layer keeps. */
static attn_status point(attention_run *r) {
  const attn_multi_head *l = &r->l;
  const attn_nn_pointer pointers[] = {{"attn_multi_head.kept", l->kept}, {"attn_multi_head.y", l->y}};
  attn_status status = r->rows_q > 0 ? attn_nn_check_pointers(pointers, l->out.weight ? 1 : 2) : ATTN_OK;
  for (int i = 0; status == ATTN_OK && i < r->sides; i++)
    REQUIRE(r->side[i].x || r->side[i].rows == 0, "%s is NULL; it must point to its elements", r->side[i].name);
  if (status != ATTN_OK || !l->kept) return status;
  const heads h = heads_of(r, l->kept);
  attn_args *a = &r->args;
  a->q = h.q;
  a->k = h.k;
  a->v = l->plain_values ? r->side[r->sides - 1].x : h.v;
  a->lse = l->kept + projected(r);
  a->o = l->out.weight ? a->lse + r->rows_q * r->problem.heads_q : l->y;
  return ATTN_OK;
}

static attn_dense input_of(const attention_run *r, int which) {
  const side *s = &r->side[which];
  return ATTN_STRUCT(attn_dense, .rows = s->rows, .in = s->width, .out = s->columns, .map = s->map, .x = s->x,
                     .accumulate = r->l.accumulate, .bf16_products = r->l.bf16_products);
}

static attn_dense output_of(const attention_run *r) {
  return ATTN_STRUCT(attn_dense, .rows = r->rows_q, .in = r->heads_width, .out = r->l.width, .map = r->l.out, .x = r->args.o,
                     .accumulate = r->l.accumulate, .bf16_products = r->l.bf16_products);
}

/* ---- Forward ---- */

static attn_status attend(const attention_run *r) {
  attn_problem problem = r->problem;
  attn_args args = r->args;
  problem.uses = (problem.uses & ~gradients) | ATTN_USE_LSE;
  args.d_bias = args.d_scores = args.d_score_weight = args.d_alibi_slopes = args.d_sinks = NULL;
  if (uses(r, ATTN_USE_VARLEN)) /* rows that belong to no sequence */
    memset(args.o, 0, (size_t)(r->rows_q * r->heads_width) * sizeof(float));
  return attn_nn_run_once(&problem, &args, &r->options);
}

attn_status attn_multi_head_run(const attn_multi_head *layer, const attn_options *options) {
  attention_run r = {0};
  attn_status status = begin(layer, options, &r);
  if (status != ATTN_OK || r.rows_q == 0) return status;
  REQUIRE(r.l.y, "attn_multi_head.y is NULL; it must point to its elements");
  status = point(&r);
  for (int i = 0; status == ATTN_OK && i < r.sides; i++) {
    attn_dense in = input_of(&r, i);
    in.y = projected_of(&r, i, r.l.kept);
    status = attn_dense_run(&in, &r.options);
  }
  if (status == ATTN_OK) status = attend(&r);
  attn_dense out = output_of(&r);
  out.y = r.l.y;
  return status == ATTN_OK && r.l.out.weight ? attn_dense_run(&out, &r.options) : status;
}

/* ---- Gradients ---- */

/* [gradients of Q, K and V] [of O, where it is projected] [of plain values] */
typedef struct grad_memory {
  float *all, *projected, *o, *values;
  int64_t count, values_count;
} grad_memory;

static attn_status allocate_grads(const attention_run *r, grad_memory *m) {
  const int64_t o = r->l.out.weight ? r->rows_q * r->heads_width : 0;
  m->values_count = r->l.plain_values && r->side[r->sides - 1].d_x ? r->rows_k * r->side[r->sides - 1].width : 0;
  m->count = projected(r) + o + m->values_count;
  m->all = m->projected = attn_nn_allocate("gradients of heads", (size_t)m->count * sizeof *m->all);
  if (!m->all) return ATTN_OUT_OF_MEMORY;
  m->o = m->projected + projected(r);
  m->values = m->o + o;
  return ATTN_OK;
}

static attn_status grad_attention(attention_run *r, const grad_memory *m) {
  const heads d = heads_of(r, m->projected);
  attn_args *a = &r->args;
  a->d_o = r->l.out.weight ? m->o : r->l.d_y;
  a->d_q = d.q;
  a->d_k = d.k;
  a->d_v = m->values_count ? m->values : d.v;
  attn_problem_set_backward(&r->problem);
  if (r->l.accumulate) r->problem.uses |= ATTN_USE_ACCUMULATE; /* gradients of rows begin as 0 */
  return attn_nn_run_once(&r->problem, a, &r->options);
}

static attn_status grad_output(const attention_run *r, const grad_memory *m) {
  attn_dense out = output_of(r);
  out.d_y = r->l.d_y;
  out.d_x = m->o;
  out.d_weight = r->l.d_out.weight;
  out.d_bias = r->l.d_out.bias;
  return attn_dense_grad(&out, &r->options);
}

static attn_status grad_inputs(const attention_run *r, const grad_memory *m) {
  attn_status status = ATTN_OK;
  for (int i = 0; status == ATTN_OK && i < r->sides; i++) {
    attn_dense in = input_of(r, i);
    in.d_y = projected_of(r, i, m->projected);
    in.d_x = r->side[i].d_x;
    in.d_weight = r->side[i].d_map.weight;
    in.d_bias = r->side[i].d_map.bias;
    status = attn_dense_grad(&in, &r->options);
  }
  float *to = r->side[r->sides - 1].d_x;
  for (int64_t i = 0; status == ATTN_OK && i < m->values_count; i++) to[i] += m->values[i];
  return status;
}

attn_status attn_multi_head_grad(const attn_multi_head *layer, const attn_options *options) {
  attention_run r = {0};
  grad_memory m;
  attn_status status = begin(layer, options, &r);
  if (status == ATTN_OK) status = point(&r);
  if (status != ATTN_OK) return status;
  REQUIRE(r.l.d_y || r.rows_q == 0, "attn_multi_head.d_y is NULL; it must point to its elements");
  status = allocate_grads(&r, &m);
  if (status != ATTN_OK) return status;
  if (r.l.accumulate || uses(&r, ATTN_USE_VARLEN)) memset(m.all, 0, (size_t)m.count * sizeof *m.all);
  if (r.l.out.weight) status = grad_output(&r, &m);
  if (status == ATTN_OK) status = grad_attention(&r, &m);
  if (status == ATTN_OK) status = grad_inputs(&r, &m);
  attn_aligned_free(m.all);
  return status;
}
