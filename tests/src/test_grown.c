/* SPDX-License-Identifier: MIT */
/* Programs of tomorrow: every struct that a caller fills in is two words longer than this library's. Zeros in the new fields
 * are accepted, and the call does its work; anything else is refused, by the struct's name. */
#include <stdio.h>
#include <string.h>

#include "attn/kv.h"
#include "attn/mha.h"
#include "attn/nn.h"
#include "attn/product.h"
#include "attn/train.h"
#include "tests/support/failing_malloc.h"

enum { BATCH = 1, HEADS = 2, SEQ = 3, WIDTH = 8, DIM = WIDTH / HEADS, HIDDEN = 6 };

static float in[4096], out[4096], more_out[4096];
static _Alignas(64) char workspace[1 << 20];

/* `grown`, whose new fields are 0 and `added`. */
#define GROW(type, ...)                                   \
  struct {                                                \
    type known;                                           \
    int64_t fields[2];                                    \
  } grown = {.known = __VA_ARGS__, .fields = {0, added}}; \
  grown.known.struct_size = sizeof grown;                 \
  assert_int_equal(sizeof grown, sizeof(type) + 2 * sizeof(int64_t))

#define TRY(call)                         \
  do {                                    \
    const attn_status status = call;      \
    if (status != ATTN_OK) return status; \
  } while (0)

/* Gives the struct `name` to the function that creates an object. */
#define CREATE(name, object, create, ...)         \
  static attn_status give_##name(int64_t added) { \
    attn_##object *made;                          \
    GROW(attn_##name, __VA_ARGS__);               \
    const attn_status status = create;            \
    attn_##object##_destroy(made);                \
    return status;                                \
  }

/* Gives the struct `name` to a run of an object. */
#define RUN(name, object, create, run, ...)       \
  static attn_status give_##name(int64_t added) { \
    attn_##object *made;                          \
    TRY(create);                                  \
    GROW(attn_##name, __VA_ARGS__);               \
    const attn_status status = run;               \
    attn_##object##_destroy(made);                \
    return status;                                \
  }

/* ---- attn.h ---- */

static attn_problem a_problem(void) {
  attn_problem problem;
  attn_problem_init(&problem, BATCH, HEADS, HEADS, SEQ, SEQ, DIM, DIM);
  return problem;
}

static attn_status give_problem(int64_t added) {
  GROW(attn_problem, a_problem());
  return attn_problem_validate(&grown.known);
}

static attn_status give_args(int64_t added) {
  const attn_problem problem = a_problem();
  GROW(attn_args, {.q = in, .k = in, .v = in, .o = out});
  return attn_sdpa(&problem, &grown.known);
}

static attn_status give_options(int64_t added) {
  const attn_problem problem = a_problem();
  attn_plan *plan;
  GROW(attn_options, {.threads = 1});
  const attn_status status = attn_plan_create(&problem, &grown.known, &plan);
  attn_plan_destroy(plan);
  return status;
}

static attn_status give_partial(int64_t added) {
  float o[DIM] = {0}, reference[] = {0}, sum[] = {1};
  GROW(attn_partial, {.o = o, .reference = reference, .sum = sum});
  return attn_partial_finish(1, DIM, &grown.known, out, NULL);
}

/* ---- mha.h ---- */

static attn_mha_problem an_mha_problem(void) {
  attn_mha_problem problem;
  attn_mha_problem_init(&problem, BATCH, HEADS, SEQ, SEQ, WIDTH);
  return problem;
}

static const attn_mha_weights mha_weights = {.struct_size = sizeof mha_weights, .w_qkv = in, .w_o = in};

static attn_status create_and_destroy_mha(const attn_mha_problem *problem, const attn_mha_weights *weights,
                                          const attn_mha_options *options) {
  attn_mha *layer;
  const attn_status status = attn_mha_create(problem, weights, options, &layer);
  attn_mha_destroy(layer);
  return status;
}

static attn_status give_mha_problem(int64_t added) {
  GROW(attn_mha_problem, an_mha_problem());
  return create_and_destroy_mha(&grown.known, &mha_weights, NULL);
}

static attn_status give_mha_weights(int64_t added) {
  const attn_mha_problem problem = an_mha_problem();
  GROW(attn_mha_weights, {.w_qkv = in, .b_qkv = in, .w_o = in, .layout = ATTN_HEADS_IN_OUT});
  return create_and_destroy_mha(&problem, &grown.known, NULL);
}

static attn_status give_mha_options(int64_t added) {
  const attn_mha_problem problem = an_mha_problem();
  GROW(attn_mha_options, {.product = "product_c"});
  return create_and_destroy_mha(&problem, &mha_weights, &grown.known);
}

static attn_status give_mha_args(int64_t added) {
  const attn_mha_problem problem = an_mha_problem();
  attn_mha *layer;
  TRY(attn_mha_create(&problem, &mha_weights, NULL, &layer));
  GROW(attn_mha_args, {.x = in, .y = out});
  const attn_status status = attn_mha_run(layer, &grown.known, workspace, sizeof workspace);
  attn_mha_destroy(layer);
  return status;
}

/* ---- product.h ---- */

static const attn_product_weights product_weights = {
    .struct_size = sizeof product_weights, .depth = 4, .columns = 5, .weight = in, .stride_depth = 5, .stride_column = 1};

CREATE(product_weights, product, attn_product_create(&grown.known, NULL, &made), product_weights)

RUN(product_args, product, attn_product_create(&product_weights, NULL, &made),
    attn_product_run(made, &grown.known, workspace, sizeof workspace),
    {.batch = 1, .rows = 2, .x = in, .x_stride = {.s = 4, .d = 1}, .y = out, .y_stride = {.s = 5, .d = 1}})

/* ---- rows.h ---- */

static attn_status give_row_join(int64_t added) {
  GROW(attn_row_join, {.rows = SEQ, .width = WIDTH, .x = in, .y = out});
  return attn_row_join_run(&grown.known, NULL);
}

/* ---- nn.h ---- */

static attn_status give_embedding(int64_t added) {
  const int32_t token = 1;
  GROW(attn_embedding, {.vocabulary = 2, .width = WIDTH, .table = in});
  return attn_embed(&grown.known, 1, &token, out);
}

static attn_status give_pooling(int64_t added) {
  GROW(attn_pooling, {.batch = BATCH, .seq = SEQ, .width = WIDTH, .x = in, .y = out});
  return attn_pool_rows(&grown.known);
}

static attn_status give_sampling(int64_t added) {
  int32_t token;
  GROW(attn_sampling, {.temperature = 0});
  return attn_sample_token(&grown.known, WIDTH, in, NULL, NULL, &token);
}

CREATE(generation_config, generation, attn_generation_create(&grown.known, &made), {.vocabulary = 2, .most_tokens = 3})

static attn_status give_regression(int64_t added) {
  GROW(attn_regression, {.points = 4,
                         .queries = 3,
                         .dim_x = 1,
                         .dim_y = 1,
                         .x = in,
                         .y = in,
                         .query = in,
                         .inverse_width = in,
                         .prediction = out,
                         .weights = more_out});
  return attn_kernel_regression(&grown.known, NULL);
}

CREATE(rope_config, rope, attn_rope_create(&grown.known, &made), {.pairing = ATTN_ROPE_HALVES, .dim = DIM, .base = 10000})

RUN(rope_args, rope,
    attn_rope_create(&ATTN_STRUCT(attn_rope_config, .pairing = ATTN_ROPE_HALVES, .dim = DIM, .base = 10000), &made),
    attn_rope_run(made, &grown.known, NULL),
    {.batch = BATCH, .tokens = SEQ, .heads = HEADS, .dim = DIM, .x = in, .out = out})

static attn_status give_kv_append_args(int64_t added) {
  GROW(attn_kv_append_args, {.batch = BATCH,
                             .tokens = SEQ,
                             .heads_kv = HEADS,
                             .dim_qk = DIM,
                             .dim_v = DIM,
                             .k = in,
                             .v = in,
                             .k_cache = out,
                             .v_cache = more_out,
                             .capacity = SEQ});
  return attn_kv_append(&grown.known, NULL);
}

CREATE(kv_pool_shape, kv_pool, attn_kv_pool_create(&grown.known, &made),
       {.pages = 2, .heads_kv = HEADS, .dim_qk = DIM, .dim_v = DIM})

static attn_status give_kv_cache_args(int64_t added) {
  attn_kv_cache *cache;
  TRY(attn_kv_cache_create(&ATTN_STRUCT(attn_kv_cache_shape, .batch = BATCH, .heads_q = HEADS, .heads_kv = HEADS,
                                        .dim_qk = DIM, .dim_v = DIM, .capacity = 16),
                           NULL, &cache));
  GROW(attn_kv_cache_args, {.q = in, .k = in, .v = in, .o = out});
  attn_status status = attn_kv_cache_begin(cache, (const int32_t[BATCH]){1});
  if (status == ATTN_OK) status = attn_kv_cache_attend(cache, &grown.known);
  attn_kv_cache_destroy(cache);
  return status;
}

CREATE(kv_cache_shape, kv_cache, attn_kv_cache_create(&grown.known, NULL, &made),
       {.batch = BATCH,
        .heads_q = HEADS,
        .heads_kv = HEADS,
        .dim_qk = DIM,
        .dim_v = DIM,
        .capacity = 16,
        .sinks = in,
        .alibi_slopes = in,
        .bias_by_distance = in,
        .bias_distances = 2})

CREATE(feed_forward_config, feed_forward, attn_feed_forward_create(&grown.known, NULL, &made),
       {.width = WIDTH, .hidden = HIDDEN, .first = {.weight = in, .bias = in}, .second = {.weight = in, .bias = in}})

static const attn_additive_config additive = {.struct_size = sizeof additive,
                                              .batch = BATCH,
                                              .seq_q = SEQ,
                                              .seq_k = SEQ,
                                              .width_q = WIDTH,
                                              .width_k = WIDTH,
                                              .hidden = HIDDEN,
                                              .dim_v = DIM,
                                              .query = {.weight = in},
                                              .key = {.weight = in},
                                              .score_weight = in};

CREATE(additive_config, additive, attn_additive_create(&grown.known, NULL, &made), additive)

RUN(additive_args, additive, attn_additive_create(&additive, NULL, &made),
    attn_additive_run(made, &grown.known, workspace, sizeof workspace), {.q = in, .k = in, .v = in, .o = out})

static const attn_synthesizer_config synthesizer = {.struct_size = sizeof synthesizer,
                                                    .kind = ATTN_SYNTHESIZER_RANDOM,
                                                    .batch = BATCH,
                                                    .seq = SEQ,
                                                    .width = WIDTH,
                                                    .heads = HEADS,
                                                    .dim_v = DIM,
                                                    .length = SEQ,
                                                    .scores = in,
                                                    .value = {.weight = in},
                                                    .output = {.weight = in}};

CREATE(synthesizer_config, synthesizer, attn_synthesizer_create(&grown.known, NULL, &made), synthesizer)

RUN(synthesizer_args, synthesizer, attn_synthesizer_create(&synthesizer, NULL, &made),
    attn_synthesizer_run(made, &grown.known, workspace, sizeof workspace), {.x = in, .y = out})

static attn_block_config a_block(void) {
  attn_block_config config;
  attn_encoder_block_init(&config, BATCH, HEADS, SEQ, WIDTH, HIDDEN);
  config.self_weights = mha_weights;
  config.feed_forward.first = config.feed_forward.second = (attn_linear){.weight = in, .bias = in};
  return config;
}

CREATE(block_config, block, attn_block_create(&grown.known, NULL, &made), a_block())

static attn_status give_block_args(int64_t added) {
  const attn_block_config config = a_block();
  attn_block *block;
  TRY(attn_block_create(&config, NULL, &block));
  GROW(attn_block_args, {.x = in, .y = out});
  const attn_status status = attn_block_run(block, &grown.known, workspace, sizeof workspace);
  attn_block_destroy(block);
  return status;
}

/* ---- train.h ---- */

static attn_status give_dense(int64_t added) {
  GROW(attn_dense, {.rows = SEQ, .in = WIDTH, .out = HIDDEN, .map.weight = in, .x = in, .y = out});
  return attn_dense_run(&grown.known, NULL);
}

static attn_status give_norm_grad(int64_t added) {
  GROW(attn_norm_grad, {.rows = SEQ, .width = WIDTH, .kind = ATTN_NORM_RMS, .s = in, .d_y = in, .d_s = out});
  return attn_norm_grad_run(&grown.known, NULL);
}

static attn_status give_dropout(int64_t added) {
  GROW(attn_dropout, {.probability = 0.5f});
  return attn_dropout_rows(&grown.known, SEQ, WIDTH, in, out, NULL);
}

static attn_status give_multi_head(int64_t added) {
  const attn_problem problem = a_problem();
  GROW(attn_multi_head,
       {.attention = &problem, .width = WIDTH, .in.weight = in, .out.weight = in, .x = in, .y = out, .kept = more_out});
  return attn_multi_head_run(&grown.known, NULL);
}

static attn_status give_cross_entropy(int64_t added) {
  const int32_t targets[SEQ] = {0};
  double loss;
  GROW(attn_cross_entropy, {.rows = SEQ, .classes = WIDTH, .logits = in, .targets = targets});
  return attn_cross_entropy_run(&grown.known, NULL, &loss);
}

static attn_status give_adamw(int64_t added) {
  float m[WIDTH] = {0}, v[WIDTH] = {0};
  GROW(attn_adamw, {.rate = 1, .epsilon = 1});
  return attn_adamw_step(&grown.known, 1, WIDTH, out, in, m, v, NULL);
}

static attn_status give_sgd(int64_t added) {
  GROW(attn_sgd, {.rate = 1});
  return attn_sgd_step(&grown.known, WIDTH, out, in, NULL, NULL);
}

/* ---- All of them ---- */

#define STRUCT(name) \
  { "attn_" #name, give_##name }
static const struct {
  const char *name;
  attn_status (*give)(int64_t added);
} structs[] = {STRUCT(problem),
               STRUCT(args),
               STRUCT(options),
               STRUCT(partial),
               STRUCT(mha_problem),
               STRUCT(mha_weights),
               STRUCT(mha_options),
               STRUCT(mha_args),
               STRUCT(product_weights),
               STRUCT(product_args),
               STRUCT(regression),
               STRUCT(rope_config),
               STRUCT(rope_args),
               STRUCT(kv_append_args),
               STRUCT(kv_pool_shape),
               STRUCT(kv_cache_args),
               STRUCT(kv_cache_shape),
               STRUCT(feed_forward_config),
               STRUCT(additive_config),
               STRUCT(additive_args),
               STRUCT(synthesizer_config),
               STRUCT(synthesizer_args),
               STRUCT(block_config),
               STRUCT(block_args),
               STRUCT(embedding),
               STRUCT(pooling),
               STRUCT(sampling),
               STRUCT(generation_config),
               STRUCT(row_join),
               STRUCT(dense),
               STRUCT(norm_grad),
               STRUCT(dropout),
               STRUCT(cross_entropy),
               STRUCT(adamw),
               STRUCT(sgd),
               STRUCT(multi_head)};

TEST(new_fields_of_zeros_are_accepted) {
  for (size_t i = 0; i < COUNT(structs); i++) test_ok(structs[i].give(0));
}

TEST(new_fields_that_are_set_are_refused) {
  for (size_t i = 0; i < COUNT(structs); i++)
    test_refused(structs[i].give(1), ATTN_INVALID_ARGUMENT, structs[i].name, " bytes, and byte ", "newer one");
}

/* Each allocation fails in turn: that is said, and no memory is kept. */
TEST(allocations_fail_in_turn) {
  for (size_t i = 0; i < COUNT(structs); i++)
    for (int n = 0, left = 0; left == 0; n++) {
      const int held = blocks_held;
      test_invalid(attn_problem_validate(NULL), "NULL"); /* another sentence */
      allocations_left = n;
      const attn_status status = structs[i].give(0);
      left = allocations_left;
      allocations_left = -1;
      if (status != ATTN_OK) test_refused(status, ATTN_OUT_OF_MEMORY, "out of memory");
      if (blocks_held != held) fail_msg("%s keeps memory where allocation %d fails", structs[i].name, n + 1);
    }
}

static bool is_tried(const char *name) {
  for (size_t i = 0; i < COUNT(structs); i++)
    if (!strcmp(structs[i].name, name)) return true;
  return false;
}

/* Names of a header's structs that have a size and are not tried; the library fills in attn_tune_report itself. */
static int count_untried(const char *header) {
  char path[1000], line[300], name[100] = "";
  int untried = 0;
  snprintf(path, sizeof path, TEST_SOURCE_DIR "/include/attn/%s", header);
  FILE *file = fopen(path, "r");
  assert_non_null(file);
  while (fgets(line, sizeof line, file)) {
    (void)sscanf(line, "typedef struct %99[a-z_] {", name);
    if (strncmp(line, "  size_t struct_size;", 21) || is_tried(name) || !strcmp(name, "attn_tune_report")) continue;
    print_message("%s: %s is not tried here\n", header, name);
    untried++;
  }
  fclose(file);
  return untried;
}

TEST(every_struct_with_a_size_is_tried) {
  static const char *const headers[] = {"attn.h", "mha.h", "kv.h", "nn.h", "product.h", "rows.h", "train.h"};
  for (size_t i = 0; i < COUNT(headers); i++) assert_int_equal(count_untried(headers[i]), 0);
}
