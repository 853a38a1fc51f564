/* SPDX-License-Identifier: MIT */
/* Drawing a token from logits.
 *
 * Nothing is sorted. A logit's key is an integer that orders as logits do; the last key that stays is found digit by digit,
 * from histograms of counts (top_k) or of probabilities (top_p). A passage over the logits takes them in order, and the
 * exponential below uses operations that every machine rounds alike. So the token is the same on each. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/common/problem/convert.h"
#include "src/api/float_mode.h"
#include "src/nn/check.h"

const attn_struct_layout attn_nn_sampling_layout = ATTN_LAYOUT(attn_sampling, top_k);

/* ---- Weights and keys ---- */

/* The tokens that stay, each with a weight in proportion to its probability. */
typedef struct distribution {
  const float *logits;
  int64_t count;
  double largest, temperature;
  uint32_t least; /* key of the smallest logit that stays */
  int64_t ties;   /* how many tokens of that key stay, the first ones */
} distribution;

/* e^x for x <= 0 with an error of some 2^-52: x = n ln 2 + r, |r| <= ln 2 / 2, and Taylor's series of e^r up to r^13, whose
 * rest is below 2^-57. ln 2 comes in two parts; n times the first, which has 32 bits, is exact. */
static double exp_of(double x) {
  static const double reciprocals[] = {
      1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800, 1.0 / 362880, 1.0 / 40320, 1.0 / 5040,
      1.0 / 720,        1.0 / 120,       1.0 / 24,       1.0 / 6,       0.5,          1,           1};
  if (!(x > -708)) return 0; /* e^-708 is the last normal number */
  const int64_t n = -(int64_t)(0.5 - x * 0x1.71547652b82fep0);
  const double r = (x - (double)n * 0x1.62e42fee00000p-1) - (double)n * 0x1.a39ef35793c76p-33;
  double sum = 0;
  for (int i = 0; i < NN_COUNT(reciprocals); i++) sum = sum * r + reciprocals[i];
  const uint64_t bits = (uint64_t)(n + 1023) << 52;
  double power;
  memcpy(&power, &bits, sizeof power);
  return sum * power;
}

static double weight_of(const distribution *d, int64_t i) {
  return exp_of(((double)d->logits[i] - d->largest) / d->temperature);
}

/* Orders as the logits do; 0 and -0 are equal. */
static uint32_t key_of(float logit) {
  const uint32_t bits = attn_bits_of_f32(logit + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* ---- Which tokens stay ---- */

enum { DIGITS = 3, DIGIT_BITS = 11, BINS = 1 << DIGIT_BITS };

/* Among the tokens that stay, with weights or with 1 each: the largest key such that tokens of at least this key add up to
 * `wanted`; the smallest key if all of them do not. *above receives the sum of the tokens above it. */
static uint32_t last_key(const distribution *d, bool weighted, double wanted, double *above) {
  static const int shifts[DIGITS] = {32 - DIGIT_BITS, 32 - 2 * DIGIT_BITS, 0};
  uint32_t found = 0, known = 0; /* bits of the key, and which of them are found */
  *above = 0;
  for (int digit = 0; digit < DIGITS; digit++) {
    double sums[BINS] = {0};
    bool present[BINS] = {false};
    const uint32_t bins = digit + 1 < DIGITS ? BINS : 1u << shifts[DIGITS - 2];
    for (int64_t i = 0; i < d->count; i++) {
      const uint32_t key = key_of(d->logits[i]), bin = key >> shifts[digit] & (bins - 1);
      if (key < d->least || (key & known) != found) continue;
      sums[bin] += weighted ? weight_of(d, i) : 1;
      present[bin] = true;
    }
    uint32_t last = 0;
    double before = *above; /* sum of the bins above `last`: no bin may reach `wanted`, where sums are rounded */
    for (uint32_t bin = bins; bin-- > 0 && *above < wanted;) {
      if (!present[bin]) continue;
      last = bin;
      before = *above;
      *above += sums[bin];
    }
    *above = before;
    found |= last << shifts[digit];
    known |= (bins - 1) << shifts[digit];
  }
  return found;
}

static void keep_top_k(distribution *d, int64_t top_k) {
  double above;
  if (top_k > 0 && top_k < d->count) d->least = last_key(d, false, (double)top_k, &above);
}

static void keep_top_p(distribution *d, double top_p) {
  if (top_p == 0 || top_p == 1) return;
  double total = 0, above;
  for (int64_t i = 0; i < d->count; i++)
    if (key_of(d->logits[i]) >= d->least) total += weight_of(d, i);
  d->least = last_key(d, true, top_p * total, &above);
  int64_t first = 0;
  while (key_of(d->logits[first]) != d->least) first++;
  const double each = weight_of(d, first);
  for (d->ties = 1; d->ties < d->count && above + each < top_p * total; d->ties++) above += each;
}

/* ---- Drawing ---- */

/* The weight of token i, 0 if it does not stay. Tokens are asked for in order; *ties counts those of the last key. */
static double staying_weight(const distribution *d, int64_t i, int64_t *ties) {
  const uint32_t key = key_of(d->logits[i]);
  if (key < d->least || (key == d->least && (*ties)++ >= d->ties)) return 0;
  return weight_of(d, i);
}

/* The next number of SplitMix64, in 0..1, 1 excluded. */
static double next_uniform(uint64_t *state) {
  uint64_t z = *state += 0x9e3779b97f4a7c15u;
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
  z = (z ^ z >> 27) * 0x94d049bb133111ebu;
  return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

static int32_t draw(const distribution *d, double uniform, float *probabilities) {
  double total = 0, sum = 0;
  int64_t ties = 0, token = -1;
  for (int64_t i = 0; i < d->count; i++) total += staying_weight(d, i, &ties);
  ties = 0;
  for (int64_t i = 0; i < d->count && (token < 0 || probabilities); i++) {
    const double weight = staying_weight(d, i, &ties);
    sum += weight;
    if (token < 0 && sum > uniform * total) token = i;
    if (probabilities) probabilities[i] = (float)(weight / total);
  }
  return (int32_t)token;
}

/* The first of the largest logits, or a refusal. */
static attn_status find_largest(int64_t vocabulary, const float *logits, int64_t *largest) {
  *largest = 0;
  for (int64_t i = 0; i < vocabulary; i++) {
    REQUIRE(logits[i] < INFINITY, "logits[%" PRId64 "] is %g; a logit must be finite or -inf", i, (double)logits[i]);
    if (logits[i] > logits[*largest]) *largest = i;
  }
  REQUIRE(logits[*largest] > -INFINITY, "logits[0..%" PRId64 "] are all -inf; at least one must be finite", vocabulary - 1);
  return ATTN_OK;
}

static attn_status check_sampling(const attn_sampling *s, int64_t vocabulary, const float *logits, const uint64_t *state,
                                  const int32_t *token) {
  const attn_nn_size sizes[] = {{"vocabulary", vocabulary, 1}};
  const attn_nn_pointer pointers[] = {{"logits", logits}, {"token", token}};
  attn_status status = attn_nn_check_sizes(sizes, NN_COUNT(sizes));
  if (status == ATTN_OK) status = attn_nn_check_pointers(pointers, NN_COUNT(pointers));
  if (status != ATTN_OK) return status;
  REQUIRE(vocabulary <= INT32_MAX, "vocabulary is %" PRId64 "; it must be below 2^31", vocabulary);
  REQUIRE(s->temperature >= 0 && isfinite(s->temperature),
          "attn_sampling.temperature is %g; it must be finite and at least 0", (double)s->temperature);
  REQUIRE(s->top_k >= 0, "attn_sampling.top_k is %" PRId64 "; it must be at least 0 (0 = all)", s->top_k);
  REQUIRE(s->top_p >= 0 && s->top_p <= 1, "attn_sampling.top_p is %g; it must lie in 0..1 (0 = all)", (double)s->top_p);
  REQUIRE(state || s->temperature == 0, "state is NULL; it must point to the state of the draws, or temperature be 0");
  return ATTN_OK;
}

static int32_t choose_token(const attn_sampling *s, int64_t vocabulary, const float *logits, int64_t largest,
                            uint64_t *state, float *probabilities) {
  if (s->temperature == 0) {
    for (int64_t i = 0; probabilities && i < vocabulary; i++) probabilities[i] = i == largest;
    return (int32_t)largest;
  }
  distribution d = {.logits = logits,
                    .count = vocabulary,
                    .largest = (double)logits[largest],
                    .temperature = (double)s->temperature,
                    .ties = vocabulary};
  keep_top_k(&d, s->top_k);
  keep_top_p(&d, (double)s->top_p);
  return draw(&d, next_uniform(state), probabilities);
}

attn_status attn_sample_token(const attn_sampling *sampling, int64_t vocabulary, const float *logits, uint64_t *state,
                              float *probabilities, int32_t *token) {
  attn_sampling s;
  int64_t largest = 0;
  attn_status status = attn_nn_read(&attn_nn_sampling_layout, "sampling", sampling, &s);
  const uint64_t mode = attn_float_mode_enter(); /* a caller may take denormals for 0 */
  if (status == ATTN_OK) status = check_sampling(&s, vocabulary, logits, state, token);
  if (status == ATTN_OK) status = find_largest(vocabulary, logits, &largest);
  if (status == ATTN_OK) *token = choose_token(&s, vocabulary, logits, largest, state, probabilities);
  attn_float_mode_leave(mode);
  return status;
}
