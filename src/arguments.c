/* SPDX-License-Identifier: MIT */
/* attn_args: the pointers and lengths of one call. */
#include <inttypes.h>

#include "error.h"
#include "kernels/common/dtypes.h"
#include "problem.h"

#define REQUIRE(condition, ...) \
  if (!(condition)) return attn_fail(ATTN_INVALID_ARGUMENT, __VA_ARGS__)

static attn_status check_pointer(const char *field, const void *pointer, bool needed, uintptr_t alignment, const char *why) {
  if (!needed) return ATTN_OK;
  REQUIRE(pointer, "attn_args.%s is NULL; %s", field, why);
  REQUIRE((uintptr_t)pointer % alignment == 0, "attn_args.%s is %p; it must be aligned to its element, %u bytes", field,
          pointer, (unsigned)alignment);
  return ATTN_OK;
}

static attn_status check_pointers(const attn_problem *p, const attn_args *a) {
  bool varlen = p->uses & ATTN_USE_VARLEN, precomputed = p->score == ATTN_SCORE_PRECOMPUTED;
  bool queries = p->batch > 0 && (varlen ? p->total_q : p->seq_q) > 0;
  bool keys = p->batch > 0 && (varlen ? p->total_k : p->seq_k) > 0;
  bool scores = queries && keys;
  uintptr_t q = attn_dtype_bytes(p->dtype_q), kv = attn_dtype_bytes(p->dtype_kv), o = attn_dtype_bytes(p->dtype_o);
  const struct {
    const char *field;
    const void *pointer;
    bool needed;
    uintptr_t alignment;
    const char *why;
  } rows[] = {
      {"q", a->q, queries && keys && !precomputed, q, "the problem has queries"},
      {"k", a->k, scores && !precomputed, kv, "the problem has keys"},
      {"v", a->v, scores, kv, "the problem has keys"},
      {"o", a->o, queries, o, "the problem has queries"},
      {"lse", a->lse, queries && (p->uses & ATTN_USE_LSE), 4, "the problem has ATTN_USE_LSE"},
      {"bias", a->bias, scores && (p->uses & ATTN_USE_BIAS), 4, "the problem has ATTN_USE_BIAS"},
      {"mask", a->mask, scores && (p->uses & ATTN_USE_MASK), 1, "the problem has ATTN_USE_MASK"},
      {"scores", a->scores, scores && precomputed, 4, "the problem has ATTN_SCORE_PRECOMPUTED"},
      {"score_weight", a->score_weight, scores && (p->uses & ATTN_USE_SCORE_WEIGHT), 4,
       "the problem has ATTN_USE_SCORE_WEIGHT"},
      {"kv_len", a->kv_len, p->batch && (p->uses & ATTN_USE_KV_LEN), 4, "the problem has ATTN_USE_KV_LEN"},
      {"q_len", a->q_len, p->batch && (p->uses & ATTN_USE_Q_LEN), 4, "the problem has ATTN_USE_Q_LEN"},
      {"row_len", a->row_len, queries && (p->uses & ATTN_USE_ROW_LEN), 4, "the problem has ATTN_USE_ROW_LEN"},
      {"cu_seqlens_q", a->cu_seqlens_q, p->batch && varlen, 4, "the problem has ATTN_USE_VARLEN"},
      {"cu_seqlens_k", a->cu_seqlens_k, p->batch && varlen, 4, "the problem has ATTN_USE_VARLEN"},
      {"offsets", a->offsets, p->batch && p->align == ATTN_ALIGN_OFFSET, 4, "the problem has ATTN_ALIGN_OFFSET"},
      {"alibi_slopes", a->alibi_slopes, scores && (p->uses & ATTN_USE_ALIBI), 4, "the problem has ATTN_USE_ALIBI"},
      {"sinks", a->sinks, queries && (p->uses & ATTN_USE_SINKS), 4, "the problem has ATTN_USE_SINKS"},
  };
  for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
    attn_status status = check_pointer(rows[i].field, rows[i].pointer, rows[i].needed, rows[i].alignment, rows[i].why);
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

attn_status attn_args_validate(const attn_problem *p, const attn_args *a) {
  REQUIRE(a, "args is NULL; it must point to an attn_args");
  attn_status status = check_pointers(p, a);
  if (status == ATTN_OK && (p->uses & ATTN_USE_KV_LEN)) status = check_lengths("kv_len", a->kv_len, p->batch, p->seq_k);
  if (status == ATTN_OK && (p->uses & ATTN_USE_Q_LEN)) status = check_lengths("q_len", a->q_len, p->batch, p->seq_q);
  if (status == ATTN_OK && (p->uses & ATTN_USE_ROW_LEN))
    status = check_lengths("row_len", a->row_len, p->batch * p->seq_q, p->seq_k);
  if (status != ATTN_OK || !(p->uses & ATTN_USE_VARLEN) || !p->batch) return status;
  status = check_cu_seqlens("cu_seqlens_q", a->cu_seqlens_q, p->batch, p->seq_q, p->total_q);
  if (status == ATTN_OK) status = check_cu_seqlens("cu_seqlens_k", a->cu_seqlens_k, p->batch, p->seq_k, p->total_k);
  return status;
}
