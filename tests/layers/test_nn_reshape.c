/* SPDX-License-Identifier: MIT */
/* Layers of other shapes over the same packed weights: each has the bits of a layer that was made for its shape, whatever is
 * destroyed first, and shares the weights' memory. */
#include <stdlib.h>
#include <string.h>

#include "attn/product.h"
#include "kernels/common/problem/dtypes.h"
#include "tests/support/nn_support.h"
#include "tests/support/pool.h"

#if defined __GLIBC__ && !defined __SANITIZE_ADDRESS__
#if __GLIBC_PREREQ(2, 33)
#define HAS_MALLINFO 1
#include <malloc.h>
#endif
#endif

enum { WIDTH = 24, HEADS = 4, HIDDEN = 40, MEMORY = 9, MOST_ROWS = 200, MOST_TASKS = 64 };

static float *x, *memory, *expected, *got;

static void fill(void) {
  x = nn_random(MOST_ROWS * WIDTH, 1);
  memory = nn_random(MOST_ROWS * WIDTH, 2);
  expected = nn_random(MOST_ROWS * WIDTH, 3);
  got = nn_random(MOST_ROWS * WIDTH, 4);
}

/* A shape of multi-head attention, drawn by `seed`: batch, rows, masks, lengths, a memory. */
typedef struct shape {
  attn_mha_problem problem;
  attn_args args;
  int32_t lengths[4], cu_seqlens[5];
  bool cross;
} shape;

static void draw_shape(shape *s, unsigned seed, bool cross) {
  srand(seed);
  const int batch = 1 + rand() % 4, seq = 1 + rand() % (MOST_ROWS / 4 - 1), keys = cross ? 1 + rand() % 40 : seq;
  memset(s, 0, sizeof *s);
  s->cross = cross;
  s->args = ATTN_STRUCT(attn_args, .q = NULL);
  attn_mha_problem_init(&s->problem, batch, HEADS, seq, keys, WIDTH);
  attn_problem *a = &s->problem.attention;
  if (rand() % 2) attn_problem_set_causal(a, ATTN_ALIGN_TOP_LEFT);
  if (rand() % 3 == 0) a->window_left = rand() % 8;
  if (rand() % 3 == 0) a->softcap = 2;
  for (int b = 0; b < batch; b++) s->lengths[b] = rand() % (keys + 1);
  if (rand() % 2) {
    a->uses |= ATTN_USE_KV_LEN;
    s->args.kv_len = s->lengths;
  } else if (!cross) { /* packed sequences */
    a->uses |= ATTN_USE_VARLEN;
    for (int b = 0; b < batch; b++) s->cu_seqlens[b + 1] = s->cu_seqlens[b] + s->lengths[b];
    a->total_q = a->total_k = s->cu_seqlens[batch] + rand() % 3;
    s->args = ATTN_STRUCT(attn_args, .cu_seqlens_q = s->cu_seqlens, .cu_seqlens_k = s->cu_seqlens);
  }
}

static int64_t rows_of(const shape *s) {
  const attn_problem *a = &s->problem.attention;
  return a->uses & ATTN_USE_VARLEN ? a->total_q : a->batch * a->seq_q;
}

/* ---- Multi-head attention ---- */

static attn_mha_weights mha_weights(void) {
  return ATTN_STRUCT(attn_mha_weights, .w_qkv = nn_random(WIDTH * 3 * WIDTH, 5), .b_qkv = nn_random(3 * WIDTH, 6),
                     .w_o = nn_random(WIDTH * WIDTH, 7), .b_o = nn_random(WIDTH, 8), .qk_norm = true,
                     .q_norm_gain = nn_random(WIDTH / HEADS, 9), .qk_norm_epsilon = 1e-6f);
}

static void run_mha(const attn_mha *layer, const shape *s, float *y) {
  const size_t bytes = attn_mha_workspace(layer);
  void *workspace = test_allocate(bytes);
  memset(workspace, 0xff, bytes); /* NaN */
  test_ok(attn_mha_run(
      layer, &ATTN_STRUCT(attn_mha_args, .x = x, .memory = s->cross ? memory : NULL, .y = y, .attention = &s->args),
      workspace, bytes));
  free(workspace);
}

TEST(mha_has_the_bits_of_a_layer_made_for_the_shape) {
  fill();
  const attn_mha_weights weights = mha_weights();
  for (int named = 0; named < 2; named++) {
    char kernel[] = "flash_portable", tier[] = "portable";
    const attn_options options = ATTN_STRUCT(attn_options, .kernel = named ? kernel : NULL, .max_isa = named ? tier : NULL);
    const attn_mha_options mha = ATTN_STRUCT(attn_mha_options, .attention = &options, .product = "product_c");
    attn_mha *layer;
    attn_mha_problem tiny;
    attn_mha_problem_init(&tiny, 1, HEADS, 1, 1, WIDTH);
    test_ok(attn_mha_create(&tiny, &weights, &mha, &layer));
    memset(kernel, '?', sizeof kernel - 1), memset(tier, '?', sizeof tier - 1); /* the layer has copies */
    for (unsigned seed = 1; seed <= 40; seed++) {
      shape s;
      draw_shape(&s, seed, seed % 3 == 0);
      attn_mha *reshaped, *fresh;
      test_ok(attn_mha_reshape(layer, &s.problem, &reshaped));
      attn_mha_destroy(layer); /* the next one is made of this one */
      layer = reshaped;
      const attn_options again =
          ATTN_STRUCT(attn_options, .kernel = named ? "flash_portable" : NULL, .max_isa = named ? "portable" : NULL);
      test_ok(attn_mha_create(&s.problem, &weights,
                              &ATTN_STRUCT(attn_mha_options, .attention = &again, .product = "product_c"), &fresh));
      assert_string_equal(attn_mha_describe(layer), attn_mha_describe(fresh));
      run_mha(fresh, &s, expected);
      run_mha(layer, &s, got);
      assert_memory_equal(got, expected, (size_t)(rows_of(&s) * WIDTH) * sizeof *got);
      attn_mha_destroy(fresh);
    }
    attn_mha_destroy(layer);
  }
}

TEST(mha_refuses_other_weights) {
  fill();
  attn_mha_problem good;
  attn_mha_problem_init(&good, 2, HEADS, 3, 3, WIDTH);
  const attn_mha_weights weights = mha_weights();
  attn_mha *layer, *made = NULL;
  test_ok(attn_mha_create(&good, &weights, NULL, &layer));
#define REFUSED(field, wrong, word) \
  TEST_REFUSES(attn_mha_problem, good, bad.field = wrong, attn_mha_reshape(layer, &bad, &made), made, word)
  REFUSED(width, WIDTH + 1, "width is 25; it must be 24");
  REFUSED(width_memory, 7, "width_memory is 7; it must be 24");
  REFUSED(width_out, 7, "width_out is 7; it must be 24");
  REFUSED(attention.heads_kv, 2, "attention.heads_kv is 2; it must be 4");
  REFUSED(attention.dim_qk, 5, "attention.dim_qk is 5; it must be 6");
  REFUSED(attention.dim_v, 5, "attention.dim_v is 5; it must be 6");
  REFUSED(attention.seq_q, -1, "seq_q is -1");
#undef REFUSED
  attn_mha_problem fewer;
  attn_mha_problem_init(&fewer, 2, 2, 3, 3, WIDTH);
  test_invalid(attn_mha_reshape(layer, &fewer, &made), "attention.heads_q is 2; it must be 4");
  test_invalid(attn_mha_reshape(layer, NULL, &made), "problem is NULL");
  test_invalid(attn_mha_reshape(NULL, &good, &made), "layer is NULL");
  test_invalid(attn_mha_reshape(layer, &good, NULL), "reshaped is NULL");
  attn_mha_destroy(layer);
}

/* ---- Blocks ---- */

static attn_block_config block_config(bool decoder, bool pre_norm, const shape *self, const shape *cross) {
  attn_block_config c;
  if (decoder)
    attn_decoder_block_init(&c, 1, HEADS, 1, MEMORY, WIDTH, WIDTH, HIDDEN);
  else
    attn_encoder_block_init(&c, 1, HEADS, 1, WIDTH, HIDDEN);
  if (self) c.self = self->problem;
  if (cross) c.cross = cross->problem;
  c.pre_norm = pre_norm;
  c.self_weights = c.cross_weights = mha_weights();
  c.self_norm = c.cross_norm = c.feed_forward_norm =
      (attn_norm){.gain = nn_random(WIDTH, 9), .bias = nn_random(WIDTH, 10), .epsilon = 1e-5f};
  c.feed_forward.first = nn_random_linear(WIDTH, HIDDEN, true, 11);
  c.feed_forward.second = nn_random_linear(HIDDEN, WIDTH, true, 12);
  return c;
}

/* x and the memory in this type, which is the block's. */
static void run_block(const attn_block *block, attn_dtype dtype, const shape *self, const shape *cross, float *y) {
  const size_t bytes = attn_block_workspace(block);
  void *workspace = test_allocate(bytes);
  memset(workspace, 0xff, bytes);
  void *rows = test_narrow(x, MOST_ROWS * WIDTH, dtype), *keys = test_narrow(memory, MOST_ROWS * WIDTH, dtype);
  test_ok(attn_block_run(block,
                         &ATTN_STRUCT(attn_block_args, .x = rows, .memory = cross ? keys : NULL, .y = y, .self = &self->args,
                                      .cross = cross ? &cross->args : NULL),
                         workspace, bytes));
  free(rows);
  free(keys);
  free(workspace);
}

TEST(blocks_have_the_bits_of_a_block_made_for_the_shape) {
  fill();
  for (int variant = 0; variant < 8; variant++) {
    const bool decoder = variant & 1, pre_norm = variant & 2;
    const attn_dtype dtype = variant & 4 ? ATTN_BF16 : ATTN_F32;
    attn_block_config tiny = block_config(decoder, pre_norm, NULL, NULL);
    tiny.dtype_rows = dtype;
    attn_block *block;
    test_ok(attn_block_create(&tiny, NULL, &block));
    for (unsigned seed = 1; seed <= 10; seed++) {
      shape self, other, *cross = decoder ? &other : NULL;
      draw_shape(&self, seed + 100, false);
      draw_shape(&other, seed + 200, true);
      if (decoder) { /* the same rows */
        self.problem.attention.uses &= ~(uint32_t)ATTN_USE_VARLEN;
        attn_mha_problem_init(&self.problem, other.problem.attention.batch, HEADS, other.problem.attention.seq_q,
                              other.problem.attention.seq_q, WIDTH);
        self.args = ATTN_STRUCT(attn_args, .q = NULL);
      }
      attn_block *reshaped, *fresh;
      test_ok(attn_block_reshape(block, &self.problem, cross ? &cross->problem : NULL, &reshaped));
      attn_block_destroy(block);
      block = reshaped;
      attn_block_config config = block_config(decoder, pre_norm, &self, cross);
      config.dtype_rows = dtype;
      test_ok(attn_block_create(&config, NULL, &fresh));
      run_block(fresh, dtype, &self, cross, expected);
      run_block(block, dtype, &self, cross, got);
      assert_memory_equal(got, expected, (size_t)attn_elements_bytes(dtype, rows_of(&self) * WIDTH));
      attn_block_destroy(fresh);
    }
    attn_block_destroy(block);
  }
}

TEST(blocks_refuse_other_attentions) {
  fill();
  const attn_block_config config = block_config(true, false, NULL, NULL);
  const attn_block_config encoder = block_config(false, false, NULL, NULL);
  attn_block *block, *plain, *made = NULL;
  test_ok(attn_block_create(&config, NULL, &block));
  test_ok(attn_block_create(&encoder, NULL, &plain));
  attn_mha_problem longer = config.self, wide = config.self;
  attn_causal_self_attention_init(&longer, 1, HEADS, 5, WIDTH);
  wide.width = 12;
  test_invalid(attn_block_reshape(block, &config.self, NULL, &made), "cross is NULL; it must be given");
  test_invalid(attn_block_reshape(plain, &config.self, &config.cross, &made), "cross is given; it must be NULL");
  test_invalid(attn_block_reshape(block, &longer, &config.cross, &made), "they must be the same rows");
  test_invalid(attn_block_reshape(plain, &wide, NULL, &made), "width");
  test_invalid(attn_block_reshape(plain, NULL, NULL, &made), "self is NULL");
  test_invalid(attn_block_reshape(NULL, &config.self, NULL, &made), "block is NULL");
  test_invalid(attn_block_reshape(plain, &encoder.self, NULL, NULL), "reshaped is NULL");
  assert_null(made);
  attn_block_destroy(block);
  attn_block_destroy(plain);
}

/* ---- The other kinds of attention ---- */

TEST(additive_has_the_bits_of_a_layer_made_for_the_shape) {
  fill();
  attn_additive_config c =
      ATTN_STRUCT(attn_additive_config, .batch = 1, .seq_q = 1, .seq_k = 1, .width_q = WIDTH, .width_k = WIDTH,
                  .hidden = HIDDEN, .dim_v = WIDTH, .use_kv_len = true, .query = nn_random_linear(WIDTH, HIDDEN, true, 13),
                  .key = nn_random_linear(WIDTH, HIDDEN, false, 14), .score_weight = nn_random(HIDDEN, 15));
  attn_additive *layer, *made = NULL;
  test_ok(attn_additive_create(&c, NULL, &layer));
  const int64_t shapes[][3] = {{1, 7, 3}, {3, 1, 30}, {2, 20, 50}, {0, 4, 4}, {2, 0, 5}};
  for (size_t i = 0; i < COUNT(shapes); i++) {
    attn_additive *fresh;
    c.batch = shapes[i][0], c.seq_q = shapes[i][1], c.seq_k = shapes[i][2];
    test_ok(attn_additive_reshape(layer, c.batch, c.seq_q, c.seq_k, &made));
    attn_additive_destroy(layer);
    layer = made;
    test_ok(attn_additive_create(&c, NULL, &fresh));
    const attn_additive *both[] = {fresh, layer};
    for (int which = 0; which < 2; which++) {
      const size_t bytes = attn_additive_workspace(both[which]);
      void *workspace = test_allocate(bytes);
      const attn_additive_args args = ATTN_STRUCT(attn_additive_args, .q = x, .k = memory, .v = memory,
                                                  .kv_len = (int32_t[]){2, 3, 1}, .o = which ? got : expected);
      test_ok(attn_additive_run(both[which], &args, workspace, bytes));
      free(workspace);
    }
    assert_memory_equal(got, expected, (size_t)(c.batch * c.seq_q * WIDTH) * sizeof *got);
    attn_additive_destroy(fresh);
  }
  test_invalid(attn_additive_reshape(layer, 1, -2, 1, &made), "seq_q is -2");
  test_invalid(attn_additive_reshape(NULL, 1, 1, 1, &made), "layer is NULL");
  test_invalid(attn_additive_reshape(layer, 1, 1, 1, NULL), "reshaped is NULL");
  attn_additive_destroy(layer);
}

static void synthesizer_of(attn_synthesizer_kind kind) {
  enum { LENGTH = 30, DIM = 6 };
  attn_linear first[HEADS], second[HEADS];
  for (unsigned h = 0; h < HEADS; h++) {
    first[h] = nn_random_linear(WIDTH, HIDDEN, true, 20 + h);
    second[h] = nn_random_linear(HIDDEN, LENGTH, true, 30 + h);
  }
  const bool dense = kind == ATTN_SYNTHESIZER_DENSE;
  attn_synthesizer_config c = ATTN_STRUCT(
      attn_synthesizer_config, .kind = kind, .batch = 1, .seq = 1, .width = WIDTH, .heads = HEADS, .dim_v = DIM,
      .length = LENGTH, .hidden = HIDDEN, .causal = true, .first = dense ? first : NULL, .second = dense ? second : NULL,
      .scores = dense ? NULL : nn_random((int64_t)HEADS * LENGTH * LENGTH, 40),
      .value = nn_random_linear(WIDTH, HEADS * DIM, true, 41), .output = nn_random_linear(HEADS * DIM, WIDTH, true, 42));
  attn_synthesizer *layer, *made = NULL;
  test_ok(attn_synthesizer_create(&c, NULL, &layer));
  const int64_t shapes[][2] = {{1, 7}, {3, 30}, {0, 4}, {2, 1}};
  for (size_t i = 0; i < COUNT(shapes); i++) {
    attn_synthesizer *fresh;
    c.batch = shapes[i][0], c.seq = shapes[i][1];
    test_ok(attn_synthesizer_reshape(layer, c.batch, c.seq, &made));
    attn_synthesizer_destroy(layer);
    layer = made;
    test_ok(attn_synthesizer_create(&c, NULL, &fresh));
    const attn_synthesizer *both[] = {fresh, layer};
    for (int which = 0; which < 2; which++) {
      const size_t bytes = attn_synthesizer_workspace(both[which]);
      void *workspace = test_allocate(bytes);
      test_ok(attn_synthesizer_run(both[which], &ATTN_STRUCT(attn_synthesizer_args, .x = x, .y = which ? got : expected),
                                   workspace, bytes));
      free(workspace);
    }
    assert_memory_equal(got, expected, (size_t)(c.batch * c.seq * WIDTH) * sizeof *got);
    attn_synthesizer_destroy(fresh);
  }
  test_invalid(attn_synthesizer_reshape(layer, 1, LENGTH + 1, &made), "seq is 31 with length 30");
  test_invalid(attn_synthesizer_reshape(NULL, 1, 1, &made), "layer is NULL");
  test_invalid(attn_synthesizer_reshape(layer, 1, 1, NULL), "reshaped is NULL");
  attn_synthesizer_destroy(layer);
}

TEST(synthesizer_has_the_bits_of_a_layer_made_for_the_shape) {
  fill();
  synthesizer_of(ATTN_SYNTHESIZER_DENSE);
  synthesizer_of(ATTN_SYNTHESIZER_RANDOM);
}

/* ---- Memory ---- */

#ifdef HAS_MALLINFO
static size_t allocated(void) {
  const struct mallinfo2 all = mallinfo2();
  return all.uordblks + all.hblkhd;
}

TEST(the_weights_are_there_once) {
  enum { BIG = 512 };
  attn_block_config c;
  attn_encoder_block_init(&c, 1, 8, 16, BIG, 4 * BIG);
  c.self_weights = ATTN_STRUCT(attn_mha_weights, .w_qkv = nn_random(BIG * 3 * BIG, 1), .w_o = nn_random(BIG * BIG, 2));
  c.feed_forward.first = nn_random_linear(BIG, 4 * BIG, true, 3);
  c.feed_forward.second = nn_random_linear(4 * BIG, BIG, true, 4);
  attn_block *block, *others[MOST_TASKS];
  const size_t before = allocated();
  test_ok(attn_block_create(&c, NULL, &block));
  const size_t one = allocated() - before;
  assert_true(one >= (size_t)12 * BIG * BIG * sizeof(float));
  for (int i = 0; i < MOST_TASKS; i++) {
    attn_encoder_block_init(&c, 1 + i % 3, 8, 1 + i, BIG, 4 * BIG);
    test_ok(attn_block_reshape(block, &c.self, NULL, &others[i]));
  }
  assert_true(allocated() - before < one + MOST_TASKS * (size_t)16384);
  attn_block_destroy(block);
  for (int i = 0; i < MOST_TASKS; i++) attn_block_destroy(others[i]);
  assert_true(allocated() - before < (size_t)BIG * BIG * sizeof(float)); /* all is freed */
}
#endif

/* Threads may make and destroy at once. */
static void reshape_and_destroy(void *context, int64_t task, int worker) {
  (void)worker;
  attn_mha_problem p;
  attn_mha *made;
  attn_mha_problem_init(&p, 1, HEADS, 1 + task, 1 + task, WIDTH);
  assert_int_equal(attn_mha_reshape(context, &p, &made), ATTN_OK);
  attn_mha_destroy(made);
}

TEST(threads_reshape_at_once) {
  const attn_mha_weights weights = mha_weights();
  attn_mha_problem p;
  attn_mha *layer;
  attn_mha_problem_init(&p, 1, HEADS, 1, 1, WIDTH);
  test_ok(attn_mha_create(&p, &weights, NULL, &layer));
  test_pool pool = {.calls = 0};
  test_parallel_for(&pool, MOST_TASKS, 4, reshape_and_destroy, layer);
  attn_mha_destroy(layer);
}

TEST(a_product_has_as_many_owners_as_shares) {
  float y[2] = {0};
  attn_product *product;
  const attn_product_weights w = ATTN_STRUCT(attn_product_weights, .depth = 1, .columns = 1, .weight = &(float){3},
                                             .stride_depth = 1, .stride_column = 1);
  test_ok(attn_product_create(&w, NULL, &product));
  assert_ptr_equal(attn_product_share(product), product);
  attn_product_destroy(product);
  const size_t bytes = attn_product_workspace(product, 1);
  void *workspace = test_allocate(bytes);
  test_ok(attn_product_run(product,
                           &ATTN_STRUCT(attn_product_args, .batch = 1, .rows = 1, .x = &(float){2}, .y = y, .x_stride.d = 1),
                           workspace, bytes));
  assert_true(y[0] == 6);
  free(workspace);
  attn_product_destroy(product);
  assert_null(attn_product_share(NULL));
}
