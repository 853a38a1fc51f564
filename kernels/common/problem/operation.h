/* SPDX-License-Identifier: MIT */
/* Operations as values, and the tensors of a problem that they read and write. */
#ifndef ATTN_COMMON_OPERATION_H
#define ATTN_COMMON_OPERATION_H

#include <stddef.h>
#include <string.h>

#include "attn/kernel.h"
#include "dtypes.h"
#include "indexing.h"
#include "unroll.h"

typedef enum attn_operand_id {
#define TENSOR(constant, ...) ATTN_OPERAND_##constant,
#include "tensors.def"
#undef TENSOR
  ATTN_OPERANDS,
  ATTN_ROW_OPERANDS = ATTN_OPERAND_BIAS /* rows of tokens: those in front */
} attn_operand_id;

/* One tensor of a problem. Element (i, j, k, l) is at i stride[0] + j stride[1] + k stride[2] + l stride[3]. Packed
 * sequences stand along extent[2], and extent[0] is 1. */
typedef struct attn_operand {
  const char *name;     /* "lse", the member of attn_args */
  size_t member;        /* its offset there */
  const char *use;      /* options with which the problem has it */
  size_t element_bytes; /* bytes of an element, or of the block that it is in */
  size_t alignment;
  attn_dtype dtype;  /* where elements are floats */
  bool single;       /* a row is one number and has no columns: extent[3] is 1, but for factors of channels */
  bool of_keys;      /* rows of tokens are of keys, else of queries */
  bool of_operation; /* the problem's operation reads or writes it */
  bool present;      /* and the problem has it */
  bool ignored;      /* the problem has it, but its operation does not read it */
  bool needed;       /* a call has to give its pointer: it is present, not empty, and read or written */
  int64_t extent[4], stride[4];
  const char *axes;  /* the names of extent[0] to [3]; "" where the problem has no strides of it */
  const char *field; /* "attn_problem.lse_stride", which has strides of it, */
  size_t field_at;   /* and its offset there */
} attn_operand;

/* The tensors that an operation reads and writes: bit n is operand n. */
typedef struct attn_operation_info {
  const char *name; /* "forward" */
  const char *what; /* in sentences: "attention" */
  uint64_t inputs, outputs;
  uint64_t optional;         /* outputs that a call may leave out */
  attn_operand_id linear_in; /* an input: if it becomes c times as large, */
  uint64_t linear;           /* so do these outputs */
  uint32_t refused;          /* ATTN_USE_... bits that it does not take */
} attn_operation_info;

extern const attn_operation_info attn_operations[]; /* [attn_operation_count], by attn_operation */
extern const int attn_operation_count;

/* An option whose array has a gradient, the option that asks for it, and their names. */
typedef struct attn_gradient_use {
  uint32_t of, gradient;
  const char *of_name, *name;
} attn_gradient_use;

enum { ATTN_GRADIENT_USES = 4 };
static const attn_gradient_use attn_gradient_uses[ATTN_GRADIENT_USES] = {
    {ATTN_USE_BIAS, ATTN_USE_D_BIAS, "BIAS", "D_BIAS"},
    {ATTN_USE_ALIBI, ATTN_USE_D_ALIBI, "ALIBI", "D_ALIBI"},
    {ATTN_USE_SINKS, ATTN_USE_D_SINKS, "SINKS", "D_SINKS"},
    {ATTN_USE_SCORE_WEIGHT, ATTN_USE_D_SCORE_WEIGHT, "SCORE_WEIGHT", "D_SCORE_WEIGHT"},
};

static inline bool attn_operation_exists(attn_operation operation) {
  return (unsigned)operation < (unsigned)attn_operation_count;
}

static inline bool attn_is_output(const attn_problem *p, attn_operand_id which) {
  return attn_operations[p->operation].outputs >> which & 1;
}

static ALWAYS_INLINE attn_operand attn_operand_of(const attn_problem *p, attn_operand_id which) {
  const bool varlen = attn_uses(p, ATTN_USE_VARLEN), precomputed = p->score == ATTN_SCORE_PRECOMPUTED;
  const int64_t batch = varlen ? 1 : p->batch;
  const bool paged = attn_uses(p, ATTN_USE_PAGES), cached = !paged || p->pages > 0;
  const int64_t queries = varlen ? p->total_q : p->seq_q, keys = varlen && !paged ? p->total_k : p->seq_k;
  const int64_t page_entries = paged && p->page_tokens > 0 ? ceil_div(p->seq_k, p->page_tokens) : 0;
  const bool listed = attn_lists_keys(p) && p->block_queries > 0 && p->block_keys > 0;
  const int64_t query_blocks = listed ? ceil_div(p->seq_q, p->block_queries) : 0;
  const int64_t key_blocks = listed ? ceil_div(p->seq_k, p->block_keys) : 0;
  const int64_t mask_columns = p->mask_keys > 0 ? p->mask_keys : p->seq_k;
  const bool pairs = queries > 0 && keys > 0, scored = pairs && !precomputed;
  const attn_operation_info *operation = &attn_operations[p->operation];
  const bool of_operation = (operation->inputs | operation->outputs) >> which & 1;
#define FLOATS(type) \
  .dtype = (type), .element_bytes = (size_t)attn_elements_bytes(type, 1), .alignment = attn_dtype_alignment(type)
#define INTEGERS               .element_bytes = sizeof(int32_t), .alignment = sizeof(int32_t)
#define BYTES                  .element_bytes = 1, .alignment = 1
#define STRIDES(names, member) .axes = names, .field = "attn_problem." #member, .field_at = offsetof(attn_problem, member)
#define ROWS(heads, tokens, dim, strides)                                                                                 \
  .extent = {batch, heads, tokens, dim}, .stride = {varlen ? 0 : p->strides.b, p->strides.h, p->strides.s, p->strides.d}, \
  STRIDES("bhsd", strides)
#define CACHE(dim, strides)                                                                               \
  .of_keys = true, .extent = {paged ? p->pages : batch, p->heads_kv, paged ? p->page_tokens : keys, dim}, \
  .stride = {varlen && !paged ? 0 : p->strides.b, p->strides.h, p->strides.s, p->strides.d}, STRIDES("bhsd", strides)
#define FACTORS(dim, strides) .single = true, CACHE(p->strides.d ? (dim) : 1, strides)
#define NUMBERS(heads, tokens, strides)                \
  .single = true, .extent = {batch, heads, tokens, 1}, \
  .stride = {varlen ? 0 : p->strides.b, p->strides.h, p->strides.s, 1}, STRIDES("bhsd", strides)
#define STATES(heads, tokens, floats, strides)                                                                    \
  .extent = {batch, heads, tokens, floats}, .stride = {varlen ? 0 : p->strides.b, p->strides.h, p->strides.s, 1}, \
  STRIDES("bhsd", strides)
#define PAIRS(strides, columns)                                                                                            \
  .extent = {p->batch, p->heads_q, p->seq_q, columns}, .stride = {p->strides.b, p->strides.h, p->strides.q, p->strides.k}, \
  STRIDES("bhqk", strides)
#define SUMS(strides)                                                                                 \
  .extent = {p->strides.b ? p->batch : 1, p->strides.h ? p->heads_q : 1, p->strides.q ? p->seq_q : 1, \
             p->strides.k ? p->seq_k : 1},                                                            \
  .stride = {p->strides.b, p->strides.h, p->strides.q, p->strides.k}, STRIDES("bhqk", strides)
#define LIST(rows, columns, row_stride) .axes = "", .extent = {1, 1, rows, columns}, .stride = { 0, 0, row_stride, 1 }
#define TABLE(names, rows, columns, row_stride) \
  .extent = {1, 1, rows, columns}, .stride = {0, 0, p->row_stride, 1}, STRIDES(names, row_stride)
#define LISTS(entries, strides)                             \
  .extent = {p->batch, p->heads_kv, query_blocks, entries}, \
  .stride = {p->strides.b, p->strides.h, p->strides.s, (entries) == 1 ? 1 : p->strides.d}, STRIDES("bhsd", strides)
#define GIVEN(read) true, .ignored = !(read)
#define USES(use)   attn_uses(p, ATTN_USE_##use)
#define TENSOR(constant, field, type, shape, has, not_empty, words) \
  case ATTN_OPERAND_##constant:                                     \
    return (attn_operand){.name = #field,                           \
                          .member = offsetof(attn_args, field),     \
                          .use = words,                             \
                          type,                                     \
                          shape,                                    \
                          .of_operation = of_operation,             \
                          .present = of_operation && has,           \
                          .needed = p->batch > 0 && (not_empty) > 0};
  switch (which) {
#include "tensors.def"
    default: return (attn_operand){0};
  }
#undef FLOATS
#undef STRIDES
#undef LIST
#undef GIVEN
#undef INTEGERS
#undef BYTES
#undef ROWS
#undef CACHE
#undef FACTORS
#undef NUMBERS
#undef STATES
#undef PAIRS
#undef SUMS
#undef TABLE
#undef LISTS
#undef USES
#undef TENSOR
}

/* The output that an operation is there for: the first one in tensors.def that the problem has. */
static inline attn_operand_id attn_first_output(const attn_problem *p) {
  uint64_t left = attn_operations[p->operation].outputs;
  while (left & (left - 1) && !attn_operand_of(p, (attn_operand_id)__builtin_ctzll(left)).present) left &= left - 1;
  return (attn_operand_id)__builtin_ctzll(left);
}

/* The same tensor, but its extents and strides count what is stored together: blocks, or else elements. */
static inline attn_operand attn_operand_in_blocks(attn_operand o) {
  const int64_t values = attn_dtype_of(o.dtype).values;
  if (values == 1) return o;
  for (int i = 0; i < 3; i++) o.stride[i] /= values;
  o.extent[3] = (o.extent[3] + values - 1) / values;
  return o;
}

/* Gives a tensor whose strides the problem holds dense ones, in the order of its axes; factors one a token. Returns its
 * elements. */
static inline int64_t attn_operand_set_dense(attn_problem *p, attn_operand_id which) {
  const attn_operand o = attn_operand_of(p, which);
  const int64_t columns = o.single ? 1 : o.extent[3], row = o.extent[2] * columns,
                dense[4] = {o.extent[1] * row, row, columns, !o.single};
  memcpy((char *)p + o.field_at, dense, sizeof dense);
  return o.extent[0] * dense[0];
}

/* Outputs that a call may leave out; of a forward call also those that its state has. */
static inline uint64_t attn_optional_operands(const attn_problem *p) {
  const uint64_t by_state = UINT64_C(1) << ATTN_OPERAND_O | UINT64_C(1) << ATTN_OPERAND_LSE;
  return attn_operations[p->operation].optional | (attn_uses(p, ATTN_USE_STATE) ? by_state : 0);
}

/* Where it begins: in args, and to be put there. */
static inline void *attn_operand_at(const attn_operand *operand, const attn_args *args) {
  void *pointer;
  memcpy(&pointer, (const char *)args + operand->member, sizeof pointer);
  return pointer;
}

static inline void attn_operand_point(const attn_problem *p, attn_operand_id which, attn_args *args, void *to) {
  memcpy((char *)args + attn_operand_of(p, which).member, &to, sizeof to);
}

#endif
