/* SPDX-License-Identifier: MIT */
/* Problems whose fields hold any bits are planned or refused with a sentence, and no size overflows. */
#include <math.h>
#include <string.h>

#include "attn/attn.h"
#include "fuzz.h"

/* Any bits, a small number, or one near the border of an integer type. */
static int64_t read_number(fuzz_bytes *bytes) {
  static const int64_t borders[] = {
      0, 1, -1, INT64_MAX, INT64_MIN, INT64_MAX - 1, INT32_MAX, (int64_t)1 << 31, (int64_t)1 << 32, (int64_t)1 << 60};
  const uint8_t kind = fuzz_byte(bytes);
  if (kind < 0x80) return kind;
  if (kind < 0xc0) return borders[kind % 10];
  if (kind < 0xe0) return (int64_t)1 << (kind & 31);
  return (int64_t)fuzz_word(bytes);
}

static float read_real(fuzz_bytes *bytes) {
  const uint32_t bits = (uint32_t)fuzz_word(bytes);
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static attn_strides read_strides(fuzz_bytes *bytes, attn_strides dense) {
  if (fuzz_byte(bytes) < 0xc0) return dense;
  return (attn_strides){read_number(bytes), read_number(bytes), read_number(bytes), read_number(bytes)};
}

static attn_score_strides read_score_strides(fuzz_bytes *bytes, attn_score_strides dense) {
  if (fuzz_byte(bytes) < 0xc0) return dense;
  return (attn_score_strides){read_number(bytes), read_number(bytes), read_number(bytes), read_number(bytes)};
}

static attn_problem read_problem(fuzz_bytes *bytes) {
  attn_problem p;
  const int64_t batch = read_number(bytes), heads_kv = read_number(bytes), group = fuzz_byte(bytes) & 15;
  const int64_t heads = fuzz_byte(bytes) < 0xc0 ? (int64_t)((uint64_t)heads_kv * (uint64_t)group) : read_number(bytes);
  attn_problem_init(&p, batch, heads, heads_kv, read_number(bytes), read_number(bytes), read_number(bytes),
                    read_number(bytes));
  p.uses = (uint32_t)fuzz_byte(bytes) | (uint32_t)fuzz_byte(bytes) << 8;
  if (fuzz_byte(bytes) < 0xf0) p.uses &= (ATTN_USE_PAGES << 1) - 1;
  if (p.uses & ATTN_USE_VARLEN) attn_problem_set_varlen(&p, read_number(bytes), read_number(bytes));
  if (p.uses & ATTN_USE_PAGES) attn_problem_set_pages(&p, read_number(bytes), read_number(bytes));
  const uint8_t types = fuzz_byte(bytes), words = fuzz_byte(bytes);
  p.dtype_kv = (attn_dtype)(types & 3);
  p.dtype_q = types & 4 ? p.dtype_kv : (attn_dtype)(types >> 3 & 3);
  p.dtype_o = types & 0x20 ? p.dtype_q : (attn_dtype)(types >> 6);
  p.score = (attn_score)(words & 7);
  p.align = (attn_align)(words >> 3 & 3);
  p.window_left = words & 0x20 ? read_number(bytes) : -1;
  p.window_right = words & 0x40 ? read_number(bytes) : -1;
  if (words & 0x80) p.scale = read_real(bytes), p.softcap = read_real(bytes);
  p.q_stride = read_strides(bytes, p.q_stride);
  p.k_stride = read_strides(bytes, p.k_stride);
  p.v_stride = read_strides(bytes, p.v_stride);
  p.o_stride = read_strides(bytes, p.o_stride);
  p.lse_stride = read_strides(bytes, p.lse_stride);
  p.bias_stride = read_score_strides(bytes, p.bias_stride);
  p.mask_stride = read_score_strides(bytes, p.mask_stride);
  p.scores_stride = read_score_strides(bytes, p.scores_stride);
  p.score_weight_stride_h = read_number(bytes);
  const uint8_t pass = fuzz_byte(bytes);
  if (pass & 1) p.dropout = read_real(bytes);
  if (pass & 2) attn_problem_set_backward(&p);
  if (pass & 4) p.uses |= (uint32_t)fuzz_byte(bytes) << 15; /* from ATTN_USE_D_LSE on */
  if (pass & 8) p.operation = (attn_operation)(fuzz_byte(bytes) & 3);
  p.d_o_stride = read_strides(bytes, p.d_o_stride);
  p.d_q_stride = read_strides(bytes, p.d_q_stride);
  p.d_k_stride = read_strides(bytes, p.d_k_stride);
  p.d_v_stride = read_strides(bytes, p.d_v_stride);
  p.d_bias_stride = read_score_strides(bytes, p.d_bias_stride);
  return p;
}

static void check_plan(const attn_problem *p, const char *kernel, bool valid, int threads) {
  const attn_options options = ATTN_STRUCT(attn_options, .kernel = kernel, .threads = threads);
  attn_plan *plan = NULL;
  const attn_status status = attn_plan_create(p, &options, &plan);
  if ((status == ATTN_OK) != (plan != NULL)) fuzz_fail("%s: status and plan disagree", kernel);
  if (status != ATTN_OK && !attn_last_error()[0]) fuzz_fail("%s: %s without a word", kernel, attn_status_name(status));
  if (valid == (status == ATTN_INVALID_ARGUMENT)) fuzz_fail("%s: %s", kernel, attn_last_error());
  if (attn_plan_workspace(plan) % 64) fuzz_fail("%s: a workspace of %zu bytes", kernel, attn_plan_workspace(plan));
  attn_plan_destroy(plan);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
  fuzz_bytes bytes = {data, data + size};
  const int threads = fuzz_byte(&bytes) & 15;
  const bool libraries = fuzz_byte(&bytes) % 16 == 15;
  const attn_problem p = read_problem(&bytes);
  const bool valid = attn_problem_validate(&p) == ATTN_OK;
  check_plan(&p, NULL, valid, threads);
  for (int i = 0; i < attn_kernel_count(); i++) {
    const attn_kernel_info *kernel = attn_kernel_get(i);
    if (!kernel->library[0] || libraries) check_plan(&p, kernel->name, valid, threads);
    if (valid) (void)attn_kernel_rejects(kernel, &p);
  }
  return 0;
}
