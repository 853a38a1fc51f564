/* SPDX-License-Identifier: MIT */
/* Memory that a newcomer gives twice: outputs over inputs, and weights whose strides let elements overlap. Wrong fields and
 * pointers are in test_problem.c and test_args.c. No library can see float32 data called bfloat16, or two sizes that were
 * swapped in the call of attn_problem_init; attn.hpp, which knows the sizes of containers, sees some of them
 * (test_hpp.cpp). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attn/product.h"
#include "tests/support/support.h"

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

static int64_t below(int64_t count) {
  static uint64_t state = 5;
  state = state * 6364136223846793005u + 1442695040888963407u;
  return (int64_t)((state >> 33) % (uint64_t)count);
}

enum { BATCH = 2, SPAN = 4 * 8 * SIZE };

/* The first and the last element, counted from the one that the pointer is to; dense: all between them are elements. */
typedef struct extent {
  int64_t first, last;
  bool dense;
} extent;

/* Strides of BATCH x HEADS x ROWS x DIM elements: axes in any order, forwards or backwards, some with gaps. */
static extent draw(attn_strides *strides) {
  const int64_t size[] = {BATCH, HEADS, ROWS};
  int64_t stride[3], next = DIM;
  const int axis = (int)below(3), turn = 1 + (int)below(2);
  for (int n = axis; n < axis + 3 * turn; n += turn) {
    stride[n % 3] = below(3) ? next : -next;
    next *= size[n % 3] + (below(8) == 0);
  }
  *strides = (attn_strides){stride[0], stride[1], stride[2], 1};
  extent e = {.first = INT64_MAX, .last = INT64_MIN};
  for (int64_t i = 0; i < BATCH * SIZE; i++) {
    const int64_t at = i / SIZE * stride[0] + i / (ROWS * DIM) % HEADS * stride[1] + i / DIM % ROWS * stride[2] + i % DIM;
    e.first = at < e.first ? at : e.first;
    e.last = at > e.last ? at : e.last;
  }
  e.dense = e.last - e.first == BATCH * SIZE - 1;
  return e;
}

/* Tensors that touch, or meet in one element at their ends. What is certain is refused: both are dense and meet. */
TEST(outputs_over_inputs_of_any_strides) {
  static float both[8 * SPAN], keys[BATCH * SIZE], values[BATCH * SIZE];
  for (int n = 0; n < 3000; n++) {
    attn_problem problem = shape();
    problem.batch = BATCH;
    const extent of_q = draw(&problem.q_stride), of_o = draw(&problem.o_stride);
    const int meet = n % 2;
    float *const q_first = both + 4 * SPAN;
    float *const o_first = q_first + (n % 4 < 2 ? of_q.last - of_o.first + !meet : of_q.first - of_o.last - !meet);
    const attn_args args = ATTN_STRUCT(attn_args, .q = q_first, .k = keys, .v = values, .o = o_first);
    const attn_status status = attn_sdpa(&problem, &args);
    if (meet && of_q.dense && of_o.dense)
      test_invalid(status, "attn_args.o overlaps attn_args.q");
    else
      test_ok(status);
  }
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

static attn_status make_product(int64_t depth, int64_t columns, int64_t stride_depth, int64_t stride_column) {
  static const float w[4 * 6];
  const attn_product_weights weights = ATTN_STRUCT(attn_product_weights, .depth = depth, .columns = columns,
                                                   .weight = stride_depth < 0 ? w + 3 * 6 : w, /* address of row 0 */
                                                   .stride_depth = stride_depth, .stride_column = stride_column);
  attn_product *product;
  const attn_status status = attn_product_create(&weights, NULL, &product);
  attn_product_destroy(product);
  return status;
}

TEST(weights_of_the_wrong_pitch) {
  test_invalid(make_product(4, 6, 4, 1), "stride_depth is 4 with stride_column 1", "would overlap", "6 and 1 for [in][out]",
               "1 and 4 for [out][in]");
  test_invalid(make_product(4, 6, 1, 3), "stride_depth is 1 with stride_column 3", "would overlap");
  test_invalid(make_product(4, 6, 1, 1), "would overlap");
  test_ok(make_product(4, 6, 6, 1));
  test_ok(make_product(4, 6, 1, 4));
  test_ok(make_product(4, 6, 0, 1)); /* one row repeated */
  test_ok(make_product(4, 6, -6, 1));
  test_ok(make_product(4, 6, 0, 0));
  test_ok(make_product(1, 6, 3, 1)); /* one row, or one column, has no next one */
  test_ok(make_product(4, 1, 1, 3));
}
