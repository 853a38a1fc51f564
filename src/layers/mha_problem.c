/* SPDX-License-Identifier: MIT */
/* attn_mha_problem: defaults and checks. Every check names the field, its value and what would be right. */
#include "src/layers/mha_problem.h"

#include <inttypes.h>

#include "kernels/common/problem/dtypes.h"
#include "src/api/error.h"
#include "src/api/layouts.h"
#include "src/api/strides.h"

static bool uses(const attn_mha_problem *p, uint32_t use) { return (p->attention.uses & use) != 0; }

/* ---- Shape ---- */

/* Wrapping product, as in attn_problem_init. */
static int64_t times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

static attn_strides dense_rows(int64_t seq, int64_t width) {
  return (attn_strides){.b = times(seq, width), .s = width, .d = 1};
}

void(attn_mha_problem_init)(attn_mha_problem *theirs, int64_t batch, int64_t heads, int64_t seq_q, int64_t seq_k,
                            int64_t width) {
  const int64_t dim = heads > 0 && width % heads == 0 ? width / heads : 0; /* 0: attn_mha_create says what is wrong */
  attn_mha_problem p = {.width = width,
                        .width_memory = width,
                        .width_out = width,
                        .x_stride = dense_rows(seq_q, width),
                        .memory_stride = dense_rows(seq_k, width),
                        .y_stride = dense_rows(seq_q, width)};
  attn_problem_init(&p.attention, batch, heads, heads, seq_q, seq_k, dim, dim);
  p.weights_stride = p.attention.bias_stride;
  attn_struct_write(&attn_mha_problem_layout, &p, theirs);
}

row_count attn_mha_rows(const attn_mha_problem *p, bool queries) {
  const attn_problem *a = &p->attention;
  if (uses(p, ATTN_USE_VARLEN)) return (row_count){1, queries ? a->total_q : a->total_k};
  return (row_count){a->batch, queries ? a->seq_q : a->seq_k};
}

static attn_status check_width(const char *field, int64_t value) {
  REQUIRE(value >= 1 && value <= ATTN_SIZE_LIMIT, "attn_mha_problem.%s is %" PRId64 "; it must be in 1..2^31", field, value);
  return ATTN_OK;
}

static attn_status check_heads(const char *names, int64_t heads, int64_t dim) {
  REQUIRE(heads <= ATTN_SIZE_LIMIT / dim,
          "attn_mha_problem.attention has %s = %" PRId64 " x %" PRId64 "; heads side by side must be at most 2^31 wide",
          names, heads, dim);
  return ATTN_OK;
}

static attn_status check_rows(const char *field, row_count rows, attn_strides stride, int64_t width, bool output) {
  const attn_tensor tensor = {
      .field = field,
      .axes = {{'b', rows.batch, stride.b}, {'s', rows.rows, stride.s}, {'d', width, stride.d}, {0, 1, 0}},
      .output = output};
  return attn_check_strides(&tensor);
}

static attn_status check_weights_wanted(const attn_mha_problem *p) {
  if (!p->want_weights) return ATTN_OK;
  const attn_problem *a = &p->attention;
  const attn_score_strides stride = p->weights_stride;
  REQUIRE(!uses(p, ATTN_USE_VARLEN),
          "attn_mha_problem.want_weights is true with ATTN_USE_VARLEN; weights are [batch][heads][seq_q][seq_k], so it must "
          "be a padded batch (kv_len and q_len) or false");
  const attn_tensor tensor = {
      .field = "attn_mha_problem.weights_stride",
      .axes = {{'b', a->batch, stride.b}, {'h', a->heads_q, stride.h}, {'q', a->seq_q, stride.q}, {'k', a->seq_k, stride.k}},
      .output = true};
  return attn_check_strides(&tensor);
}

static attn_status check_attention(const attn_mha_problem *p) {
  const attn_problem *a = &p->attention;
  REQUIRE(attn_dtype_is_float(a->dtype_q) && attn_dtype_is_float(a->dtype_kv) && attn_dtype_is_float(a->dtype_o),
          "attn_mha_problem.attention has dtypes %d, %d, %d (q, kv, o); inside a layer each must be " ATTN_FLOAT_CONSTANTS,
          (int)a->dtype_q, (int)a->dtype_kv, (int)a->dtype_o);
  REQUIRE(
      a->dim_qk != 0 || a->heads_q < 1 || p->width % a->heads_q == 0,
      "attn_mha_problem.width is %" PRId64 " with %" PRId64
      " heads; it must be a multiple of the heads, or attention must get head dimensions of its own by attn_problem_init",
      p->width, a->heads_q);
  REQUIRE(a->score == ATTN_SCORE_DOT, "attn_mha_problem.attention.score is %d; multi-head attention has ATTN_SCORE_DOT",
          (int)a->score);
  REQUIRE(!uses(p, ATTN_USE_PAGES),
          "attn_mha_problem.attention.uses has ATTN_USE_PAGES; it must not, because the layer makes its keys itself");
  REQUIRE(!uses(p, ATTN_USE_KV_SCALES),
          "attn_mha_problem.attention.uses has ATTN_USE_KV_SCALES; it must not, because the layer makes its keys itself");
  REQUIRE(!uses(p, ATTN_USE_KEY_BLOCKS | ATTN_USE_FULL_KEY_BLOCKS),
          "attn_mha_problem.attention.uses is 0x%x, with ATTN_USE_KEY_BLOCKS or _FULL_KEY_BLOCKS; it must have neither, "
          "because a layer's arguments have no lists",
          a->uses);
  REQUIRE(!uses(p, ATTN_USE_STATE),
          "attn_mha_problem.attention.uses has ATTN_USE_STATE; it must not, because a layer takes all keys at once");
  return attn_problem_validate(a);
}

/* q, k, v and o as the layer lays them out: heads one behind the other. */
static void set_strides(attn_problem *a) {
  const bool varlen = (a->uses & ATTN_USE_VARLEN) != 0;
  const int64_t rows_q = varlen ? a->total_q : a->seq_q, rows_k = varlen ? a->total_k : a->seq_k;
  attn_problem dense;
  attn_problem_init(&dense, a->batch, a->heads_q, a->heads_kv, rows_q, rows_k, a->dim_qk, a->dim_v);
  a->q_stride = dense.q_stride;
  a->k_stride = dense.k_stride;
  a->v_stride = dense.v_stride;
  a->o_stride = dense.o_stride;
}

static attn_status check_types(const attn_mha_problem *p) {
  REQUIRE(attn_dtype_is_float(p->dtype_x), "attn_mha_problem.dtype_x is %d; it must be " ATTN_FLOAT_CONSTANTS,
          (int)p->dtype_x);
  REQUIRE(attn_dtype_is_float(p->dtype_y), "attn_mha_problem.dtype_y is %d; it must be " ATTN_FLOAT_CONSTANTS,
          (int)p->dtype_y);
  return ATTN_OK;
}

static attn_status check_problem(const attn_mha_problem *p) {
  const struct {
    const char *field;
    int64_t value;
  } widths[] = {{"width", p->width}, {"width_memory", p->width_memory}, {"width_out", p->width_out}};
  attn_status status = check_types(p);
  if (status == ATTN_OK) status = check_attention(p);
  for (int i = 0; i < 3 && status == ATTN_OK; i++) status = check_width(widths[i].field, widths[i].value);
  const attn_problem *a = &p->attention;
  const int64_t dim = a->dim_qk > a->dim_v ? a->dim_qk : a->dim_v;
  if (status == ATTN_OK) status = check_heads("heads_q x head dimension", a->heads_q, dim);
  const row_count queries = attn_mha_rows(p, true), keys = attn_mha_rows(p, false);
  if (status == ATTN_OK) status = check_rows("attn_mha_problem.x_stride", queries, p->x_stride, p->width, false);
  if (status == ATTN_OK)
    status = check_rows("attn_mha_problem.memory_stride", keys, p->memory_stride, p->width_memory, false);
  if (status == ATTN_OK) status = check_rows("attn_mha_problem.y_stride", queries, p->y_stride, p->width_out, true);
  return status == ATTN_OK ? check_weights_wanted(p) : status;
}

attn_status attn_mha_read_problem(const attn_mha_problem *theirs, attn_mha_problem *problem) {
  REQUIRE(theirs, "problem is NULL; it must point to an attn_mha_problem made by attn_mha_problem_init");
  const attn_status status = attn_struct_read(&attn_mha_problem_layout, theirs, problem);
  if (status != ATTN_OK) return status;
  set_strides(&problem->attention);
  return check_problem(problem);
}

attn_status attn_mha_check_same_weights(const attn_mha_problem *layer, const attn_mha_problem *problem) {
  const attn_problem *a = &problem->attention, *was = &layer->attention;
  const struct {
    const char *field;
    int64_t value, right;
  } sizes[] = {{"width", problem->width, layer->width},
               {"width_memory", problem->width_memory, layer->width_memory},
               {"width_out", problem->width_out, layer->width_out},
               {"attention.heads_q", a->heads_q, was->heads_q},
               {"attention.heads_kv", a->heads_kv, was->heads_kv},
               {"attention.dim_qk", a->dim_qk, was->dim_qk},
               {"attention.dim_v", a->dim_v, was->dim_v},
               {"attention.dtype_q", (int64_t)a->dtype_q, (int64_t)was->dtype_q},
               {"attention.dtype_kv", (int64_t)a->dtype_kv, (int64_t)was->dtype_kv},
               {"attention.dtype_o", (int64_t)a->dtype_o, (int64_t)was->dtype_o},
               {"dtype_x", (int64_t)problem->dtype_x, (int64_t)layer->dtype_x},
               {"dtype_y", (int64_t)problem->dtype_y, (int64_t)layer->dtype_y}};
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
    REQUIRE(sizes[i].value == sizes[i].right,
            "attn_mha_problem.%s is %" PRId64 "; it must be %" PRId64 ", as the layer has it", sizes[i].field,
            sizes[i].value, sizes[i].right);
  return ATTN_OK;
}
