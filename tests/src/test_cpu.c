/* SPDX-License-Identifier: MIT */
/* Features and models of CPUs other than this one. Bits: Intel SDM vol. 1, ch. 13-14 and vol. 2A, "CPUID". */
#include "src/registry/cpu.h"

#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include "src/api/text.h"
#include "tests/support/support.h"

/* Each bit has a name of its own, and several are a list of them. */
TEST(features_have_names) {
  char all[200] = "", joined[200] = "";
  for (uint32_t bit = 1; bit <= CPU_NEON_BF16; bit *= 2) {
    char name[40] = "";
    attn_append_features(bit, name, sizeof name);
    assert_true(*name && !strstr(joined, name));
    if (bit == CPU_AMX_BF16) assert_string_equal(name, "AMX-BF16");
    attn_append(joined, sizeof joined, ", ", name);
  }
  attn_append_features(2 * CPU_NEON_BF16 - 1, all, sizeof all);
  assert_string_equal(all, joined);
}

#if defined(__x86_64__)
enum { LEAF_1_C, LEAF_7_B, LEAF_7_C, LEAF_7_D, LEAF_7_1_A, XCR0, REGISTERS };

enum {
  NEEDS_ZMM = CPU_AVX512 | CPU_AVX512_VNNI | CPU_AVX512_BF16,
  NEEDS_YMM = CPU_AVX2 | CPU_FMA | CPU_F16C | NEEDS_ZMM,
  ALL = NEEDS_YMM | CPU_AMX_BF16
};

/* Bits of CPUID, and the features that a CPU lacks without that bit alone. Bits that are not listed cost no feature. */
static const struct {
  int place, bit;
  uint32_t lost;
} bits[] = {{LEAF_1_C, 12, CPU_FMA},
            {LEAF_1_C, 29, CPU_F16C},
            {LEAF_7_B, 5, CPU_AVX2},
            {LEAF_7_B, 16, NEEDS_ZMM},
            {LEAF_7_B, 17, NEEDS_ZMM},
            {LEAF_7_B, 30, NEEDS_ZMM},
            {LEAF_7_B, 31, NEEDS_ZMM},
            {LEAF_7_C, 11, CPU_AVX512_VNNI},
            {LEAF_7_D, 22, CPU_AMX_BF16},
            {LEAF_7_D, 24, CPU_AMX_BF16},
            {LEAF_7_1_A, 5, CPU_AVX512_BF16},
            {XCR0, 1, NEEDS_YMM},
            {XCR0, 2, NEEDS_YMM},
            {XCR0, 5, NEEDS_ZMM},
            {XCR0, 6, NEEDS_ZMM},
            {XCR0, 7, NEEDS_ZMM},
            {XCR0, 17, CPU_AMX_BF16},
            {XCR0, 18, CPU_AMX_BF16}};

static uint32_t features_of(const uint32_t registers[REGISTERS]) {
  return attn_features_of_cpuid(&(attn_cpuid){.leaf1_c = registers[LEAF_1_C],
                                              .leaf7_b = registers[LEAF_7_B],
                                              .leaf7_c = registers[LEAF_7_C],
                                              .leaf7_d = registers[LEAF_7_D],
                                              .leaf7_1_a = registers[LEAF_7_1_A],
                                              .xcr0 = registers[XCR0]});
}

static uint32_t lost_without(int place, int bit) {
  for (size_t i = 0; i < COUNT(bits); i++)
    if (bits[i].place == place && bits[i].bit == bit) return bits[i].lost;
  return 0;
}

TEST(every_feature_has_its_bits) {
  const uint32_t none[REGISTERS] = {0};
  assert_int_equal(features_of(none), 0);
  for (int place = 0; place < REGISTERS; place++)
    for (int bit = 0; bit < 32; bit++) {
      uint32_t has[REGISTERS];
      memset(has, 0xff, sizeof has);
      has[place] &= ~(1u << bit);
      const uint32_t got = features_of(has), expected = ALL & ~lost_without(place, bit);
      if (got != expected) fail_msg("without bit %d of register %d: features 0x%x, not 0x%x", bit, place, got, expected);
    }
}

#ifndef ATTN_EMULATE_AVX512
/* The compiler's own library reads CPUID and XCR0, too. */
TEST(this_cpu_has_what_the_compiler_finds) {
  const uint32_t here = attn_cpu_features();
  assert_int_equal(here >> 31, 0); /* no feature's bit */
  assert_int_equal(!(here & CPU_AVX2), !__builtin_cpu_supports("avx2"));
  assert_int_equal(!(here & CPU_FMA), !__builtin_cpu_supports("fma"));
  assert_int_equal(!(here & CPU_AVX512), !__builtin_cpu_supports("avx512vl"));
  assert_int_equal(!(here & CPU_AVX512_VNNI), !__builtin_cpu_supports("avx512vnni"));
  assert_int_equal(!(here & CPU_AVX512_BF16), !__builtin_cpu_supports("avx512bf16"));
}
#endif

TEST(models_are_read_from_signatures) {
  static const struct {
    uint32_t signature;
    const char *model;
  } cpus[] = {{0x000a06d1, "family 6 model 173 stepping 1"}, /* Granite Rapids */
              {0x000106a5, "family 6 model 26 stepping 5"},  /* Nehalem */
              {0x00b40f40, "family 26 model 68 stepping 0"}, /* Zen 5 */
              {0x00f50f42, "family 30 model 84 stepping 2"}, /* every field */
              {0x00f5058c, "family 5 model 8 stepping 12"}}; /* older families have no further fields */
  for (size_t i = 0; i < COUNT(cpus); i++) {
    char text[64];
    attn_x86_model(cpus[i].signature, text, sizeof text);
    assert_string_equal(text, cpus[i].model);
  }
}

/* Leaf 0 has the vendor in EBX, EDX and ECX, leaf 1 the model in EAX. */
TEST(the_identity_begins_with_vendor_and_model) {
  uint32_t a, b, c, d, vendor[4] = {0};
  char model[64], expected[80], text[256];
  __cpuid(0, a, vendor[0], vendor[2], vendor[1]);
  __cpuid(1, a, b, c, d);
  attn_x86_model(a, model, sizeof model);
  const int length = snprintf(expected, sizeof expected, "%s %s, tiers ", (const char *)vendor, model);
  attn_cpu_identity(text, sizeof text);
  assert_memory_equal(text, expected, (size_t)length);
}
#endif

/* The identity names the CPU and exactly the tiers that a process can use while nothing is refused to it, the best one last.
 */
TEST(the_identity_lists_all_tiers) {
  char text[256];
  attn_cpu_identity(text, sizeof text);
  const char *list = strstr(text, ", tiers");
  assert_non_null(list);
  assert_string_equal(list + strlen(", tiers "), attn_cpu_tiers());
  assert_string_equal(strrchr(list, ' ') + 1, attn_tier_best());
}
