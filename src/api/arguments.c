/* SPDX-License-Identifier: MIT */
/* attn_args: the pointers and lengths of one call. */
#include <inttypes.h>

#include "kernels/common/problem/dtypes.h"
#include "src/api/error.h"
#include "src/api/layouts.h"
#include "src/api/problem.h"

/* One pointer of attn_args. */
typedef struct argument {
  const char *field;
  const void *pointer;
  uintptr_t alignment;
  bool used, has_elements; /* the problem reads or writes it, and its tensor is not empty */
  bool optional;           /* a mistake where it is not used */
  const char *use;         /* what makes the problem use it */
} argument;

static attn_status check_argument(const argument *a) {
  REQUIRE(!a->pointer || a->used || !a->optional,
          "attn_args.%s is given, but the problem does not have %s; set it or leave %s NULL", a->field, a->use, a->field);
  if (!a->used || !a->has_elements) return ATTN_OK;
  REQUIRE(a->pointer, "attn_args.%s is NULL; the problem has %s", a->field, a->use);
  REQUIRE((uintptr_t)a->pointer % a->alignment == 0, "attn_args.%s is %p; it must be aligned to its element, %u bytes",
          a->field, a->pointer, (unsigned)a->alignment);
  return ATTN_OK;
}

/* Whether certainly nothing is wrong with the pointers: q, k, v and o are given and nothing else, aligned for any type, and
 * the problem asks for no more. So it is in most calls; the others are checked one by one. */
static bool only_tensors(const attn_problem *p, const attn_args *a) {
  _Static_assert(sizeof *a == sizeof a->struct_size + 17 * sizeof a->q, "a pointer is missing here or in check_pointers");
  const uintptr_t places = (uintptr_t)a->q | (uintptr_t)a->k | (uintptr_t)a->v | (uintptr_t)a->o;
  const bool given = a->q && a->k && a->v && a->o && places % sizeof(float) == 0;
  const bool others = a->lse || a->bias || a->mask || a->scores || a->score_weight || a->kv_len || a->q_len || a->row_len ||
                      a->cu_seqlens_q || a->cu_seqlens_k || a->offsets || a->alibi_slopes || a->sinks;
  return given && !others && p->uses == 0 && p->score != ATTN_SCORE_PRECOMPUTED && p->align != ATTN_ALIGN_OFFSET;
}

static attn_status check_pointers(const attn_problem *p, const attn_args *a) {
  if (only_tensors(p, a)) return ATTN_OK;
  const bool varlen = p->uses & ATTN_USE_VARLEN, given = p->score == ATTN_SCORE_PRECOMPUTED, batch = p->batch > 0;
  const bool queries = batch && (varlen ? p->total_q : p->seq_q) > 0, keys = batch && (varlen ? p->total_k : p->seq_k) > 0;
  const bool scores = queries && keys;
  const uintptr_t q = attn_dtype_bytes(p->dtype_q), kv = attn_dtype_bytes(p->dtype_kv), o = attn_dtype_bytes(p->dtype_o);
#define USED(use) (p->uses & ATTN_USE_##use) != 0
  const argument arguments[] = {
      {"q", a->q, q, !given, scores, false, "queries"},
      {"k", a->k, kv, !given, scores, false, "keys"},
      {"v", a->v, kv, true, scores, false, "keys"},
      {"o", a->o, o, true, queries, false, "queries"},
      {"lse", a->lse, 4, USED(LSE), queries, true, "ATTN_USE_LSE"},
      {"bias", a->bias, 4, USED(BIAS), scores, true, "ATTN_USE_BIAS"},
      {"mask", a->mask, 1, USED(MASK), scores, true, "ATTN_USE_MASK"},
      {"scores", a->scores, 4, given, scores, true, "ATTN_SCORE_PRECOMPUTED"},
      {"score_weight", a->score_weight, 4, USED(SCORE_WEIGHT), scores, true, "ATTN_USE_SCORE_WEIGHT"},
      {"kv_len", a->kv_len, 4, USED(KV_LEN), batch, true, "ATTN_USE_KV_LEN"},
      {"q_len", a->q_len, 4, USED(Q_LEN), batch, true, "ATTN_USE_Q_LEN"},
      {"row_len", a->row_len, 4, USED(ROW_LEN), queries, true, "ATTN_USE_ROW_LEN"},
      {"cu_seqlens_q", a->cu_seqlens_q, 4, varlen, batch, true, "ATTN_USE_VARLEN"},
      {"cu_seqlens_k", a->cu_seqlens_k, 4, varlen, batch, true, "ATTN_USE_VARLEN"},
      {"offsets", a->offsets, 4, p->align == ATTN_ALIGN_OFFSET, batch, true, "ATTN_ALIGN_OFFSET"},
      {"alibi_slopes", a->alibi_slopes, 4, USED(ALIBI), scores, true, "ATTN_USE_ALIBI"},
      {"sinks", a->sinks, 4, USED(SINKS), queries, true, "ATTN_USE_SINKS"},
  };
#undef USED
  for (size_t i = 0; i < sizeof arguments / sizeof *arguments; i++) {
    const attn_status status = check_argument(&arguments[i]);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

static attn_status check_lengths(const char *field, const int32_t *lengths, int64_t count, int64_t most) {
  for (int64_t i = 0; i < count; i++)
    REQUIRE(lengths[i] >= 0 && lengths[i] <= most, "attn_args.%s[%" PRId64 "] is %" PRId32 "; it must be in 0..%" PRId64,
            field, i, lengths[i], most);
  return ATTN_OK;
}

static attn_status check_cu_seqlens(const char *field, const int32_t *cu, int64_t batch, int64_t longest, int64_t total) {
  REQUIRE(cu[0] >= 0, "attn_args.%s[0] is %" PRId32 "; it must be at least 0", field, cu[0]);
  for (int64_t b = 0; b < batch; b++) {
    REQUIRE(cu[b + 1] >= cu[b], "attn_args.%s[%" PRId64 "] is %" PRId32 " after %" PRId32 "; it must not decrease", field,
            b + 1, cu[b + 1], cu[b]);
    REQUIRE((int64_t)cu[b + 1] - cu[b] <= longest,
            "attn_args.%s gives sequence %" PRId64 " %" PRId64 " tokens; the problem's longest is %" PRId64, field, b,
            (int64_t)cu[b + 1] - cu[b], longest);
  }
  REQUIRE(cu[batch] <= total, "attn_args.%s[%" PRId64 "] is %" PRId32 "; the tensors hold %" PRId64 " tokens", field, batch,
          cu[batch], total);
  return ATTN_OK;
}

/* ---- Outputs over inputs ---- */

/* The bytes of one tensor. */
typedef struct span {
  const char *field;
  uintptr_t begin, end;
  uint64_t places, elements; /* that fit between, and that the tensor has: may wrap where an input overlaps itself */
} span;

/* Moves the ends of the span, in elements, by an axis. */
static inline void span_axis(int64_t size, int64_t stride, int64_t *below, int64_t *above, uint64_t *elements) {
  const int64_t steps = (size - 1) * stride;
  *below += steps < 0 ? steps : 0;
  *above += steps < 0 ? 0 : steps;
  *elements *= stride ? (uint64_t)size : 1;
}

static inline span span_of(const char *field, const void *pointer, int64_t batch, int64_t heads, int64_t tokens,
                           int64_t width, const attn_strides *stride, size_t bytes) {
  int64_t below = 0, above = 0;
  uint64_t elements = 1;
  span_axis(batch, stride->b, &below, &above, &elements);
  span_axis(heads, stride->h, &below, &above, &elements);
  span_axis(tokens, stride->s, &below, &above, &elements);
  span_axis(width, stride->d, &below, &above, &elements);
  return (span){.field = field,
                .begin = (uintptr_t)pointer + (uintptr_t)below * bytes,
                .end = (uintptr_t)pointer + (uintptr_t)(above + 1) * bytes,
                .places = (uint64_t)(above - below + 1),
                .elements = elements};
}

/* Every byte from begin to end is an element's. */
static bool is_dense(const span *s) { return s->places == s->elements; }

/* Finds what is certain: dense tensors whose bytes meet, and tensors that begin at the same element. Those with gaps may lie
 * in each other's. */
static attn_status check_apart(const span *out, const span *in) {
  const bool meet = out->begin < in->end && in->begin < out->end;
  REQUIRE(!meet || !((is_dense(out) && is_dense(in)) || out->begin == in->begin),
          "attn_args.%s overlaps attn_args.%s; it must be memory of its own", out->field, in->field);
  return ATTN_OK;
}

static attn_status check_overlap(const attn_problem *p, const attn_args *a) {
  const bool varlen = p->uses & ATTN_USE_VARLEN;
  const int first = p->score == ATTN_SCORE_PRECOMPUTED ? 2 : 0; /* q and k are not read */
  const int64_t batch = varlen ? 1 : p->batch, rows = varlen ? p->total_q : p->seq_q, keys = varlen ? p->total_k : p->seq_k;
  if (p->batch == 0 || rows == 0 || keys == 0) return ATTN_OK;
  const size_t q_bytes = attn_dtype_bytes(p->dtype_q), kv_bytes = attn_dtype_bytes(p->dtype_kv);
  const span inputs[] = {
      span_of("q", a->q, batch, p->heads_q, rows, p->dim_qk, &p->q_stride, q_bytes),
      span_of("k", a->k, batch, p->heads_kv, keys, p->dim_qk, &p->k_stride, kv_bytes),
      span_of("v", a->v, batch, p->heads_kv, keys, p->dim_v, &p->v_stride, kv_bytes),
  };
  const span o = span_of("o", a->o, batch, p->heads_q, rows, p->dim_v, &p->o_stride, attn_dtype_bytes(p->dtype_o));
  attn_status status = ATTN_OK;
  for (int i = first; i < 3 && status == ATTN_OK; i++) status = check_apart(&o, &inputs[i]);
  if (status != ATTN_OK || !(p->uses & ATTN_USE_LSE)) return status;
  const span lse = span_of("lse", a->lse, batch, p->heads_q, rows, 1, &p->lse_stride, sizeof(float));
  for (int i = first; i < 3 && status == ATTN_OK; i++) status = check_apart(&lse, &inputs[i]);
  return status == ATTN_OK ? check_apart(&lse, &o) : status;
}

attn_status attn_args_read(const attn_problem *p, const attn_args *theirs, attn_args *a) {
  REQUIRE(theirs, "args is NULL; it must point to an attn_args");
  attn_status status = attn_struct_read(&attn_args_layout, theirs, a);
  if (status == ATTN_OK) status = check_pointers(p, a);
  if (status == ATTN_OK) status = check_overlap(p, a);
  if (status == ATTN_OK && (p->uses & ATTN_USE_KV_LEN)) status = check_lengths("kv_len", a->kv_len, p->batch, p->seq_k);
  if (status == ATTN_OK && (p->uses & ATTN_USE_Q_LEN)) status = check_lengths("q_len", a->q_len, p->batch, p->seq_q);
  if (status == ATTN_OK && (p->uses & ATTN_USE_ROW_LEN))
    status = check_lengths("row_len", a->row_len, p->batch * p->seq_q, p->seq_k);
  if (status != ATTN_OK || !(p->uses & ATTN_USE_VARLEN) || !p->batch) return status;
  status = check_cu_seqlens("cu_seqlens_q", a->cu_seqlens_q, p->batch, p->seq_q, p->total_q);
  if (status == ATTN_OK) status = check_cu_seqlens("cu_seqlens_k", a->cu_seqlens_k, p->batch, p->seq_k, p->total_k);
  return status;
}
