/* SPDX-License-Identifier: MIT */
/* What a newcomer does wrong: each mistake is refused with a sentence that helps. Mistakes that no library can see, such as
 * float32 data called bfloat16 or two sizes that were swapped in the call of attn_problem_init, are not here; attn.hpp,
 * which knows the sizes of containers, sees some of them (test_hpp.cpp). */
#include <stdio.h>
#include <stdlib.h>

#include "attn/nn.h"
#include "attn/product.h"
#include "support.h"

enum { HEADS = 2, ROWS = 4, DIM = 8, SIZE = HEADS * ROWS * DIM };

static float memory[8 * SIZE + 1];
static float *const q = memory, *const k = memory + SIZE, *const v = memory + 2 * SIZE, *const o = memory + 3 * SIZE;

static attn_problem shape(void) {
  attn_problem problem;
  attn_problem_init(&problem, 1, HEADS, HEADS, ROWS, ROWS, DIM, DIM);
  return problem;
}

static attn_args tensors(void) { return ATTN_STRUCT(attn_args, .q = q, .k = k, .v = v, .o = o); }

/* ---- Outputs over inputs ---- */

static void refuses_output(float *output, const char *input) {
  const attn_problem problem = shape();
  attn_args args = tensors();
  args.o = output;
  char sentence[80];
  snprintf(sentence, sizeof sentence, "attn_args.o overlaps attn_args.%s", input);
  test_invalid(attn_sdpa(&problem, &args), sentence, "memory of its own");
}

TEST(output_over_an_input) {
  refuses_output(q, "q");
  refuses_output(k + 1, "k"); /* a wrong offset into one large array */
  refuses_output(v + SIZE - 1, "v");
  refuses_output(v - SIZE + 1, "k");
}

TEST(lse_over_the_output) {
  attn_problem problem = shape();
  problem.uses = ATTN_USE_LSE;
  attn_args args = tensors();
  args.lse = o + SIZE - 1;
  test_invalid(attn_sdpa(&problem, &args), "attn_args.lse overlaps attn_args.o");
  args.lse = q + 3;
  test_invalid(attn_sdpa(&problem, &args), "attn_args.lse overlaps attn_args.q");
  args.lse = o + SIZE;
  test_ok(attn_sdpa(&problem, &args));
}

/* q, k, v and o side by side in every token share the range of their addresses, but no element. */
TEST(tensors_that_interleave_are_fine) {
  attn_problem problem = shape();
  attn_problem_set_bshd(&problem);
  problem.q_stride.s *= 4;
  problem.k_stride = problem.v_stride = problem.o_stride = problem.q_stride;
  const int64_t width = HEADS * DIM;
  attn_args args =
      ATTN_STRUCT(attn_args, .q = memory, .k = memory + width, .v = memory + 2 * width, .o = memory + 3 * width);
  test_ok(attn_sdpa(&problem, &args));
  args.o = memory;
  test_invalid(attn_sdpa(&problem, &args), "attn_args.o overlaps attn_args.q");
}

/* A negative stride: the pointer is to the first token, which is the last in memory. */
TEST(backward_tensors_are_compared_by_their_bytes) {
  attn_problem problem = shape();
  problem.q_stride.s = -DIM;
  attn_args args = tensors();
  args.q = o + SIZE + (ROWS - 1) * DIM;
  test_ok(attn_sdpa(&problem, &args));
  args.q = o + (ROWS - 1) * DIM;
  test_invalid(attn_sdpa(&problem, &args), "attn_args.o overlaps attn_args.q");
}

TEST(in_place_products) {
  static const float w[DIM * DIM];
  attn_product *product;
  test_ok(attn_product_create(
      &ATTN_STRUCT(attn_product_weights, .depth = DIM, .columns = DIM, .weight = w, .stride_depth = DIM, .stride_column = 1),
      NULL, &product));
  const size_t bytes = attn_product_workspace(product, ROWS);
  void *workspace = test_allocate(bytes);
  const attn_strides rows = {.s = DIM, .d = 1};
  test_invalid(attn_product_run(product,
                                &ATTN_STRUCT(attn_product_args, .batch = 1, .rows = ROWS, .x = q, .x_stride = rows, .y = q,
                                             .y_stride = rows),
                                workspace, bytes),
               "attn_product_args.y is x");
  free(workspace);
  attn_product_destroy(product);
}

/* ---- Weights of another shape ---- */

static attn_status make_product(int64_t stride_depth, int64_t stride_column) {
  static const float w[4 * 6];
  const attn_product_weights weights =
      ATTN_STRUCT(attn_product_weights, .depth = 4, .columns = 6, .weight = stride_depth < 0 ? w + 3 * 6 : w, /* of row 0 */
                  .stride_depth = stride_depth, .stride_column = stride_column);
  attn_product *product;
  const attn_status status = attn_product_create(&weights, NULL, &product);
  attn_product_destroy(product);
  return status;
}

TEST(weights_of_the_wrong_pitch) {
  test_invalid(make_product(4, 1), "stride_depth is 4 with stride_column 1", "would overlap", "6 and 1 for [in][out]",
               "1 and 4 for [out][in]");
  test_invalid(make_product(1, 3), "stride_depth is 1 with stride_column 3", "would overlap");
  test_invalid(make_product(1, 1), "would overlap");
  test_ok(make_product(6, 1));
  test_ok(make_product(1, 4));
  test_ok(make_product(0, 1)); /* one row repeated */
  test_ok(make_product(-6, 1));
}

TEST(weights_that_are_missing) {
  attn_mha_problem problem;
  attn_mha_problem_init(&problem, 1, 2, ROWS, ROWS, DIM);
  attn_mha *layer;
  attn_mha_weights weights = ATTN_STRUCT(attn_mha_weights, .w_qkv = memory);
  test_invalid(attn_mha_create(&problem, &weights, NULL, &layer), "attn_mha_weights.w_o is NULL", "8 x 8");
  weights.w_o = memory;
  weights.w_k = memory;
  test_invalid(attn_mha_create(&problem, &weights, NULL, &layer), "w_qkv is given beside w_q, w_k or w_v");
  attn_mha_problem_init(&problem, 1, 3, ROWS, ROWS, DIM);
  weights.w_k = NULL;
  test_invalid(attn_mha_create(&problem, &weights, NULL, &layer), "width is 8 with 3 heads", "multiple of the heads");
}

/* ---- The problem and the call do not fit ---- */

static void refuses_problem(attn_problem problem, const char *part, const char *right) {
  const attn_args args = tensors();
  test_invalid(attn_sdpa(&problem, &args), part, right);
}

#define REFUSES(change, part, right) \
  do {                               \
    attn_problem p = shape();        \
    change;                          \
    refuses_problem(p, part, right); \
  } while (0)

TEST(fields_that_do_not_fit_each_other) {
  REFUSES(p.heads_kv = 3, "heads_q is 2 with heads_kv 3", "multiple");
  REFUSES(p.seq_q = -1, "seq_q is -1", "at least 0");
  REFUSES(p.dim_qk = 0, "dim_qk is 0", "at least 1");
  REFUSES(p.seq_q = 2 * ROWS, "o_stride.h is 32", "overlap"); /* a size changed without its strides */
  REFUSES(p.o_stride.s = 0, "o_stride.s is 0", "overlap");
  REFUSES(p.dtype_q = ATTN_BF16, "dtype_q is 2 with dtype_kv 0", "dtype_kv");
  REFUSES(p.dtype_o = ATTN_F16, "dtype_o is 1 with dtype_q 0", "ATTN_F32");
  REFUSES(p.dtype_kv = (attn_dtype)32, "dtype_kv is 32", "ATTN_BF16"); /* bits, not a constant */
  REFUSES(p.scale = 0.0f / (float)(p.batch - 1), "scale is", "finite");
  REFUSES(p.softcap = -1, "softcap is -1", "at least 0");
  REFUSES(p.window_left = -2, "window_left is -2", "-1 (open)");
  REFUSES(p.uses = 1u << 20, "uses is 0x100000", "ATTN_USE_");
  REFUSES(p.uses = ATTN_USE_MASK, "args.mask is NULL", "ATTN_USE_MASK");
  REFUSES(p.score = ATTN_SCORE_ADDITIVE, "ATTN_USE_SCORE_WEIGHT", "weight vector");
}

TEST(data_that_the_problem_does_not_use) {
  const attn_problem problem = shape();
  attn_args args = tensors();
  const uint8_t mask[ROWS * ROWS * HEADS] = {1};
  args.mask = mask;
  test_invalid(attn_sdpa(&problem, &args), "attn_args.mask is given", "ATTN_USE_MASK");
  args = tensors();
  args.offsets = (const int32_t[]){0};
  test_invalid(attn_sdpa(&problem, &args), "attn_args.offsets is given", "ATTN_ALIGN_OFFSET");
}

TEST(lengths_mixed_up) {
  attn_problem problem;
  attn_problem_init(&problem, 1, HEADS, HEADS, 2, ROWS, DIM, DIM);
  problem.uses = ATTN_USE_Q_LEN | ATTN_USE_KV_LEN;
  attn_args args = tensors();
  args.q_len = (const int32_t[]){ROWS}, args.kv_len = (const int32_t[]){2};
  test_invalid(attn_sdpa(&problem, &args), "attn_args.q_len[0] is 4", "0..2");
  problem = shape();
  attn_problem_set_varlen(&problem, ROWS, ROWS);
  args = tensors();
  args.cu_seqlens_q = args.cu_seqlens_k = (const int32_t[]){ROWS, 0}; /* lengths instead of borders */
  test_invalid(attn_sdpa(&problem, &args), "cu_seqlens_q[1] is 0 after 4", "must not decrease");
}

/* ---- Calls ---- */

TEST(calls_without_what_they_need) {
  const attn_problem problem = shape();
  const attn_args args = tensors();
  test_invalid(attn_sdpa(NULL, &args), "problem is NULL", "attn_problem_init");
  test_invalid(attn_sdpa(&problem, NULL), "args is NULL");
  test_invalid(attn_plan_create(&problem, NULL, NULL), "plan is NULL");
  test_invalid(attn_plan_run(NULL, &args, NULL, 0), "plan is NULL", "attn_plan_create");
  test_invalid(attn_merge(0, 1, 1, NULL, NULL, o, NULL), "parts is 0");
  test_invalid(attn_kv_cache_step(NULL, 1, NULL, q, k, v, o), "cache is NULL");
  attn_plan *plan;
  test_refused(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = "FLASH_C"), &plan), ATTN_UNKNOWN_KERNEL,
               "'FLASH_C'", "flash_c");
  test_invalid(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .max_isa = "AVX2"), &plan), "max_isa is 'AVX2'",
               "avx2");
  test_invalid(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .threads = -1), &plan), "threads is -1");
}

TEST(workspaces_that_do_not_do) {
  const attn_problem problem = shape();
  const attn_args args = tensors();
  attn_plan *plan;
  test_ok(attn_plan_create(&problem, &ATTN_STRUCT(attn_options, .kernel = "flash_c"), &plan));
  const size_t bytes = attn_plan_workspace(plan);
  char *workspace = test_allocate(bytes + 64);
  test_refused(attn_plan_run(plan, &args, NULL, bytes), ATTN_WORKSPACE_TOO_SMALL, "workspace is", "attn_plan_workspace");
  test_refused(attn_plan_run(plan, &args, workspace, bytes / 2), ATTN_WORKSPACE_TOO_SMALL, "needs");
  test_refused(attn_plan_run(plan, &args, workspace + 16, bytes), ATTN_WORKSPACE_TOO_SMALL, "aligned to 64");
  free(workspace);
  attn_plan_destroy(plan);
}
