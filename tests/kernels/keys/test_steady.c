/* SPDX-License-Identifier: MIT */
/* attn_options.steady: a prompt gives the same bits in one call, in chunks, token by token, alone and among others. */
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/dtypes.h"
#include "tests/support/support.h"

enum { HEADS = 4, KV_HEADS = 2, DIM = 64, OTHERS = 20 };

/* Length of the prompt. */
static int64_t tokens(void) { return test_few() ? 400 : 1000; }

/* The prompt's rows from `first` on, after `first` tokens of past: causal over first + count keys. */
static attn_problem chunk_problem(attn_dtype dtype, int64_t first, int64_t count) {
  attn_problem whole, p;
  attn_problem_init(&whole, 1, HEADS, KV_HEADS, tokens(), tokens(), DIM, DIM);
  attn_problem_init(&p, 1, HEADS, KV_HEADS, count, first + count, DIM, DIM);
  p.dtype_q = p.dtype_kv = p.dtype_o = dtype;
  p.q_stride = whole.q_stride;
  p.k_stride = whole.k_stride;
  p.v_stride = whole.v_stride;
  p.o_stride = whole.o_stride;
  p.scale *= 4; /* so that references move */
  attn_problem_set_causal(&p, ATTN_ALIGN_BOTTOM_RIGHT);
  return p;
}

static void *rows_from(const void *tensor, attn_dtype dtype, int64_t first) {
  return (void *)(uintptr_t)attn_element_at(tensor, dtype, first * DIM);
}

static void run_chunk(const test_data *data, attn_dtype dtype, int64_t first, int64_t count, void *o,
                      const attn_options *options) {
  const attn_problem p = chunk_problem(dtype, first, count);
  attn_args args = data->args;
  args.q = rows_from(args.q, dtype, first);
  args.o = rows_from(o, dtype, first);
  test_ok(test_run(&p, &args, options));
}

/* Among others, which have other lengths over the same tensors; the result of all goes to `all`. */
static void run_among(const test_data *data, attn_dtype dtype, int64_t first, int64_t count, void *o, void *all,
                      const attn_options *options) {
  const size_t bytes = (size_t)attn_elements_bytes(dtype, HEADS * tokens() * DIM);
  int32_t q_len[OTHERS + 1], kv_len[OTHERS + 1];
  attn_problem p = chunk_problem(dtype, first, count);
  p.batch = OTHERS + 1;
  p.seq_k = tokens();
  p.uses = ATTN_USE_KV_LEN | ATTN_USE_Q_LEN;
  p.q_stride.b = p.k_stride.b = p.v_stride.b = 0;
  for (int b = 0; b <= OTHERS; b++) {
    q_len[b] = (int32_t)(b * 37 % (count + 1));
    kv_len[b] = (int32_t)(b * 211 % (tokens() + 1));
  }
  const int mine = (int)(first % OTHERS);
  q_len[mine] = (int32_t)count;
  kv_len[mine] = (int32_t)(first + count);
  attn_args args = data->args;
  args.q = rows_from(args.q, dtype, first);
  args.o = all;
  args.q_len = q_len;
  args.kv_len = kv_len;
  test_ok(test_run(&p, &args, options));
  for (int h = 0; h < HEADS; h++)
    memcpy((char *)o + attn_elements_bytes(dtype, (h * tokens() + first) * DIM),
           (char *)all + (size_t)mine * bytes + attn_elements_bytes(dtype, h * tokens() * DIM),
           (size_t)attn_elements_bytes(dtype, count * DIM));
}

static void same_bits_in_chunks_of(int64_t chunk, const test_data *data, attn_dtype dtype, const attn_options *options,
                                   bool among) {
  const size_t bytes = (size_t)attn_elements_bytes(dtype, HEADS * tokens() * DIM);
  void *o = test_allocate(bytes), *all = test_allocate(among ? bytes * (OTHERS + 1) : 1);
  for (int64_t first = 0; first < tokens(); first += chunk) {
    const int64_t count = tokens() - first < chunk ? tokens() - first : chunk;
    if (among)
      run_among(data, dtype, first, count, o, all, options);
    else
      run_chunk(data, dtype, first, count, o, options);
  }
  if (memcmp(o, data->args.o, bytes))
    fail_msg("bits differ in chunks of %d%s, %d threads, tier %s, dtype %s", (int)chunk, among ? " among others" : "",
             options->threads, options->max_isa, attn_dtype_of(dtype).name);
  free(o);
  free(all);
}

static void prompts_keep_their_bits(const char *tier, attn_dtype dtype) {
  static const int64_t chunks[] = {1, 7, 64, 333};
  const bool slow = strcmp(tier, "c") == 0 || strcmp(tier, "portable") == 0;
  attn_options options = ATTN_STRUCT(attn_options, .max_isa = tier, .threads = 1, .steady = 1);
  const attn_problem p = chunk_problem(dtype, 0, tokens());
  test_data data = test_data_create(&p, 23);
  test_ok(test_run(&p, &data.args, &options));
  for (size_t i = test_few() ? 3 : slow ? 2 : 0; i < COUNT(chunks); i++)
    for (options.threads = test_few() ? 2 : 1; options.threads <= 2; options.threads++) {
      same_bits_in_chunks_of(chunks[i], &data, dtype, &options, false);
      if (chunks[i] >= 64 && !slow) same_bits_in_chunks_of(chunks[i], &data, dtype, &options, true);
    }
  test_data_destroy(&data);
}

TEST(prompts_in_chunks_have_the_bits_of_one_call) {
  char tiers[200], *rest = tiers;
  snprintf(tiers, sizeof tiers, "%s", attn_cpu_tiers());
  for (char *tier; (tier = strtok_r(rest, " ", &rest));)
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) prompts_keep_their_bits(tier, (attn_dtype)dtype);
}

/* Single tokens among others, by the highest tier. */
TEST(tokens_among_others_have_the_bits_of_one_call) {
  const attn_options options = ATTN_STRUCT(attn_options, .threads = 2, .steady = 1);
  for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
    const attn_problem p = chunk_problem((attn_dtype)dtype, 0, tokens());
    const size_t bytes = (size_t)attn_elements_bytes((attn_dtype)dtype, HEADS * tokens() * DIM);
    test_data data = test_data_create(&p, 29);
    test_ok(test_run(&p, &data.args, &options));
    void *o = test_allocate(bytes), *all = test_allocate(bytes * (OTHERS + 1));
    memcpy(o, data.args.o, bytes);
    for (int64_t first = 3; first < tokens(); first += 97) run_among(&data, (attn_dtype)dtype, first, 1, o, all, &options);
    assert_memory_equal(o, data.args.o, bytes);
    free(o);
    free(all);
    test_data_destroy(&data);
  }
}

/* [head][dim][token] of K. */
static void *transposed_keys(const void *k, attn_dtype dtype) {
  const int64_t size = attn_elements_bytes(dtype, 1);
  char *to = test_allocate((size_t)(KV_HEADS * DIM * tokens() * size));
  for (int64_t h = 0; h < KV_HEADS; h++)
    for (int64_t s = 0; s < tokens(); s++)
      for (int64_t d = 0; d < DIM; d++)
        memcpy(to + ((h * DIM + d) * tokens() + s) * size, (const char *)k + ((h * tokens() + s) * DIM + d) * size,
               (size_t)size);
  return to;
}

/* Chunks of one to four tokens, and more, over keys that lie side by side. */
static void transposed_keys_change_no_bit(const char *tier, attn_dtype dtype) {
  static const int64_t chunks[] = {1, 2, 3, 4, 33};
  const attn_options options = ATTN_STRUCT(attn_options, .max_isa = tier, .threads = 1, .steady = 1);
  attn_problem p = chunk_problem(dtype, 0, tokens());
  test_data data = test_data_create(&p, 31);
  test_ok(test_run(&p, &data.args, &options));
  void *o = test_allocate((size_t)attn_elements_bytes(dtype, HEADS * tokens() * DIM)),
       *k = transposed_keys(data.args.k, dtype);
  for (size_t i = 0; i < COUNT(chunks); i++)
    for (int64_t first = 5; first + chunks[i] < tokens(); first += tokens() / 3) {
      p = chunk_problem(dtype, first, chunks[i]);
      p.k_stride = (attn_strides){.h = DIM * tokens(), .s = 1, .d = tokens()};
      attn_args args = data.args;
      args.q = rows_from(args.q, dtype, first);
      args.k = k;
      args.o = rows_from(o, dtype, first);
      test_ok(test_run(&p, &args, &options));
      for (int h = 0; h < HEADS; h++)
        if (memcmp(rows_from(o, dtype, h * tokens() + first), rows_from(data.args.o, dtype, h * tokens() + first),
                   (size_t)attn_elements_bytes(dtype, chunks[i] * DIM)))
          fail_msg("bits differ over transposed keys: %d tokens from %d on, head %d, tier %s, dtype %s", (int)chunks[i],
                   (int)first, h, tier, attn_dtype_of(dtype).name);
    }
  free(o);
  free(k);
  test_data_destroy(&data);
}

TEST(transposed_keys_have_the_bits_of_others) {
  char tiers[200], *rest = tiers;
  snprintf(tiers, sizeof tiers, "%s", attn_cpu_tiers());
  for (char *tier; (tier = strtok_r(rest, " ", &rest));)
    for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) transposed_keys_change_no_bit(tier, (attn_dtype)dtype);
}

static const char *chosen(const attn_problem *p, const attn_options *options, char *text, size_t bytes) {
  attn_plan *plan;
  test_ok(attn_plan_create(p, options, &plan));
  snprintf(text, bytes, "%s", attn_plan_describe(plan));
  const char *kernel = attn_plan_kernel(plan);
  attn_plan_destroy(plan);
  return kernel;
}

/* One kernel for all shapes of a sequence; the unsteady choice has several. */
TEST(the_steady_choice_does_not_look_at_lengths) {
  const attn_options steady = ATTN_STRUCT(attn_options, .threads = 1, .steady = 1);
  for (int dtype = ATTN_F32; dtype <= ATTN_BF16; dtype++) {
    char text[4000];
    attn_problem p = chunk_problem((attn_dtype)dtype, 0, tokens());
    const char *kernel = chosen(&p, &steady, text, sizeof text);
    test_contains(text, "steady");
    for (int64_t queries = 0; queries <= 400; queries = queries * 3 + 1)
      for (int64_t keys = 0; keys <= 100000; keys = keys * 9 + 1) {
        p.seq_q = queries;
        p.seq_k = keys;
        assert_string_equal(chosen(&p, &steady, text, sizeof text), kernel);
      }
  }
}

TEST(kernels_that_promise_no_steady_bits_are_refused) {
  const attn_problem p = chunk_problem(ATTN_F32, 0, 1);
  attn_plan *plan;
  test_refused(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = "decode_c", .steady = 1), &plan), ATTN_UNSUPPORTED,
               "decode_c", "attn_options.steady", "flash_c");
  assert_null(plan);
  test_invalid(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .steady = 2), &plan), "attn_options.steady is 2", "0 or 1");
  assert_null(plan);
  test_ok(attn_plan_create(&p, &ATTN_STRUCT(attn_options, .kernel = "flash_c", .steady = 1), &plan));
  attn_plan_destroy(plan);
}
