/* SPDX-License-Identifier: MIT */
/* attn_mha_weights: checks, and the order in which files keep the columns of heads. A product packs a matrix that strides
 * describe where it lies; heads in an order of their own are first copied into one. */
#include "src/layers/mha_weights.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "src/api/error.h"
#include "src/api/layouts.h"

/* One projection: depth x columns of an array that has `all` columns. Columns are heads of `dim`, the first at column
 * begins[0], or at `first` with the others behind it. */
typedef struct projection {
  const char *name;
  int64_t depth, columns, dim;
  const void *weight;
  const float *bias; /* the array's; NULL = none */
  const int64_t *begins;
  int64_t first, all;
  attn_dtype dtype_x, dtype_y;
} projection;

static void list_projections(const attn_mha_problem *p, const attn_mha_weights *w, projection list[PROJECTIONS]) {
  const attn_problem *a = &p->attention;
  const int64_t q = a->heads_q * a->dim_qk, k = a->heads_kv * a->dim_qk, v = a->heads_kv * a->dim_v, out = p->width_out;
  list[PROJECT_Q] = (projection){"w_q", p->width, q, a->dim_qk, w->w_q, w->b_q, NULL, 0, q, p->dtype_x, a->dtype_q};
  list[PROJECT_K] = (projection){"w_k", p->width_memory, k, a->dim_qk, w->w_k, w->b_k, NULL, 0, k, p->dtype_x, a->dtype_kv};
  list[PROJECT_V] = (projection){"w_v", p->width_memory, v, a->dim_v, w->w_v, w->b_v, NULL, 0, v, p->dtype_x, a->dtype_kv};
  list[PROJECT_OUT] =
      (projection){"w_o", a->heads_q * a->dim_v, out, out, w->w_o, w->b_o, NULL, 0, out, a->dtype_o, p->dtype_y};
  if (!w->w_qkv) return;
  int64_t heads = 0, columns = 0;
  for (int i = PROJECT_Q; i <= PROJECT_V; i++) {
    list[i].weight = w->w_qkv;
    list[i].bias = w->b_qkv;
    list[i].begins = w->head_columns ? w->head_columns + heads : NULL;
    list[i].first = columns;
    list[i].all = q + k + v;
    heads += list[i].columns / list[i].dim;
    columns += list[i].columns;
  }
}

/* ---- Checks ---- */

static attn_status check_fused(const attn_mha_problem *p, const attn_mha_weights *w) {
  REQUIRE(!w->w_qkv || !(w->w_q || w->w_k || w->w_v),
          "attn_mha_weights.w_qkv is given beside w_q, w_k or w_v; it must be one or the other");
  REQUIRE(!w->w_qkv || !(w->b_q || w->b_k || w->b_v),
          "attn_mha_weights.b_q, b_k or b_v is given beside w_qkv; the bias of packed weights is b_qkv");
  REQUIRE(w->w_qkv || !w->b_qkv, "attn_mha_weights.b_qkv is given without w_qkv; it must be b_q, b_k and b_v");
  REQUIRE(w->w_qkv || !w->head_columns, "attn_mha_weights.head_columns is given without w_qkv; it must be NULL");
  REQUIRE(!w->w_qkv || p->width == p->width_memory,
          "attn_mha_weights.w_qkv is given with width %" PRId64 " and width_memory %" PRId64
          "; packed weights need both alike: give w_q, w_k and w_v",
          p->width, p->width_memory);
  return ATTN_OK;
}

static attn_status check_norms(const attn_mha_weights *w) {
  REQUIRE(w->qk_norm || !(w->q_norm_gain || w->k_norm_gain),
          "attn_mha_weights.%s is given without qk_norm; it must be NULL, or qk_norm true",
          w->q_norm_gain ? "q_norm_gain" : "k_norm_gain");
  REQUIRE(!w->qk_norm || (w->qk_norm_epsilon >= 0 && isfinite(w->qk_norm_epsilon)),
          "attn_mha_weights.qk_norm_epsilon is %g; it must be finite and at least 0", (double)w->qk_norm_epsilon);
  return ATTN_OK;
}

static attn_status check_arrays(const projection *part, attn_dtype dtype) {
  const size_t align = attn_dtype_alignment(dtype);
  REQUIRE(part->weight, "attn_mha_weights.%s is NULL; it must point to %" PRId64 " x %" PRId64 " weights", part->name,
          part->depth, part->columns);
  REQUIRE((uintptr_t)part->weight % align == 0, "attn_mha_weights.%s is %p; it must be aligned to its element, %zu bytes",
          part->name, part->weight, align);
  REQUIRE((uintptr_t)part->bias % sizeof(float) == 0,
          "attn_mha_weights: the bias of %s is %p; it must be aligned to its element, 4 bytes", part->name,
          (const void *)part->bias);
  for (int64_t h = 0; part->begins && h < part->columns / part->dim; h++)
    REQUIRE(part->begins[h] >= 0 && part->begins[h] <= part->all - part->dim,
            "attn_mha_weights.head_columns has %" PRId64 " for head %" PRId64 " of %s; it must be in 0..%" PRId64
            ", w_qkv having %" PRId64 " columns",
            part->begins[h], h, part->name, part->all - part->dim, part->all);
  return ATTN_OK;
}

static attn_status check_weights(const attn_mha_problem *p, const attn_mha_weights *w) {
  REQUIRE((unsigned)w->layout <= ATTN_HEADS_IN_OUT,
          "attn_mha_weights.layout is %d; it must be ATTN_IN_OUT, ATTN_OUT_IN or ATTN_HEADS_IN_OUT", (int)w->layout);
  REQUIRE(attn_dtype_is_float(w->dtype), "attn_mha_weights.dtype is %d; it must be " ATTN_FLOAT_CONSTANTS, (int)w->dtype);
  REQUIRE(!w->bf16_rows || !w->int8_weights,
          "attn_mha_weights.bf16_rows and .int8_weights are both true; one of them must be false");
  REQUIRE(!w->bf16_rows || w->dtype == ATTN_BF16,
          "attn_mha_weights.bf16_rows is true with dtype %d; dtype must be ATTN_BF16, %d, or bf16_rows false", (int)w->dtype,
          (int)ATTN_BF16);
  REQUIRE(!w->int8_rows || w->int8_weights,
          "attn_mha_weights.int8_rows is true and .int8_weights false; rows are rounded to int8 for such weights only");
  attn_status status = check_fused(p, w);
  if (status == ATTN_OK) status = check_norms(w);
  projection list[PROJECTIONS];
  list_projections(p, w, list);
  for (int i = 0; i < PROJECTIONS && status == ATTN_OK; i++) status = check_arrays(&list[i], w->dtype);
  return status;
}

attn_status attn_mha_read_weights(const attn_mha_problem *problem, const attn_mha_weights *theirs,
                                  attn_mha_weights *weights) {
  REQUIRE(theirs, "weights is NULL; it must point to an attn_mha_weights");
  const attn_status status = attn_struct_read(&attn_mha_weights_layout, theirs, weights);
  return status == ATTN_OK ? check_weights(problem, weights) : status;
}

/* ---- Packing ---- */

/* A projection whose heads stand side by side. */
static attn_status pack_dense(const projection *part, const attn_mha_weights *w, const attn_options *options,
                              attn_product **product) {
  const bool in_out = w->layout != ATTN_OUT_IN;
  const attn_product_weights weights = {
      .struct_size = sizeof weights,
      .depth = part->depth,
      .columns = part->columns,
      .weight = attn_element_at(part->weight, w->dtype, in_out ? part->first : part->first * part->depth),
      .stride_depth = in_out ? part->all : 1,
      .stride_column = in_out ? 1 : part->depth,
      .dtype = w->dtype,
      .bias = part->bias ? part->bias + part->first : NULL,
      .dtype_x = part->dtype_x,
      .dtype_y = part->dtype_y,
      .bf16_rows = w->bf16_rows,
      .int8_weights = w->int8_weights,
      .int8_rows = w->int8_rows,
  };
  return attn_product_create(&weights, options, product);
}

/* Where the columns of a head begin in the array. */
static int64_t begin_of(const projection *part, int64_t head) {
  return part->begins ? part->begins[head] : part->first + head * part->dim;
}

/* The heads side by side, [depth][columns], or for [out][in] one below the other, [columns][depth]. */
static void gather(const projection *part, const attn_mha_weights *w, char *matrix, float *bias) {
  const size_t element = (size_t)attn_elements_bytes(w->dtype, 1);
  const bool out_in = w->layout == ATTN_OUT_IN, own = w->layout == ATTN_HEADS_IN_OUT;
  const int64_t rows = out_in ? part->dim : part->depth, count = out_in ? part->depth : part->dim;
  const int64_t from_row = own || out_in ? count : part->all, to_row = out_in ? count : part->columns;
  for (int64_t h = 0; h < part->columns / part->dim; h++) {
    const int64_t begin = begin_of(part, h), to = h * part->dim * (out_in ? part->depth : 1);
    const char *from = attn_element_at(part->weight, w->dtype, begin * (out_in || own ? part->depth : 1));
    for (int64_t r = 0; r < rows; r++)
      memcpy(matrix + (size_t)(to + r * to_row) * element, from + (size_t)(r * from_row) * element, (size_t)count * element);
    if (part->bias) memcpy(bias + h * part->dim, part->bias + begin, (size_t)part->dim * sizeof(float));
  }
}

static attn_status pack_gathered(const projection *part, const attn_mha_weights *w, const attn_options *options,
                                 attn_product **product) {
  const size_t elements = (size_t)part->depth * (size_t)part->columns;
  char *matrix = malloc(elements * (size_t)attn_elements_bytes(w->dtype, 1));
  float *bias = malloc((size_t)part->columns * sizeof *bias);
  attn_status status =
      matrix && bias ? ATTN_OK : attn_fail(ATTN_OUT_OF_MEMORY, "out of memory for a copy of %s", part->name);
  if (status == ATTN_OK) {
    gather(part, w, matrix, bias);
    projection dense = *part;
    dense.weight = matrix;
    dense.bias = part->bias ? bias : NULL;
    dense.first = 0;
    dense.all = part->columns;
    status = pack_dense(&dense, w, options, product);
  }
  free(matrix);
  free(bias);
  return status;
}

attn_status attn_mha_pack_weights(const attn_mha_problem *problem, const attn_mha_weights *weights,
                                  const attn_options *options, attn_product *product[PROJECTIONS]) {
  projection list[PROJECTIONS];
  list_projections(problem, weights, list);
  attn_status status = ATTN_OK;
  for (int i = 0; i < PROJECTIONS && status == ATTN_OK; i++) {
    const bool apart = list[i].begins || (weights->layout == ATTN_HEADS_IN_OUT && list[i].dim < list[i].all);
    status = (apart ? pack_gathered : pack_dense)(&list[i], weights, options, &product[i]);
  }
  return status;
}
