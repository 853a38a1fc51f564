/* SPDX-License-Identifier: MIT */
/* Axes and case ids: every value is read within the bounds of the type that takes it, and an id is the case that it
 * names. */
#include <stdio.h>
#include <string.h>

#include "cases/cases.h"
#include "support.h"

static bool set(const char *assignment, char error[300]) {
  bench_grid grid = {0};
  const bool fine = bench_grid_set(&grid, assignment, error, 300);
  bench_grid_clear(&grid);
  return fine;
}

static void values_beyond_their_type_are_refused(void **state) {
  (void)state;
  static const struct {
    const char *assignment, *part;
  } bad[] = {{"window=9223372036854775807", "at most 2147483647"},
             {"window=4..4294967300", "at most 2147483647"},
             {"offset=4294967300", "at most 2147483647"},
             {"offset=-2147483649", "at least -2147483648"},
             {"seq=4294967297", "at most 2147483647"},
             {"seq=1:4294967297:*2", "at most 2147483647"},
             {"seq=9223372036854775808", "a whole number"},
             {"threads=4294967297", "at most 4096"},
             {"width=4294967297", "at most 2147483647"},
             {"softcap=1e-300", "as float32 holds"},
             {"softcap=1e39", "as float32 holds"},
             {"scale=-1e39", "as float32 holds"},
             {"magnitude=1e-60", "as float32 holds"}};
  for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
    char error[300] = "";
    if (set(bad[i].assignment, error)) fail_msg("%s is taken", bad[i].assignment);
    test_contains(error, bad[i].part);
  }
}

static void values_at_the_bounds_are_taken(void **state) {
  (void)state;
  static const char *const good[] = {"window=2147483647",  "window=..2147483647",  "offset=2147483647",
                                     "offset=-2147483648", "seq=0,2147483647",     "seq=1:2147483647:*2",
                                     "threads=4096",       "softcap=0,-0.0,1e-45", "scale=3.4e38"};
  for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
    char error[300] = "";
    if (!set(good[i], error)) fail_msg("%s", error);
  }
}

static bench_case case_of(const char *id) {
  bench_spec spec;
  bench_case bench;
  char error[300];
  if (!bench_spec_from_id(id, &spec, error, sizeof error)) fail_msg("%s", error);
  bench_case_build(&spec, 1, &bench);
  return bench;
}

/* Sizes that each fit, but whose products do not. */
static void products_of_sizes_do_not_overflow(void **state) {
  (void)state;
  static const char *const ids[] = {"Hq:2147483647/Sq:2147483647/Dv:2147483647/layout:spread",
                                    "B:2147483647/Sq:2147483647/Sk:2147483647/lengths:varlen",
                                    "layer:mha/width:2147483647/heads:1",
                                    "layer:synthesizer-random/Sq:2147483647/Sk:2147483647",
                                    "layer:add-norm/heads:2147483647/Dv:2147483647",
                                    "mask:random/Sq:2147483647/Sk:2147483647"};
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++)
    if (!case_of(ids[i]).invalid[0]) fail_msg("%s is valid", ids[i]);
}

static void an_id_names_its_case(void **state) {
  (void)state;
  static const char *const ids[] = {
      "dtype:f32+bf16/B:2/Hq:6/Hkv:2/Sq:3/Sk:70/D:8/Dv:5/causal:bottom-right/threads:2/window:7..0/softcap:0.5/sinks:on",
      "dtype:bf16+bf16+f32/B:1/Hq:1/Hkv:1/Sq:3/Sk:3/D:8/Dv:8/causal:none/threads:1/align:offset/offset:-4/window:..2",
      "dtype:f32/B:1/Hq:8/Hkv:8/Sq:5/Sk:5/D:64/Dv:64/causal:none/threads:1/lengths:varlen/cache:cold-kv",
      "dtype:f32/B:1/Hq:4/Hkv:4/Sq:5/Sk:5/D:16/Dv:16/causal:none/threads:1/layer:mha/width:64"};
  for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) assert_string_equal(case_of(ids[i]).case_id, ids[i]);
  assert_string_equal(case_of("softcap:0.50/window:08").case_id + strlen(case_of("").case_id), "/window:8..8/softcap:0.5");
}

/* Threads and caches share their data; anything else has data of its own. */
static void the_seed_follows_from_the_data(void **state) {
  (void)state;
  const uint64_t seed = case_of("").seed;
  assert_true(case_of("threads:2").seed == seed && case_of("cache:cold").seed == seed);
  assert_true(case_of("Sq:3").seed != seed && case_of("mask:random").seed != seed && case_of("layer:mha").seed != seed);
}

int main(void) {
  const struct CMUnitTest tests[] = {
      cmocka_unit_test(values_beyond_their_type_are_refused), cmocka_unit_test(values_at_the_bounds_are_taken),
      cmocka_unit_test(products_of_sizes_do_not_overflow), cmocka_unit_test(an_id_names_its_case),
      cmocka_unit_test(the_seed_follows_from_the_data)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
