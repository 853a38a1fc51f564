/* SPDX-License-Identifier: MIT */
/* Rows that attn_kv_append wrote to caches of 8 bits and of blocks stay within the bound of docs/numerics.md ("Quantised
 * rows"), and come near it. */
#include <math.h>
#include <string.h>

#include "attn/kv.h"
#include "data/cached.h"
#include "kernels/ref/oracle_f64.h"
#include "tests/support/support.h"

enum { TOKENS = 300, DIM = 100, STORED = 128 };

/* Factors: none, given, or made. */
typedef enum factors { NONE, GIVEN, MADE } factors;

typedef struct rows {
  float x[TOKENS][DIM], factor[TOKENS];
  double off[DIM]; /* x may differ by this from what is expected */
} rows;

/* Rows of many sizes, in which the two numbers farthest from 0 have about the same size and opposite signs, and the others
 * are a third of these at random. Every other row has a last block of zeros and one number. */
static void make_rows(rows *r, float largest) {
  static float noise[TOKENS][DIM];
  test_fill(noise[0], TOKENS * DIM, 3);
  for (int t = 0; t < TOKENS; t++) {
    const float size = largest * ldexpf(1, -(t % 50));
    for (int d = 0; d < DIM; d++) r->x[t][d] = size * noise[t][d] * (t % 3 ? 1.0f : 0.3f);
    r->x[t][5] = size;
    r->x[t][17] = -size * (1 - fabsf(noise[t][17]) / 16);
    for (int d = 97; d < DIM && t % 2; d++) r->x[t][d] = 0;
    r->factor[t] = size * (t % 4 ? 0x1p-7f : 0.02f) * (1 + fabsf(noise[t][0])); /* some are too small for the row */
  }
}

/* The largest error over its bound, of rows that are expected `nudge` times their bound of error away from those appended.
 */
static double worst_of(attn_dtype dtype, factors with, const rows *r, double nudge, const char *tier) {
  static _Alignas(4) unsigned char cache[TOKENS * STORED * sizeof(float)];
  static float made[TOKENS];
  double worst = 0;
  attn_kv_append_args args = ATTN_STRUCT(attn_kv_append_args, .batch = 1, .tokens = TOKENS, .heads_kv = 1, .dim_qk = DIM,
                                         .dim_v = 1, .k = r->x, .k_cache = cache, .cache_dtype = dtype, .capacity = TOKENS,
                                         .k_cache_stride = {TOKENS * STORED, 0, STORED, 1});
  args.k_scale = with == GIVEN ? r->factor : NULL;
  args.k_scale_stride = (attn_strides){.s = with == GIVEN};
  args.k_scale_cache = with == MADE ? made : NULL;
  if (with == MADE) args.k_scale_stride = (attn_strides){TOKENS, TOKENS, 1, 1};
  test_ok(attn_kv_append(&args, &ATTN_STRUCT(attn_options, .max_isa = tier)));
  for (int t = 0; t < TOKENS; t++) {
    double expected[DIM], off[DIM], bounds[DIM];
    const bench_cached how = {dtype, with == MADE, with == GIVEN ? r->factor[t] : 1};
    const double factor = with == MADE ? (double)made[t] : (double)how.factor;
    for (int d = 0; d < DIM; d++) {
      off[d] = nudge * fabs((double)r->x[t][d]);
      expected[d] = (double)r->x[t][d] + ((d + t) % 2 ? off[d] : -off[d]);
    }
    bench_cached_bounds(&how, expected, nudge > 0 ? off : NULL, DIM, bounds);
    for (int d = 0; d < DIM; d++) {
      const double error = fabs(factor * attn_oracle_load(cache, dtype, t * STORED + d) - expected[d]);
      if (!(error <= bounds[d]))
        fail_msg("%s: type %d, factors %d: [%d][%d] is off by %g, %g of the bound", tier, (int)dtype, (int)with, t, d, error,
                 error / bounds[d]);
      if (error > worst * bounds[d]) worst = error / bounds[d];
    }
  }
  return worst;
}

TEST(appended_rows_are_within_the_bound_and_near_it) {
  static const struct {
    attn_dtype dtype;
    float largest; /* number of the rows */
    factors with;
  } cases[] = {{ATTN_F16, 100, NONE},
               {ATTN_BF16, 100, NONE},
               {ATTN_I8, 100, NONE},
               {ATTN_I8, 300, NONE} /* saturates */,
               {ATTN_I8, 100, GIVEN},
               {ATTN_I8, 100, MADE},
               {ATTN_I8, 0x1p-90f, MADE} /* factors that become 0 */,
               {ATTN_F8_E4M3, 400, NONE},
               {ATTN_F8_E4M3, 100, GIVEN},
               {ATTN_F8_E4M3, 100, MADE},
               {ATTN_F8_E5M2, 50000, NONE},
               {ATTN_F8_E5M2, 100, GIVEN},
               {ATTN_F8_E5M2, 100, MADE},
               {ATTN_Q8_0, 100, NONE},
               {ATTN_Q8_0, 1e6f, NONE},
               {ATTN_Q8_0, 100, GIVEN},
               {ATTN_Q4_0, 100, NONE},
               {ATTN_Q4_0, 1e5f, NONE},
               {ATTN_Q4_0, 100, GIVEN}};
  static const char *const tiers[] = {"c", NULL};
  static rows r;
  for (size_t i = 0; i < 2 * COUNT(cases); i++) {
    const attn_dtype dtype = cases[i / 2].dtype;
    make_rows(&r, cases[i / 2].largest);
    const double worst = worst_of(dtype, cases[i / 2].with, &r, 0, tiers[i % 2]);
    if (!(worst > 0.9)) fail_msg("case %zu: the largest error is %g of the bound", i / 2, worst);
    (void)worst_of(dtype, cases[i / 2].with, &r, 0x1p-12, tiers[i % 2]);
    (void)worst_of(dtype, cases[i / 2].with, &r, 0x1p-5, tiers[i % 2]);
  }
}

/* Where rows are known exactly, a row of floats in a cache of floats has no error. */
TEST(floats_have_no_error) {
  static rows r;
  make_rows(&r, 100);
  double row[DIM], bounds[DIM];
  for (int d = 0; d < DIM; d++) row[d] = (double)r.x[1][d];
  bench_cached_bounds(&(bench_cached){ATTN_F32, false, 1}, row, NULL, DIM, bounds);
  for (int d = 0; d < DIM; d++) assert_true(bounds[d] == 0);
}
