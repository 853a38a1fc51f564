/* SPDX-License-Identifier: MIT */
/* Embeddings, pooling, sampling and generating of tokens against oracles in float64. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "tests/support/nn_support.h"

/* ---- Embeddings ---- */

enum { VOCABULARY = 11, WIDTH = 7, STRIDE = 9, TOKENS = 5 };

TEST(embeddings_are_rows_of_the_table) {
  static float f32[VOCABULARY * STRIDE], rows[TOKENS * WIDTH + 1];
  static uint16_t bf16[VOCABULARY * STRIDE], f16[VOCABULARY * STRIDE];
  const int32_t tokens[TOKENS] = {10, 0, 3, 3, 7};
  test_fill(f32, VOCABULARY * STRIDE, 1);
  for (int i = 0; i < VOCABULARY * STRIDE; i++) {
    bf16[i] = attn_bf16_of_f32(f32[i]);
    f16[i] = (uint16_t)(0x3000 + 37 * i);
  }
  const struct {
    attn_dtype dtype;
    const void *table;
  } tables[] = {{ATTN_F32, f32}, {ATTN_BF16, bf16}, {ATTN_F16, f16}};
  for (size_t t = 0; t < COUNT(tables); t++)
    for (int dense = 0; dense < 2; dense++)
      for (int scaled = 0; scaled < 2; scaled++) {
        const float factor = scaled ? 2.6457513f : 1;
        const attn_embedding e =
            ATTN_STRUCT(attn_embedding, .vocabulary = VOCABULARY, .width = WIDTH, .table = tables[t].table,
                        .dtype = tables[t].dtype, .stride = dense ? 0 : STRIDE, .factor = scaled ? factor : 0);
        rows[TOKENS * WIDTH] = 7;
        test_ok(attn_embed(&e, TOKENS, tokens, rows));
        assert_true(rows[TOKENS * WIDTH] == 7);
        for (int i = 0; i < TOKENS * WIDTH; i++) {
          const int at = tokens[i / WIDTH] * (dense ? WIDTH : STRIDE) + i % WIDTH;
          const float value = t == 0   ? f32[at]
                              : t == 1 ? ldexpf((float)(0x80 | (bf16[at] & 0x7f)), (bf16[at] >> 7 & 0xff) - 134)
                                       : ldexpf((float)(0x400 | (f16[at] & 0x3ff)), (f16[at] >> 10) - 25);
          assert_true(rows[i] == factor * (t == 1 && bf16[at] >> 15 ? -value : value));
        }
        for (size_t kept = 1; kept < COUNT(tables); kept++) { /* rows of 16 bits: these, rounded */
          attn_embedding half = e;
          half.dtype_rows = tables[kept].dtype;
          uint16_t got[TOKENS * WIDTH + 1] = {[TOKENS * WIDTH] = 7};
          void *right = test_narrow(rows, TOKENS * WIDTH, half.dtype_rows);
          test_ok(attn_embed(&half, TOKENS, tokens, got));
          assert_memory_equal(got, right, TOKENS * WIDTH * sizeof *got);
          assert_int_equal(got[TOKENS * WIDTH], 7);
          free(right);
        }
      }
}

TEST(embeddings_check_arguments) {
  float table[VOCABULARY * WIDTH] = {0}, rows[2 * WIDTH] = {5};
  const int32_t tokens[2] = {1, VOCABULARY}, negative[2] = {-1, VOCABULARY};
  const attn_embedding good = ATTN_STRUCT(attn_embedding, .vocabulary = VOCABULARY, .width = WIDTH, .table = table);
  test_invalid(attn_embed(NULL, 1, tokens, rows), "embedding is NULL");
  test_invalid(attn_embed(&good, 2, tokens, rows), "tokens[1] is 11; it must lie in 0..10");
  test_invalid(attn_embed(&good, 2, negative, rows), "tokens[0] is -1; it must lie in 0..10");
  assert_true(rows[0] == 5); /* nothing is written */
  test_invalid(attn_embed(&good, -1, tokens, rows), "count is -1");
  test_invalid(attn_embed(&good, 1, NULL, rows), "tokens is NULL");
  test_invalid(attn_embed(&good, 1, tokens, NULL), "rows is NULL");
  test_ok(attn_embed(&good, 0, NULL, NULL));
#define REFUSED(field, wrong, word) \
  TEST_REFUSES(attn_embedding, good, bad.field = wrong, attn_embed(&bad, 1, tokens, rows), NULL, "attn_embedding." word)
  REFUSED(vocabulary, 0, "vocabulary is 0");
  REFUSED(width, 0, "width is 0");
  REFUSED(table, NULL, "table is NULL");
  REFUSED(dtype, ATTN_I8, "dtype is");
  REFUSED(dtype_rows, ATTN_I8, "dtype_rows is");
  REFUSED(stride, INT64_MAX / 2, "stride is 4611686018427387903");
  REFUSED(stride, WIDTH - 1, "stride is 6; it must be at least 7");
  REFUSED(factor, NAN, "factor is nan");
#undef REFUSED
}

/* ---- Pooling ---- */

enum { BATCH = 3, SEQ = 6, MOST_WIDTH = 300 };

/* Compares with the mean or the first row in float64. `first` and `rows` of each sequence. */
static void check_pooled(const attn_pooling *p, const int64_t *first, const int64_t *rows) {
  for (int b = 0; b < BATCH; b++) {
    double right[MOST_WIDTH] = {0}, squares = 0;
    const int64_t taken = p->kind == ATTN_POOL_FIRST && rows[b] > 1 ? 1 : rows[b];
    for (int64_t i = 0; i < p->width; i++) {
      for (int64_t row = 0; row < taken; row++)
        right[i] += (double)((const float *)p->x)[(first[b] + row) * p->width + i] / (double)taken;
      squares += right[i] * right[i];
    }
    for (int64_t i = 0; i < p->width; i++) {
      const double wanted = p->unit && squares > 0 ? right[i] / sqrt(squares) : right[i],
                   got = (double)p->y[b * p->width + i];
      assert_true(fabs(got - wanted) <= 0x1p-23 * (fabs(wanted) + (p->unit ? 0x1p-4 : 0)) + 1e-15);
    }
  }
}

TEST(pooling_follows_the_formula) {
  static float x[BATCH * SEQ * MOST_WIDTH], y[BATCH * MOST_WIDTH];
  const int32_t lengths[BATCH] = {6, 0, 4}, starts[BATCH + 1] = {0, 2, 2, 9};
  test_fill(x, BATCH * SEQ * MOST_WIDTH, 4);
  for (int kind = ATTN_POOL_MEAN; kind <= ATTN_POOL_FIRST; kind++)
    for (int unit = 0; unit < 2; unit++)
      for (int w = 0; w < 2; w++) {
        const int64_t width = (const int64_t[]){1, 257}[w]; /* one element, and more than are summed at a time */
        attn_pooling p = ATTN_STRUCT(attn_pooling, .kind = (attn_pooling_kind)kind, .unit = unit, .batch = BATCH, .seq = SEQ,
                                     .width = width, .x = x, .y = y);
        test_ok(attn_pool_rows(&p));
        check_pooled(&p, (const int64_t[]){0, 6, 12}, (const int64_t[]){6, 6, 6});
        p.lengths = lengths;
        test_ok(attn_pool_rows(&p));
        check_pooled(&p, (const int64_t[]){0, 6, 12}, (const int64_t[]){6, 0, 4});
        p.lengths = NULL, p.cu_seqlens = starts, p.seq = -1; /* which is not read then */
        test_ok(attn_pool_rows(&p));
        check_pooled(&p, (const int64_t[]){0, 2, 2}, (const int64_t[]){2, 0, 7});
      }
}

/* Rows of 16 bits give what the same numbers give in float32. */
TEST(pooling_of_rows_of_16_bits) {
  static const attn_dtype types[] = {ATTN_BF16, ATTN_F16};
  for (size_t t = 0; t < COUNT(types); t++) {
    float *x = nn_random(BATCH * SEQ * 33, 5), right[BATCH * 33], y[BATCH * 33];
    test_round(x, BATCH * SEQ * 33, types[t]);
    void *half = test_narrow(x, BATCH * SEQ * 33, types[t]);
    attn_pooling p = ATTN_STRUCT(attn_pooling, .batch = BATCH, .seq = SEQ, .width = 33, .x = x, .y = right);
    test_ok(attn_pool_rows(&p));
    p.x = half, p.dtype = types[t], p.y = y;
    test_ok(attn_pool_rows(&p));
    assert_memory_equal(y, right, sizeof y);
    free(half);
  }
}

TEST(pooling_checks_arguments) {
  float x[BATCH * SEQ * 2] = {0}, y[BATCH * 2];
  const int32_t long_one[BATCH] = {1, SEQ + 1, 1}, descending[BATCH + 1] = {0, 3, 2, 4}, late[BATCH + 1] = {1, 1, 1, 1},
                last[BATCH + 1] = {0, 2, 3, 2}, fine[BATCH] = {1, 1, 1};
  const attn_pooling good = ATTN_STRUCT(attn_pooling, .batch = BATCH, .seq = SEQ, .width = 2, .x = x, .y = y);
  test_invalid(attn_pool_rows(NULL), "pooling is NULL");
  test_ok(attn_pool_rows(&ATTN_STRUCT(attn_pooling, .seq = 1, .width = 2)));
#define REFUSED(change, word) TEST_REFUSES(attn_pooling, good, change, attn_pool_rows(&bad), NULL, word)
  REFUSED(bad.batch = -1, "attn_pooling.batch is -1");
  REFUSED(bad.seq = -1, "attn_pooling.seq is -1");
  REFUSED(bad.width = 0, "attn_pooling.width is 0");
  REFUSED(bad.x = NULL, "attn_pooling.x is NULL");
  REFUSED(bad.y = NULL, "attn_pooling.y is NULL");
  REFUSED(bad.kind = (attn_pooling_kind)7, "attn_pooling.kind is 7");
  REFUSED(bad.dtype = ATTN_I8, "attn_pooling.dtype is");
  REFUSED(bad.lengths = long_one, "attn_pooling.lengths[1] is 7; it must lie in 0..6");
  REFUSED(bad.cu_seqlens = descending, "attn_pooling.cu_seqlens[2] is 2; the starts must ascend from 0");
  REFUSED(bad.cu_seqlens = last, "attn_pooling.cu_seqlens[3] is 2");
  REFUSED(bad.cu_seqlens = late, "attn_pooling.cu_seqlens[0] is 1");
  REFUSED((bad.cu_seqlens = descending, bad.lengths = fine), "attn_pooling has lengths and cu_seqlens");
#undef REFUSED
}

/* ---- Sampling ---- */

enum { MOST_LOGITS = 1500 };

static const float *ranked_logits; /* for qsort */
static int by_rank(const void *a, const void *b) {
  const int left = *(const int *)a, right = *(const int *)b;
  const float x = ranked_logits[left], y = ranked_logits[right];
  return x != y ? (x < y) - (x > y) : left - right;
}

/* The probabilities of transformers' warpers, by sorting. *margin: how far from its border top_p decided. */
static void probabilities_oracle(const attn_sampling *s, int count, const float *logits, double *p, double *margin) {
  static int order[MOST_LOGITS];
  double total = 0, before = 0, kept = 0;
  int staying = count;
  for (int i = 0; i < count; i++) order[i] = i;
  ranked_logits = logits;
  qsort(order, (size_t)count, sizeof *order, by_rank);
  if (s->top_k > 0 && s->top_k < count) {
    const float least = logits[order[s->top_k - 1]];
    for (staying = 0; staying < count && logits[order[staying]] >= least; staying++) continue;
  }
  for (int rank = 0; rank < count; rank++) {
    const int token = order[rank];
    p[token] = rank < staying ? exp(((double)logits[token] - (double)logits[order[0]]) / (double)s->temperature) : 0;
    total += p[token];
  }
  *margin = 1;
  for (int rank = 0; rank < count; rank++) {
    const int token = order[rank];
    const double own = p[token], distance = fabs(before / total - (double)s->top_p);
    if (s->top_p > 0 && s->top_p < 1 && rank > 0) {
      if (own > 0 && distance < *margin) *margin = distance;
      if (before >= (double)s->top_p * total) p[token] = 0;
    }
    before += own;
    kept += p[token];
  }
  for (int i = 0; i < count; i++) p[i] /= kept;
}

/* Logits of `kind`: spread out, all over float32, with many ties, all equal, mostly -inf. */
enum { LOGIT_KINDS = 5 };
static void fill_logits(float *logits, int count, int kind, unsigned seed) {
  test_fill(logits, (size_t)count, seed);
  for (int i = 0; i < count; i++)
    logits[i] = kind == 0   ? 8 * logits[i]
                : kind == 1 ? ldexpf(logits[i], i % 250 - 126)
                : kind == 2 ? floorf(3 * logits[i])
                : kind == 3 ? -2.5f
                            : (i % 7 ? -INFINITY : 4 * logits[i]);
  if (kind == 2) logits[count / 2] = -0.0f;
}

TEST(samples_have_the_probabilities_of_the_definition) {
  static float logits[MOST_LOGITS], got[MOST_LOGITS];
  static double right[MOST_LOGITS];
  const int counts[] = {1, 2, 17, MOST_LOGITS}; /* half of the last one is a whole number of equal ones */
  const int64_t top_ks[] = {0, 1, 2, 5, 40, 1 << 20};
  const float top_ps[] = {0, 1e-6f, 0.3f, 0.5f, 0.55f, 0.9f, 0.999f, 1}, temperatures[] = {0.01f, 0.7f, 1, 30};
  int compared = 0;
  for (size_t n = 0; n < COUNT(counts); n++)
    for (int kind = 0; kind < LOGIT_KINDS; kind++)
      for (size_t k = 0; k < COUNT(top_ks); k++)
        for (size_t p = 0; p < COUNT(top_ps); p++)
          for (size_t t = 0; t < COUNT(temperatures); t++) {
            const attn_sampling s =
                ATTN_STRUCT(attn_sampling, .temperature = temperatures[t], .top_k = top_ks[k], .top_p = top_ps[p]);
            uint64_t seed = 1000 * n + 100 * k + 10 * p + t;
            int32_t token = -1;
            double margin;
            fill_logits(logits, counts[n], kind, (unsigned)(31 + seed));
            test_ok(attn_sample_token(&s, counts[n], logits, &seed, got, &token));
            probabilities_oracle(&s, counts[n], logits, right, &margin);
            if (margin < 1e-12 && kind != 3) continue; /* its set depends on the order of sums, unless all are equal */
            compared++;
            for (int i = 0; i < counts[n]; i++)
              assert_true(fabs((double)got[i] - right[i]) <= 0x1.0001p-24 * right[i] + 0x1p-150);
            assert_true(token >= 0 && token < counts[n] && right[token] > 0);
          }
  assert_true(compared > 3000);
}

/* Draws are distributed as the probabilities say: Pearson's chi-square, with a fixed seed. 48 is exceeded once in 10^4 times
 * with 19 degrees of freedom. */
TEST(samples_are_distributed_by_their_probabilities) {
  enum { COUNT_OF = 20, DRAWS = 200000 };
  float logits[COUNT_OF], p[COUNT_OF];
  int hits[COUNT_OF] = {0};
  uint64_t seed = 2024;
  const attn_sampling s = ATTN_STRUCT(attn_sampling, .temperature = 1.3f);
  test_fill(logits, COUNT_OF, 8);
  for (int i = 0; i < DRAWS; i++) {
    int32_t token;
    test_ok(attn_sample_token(&s, COUNT_OF, logits, &seed, p, &token));
    hits[token]++;
  }
  double chi = 0;
  for (int i = 0; i < COUNT_OF; i++) {
    const double expected = (double)p[i] * DRAWS, off = hits[i] - expected;
    chi += off * off / expected;
  }
  if (!(chi < 48 && chi > 4)) fail_msg("chi-square is %g", chi);
}

/* The first numbers of SplitMix64 from the seed 1234567 (https://rosettacode.org/wiki/Pseudo-random_numbers/Splitmix64).
 * Over 2^64 they are the draws among 2^16 equal logits. */
TEST(draws_are_those_of_splitmix64) {
  enum { EQUAL = 1 << 16 };
  static float logits[EQUAL];
  static const uint64_t numbers[] = {6457827717110365317u, 3203168211198807973u, 9817491932198370423u, 4593380528125082431u,
                                     16408922859458223821u};
  uint64_t seed = 1234567;
  const attn_sampling s = ATTN_STRUCT(attn_sampling, .temperature = 1);
  for (size_t i = 0; i < COUNT(numbers); i++) {
    int32_t token;
    test_ok(attn_sample_token(&s, EQUAL, logits, &seed, NULL, &token));
    assert_int_equal(token, numbers[i] >> 48);
  }
}

TEST(greedy_takes_the_first_of_the_largest) {
  const float logits[] = {-1, 3, -INFINITY, 3, 2};
  float p[5];
  int32_t token;
  test_ok(attn_sample_token(&ATTN_STRUCT(attn_sampling, .top_p = 0.1f), 5, logits, NULL, p, &token));
  assert_int_equal(token, 1);
  for (int i = 0; i < 5; i++) assert_true(p[i] == (i == 1));
}

TEST(sampling_checks_arguments) {
  const float logits[4] = {1, 2, 3, 4}, nan[4] = {1, NAN, 3, 4}, inf[4] = {1, 2, INFINITY, 4},
              none[2] = {-INFINITY, -INFINITY};
  uint64_t seed = 3;
  int32_t token = -5;
  const attn_sampling good = ATTN_STRUCT(attn_sampling, .temperature = 1);
  test_invalid(attn_sample_token(NULL, 4, logits, &seed, NULL, &token), "sampling is NULL");
  test_invalid(attn_sample_token(&good, 0, logits, &seed, NULL, &token), "vocabulary is 0");
  test_invalid(attn_sample_token(&good, (int64_t)1 << 31, logits, &seed, NULL, &token), "vocabulary is 2147483648");
  test_invalid(attn_sample_token(&good, 4, NULL, &seed, NULL, &token), "logits is NULL");
  test_invalid(attn_sample_token(&good, 4, logits, NULL, NULL, &token), "state is NULL");
  test_invalid(attn_sample_token(&good, 4, logits, &seed, NULL, NULL), "token is NULL");
  test_invalid(attn_sample_token(&good, 4, nan, &seed, NULL, &token), "logits[1] is nan");
  test_invalid(attn_sample_token(&good, 4, inf, &seed, NULL, &token), "logits[2] is inf");
  test_invalid(attn_sample_token(&good, 2, none, &seed, NULL, &token), "logits[0..1] are all -inf");
  test_invalid(attn_sample_token(&ATTN_STRUCT(attn_sampling, .top_k = 0), 4, nan, NULL, NULL, &token), "logits[1] is nan");
  assert_true(seed == 3 && token == -5); /* nothing was drawn */
#define REFUSED(field, wrong, word)                                                                                   \
  TEST_REFUSES(attn_sampling, good, bad.field = wrong, attn_sample_token(&bad, 4, logits, &seed, NULL, &token), NULL, \
               "attn_sampling." word)
  REFUSED(temperature, -1, "temperature is -1");
  REFUSED(temperature, NAN, "temperature is nan");
  REFUSED(top_k, -1, "top_k is -1");
  REFUSED(top_p, 1.5f, "top_p is 1.5");
  REFUSED(top_p, NAN, "top_p is nan");
}

/* ---- Generating ---- */

/* A model: the logits after a text are drawn from its tokens alone. WORDS - 1 and WORDS - 2 end a text. */
enum { WORDS = 5, LENGTH = 4, TEXTS = 40 };

static const int32_t stops[2] = {WORDS - 1, WORDS - 2};

static void logits_after(uint64_t seed, const int32_t *text, int64_t count, float *logits) {
  for (int64_t i = 0; i < count; i++) seed = seed * WORDS + (uint64_t)text[i] + 1;
  test_fill(logits, WORDS, (unsigned)seed);
  for (int i = 0; i < WORDS; i++) logits[i] *= 3;
  logits[seed % 7 % 3] = -INFINITY; /* forbidden here */
}

/* Generates, and follows each sequence's tokens by the parents. Returns the number of the text's tokens. */
static int64_t generate(attn_generation_config config, uint64_t seed, int32_t *text) {
  const int64_t beams = config.beams ? config.beams : 1, first = config.first_sequence;
  static int32_t running[TEXTS][LENGTH], before[TEXTS][LENGTH], tokens[TEXTS], parents[TEXTS];
  static float logits[TEXTS * WORDS];
  attn_generation *g;
  test_ok(attn_generation_create(&config, &g));
  assert_int_equal(attn_generation_running(g), 1);
  assert_int_equal(attn_generation_text(g, text), 0);
  int64_t live, made = 0;
  for (; (live = attn_generation_running(g)) > 0; made++) {
    assert_true(live <= beams && made < config.most_tokens);
    for (int64_t i = 0; i < live; i++) logits_after(seed, running[i], made, logits + i * WORDS);
    test_ok(attn_generation_advance(g, logits, tokens, parents));
    memcpy(before, running, sizeof running);
    for (int64_t i = 0; i < beams; i++) {
      const bool runs = i < attn_generation_running(g);
      assert_true(runs ? tokens[i] >= 0 && tokens[i] < WORDS - 2 : tokens[i] == -1);
      assert_true(runs ? parents[i] >= first && parents[i] < first + live : parents[i] == -1);
      if (!runs) continue;
      assert_true(logits[(parents[i] - first) * WORDS + tokens[i]] > -INFINITY);
      memcpy(running[i], before[parents[i] - first], sizeof *running);
      running[i][made] = tokens[i];
    }
  }
  test_refused(attn_generation_advance(g, logits, tokens, parents), ATTN_INVALID_ARGUMENT, "generation has ended after");
  const int64_t count = attn_generation_text(g, text);
  assert_int_equal(attn_generation_text(g, NULL), count);
  attn_generation_destroy(g);
  return count;
}

static attn_generation_config of_words(int64_t beams) {
  return ATTN_STRUCT(attn_generation_config, .vocabulary = WORDS, .most_tokens = LENGTH, .beams = beams,
                     .stop_tokens = stops, .stop_count = 2, .first_sequence = 7);
}

TEST(one_beam_draws_as_attn_sample_token) {
  const attn_sampling warm = ATTN_STRUCT(attn_sampling, .temperature = 1.5f),
                      greedy = ATTN_STRUCT(attn_sampling, .top_k = 0);
  int ended_early = 0;
  for (uint64_t seed = 1; seed <= 20; seed++)
    for (int drawn = 0; drawn < 2; drawn++) {
      attn_generation_config config = of_words(seed % 2); /* 0 is 1 */
      config.sampling = drawn ? &warm : NULL, config.seed = seed;
      int32_t text[LENGTH], right[LENGTH];
      float logits[WORDS];
      uint64_t draws = seed;
      int64_t count = 0;
      do {
        logits_after(seed, right, count, logits);
        test_ok(attn_sample_token(drawn ? &warm : &greedy, WORDS, logits, &draws, NULL, &right[count]));
      } while (right[count++] < WORDS - 2 && count < LENGTH);
      assert_int_equal(generate(config, seed, text), count);
      assert_memory_equal(text, right, (size_t)count * sizeof *text);
      ended_early += count < LENGTH;
    }
  assert_in_range(ended_early, 5, 35); /* both kinds of ends were tried */
}

/* The best text of all, by its score per token; the texts that go on from `text` are tried too. */
static void find_best(uint64_t seed, int32_t *text, int64_t count, double score, double *most, int32_t *best,
                      int64_t *length) {
  float logits[WORDS];
  double sum = 0;
  logits_after(seed, text, count, logits);
  for (int i = 0; i < WORDS; i++) sum += exp((double)logits[i]);
  for (int32_t token = 0; token < WORDS; token++) {
    const double now = score + (double)logits[token] - log(sum);
    text[count] = token;
    if (token < WORDS - 2 && count + 1 < LENGTH)
      find_best(seed, text, count + 1, now, most, best, length);
    else if (now / (double)(count + 1) > *most) {
      *most = now / (double)(count + 1);
      *length = count + 1;
      memcpy(best, text, LENGTH * sizeof *best);
    }
  }
}

/* With as many beams as there are texts of all tokens but the last, nothing is dropped before it. */
TEST(beams_that_are_all_texts_find_the_best) {
  int ended_early = 0, not_greedy = 0;
  for (uint64_t seed = 1; seed <= 40; seed++) {
    int32_t text[LENGTH], best[LENGTH], found[LENGTH];
    double most = -INFINITY;
    int64_t length;
    find_best(seed, text, 0, 0, &most, best, &length);
    assert_int_equal(generate(of_words(TEXTS), seed, found), length);
    assert_memory_equal(found, best, (size_t)length * sizeof *best);
    const int64_t greedy = generate(of_words(1), seed, found);
    not_greedy += greedy != length || memcmp(found, best, (size_t)length * sizeof *best) != 0;
    ended_early += length < LENGTH;
  }
  assert_in_range(ended_early, 5, 39);
  assert_in_range(not_greedy, 5, 40);
}

/* Two beams by hand: logs of probabilities are logits, because the exponentials of a row add up to 1. */
TEST(beams_drop_and_end_as_transformers_do) {
#define ROW(a, b, c) logf(a), logf(b), logf(c)
  const int32_t stop = 2;
  int32_t tokens[2], parents[2], text[3];
  attn_generation *g;
  test_ok(attn_generation_create(&ATTN_STRUCT(attn_generation_config, .vocabulary = 3, .most_tokens = 3, .beams = 2,
                                              .stop_tokens = &stop, .stop_count = 1),
                                 &g));
  test_ok(
      attn_generation_advance(g, (const float[]){ROW(0.6f, 0.3f, 0.1f)}, tokens, parents)); /* 2 ends, but as the third */
  assert_true(tokens[0] == 0 && tokens[1] == 1 && parents[0] == 0 && parents[1] == 0);
  assert_int_equal(attn_generation_text(g, text), 1);
  assert_int_equal(text[0], 0);
  /* 0 1: 0.12, 0 0: 0.06, 0 2: 0.42, the best, ends; 1 0: 0.15, 1 1: 0.135, 1 2: 0.015 */
  test_ok(attn_generation_advance(g, (const float[]){ROW(0.1f, 0.2f, 0.7f), ROW(0.5f, 0.45f, 0.05f)}, tokens, parents));
  assert_true(tokens[0] == 0 && tokens[1] == 1 && parents[0] == 1 && parents[1] == 1);
  assert_int_equal(attn_generation_text(g, text), 2);
  assert_true(text[0] == 0 && text[1] == 2);
  /* 1 0 0 has 0.3 * 0.5 * 0.99, the third root of which is 0.530; the square root of 0.42 is 0.648 */
  test_ok(attn_generation_advance(g, (const float[]){ROW(0.99f, 0.005f, 0.005f), ROW(0.5f, 0.25f, 0.25f)}, tokens, parents));
  assert_true(attn_generation_running(g) == 0 && tokens[0] == -1 && parents[1] == -1);
  assert_int_equal(attn_generation_text(g, text), 2);
  assert_true(text[0] == 0 && text[1] == 2);
  attn_generation_destroy(g);
}

TEST(generation_checks_arguments) {
  attn_generation *g = NULL;
  const attn_sampling warm = ATTN_STRUCT(attn_sampling, .temperature = 1), wrong = ATTN_STRUCT(attn_sampling, .top_p = 2);
  const attn_generation_config good = of_words(2);
  const float logits[2 * WORDS] = {0}, nan[WORDS] = {0, 1, NAN};
  int32_t tokens[2] = {5, 5}, parents[2];
#define REFUSED_CONFIG(change, word) \
  TEST_REFUSES(attn_generation_config, good, change, attn_generation_create(&bad, &g), g, word)
  REFUSED_CONFIG(bad.vocabulary = 0, "attn_generation_config.vocabulary is 0");
  REFUSED_CONFIG(bad.vocabulary = (int64_t)1 << 31, "vocabulary is 2147483648");
  REFUSED_CONFIG(bad.most_tokens = 0, "attn_generation_config.most_tokens is 0");
  REFUSED_CONFIG(bad.beams = -1, "attn_generation_config.beams is -1");
  REFUSED_CONFIG(bad.stop_count = -1, "attn_generation_config.stop_count is -1");
  REFUSED_CONFIG(bad.stop_tokens = NULL, "stop_tokens is NULL with stop_count 2");
  REFUSED_CONFIG(bad.sampling = &warm, "sampling is given with beams 2");
  REFUSED_CONFIG((bad.beams = 1, bad.sampling = &wrong), "attn_sampling.top_p is 2");
  REFUSED_CONFIG(bad.first_sequence = -1, "first_sequence is -1");
  test_invalid(attn_generation_create(NULL, &g), "config is NULL");
  test_invalid(attn_generation_create(&good, NULL), "generation is NULL");
  assert_int_equal(attn_generation_running(NULL), 0);
  attn_generation_destroy(NULL);
  test_ok(attn_generation_create(&good, &g));
  test_invalid(attn_generation_advance(NULL, logits, tokens, parents), "generation is NULL");
  test_invalid(attn_generation_advance(g, NULL, tokens, parents), "logits is NULL");
  test_invalid(attn_generation_advance(g, logits, NULL, parents), "tokens is NULL");
  test_invalid(attn_generation_advance(g, logits, tokens, NULL), "parents is NULL");
  test_invalid(attn_generation_advance(g, nan, tokens, parents), "logits[2] is nan");
  assert_true(tokens[0] == 5 && attn_generation_running(g) == 1 && attn_generation_text(g, NULL) == 0);
  test_ok(attn_generation_advance(g, logits, tokens, parents)); /* the first of equal tokens */
  assert_true(tokens[0] == 0 && tokens[1] == 1);
  attn_generation_destroy(g);
}
