/* SPDX-License-Identifier: MIT */
/* Rotary position embeddings: the frequencies of a rotation (include/attn/kv.h), in double precision. */
#include "src/layers/rope.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "src/api/error.h"
#include "src/api/float_mode.h"
#include "src/api/layouts.h"

static const attn_struct_layout config_layout = ATTN_LAYOUT(attn_rope_config, scaling);

#define MOST_FREQUENCY 1e6 /* 2^31 positions stay below 2^51 turns, and whole turns can be taken off */
#define TWO_PI         6.283185307179586476925286766559

/* ---- Checks ---- */

static bool at_least(double value, double least) { return isfinite(value) && value >= least; }

static attn_status check_frequencies(const attn_rope_config *c) {
  for (int64_t i = 0; i < c->dim / 2; i++)
    REQUIRE(c->frequencies[i] >= 0 && c->frequencies[i] <= MOST_FREQUENCY,
            "attn_rope_config.frequencies[%" PRId64 "] is %g; it must be in 0..%g", i, c->frequencies[i], MOST_FREQUENCY);
  return ATTN_OK;
}

static attn_status check_yarn(const attn_rope_config *c) {
  REQUIRE(c->beta_slow > 0 && isfinite(c->beta_fast) && c->beta_fast >= c->beta_slow,
          "attn_rope_config.beta_fast is %g with beta_slow %g; they must be positive, and beta_fast not the smaller one",
          c->beta_fast, c->beta_slow);
  REQUIRE(isfinite(c->attention_factor) && c->attention_factor > 0,
          "attn_rope_config.attention_factor is %g; it must be positive, or 0 for 0.1 ln(factor) + 1", c->attention_factor);
  return ATTN_OK;
}

static attn_status check_llama3(const attn_rope_config *c) {
  REQUIRE(c->low_freq_factor > 0 && isfinite(c->high_freq_factor) && c->high_freq_factor > c->low_freq_factor,
          "attn_rope_config.high_freq_factor is %g with low_freq_factor %g; they must be positive, and high_freq_factor the "
          "larger one",
          c->high_freq_factor, c->low_freq_factor);
  return ATTN_OK;
}

static attn_status check_scaling(const attn_rope_config *c) {
  REQUIRE((unsigned)c->scaling <= ATTN_ROPE_LLAMA3,
          "attn_rope_config.scaling is %d; it must be ATTN_ROPE_UNSCALED, _LINEAR, _NTK, _YARN or _LLAMA3", (int)c->scaling);
  if (c->scaling == ATTN_ROPE_UNSCALED) return ATTN_OK;
  REQUIRE(at_least(c->factor, 1), "attn_rope_config.factor is %g; it must be at least 1", c->factor);
  REQUIRE(c->scaling != ATTN_ROPE_NTK || c->dim >= 4, "attn_rope_config.dim is 2 with ATTN_ROPE_NTK; it must be at least 4");
  const bool by_length = c->scaling == ATTN_ROPE_YARN || c->scaling == ATTN_ROPE_LLAMA3;
  REQUIRE(!by_length || at_least(c->original_length, 1),
          "attn_rope_config.original_length is %g; it must be the tokens of a context in training, at least 1",
          c->original_length);
  if (c->scaling == ATTN_ROPE_YARN) return check_yarn(c);
  return c->scaling == ATTN_ROPE_LLAMA3 ? check_llama3(c) : ATTN_OK;
}

static attn_status check_config(const attn_rope_config *c) {
  REQUIRE(c->pairing == ATTN_ROPE_INTERLEAVED || c->pairing == ATTN_ROPE_HALVES,
          "attn_rope_config.pairing is %d; it must be ATTN_ROPE_INTERLEAVED or ATTN_ROPE_HALVES, as the model has it",
          (int)c->pairing);
  REQUIRE(c->dim >= 2 && c->dim <= ROPE_MOST_DIM && c->dim % 2 == 0,
          "attn_rope_config.dim is %" PRId64 "; it must be even and in 2..%d", c->dim, (int)ROPE_MOST_DIM);
  if (c->frequencies) return check_frequencies(c);
  REQUIRE(isfinite(c->base) && c->base > 1, "attn_rope_config.base is %g; it must be above 1, such as 10000", c->base);
  return check_scaling(c);
}

/* ---- Frequencies ---- */

static void set_defaults(attn_rope_config *c) {
  if (c->beta_fast == 0) c->beta_fast = 32;
  if (c->beta_slow == 0) c->beta_slow = 1;
  if (c->low_freq_factor == 0) c->low_freq_factor = 1;
  if (c->high_freq_factor == 0) c->high_freq_factor = 4;
  if (c->attention_factor == 0) c->attention_factor = c->factor >= 1 ? 0.1 * log(c->factor) + 1 : 1;
}

/* The pair, a fraction, whose frequency makes this many turns in a context of the training (YaRN, section 3.2). */
static double pair_of_turns(const attn_rope_config *c, double turns) {
  return (double)c->dim * log(c->original_length / (turns * TWO_PI)) / (2 * log(c->base));
}

/* How much of pair i is divided by the factor: from 0 to 1 along the ramp. */
static double yarn_share(const attn_rope_config *c, int64_t i) {
  double low = pair_of_turns(c, c->beta_fast), high = pair_of_turns(c, c->beta_slow);
  if (!c->exact_ramp) low = floor(low), high = ceil(high);
  low = fmax(low, 0), high = fmin(high, (double)c->dim - 1);
  if (low == high) high += 0.001;
  return fmin(fmax(((double)i - low) / (high - low), 0), 1);
}

static double llama3_share(const attn_rope_config *c, double frequency) {
  const double turns = c->original_length * frequency / TWO_PI; /* in a context of the training */
  return 1 - fmin(fmax((turns - c->low_freq_factor) / (c->high_freq_factor - c->low_freq_factor), 0), 1);
}

static double frequency_of(const attn_rope_config *c, int64_t i) {
  const double dim = (double)c->dim, exponent = -2 * (double)i / dim;
  const double plain = pow(c->base, exponent);
  double share = 1;
  switch (c->scaling) {
    case ATTN_ROPE_UNSCALED: return plain;
    case ATTN_ROPE_NTK: return pow(c->base * pow(c->factor, dim / (dim - 2)), exponent);
    case ATTN_ROPE_LINEAR: break;
    case ATTN_ROPE_YARN: share = yarn_share(c, i); break;
    case ATTN_ROPE_LLAMA3: share = llama3_share(c, plain); break;
  }
  return plain * (1 - share) + plain / c->factor * share;
}

/* The first 22 bits of a positive number. */
static double leading_bits(double value) {
  uint64_t bits;
  memcpy(&bits, &value, sizeof bits);
  bits &= ~(uint64_t)0x7fffffff;
  memcpy(&value, &bits, sizeof value);
  return value;
}

static void fill(const attn_rope_config *c, attn_rope *rope) {
  const bool yarn = !c->frequencies && c->scaling == ATTN_ROPE_YARN;
  rope->turns = (attn_rope_turns){.pairing = c->pairing,
                                  .dim = c->dim,
                                  .high = rope->high,
                                  .rest = rope->rest,
                                  .magnitude = yarn ? c->attention_factor : 1};
  for (int64_t i = 0; i < c->dim / 2; i++) {
    rope->frequency[i] = c->frequencies ? c->frequencies[i] : frequency_of(c, i);
    const double turns = rope->frequency[i] / TWO_PI;
    rope->high[i] = leading_bits(turns);
    rope->rest[i] = turns - rope->high[i];
  }
}

static attn_status create(attn_rope_config *config, attn_rope **rope) {
  set_defaults(config);
  const attn_status status = check_config(config);
  if (status != ATTN_OK) return status;
  attn_rope *made = calloc(1, sizeof *made);
  if (!made) return attn_fail(ATTN_OUT_OF_MEMORY, "out of memory: attn_rope needs %zu bytes", sizeof *made);
  fill(config, made);
  *rope = made;
  return ATTN_OK;
}

attn_status attn_rope_create(const attn_rope_config *config, attn_rope **rope) {
  REQUIRE(rope, "rope is NULL; it must point to where the rotation's address goes");
  *rope = NULL;
  REQUIRE(config, "config is NULL; it must point to an attn_rope_config");
  attn_rope_config own;
  attn_status status = attn_struct_read(&config_layout, config, &own);
  if (status != ATTN_OK) return status;
  const uint64_t mode = attn_float_mode_enter();
  status = create(&own, rope);
  attn_float_mode_leave(mode);
  return status;
}

const double *attn_rope_frequencies(const attn_rope *rope) { return rope ? rope->frequency : NULL; }

void attn_rope_destroy(attn_rope *rope) { free(rope); }
