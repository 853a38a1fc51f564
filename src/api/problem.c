/* SPDX-License-Identifier: MIT */
/* attn_problem: defaults and validation. Every check names the field, its value and what would be right. */
#include <inttypes.h>
#include <math.h>

#include "kernels/common/problem/dtypes.h"
#include "kernels/common/problem/indexing.h"
#include "kernels/common/problem/operation.h"
#include "kernels/common/problem/philox.h"
#include "kernels/common/problem/unroll.h"
#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/layouts.h"
#include "src/api/problem.h"
#include "src/api/strides.h"

/* ---- Defaults ---- */

/* Wrapping product: attn_problem_init checks nothing, attn_problem_validate rejects what overflows. */
static int64_t times(int64_t a, int64_t b) { return (int64_t)((uint64_t)a * (uint64_t)b); }

static attn_strides bhsd(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = times(heads, times(seq, dim)), .h = times(seq, dim), .s = dim, .d = 1};
}

static attn_strides bshd(int64_t heads, int64_t seq, int64_t dim) {
  return (attn_strides){.b = times(seq, times(heads, dim)), .h = dim, .s = times(heads, dim), .d = 1};
}

/* 1 / sqrt(dim_qk), rounded to nearest whatever the caller's floating-point mode is. Not inlined, as in merge.c. */
static NO_INLINE void set_default_scale(int64_t dim_qk, float *scale) {
  *scale = dim_qk > 0 ? 1.0f / sqrtf((float)dim_qk) : 1.0f;
}

void(attn_problem_init)(attn_problem *theirs, int64_t batch, int64_t heads_q, int64_t heads_kv, int64_t seq_q, int64_t seq_k,
                        int64_t dim_qk, int64_t dim_v) {
  attn_score_strides dense = {.b = times(heads_q, times(seq_q, seq_k)), .h = times(seq_q, seq_k), .q = seq_k, .k = 1};
  attn_problem p = {
      .batch = batch,
      .heads_q = heads_q,
      .heads_kv = heads_kv,
      .seq_q = seq_q,
      .seq_k = seq_k,
      .dim_qk = dim_qk,
      .dim_v = dim_v,
      .q_stride = bhsd(heads_q, seq_q, dim_qk),
      .k_stride = bhsd(heads_kv, seq_k, dim_qk),
      .v_stride = bhsd(heads_kv, seq_k, dim_v),
      .o_stride = bhsd(heads_q, seq_q, dim_v),
      .lse_stride = bhsd(heads_q, seq_q, 1),
      .state_stride = bhsd(heads_q, seq_q, attn_state_floats(dim_v)),
      .bias_stride = dense,
      .mask_stride = dense,
      .scores_stride = dense,
      .window_left = -1,
      .window_right = -1,
  };
  const uint64_t mode = attn_float_mode_enter();
  set_default_scale(dim_qk, &p.scale);
  attn_float_mode_leave(mode);
  attn_struct_write(&attn_problem_layout, &p, theirs);
}

void attn_problem_set_causal(attn_problem *p, attn_align align) {
  p->align = align;
  p->window_right = 0;
}

/* Elements that a row of K or V takes up. */
static int64_t row_of(const attn_problem *p, int64_t dim) {
  return attn_dtype_exists(p->dtype_kv) ? attn_row_elements(p->dtype_kv, dim) : dim;
}

void attn_problem_set_bshd(attn_problem *p) {
  p->q_stride = bshd(p->heads_q, p->seq_q, p->dim_qk);
  p->k_stride = bshd(p->heads_kv, p->seq_k, row_of(p, p->dim_qk));
  p->v_stride = bshd(p->heads_kv, p->seq_k, row_of(p, p->dim_v));
  p->o_stride = bshd(p->heads_q, p->seq_q, p->dim_v);
}

void attn_problem_set_varlen(attn_problem *p, int64_t total_q, int64_t total_k) {
  attn_problem_set_bshd(p);
  p->lse_stride = (attn_strides){.b = 0, .h = total_q, .s = 1, .d = 1};
  p->state_stride = bhsd(p->heads_q, total_q, attn_state_floats(p->dim_v));
  p->total_q = total_q;
  p->total_k = total_k;
  p->uses |= ATTN_USE_VARLEN;
}

void attn_problem_set_pages(attn_problem *p, int64_t page_tokens, int64_t pages) {
  p->k_stride = bhsd(p->heads_kv, page_tokens, row_of(p, p->dim_qk));
  p->v_stride = bhsd(p->heads_kv, page_tokens, row_of(p, p->dim_v));
  p->page_tokens = page_tokens;
  p->pages = pages;
  p->page_table_stride = page_tokens > 0 && p->seq_k > 0 ? (p->seq_k - 1) / page_tokens + 1 : 0;
  p->uses |= ATTN_USE_PAGES | ATTN_USE_KV_LEN;
}

void attn_problem_set_backward(attn_problem *p) {
  p->operation = ATTN_BACKWARD;
  p->uses |= ATTN_USE_LSE;
  p->d_o_stride = p->o_stride;
  p->d_lse_stride = p->lse_stride;
  p->d_q_stride = p->q_stride;
  p->d_k_stride = p->k_stride;
  p->d_v_stride = p->v_stride;
  p->d_bias_stride = p->bias_stride;
  p->d_scores_stride = p->scores_stride;
}

attn_status attn_dropout_mask(const attn_problem *theirs, uint64_t seed, uint64_t offset, uint8_t *mask) {
  attn_problem p;
  const attn_status status = attn_problem_read(theirs, &p);
  if (status != ATTN_OK) return status;
  const philox_dropout dropout = philox_dropout_of(p.dropout, seed, offset);
  const int64_t rows = p.batch * p.heads_q * p.seq_q;
  REQUIRE(mask || rows == 0 || p.seq_k == 0, "mask is NULL; it must point to batch x heads_q x seq_q x seq_k bytes");
  for (int64_t n = 0; n < rows; n++)
    for (int64_t j = 0; j < p.seq_k; j++)
      mask[n * p.seq_k + j] = philox_factor(&dropout, (uint32_t)(n / p.seq_q), (uint32_t)(n % p.seq_q), j) > 0;
  return ATTN_OK;
}

/* Blocks of `size` that hold `count` elements; 0 where a size is wrong, which attn_problem_validate says. */
static int64_t blocks_of(int64_t count, int64_t size) { return size > 0 && count > 0 ? (count - 1) / size + 1 : 0; }

void attn_problem_set_key_blocks(attn_problem *p, int64_t block_queries, int64_t block_keys) {
  const int64_t lists = blocks_of(p->seq_q, block_queries), entries = blocks_of(p->seq_k, block_keys);
  p->block_queries = block_queries;
  p->block_keys = block_keys;
  p->kv_num_blocks_stride = bhsd(p->heads_kv, lists, 1);
  p->kv_indices_stride = bhsd(p->heads_kv, lists, entries);
  p->uses |= ATTN_USE_KEY_BLOCKS;
}

void attn_problem_set_newest_mask(attn_problem *p, int64_t mask_keys) {
  const int64_t head = p->seq_q * mask_keys;
  p->mask_keys = mask_keys;
  p->mask_stride = (attn_score_strides){.b = p->heads_q * head, .h = head, .q = mask_keys, .k = 1};
  p->uses |= ATTN_USE_MASK;
}

/* ---- Validation ---- */

static attn_status check_size(const char *field, int64_t value, int64_t least) {
  REQUIRE(value >= least, "attn_problem.%s is %" PRId64 "; it must be at least %" PRId64, field, value, least);
  REQUIRE(value <= ATTN_SIZE_LIMIT, "attn_problem.%s is %" PRId64 "; it must be at most 2^31", field, value);
  return ATTN_OK;
}

static attn_status check_sizes(const attn_problem *p) {
  const struct {
    const char *field;
    int64_t value, least;
  } sizes[] = {
      {"batch", p->batch, 0},     {"heads_q", p->heads_q, 1}, {"heads_kv", p->heads_kv, 1},   {"seq_q", p->seq_q, 0},
      {"seq_k", p->seq_k, 0},     {"dim_qk", p->dim_qk, 1},   {"dim_v", p->dim_v, 1},         {"total_q", p->total_q, 0},
      {"total_k", p->total_k, 0}, {"pages", p->pages, 0},     {"mask_keys", p->mask_keys, 0},
  };
  for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
    attn_status status = check_size(sizes[i].field, sizes[i].value, sizes[i].least);
    if (status != ATTN_OK) return status;
  }
  REQUIRE(p->heads_q % p->heads_kv == 0,
          "attn_problem.heads_q is %" PRId64 " with heads_kv %" PRId64 "; heads_q must be a multiple of heads_kv",
          p->heads_q, p->heads_kv);
  int64_t rows, keys;
  REQUIRE(!__builtin_mul_overflow(p->batch * p->heads_q, p->seq_q, &rows) && rows <= ATTN_ELEMENT_LIMIT &&
              !__builtin_mul_overflow(p->batch * p->heads_kv, p->seq_k, &keys) && keys <= ATTN_ELEMENT_LIMIT,
          "attn_problem.batch is %" PRId64 "; batch x heads x seq must be at most 2^60 rows", p->batch);
  return ATTN_OK;
}

static attn_status check_enums(const attn_problem *p) {
  REQUIRE(attn_operation_exists(p->operation), "attn_problem.operation is %d; it must be in 0..%d, 0 being ATTN_FORWARD",
          (int)p->operation, attn_operation_count - 1);
  REQUIRE(attn_dtype_exists(p->dtype_kv), "attn_problem.dtype_kv is %d; it must be " ATTN_DTYPE_CONSTANTS, (int)p->dtype_kv);
  if (attn_dtype_is_float(p->dtype_kv))
    REQUIRE(p->dtype_q == ATTN_F32 || p->dtype_q == p->dtype_kv,
            "attn_problem.dtype_q is %d with dtype_kv %d; it must be ATTN_F32 or equal to dtype_kv", (int)p->dtype_q,
            (int)p->dtype_kv);
  REQUIRE(attn_dtype_is_float(p->dtype_q), "attn_problem.dtype_q is %d with dtype_kv %d; it must be " ATTN_FLOAT_CONSTANTS,
          (int)p->dtype_q, (int)p->dtype_kv);
  REQUIRE(p->dtype_o == ATTN_F32 || p->dtype_o == p->dtype_q,
          "attn_problem.dtype_o is %d with dtype_q %d; it must be ATTN_F32 or equal to dtype_q", (int)p->dtype_o,
          (int)p->dtype_q);
  REQUIRE(p->score >= ATTN_SCORE_DOT && p->score <= ATTN_SCORE_PRECOMPUTED,
          "attn_problem.score is %d; it must be one of ATTN_SCORE_DOT, _ADDITIVE, _GAUSSIAN, _PRECOMPUTED", (int)p->score);
  REQUIRE(p->align >= ATTN_ALIGN_TOP_LEFT && p->align <= ATTN_ALIGN_OFFSET,
          "attn_problem.align is %d; it must be ATTN_ALIGN_TOP_LEFT, _BOTTOM_RIGHT or _OFFSET", (int)p->align);
  return ATTN_OK;
}

static attn_status check_numbers(const attn_problem *p) {
  REQUIRE(isfinite(p->scale), "attn_problem.scale is %g; it must be finite (0 and negative are fine)", (double)p->scale);
  REQUIRE(isfinite(p->softcap) && p->softcap >= 0, "attn_problem.softcap is %g; it must be finite and at least 0 (0 = off)",
          (double)p->softcap);
  REQUIRE(p->window_left >= -1, "attn_problem.window_left is %" PRId64 "; it must be -1 (open) or at least 0",
          p->window_left);
  REQUIRE(p->window_right >= -1, "attn_problem.window_right is %" PRId64 "; it must be -1 (open) or at least 0",
          p->window_right);
  REQUIRE(p->window_first >= 0, "attn_problem.window_first is %" PRId64 "; it must be at least 0", p->window_first);
  REQUIRE(p->dropout >= 0 && p->dropout < 1, "attn_problem.dropout is %g; it must be at least 0 (off) and below 1",
          (double)p->dropout);
  REQUIRE(p->dropout == 0 || (!attn_uses(p, ATTN_USE_STATE) && p->shared_prefix == 0),
          "attn_problem.dropout is %g with ATTN_USE_STATE or shared_prefix; it must be 0", (double)p->dropout);
  REQUIRE(p->key_begin >= 0, "attn_problem.key_begin is %" PRId64 "; it must be at least 0", p->key_begin);
  REQUIRE(p->key_end == 0 || p->key_end >= p->key_begin,
          "attn_problem.key_end is %" PRId64 " with key_begin %" PRId64 "; it must be 0 (open) or at least key_begin",
          p->key_end, p->key_begin);
  return ATTN_OK;
}

static attn_status check_prefix(const attn_problem *p) {
  const int64_t step = attn_uses(p, ATTN_USE_PAGES) && p->page_tokens > 0 ? p->page_tokens : 1;
  REQUIRE(p->shared_prefix >= 0 && p->shared_prefix <= p->seq_k,
          "attn_problem.shared_prefix is %" PRId64 "; it must be in 0..seq_k, %" PRId64, p->shared_prefix, p->seq_k);
  REQUIRE(p->shared_prefix % step == 0,
          "attn_problem.shared_prefix is %" PRId64 "; with ATTN_USE_PAGES it must be a multiple of page_tokens, %" PRId64,
          p->shared_prefix, step);
  const char *alone = p->operation != ATTN_FORWARD   ? "another operation than ATTN_FORWARD"
                      : attn_uses(p, ATTN_USE_STATE) ? "ATTN_USE_STATE"
                                                     : NULL;
  REQUIRE(!alone || (p->window_first == 0 && p->shared_prefix == 0),
          "attn_problem.%s is %" PRId64 " with %s; it must be 0, because the keys are read in pieces",
          p->window_first ? "window_first" : "shared_prefix", p->window_first ? p->window_first : p->shared_prefix, alone);
  return ATTN_OK;
}

/* Needs and refusals of operations other than attention. */
static attn_status check_operation(const attn_problem *p) {
  const attn_operation_info *operation = &attn_operations[p->operation];
  const uint32_t refused = p->uses & operation->refused;
  REQUIRE(!refused, "attn_problem.uses has bits 0x%x that operation '%s' does not take; they must not be set", refused,
          operation->name);
  if (p->operation != ATTN_BACKWARD) return ATTN_OK;
  REQUIRE(p->uses & ATTN_USE_LSE,
          "attn_problem.uses lacks ATTN_USE_LSE; gradients need the lse of the forward call: attn_problem_set_backward()");
  REQUIRE(attn_dtype_is_float(p->dtype_kv),
          "attn_problem.dtype_kv is %d with ATTN_BACKWARD; it must be " ATTN_FLOAT_CONSTANTS, (int)p->dtype_kv);
  for (int i = 0; i < ATTN_GRADIENT_USES; i++) {
    const attn_gradient_use *use = &attn_gradient_uses[i];
    REQUIRE(!(p->uses & use->gradient) || (p->uses & use->of),
            "attn_problem.uses has ATTN_USE_%s without ATTN_USE_%s; it must have both", use->name, use->of_name);
  }
  return ATTN_OK;
}

static attn_status check_uses(const attn_problem *p) {
  const uint32_t known = (ATTN_USE_ACCUMULATE << 1) - 1;
  REQUIRE(!(p->uses & ~known), "attn_problem.uses is 0x%x; only ATTN_USE_... bits (0x%x) may be set", p->uses, known);
  const uint32_t padded = ATTN_USE_Q_LEN | ATTN_USE_ROW_LEN | (p->uses & ATTN_USE_PAGES ? 0 : ATTN_USE_KV_LEN);
  REQUIRE(
      !(p->uses & ATTN_USE_VARLEN) || !(p->uses & padded),
      "attn_problem.uses has ATTN_USE_VARLEN together with KV_LEN, Q_LEN or ROW_LEN; packed sequences take their lengths "
      "from cu_seqlens alone, but for KV_LEN with ATTN_USE_PAGES");
  REQUIRE(
      !(p->uses & ATTN_USE_ROW_LEN) || p->align != ATTN_ALIGN_BOTTOM_RIGHT,
      "attn_problem.uses has ATTN_USE_ROW_LEN with align ATTN_ALIGN_BOTTOM_RIGHT; per-row lengths need ATTN_ALIGN_TOP_LEFT "
      "or ATTN_ALIGN_OFFSET");
  REQUIRE(!(p->uses & ATTN_USE_PAGES) || (p->uses & ATTN_USE_KV_LEN),
          "attn_problem.uses has ATTN_USE_PAGES without ATTN_USE_KV_LEN; it must have both, because pages say no lengths");
  REQUIRE(!(p->uses & ATTN_USE_PAGES) ||
              (p->page_tokens >= RUN_KEYS && p->page_tokens <= MOST_PAGE_TOKENS && p->page_tokens % RUN_KEYS == 0),
          "attn_problem.page_tokens is %" PRId64 "; it must be a multiple of %d in %d..%d", p->page_tokens, RUN_KEYS,
          RUN_KEYS, MOST_PAGE_TOKENS);
  REQUIRE(p->mask_keys == 0 || (p->uses & ATTN_USE_MASK),
          "attn_problem.mask_keys is %" PRId64 " without ATTN_USE_MASK; it must be 0, because there is no mask",
          p->mask_keys);
  REQUIRE(!(p->uses & ATTN_USE_STATE) || p->align != ATTN_ALIGN_BOTTOM_RIGHT,
          "attn_problem.uses has ATTN_USE_STATE with align ATTN_ALIGN_BOTTOM_RIGHT; pieces of keys need ATTN_ALIGN_OFFSET, "
          "or ATTN_ALIGN_TOP_LEFT, because the last key of a piece is not the sequence's");
  REQUIRE(!(p->uses & ATTN_USE_KV_SCALES) || p->score == ATTN_SCORE_DOT || p->score == ATTN_SCORE_PRECOMPUTED,
          "attn_problem.uses has ATTN_USE_KV_SCALES with score %d; factors of keys need ATTN_SCORE_DOT or _PRECOMPUTED",
          (int)p->score);
  REQUIRE(p->score != ATTN_SCORE_ADDITIVE || (p->uses & ATTN_USE_SCORE_WEIGHT),
          "attn_problem.uses lacks ATTN_USE_SCORE_WEIGHT; ATTN_SCORE_ADDITIVE needs the weight vector w");
  return ATTN_OK;
}

/* Factors of channels are those of all keys that a query sees: it takes them once. */
static attn_status check_channel_factors(const attn_problem *p) {
  const struct {
    char name;
    int64_t step;
    const attn_strides *stride;
  } tensors[] = {{'k', attn_k_channel_step(p), &p->k_scale_stride}, {'v', attn_v_channel_step(p), &p->v_scale_stride}};
  for (int i = 0; i < 2; i++) {
    const bool of_page = attn_uses(p, ATTN_USE_PAGES) && tensors[i].stride->b != 0;
    REQUIRE(!tensors[i].step || (tensors[i].stride->s == 0 && !of_page),
            "attn_problem.%c_scale_stride.%c is %" PRId64 " with .d %" PRId64
            "; it must be 0, because the factors of channels are the same for all %s of a head",
            tensors[i].name, of_page ? 'b' : 's', of_page ? tensors[i].stride->b : tensors[i].stride->s, tensors[i].step,
            of_page ? "pages" : "tokens");
  }
  REQUIRE(!attn_v_channel_step(p) || !attn_uses(p, ATTN_USE_STATE),
          "attn_problem.v_scale_stride.d is %" PRId64
          " with ATTN_USE_STATE; it must be 0, because the o of a state is a sum before factors of channels",
          p->v_scale_stride.d);
  return ATTN_OK;
}

static attn_status check_key_blocks(const attn_problem *p) {
  const struct {
    const char *field;
    int64_t value, least;
  } sizes[] = {{"block_queries", p->block_queries, LEAST_BLOCK_QUERIES}, {"block_keys", p->block_keys, LEAST_BLOCK_KEYS}};
  for (int i = 0; attn_lists_keys(p) && i < 2; i++)
    REQUIRE(sizes[i].value > 0 && sizes[i].value <= ATTN_SIZE_LIMIT && sizes[i].value % sizes[i].least == 0,
            "attn_problem.%s is %" PRId64 "; with ATTN_USE_KEY_BLOCKS or _FULL_KEY_BLOCKS it must be a multiple of %" PRId64
            " in %" PRId64 "..2^31",
            sizes[i].field, sizes[i].value, sizes[i].least, sizes[i].least);
  return ATTN_OK;
}

/* ---- Strides ---- */

/* The strides of all tensors that the operation reads or writes. */
static attn_status check_strides(const attn_problem *p) {
  for (int i = 0; i < ATTN_OPERANDS; i++) {
    const attn_operand o = attn_operand_of(p, (attn_operand_id)i);
    attn_tensor tensor = {.field = o.field, .values = attn_dtype_of(o.dtype).values};
    tensor.output = attn_is_output(p, (attn_operand_id)i);
    if (!o.present || o.ignored || !*o.axes) continue;
    for (int k = 0; k < 4; k++) tensor.axes[k] = (attn_axis){o.axes[k], o.extent[k], o.stride[k]};
    const attn_status status = attn_check_strides(&tensor);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

attn_status attn_problem_read(const attn_problem *theirs, attn_problem *p) {
  REQUIRE(theirs, "problem is NULL; it must point to an attn_problem made by attn_problem_init");
  const attn_status size = attn_struct_read(&attn_problem_layout, theirs, p);
  if (size != ATTN_OK) return size;
  static attn_status (*const checks[])(const attn_problem *) = {check_sizes,      check_enums,     check_numbers,
                                                                check_uses,       check_operation, check_channel_factors,
                                                                check_key_blocks, check_strides,   check_prefix};
  for (size_t i = 0; i < sizeof checks / sizeof *checks; i++) {
    attn_status status = checks[i](p);
    if (status != ATTN_OK) return status;
  }
  return ATTN_OK;
}

attn_status attn_problem_validate(const attn_problem *problem) {
  attn_problem own;
  return attn_problem_read(problem, &own);
}
