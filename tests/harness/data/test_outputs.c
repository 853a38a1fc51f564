/* SPDX-License-Identifier: MIT */
/* Tests of the look at a kernel's output: it covers every byte of guards and gaps, and the hash every element. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "data/generate.h"
#include "data/tensors.h"
#include "tests/support/layer_support.h"

static bench_tensors open_tensors(const char *id) {
  const bench_case bench = valid_case(id);
  bench_tensors tensors;
  assert_true(bench_tensors_create(&bench, &tensors));
  bench_tensors_poison_output(&tensors, 0xff, 1);
  assert_null(bench_tensors_damage(&tensors));
  return tensors;
}

/* One byte that differs is found, and the sentence says where. */
static void expect_damage(bench_tensors *tensors, unsigned char *byte, const char *where) {
  *byte ^= 1;
  test_contains(bench_tensors_damage(tensors), where);
  *byte ^= 1;
}

TEST(every_byte_of_a_guard_is_looked_at) {
  bench_tensors tensors = open_tensors("heads:2/seq:5/head_dim:8/lse:on");
  for (int i = 0; i < BENCH_TENSORS; i++) {
    const bench_buffer *t = &tensors.buffers[i];
    char where[100];
    for (size_t n = 0; t->present && n < t->guard_before; n += n + 1 < t->guard_before ? t->guard_before - 1 : 1) {
      snprintf(where, sizeof where, "%s: guard before the tensor overwritten, %zu bytes ahead", t->name,
               t->guard_before - n);
      expect_damage(&tensors, t->data - t->guard_before + n, where);
    }
    for (size_t n = 0; t->present && n < t->guard_after; n += n + 1 < t->guard_after ? t->guard_after - 1 : 1) {
      snprintf(where, sizeof where, "%s: guard after the tensor overwritten at byte %zu", t->name, n);
      expect_damage(&tensors, t->data + t->bytes + n, where);
    }
  }
  assert_null(bench_tensors_damage(&tensors));
  bench_tensors_destroy(&tensors);
}

/* Every input is hashed, and no output. */
TEST(every_input_is_hashed) {
  bench_tensors tensors = open_tensors("batch:2/heads:2/seq:5/head_dim:8/lse:on/bias:full/mask:random/sinks:on/alibi:on");
  const uint64_t before = bench_tensors_input_hash(&tensors);
  int inputs = 0;
  for (int i = 0; i < BENCH_TENSORS; i++) {
    bench_buffer *t = &tensors.buffers[i];
    for (size_t n = 0; t->present && n < t->bytes; n++) {
      t->data[n] ^= 1;
      assert_int_equal(bench_tensors_input_hash(&tensors) != before, !t->output);
      t->data[n] ^= 1;
    }
    inputs += t->present && !t->output;
  }
  assert_int_equal(inputs, 7);
  assert_true(bench_tensors_input_hash(&tensors) == before);
  bench_tensors_destroy(&tensors);
}

static void set_output(bench_tensors *tensors, int64_t n, double value) {
  bench_store(tensors->args.o, tensors->problem.dtype_o, n, value);
}

/* An output that follows V has the same hash, in each type; zeros and NaN have no sign. One other value is noticed. */
TEST(hashes_do_not_depend_on_the_factor_of_v) {
  static const char *const ids[] = {"heads:2/seq:19/head_dim:8", "heads:2/seq:19/head_dim:8/dtype:f16",
                                    "heads:2/seq:19/head_dim:8/dtype:bf16"};
  enum { ELEMENTS = 2 * 19 * 8 };
  for (size_t i = 0; i < COUNT(ids); i++) {
    bench_tensors tensors = open_tensors(ids[i]);
    uint64_t hash = 0;
    for (int step = 0; step < 7; step++) {
      const double factor = bench_v_factor(&tensors);
      for (int64_t n = 0; n < ELEMENTS; n++) set_output(&tensors, n, factor * (double)(n % 100 - 50) / 16);
      set_output(&tensors, 7, factor * NAN);
      if (!step) hash = bench_tensors_output_hash(&tensors);
      assert_true(bench_tensors_output_hash(&tensors) == hash);
      for (int64_t n = 0; n < ELEMENTS; n += ELEMENTS - 1) {
        const double right = attn_oracle_load(tensors.args.o, tensors.problem.dtype_o, n);
        set_output(&tensors, n, right * 1.125);
        assert_true(bench_tensors_output_hash(&tensors) != hash);
        set_output(&tensors, n, -right);
        assert_true(bench_tensors_output_hash(&tensors) != hash);
        set_output(&tensors, n, NAN);
        assert_true(bench_tensors_output_hash(&tensors) != hash);
        set_output(&tensors, n, right);
      }
      bench_tensors_renew_v(&tensors, 1);
    }
    bench_tensors_destroy(&tensors);
  }
}

/* V changes by powers of two, too, where they are exact: not in float16, whose numbers of normal size are few, nor beside
 * sinks; and not where V holds numbers near the ends of float32. */
TEST(v_changes_by_powers_of_two_where_they_are_exact) {
  static const struct {
    const char *id;
    float first;
    int factor;
  } cases[] = {{"heads:1/seq:3/head_dim:8", 1, -2},
               {"heads:1/seq:3/head_dim:8", 0, -2},
               {"heads:1/seq:3/head_dim:8", 0x1p-60f, -2},
               {"heads:1/seq:3/head_dim:8", -0x1p60f, -2},
               {"heads:1/seq:3/head_dim:8", -0x1.fp-61f, -1},
               {"heads:1/seq:3/head_dim:8", 0x1.1p60f, -1},
               {"heads:1/seq:3/head_dim:8/dtype:bf16", 0, -2},
               {"heads:1/seq:3/head_dim:8/dtype:bf16", 0x1p127f, -1},
               {"heads:1/seq:3/head_dim:8/dtype:f16", 0, -1},
               {"heads:1/seq:3/head_dim:8/dtype:f32+f16+f32", 0, -1},
               {"heads:1/seq:3/head_dim:8/sinks:on", 1, -1}};
  for (size_t i = 0; i < COUNT(cases); i++) {
    bench_tensors tensors = open_tensors(cases[i].id);
    uint16_t *half = (uint16_t *)(uintptr_t)tensors.args.v;
    if (tensors.problem.dtype_kv == ATTN_F32) *(float *)(uintptr_t)tensors.args.v = cases[i].first;
    for (int n = 0; n < 24 && tensors.problem.dtype_kv == ATTN_F16; n++) half[n] = 0x3c00;
    if (tensors.problem.dtype_kv == ATTN_BF16) half[5] = 0x3fc0, half[6] = cases[i].first > 1 ? 0x7f00 : 0; /* 1.5, 2^127 */
    float before, after;
    memcpy(&before, half + 22, sizeof before); /* element 11 of float32 */
    bench_tensors_renew_v(&tensors, 1);
    memcpy(&after, half + 22, sizeof after);
    if ((int)bench_v_factor(&tensors) != cases[i].factor) fail_msg("case %zu: %g", i, bench_v_factor(&tensors));
    if (tensors.problem.dtype_kv == ATTN_F32) assert_true(after == (float)cases[i].factor * before);
    if (tensors.problem.dtype_kv == ATTN_F16) assert_int_equal(half[23], 0xbc00);
    if (tensors.problem.dtype_kv == ATTN_BF16) assert_int_equal(half[5], cases[i].factor == -2 ? 0xc040 : 0xbfc0);
    assert_null(bench_tensors_damage(&tensors));
    bench_tensors_destroy(&tensors);
  }
}

/* No two changes in a row leave V as it was, nor do three: signs alternate, and powers of two come in turns of three. */
TEST(v_changes_in_turns_of_six) {
  static const int factors[] = {-2, 4, -1, 2, -4, 1, -2}, signs[] = {-1, 1, -1, 1, -1, 1, -1};
  for (int half = 0; half < 2; half++) {
    bench_tensors tensors = open_tensors(half ? "heads:1/seq:3/head_dim:8/dtype:f16" : "heads:1/seq:3/head_dim:8");
    const float first = *(const float *)tensors.args.v;
    assert_true(bench_v_factor(&tensors) == 1);
    for (size_t n = 0; n < COUNT(factors); n++) {
      bench_tensors_renew_v(&tensors, 1);
      assert_true(bench_v_factor(&tensors) == (half ? signs : factors)[n]);
      if (!half) assert_true(*(const float *)tensors.args.v == (float)factors[n] * first);
    }
    bench_tensors_destroy(&tensors);
  }
}
