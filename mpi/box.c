/* SPDX-License-Identifier: MIT */
/* Keys, values and queries as messages hold them. Elements travel as they are stored: 16 bits, 8 bits, or ggml's blocks. */
#include <string.h>

#include "plan.h"

static bool paged(const attn_mpi_plan *plan) { return attn_uses(&plan->whole, ATTN_USE_PAGES); }

/* Factors of tokens or pages travel; those of tensors, heads and channels are the same on every rank. */
static bool factors_travel(const attn_problem *own, const attn_strides *stride) {
  if (!attn_uses(own, ATTN_USE_KV_SCALES) || stride->d != 0) return false;
  return stride->s != 0 || (attn_uses(own, ATTN_USE_PAGES) && stride->b != 0);
}

/* Strides of rows of so many elements, of so many KV heads. */
attn_strides mpi_box_strides(const attn_mpi_plan *plan, int64_t heads, int64_t row) {
  if (paged(plan)) return (attn_strides){heads * plan->own.page_tokens * row, plan->own.page_tokens * row, row, 1};
  return (attn_strides){heads * row, row, batch_of(&plan->whole) * heads * row, 1};
}

void mpi_box_of(attn_mpi_plan *plan) {
  const attn_problem *p = &plan->whole, *own = &plan->own;
  const bool precomputed = p->score == ATTN_SCORE_PRECOMPUTED;
  mpi_box *box = &plan->box;
  box->rows = (paged(plan) ? p->batch : batch_of(p)) * p->heads_kv;
  box->k_row = precomputed ? 0 : attn_row_elements(p->dtype_kv, p->dim_qk);
  box->v_row = attn_row_elements(p->dtype_kv, p->dim_v);
  box->k_bytes = attn_elements_bytes(p->dtype_kv, box->k_row);
  box->v_bytes = attn_elements_bytes(p->dtype_kv, box->v_row);
  box->k_factors = !precomputed && factors_travel(own, &own->k_scale_stride);
  box->v_factors = factors_travel(own, &own->v_scale_stride);
  box->k = mpi_box_strides(plan, p->heads_kv, box->k_row);
  box->v = mpi_box_strides(plan, p->heads_kv, box->v_row);
  box->k_scale = box->v_scale = mpi_box_strides(plan, p->heads_kv, 1);
  box->k_scale.d = box->v_scale.d = 0;
}

mpi_box_layout mpi_lay_out_box(const attn_mpi_plan *plan, int64_t keys) {
  const mpi_box *box = &plan->box;
  if (paged(plan)) keys = round_up(keys, plan->own.page_tokens);
  mpi_box_layout at;
  const memory_part parts[] = {{&at.k, keys * box->rows, box->k_bytes},
                               {&at.v, keys * box->rows, box->v_bytes},
                               {&at.k_scale, box->k_factors ? keys * box->rows : 0, float_bytes(1)},
                               {&at.v_scale, box->v_factors ? keys * box->rows : 0, float_bytes(1)}};
  at.bytes = 0;
  if (!LAY_OUT(parts, &at.bytes)) at.bytes = INT64_MAX;
  return at;
}

void mpi_copy_rows(attn_dtype dtype, char *tensor, int64_t at, const attn_strides *stride, int64_t rows, int64_t columns,
                   char *dense, bool to_tensor) {
  const int64_t row_bytes = attn_elements_bytes(dtype, columns), one = attn_elements_bytes(dtype, 1);
  for (int64_t i = 0; i < rows; i++, dense += row_bytes) {
    char *row = (char *)(uintptr_t)attn_element_at(tensor, dtype, at + i * stride->s);
    if (stride->d == 1 || columns == 1) {
      memcpy(to_tensor ? row : dense, to_tensor ? dense : row, (size_t)row_bytes);
      continue;
    }
    for (int64_t d = 0; d < columns; d++) {
      char *element = (char *)(uintptr_t)attn_element_at(row, dtype, d * stride->d);
      memcpy(to_tensor ? element : dense + d * one, to_tensor ? dense + d * one : element, (size_t)one);
    }
  }
}

/* One tensor of a box: rows of `columns` elements, side by side in memory for one token of a sequence or page. */
typedef struct boxed {
  attn_dtype dtype;
  const void *from;
  attn_strides stride; /* strides of `from` */
  int64_t columns, row_bytes;
  char *to;
} boxed;

static void pack_tensor(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, mpi_heads of, boxed t) {
  const int64_t heads = of.end - of.begin, batch = plan->box.rows / plan->whole.heads_kv, page = plan->own.page_tokens;
  for (int64_t b = 0; b < batch; b++)
    for (int64_t h = 0; h < heads; h++)
      for (int64_t j = 0; j < part_length(keys); j++) {
        const int64_t key = keys->at + j;
        int64_t at = b * t.stride.b + (of.begin + h) * t.stride.h + key * t.stride.s, to = (j * batch + b) * heads + h;
        if (paged(plan)) {
          const int64_t entry = args->page_table[b * plan->own.page_table_stride + key / page];
          if (entry < 0 || entry >= plan->own.pages) continue; /* no query sees it, or the owner's own call will say so */
          at = entry * t.stride.b + (of.begin + h) * t.stride.h + key % page * t.stride.s;
          to = ((j / page * batch + b) * heads + h) * page + j % page;
        }
        const attn_strides one = {0, 0, 0, t.stride.d};
        mpi_copy_rows(t.dtype, (char *)(uintptr_t)t.from, at, &one, 1, t.columns, t.to + to * t.row_bytes, false);
      }
}

void mpi_pack_heads(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, mpi_heads heads,
                    char *const to[]) {
  const attn_problem *p = &plan->whole, *own = &plan->own;
  const mpi_box *box = &plan->box;
  const boxed tensors[BOX_TENSORS] = {
      {p->dtype_kv, args->k, own->k_stride, p->dim_qk, box->k_bytes, to[0]},
      {p->dtype_kv, args->v, own->v_stride, p->dim_v, box->v_bytes, to[1]},
      {ATTN_F32, args->k_scale, own->k_scale_stride, 1, 4, to[2]},
      {ATTN_F32, args->v_scale, own->v_scale_stride, 1, 4, to[3]},
  };
  for (int i = 0; i < BOX_TENSORS; i++)
    if (mpi_tensor_bytes(plan, i)) pack_tensor(plan, args, keys, heads, tensors[i]);
}

int64_t mpi_tensor_bytes(const attn_mpi_plan *plan, int tensor) {
  const mpi_box *box = &plan->box;
  const int64_t bytes[BOX_TENSORS] = {box->k_bytes, box->v_bytes, box->k_factors ? 4 : 0, box->v_factors ? 4 : 0};
  return bytes[tensor];
}

void mpi_pack_keys(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *keys, char *to) {
  const mpi_box_layout at = mpi_lay_out_box(plan, part_length(keys));
  char *const tensors[BOX_TENSORS] = {to + at.k, to + at.v, to + at.k_scale, to + at.v_scale};
  if (paged(plan)) memset(to, 0, (size_t)at.bytes); /* the last page may end beyond the keys */
  mpi_pack_heads(plan, args, keys, (mpi_heads){0, plan->whole.heads_kv}, tensors);
}

int64_t mpi_query_bytes(const attn_mpi_plan *plan, int64_t rows) {
  const attn_problem *p = &plan->whole;
  return round_up(batch_of(p) * p->heads_q * rows * attn_elements_bytes(p->dtype_q, p->dim_qk), ATTN_MEMORY_ALIGN);
}

void mpi_pack_rows(const attn_mpi_plan *plan, const attn_args *args, const mpi_part *rows, char *to) {
  const attn_problem *p = &plan->whole, *own = &plan->own;
  const int64_t count = part_length(rows), head_bytes = count * attn_elements_bytes(p->dtype_q, p->dim_qk);
  for (int64_t b = 0; b < batch_of(p); b++)
    for (int64_t h = 0; h < p->heads_q; h++, to += head_bytes)
      mpi_copy_rows(p->dtype_q, (char *)(uintptr_t)args->q, attn_row_offset(own, &own->q_stride, b, h, rows->at),
                    &own->q_stride, count, p->dim_qk, to, false);
}

char *mpi_copy_tokens(const attn_mpi_plan *plan, const attn_args *args, attn_dtype dtype, void *tensor,
                      const attn_strides *stride, int64_t columns, const mpi_part *part, mpi_heads heads, char *packed,
                      bool to_tensor) {
  const attn_problem *p = &plan->whole;
  const attn_strides one = {0, 0, 0, stride->d};
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN);
  for (int64_t token = part->begin; token < part->end; token++) {
    const bool none = varlen && (token < args->cu_seqlens_q[0] || token >= args->cu_seqlens_q[p->batch]);
    for (int64_t b = 0; b < batch_of(p); b++)
      for (int64_t h = heads.begin; h < heads.end; h++, packed += attn_elements_bytes(dtype, columns))
        if (!none)
          mpi_copy_rows(dtype, tensor, attn_row_offset(&plan->own, stride, b, h, part->at + token - part->begin), &one, 1,
                        columns, packed, to_tensor);
  }
  return packed;
}
