/* SPDX-License-Identifier: MIT */
/* CPU features and tiers. CPUID leaves and XCR0 bits: Intel SDM vol. 1, ch. 13-14 and vol. 2A, "CPUID". */
#define _GNU_SOURCE
#include "src/registry/cpu.h"

#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "attn/attn.h"
#include "src/api/text.h"
#include "src/registry/tiers.h"

#if defined(__x86_64__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif

enum { XCR0_AVX = 0x6, XCR0_AVX512 = 0xe6, XCR0_AMX = 0x60000 };
enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };

static uint64_t read_xcr0(void) {
  uint32_t low, high;
  __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
  return (uint64_t)high << 32 | low;
}

static bool all_set(uint64_t value, uint64_t bits) { return (value & bits) == bits; }

/* Linux allows tile data on request only (arch_prctl(2), since 5.16). The permission holds for the whole process, and from
 * then on Linux refuses small signal stacks to it. So we ask only when a plan is about to use the unit. */
static bool request_tiles(void) {
#ifdef ATTN_EMULATE_AVX512
  return true;
#elif defined(__linux__)
  return syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
  return false; /* detect_features() has found none */
#endif
}

#define AVX512_BITS (bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | 1u << 31 /* VL */)

/* The bits of each feature. */
static const struct {
  uint32_t feature;
  attn_cpuid needs;
} x86_features[] = {{CPU_AVX2, {.xcr0 = XCR0_AVX, .leaf7_b = bit_AVX2}},
                    {CPU_FMA, {.xcr0 = XCR0_AVX, .leaf1_c = bit_FMA}},
                    {CPU_F16C, {.xcr0 = XCR0_AVX, .leaf1_c = bit_F16C}},
                    {CPU_AVX512, {.xcr0 = XCR0_AVX512, .leaf7_b = AVX512_BITS}},
                    {CPU_AVX512_VNNI, {.xcr0 = XCR0_AVX512, .leaf7_b = AVX512_BITS, .leaf7_c = 1u << 11}},
                    {CPU_AVX512_BF16, {.xcr0 = XCR0_AVX512, .leaf7_b = AVX512_BITS, .leaf7_1_a = 1u << 5}},
                    {CPU_AMX_BF16, {.xcr0 = XCR0_AMX, .leaf7_d = 1u << 22 /* AMX-BF16 */ | 1u << 24 /* AMX-TILE */}}};

uint32_t attn_features_of_cpuid(const attn_cpuid *has) {
  uint32_t features = 0;
  for (size_t i = 0; i < sizeof x86_features / sizeof *x86_features; i++) {
    const attn_cpuid *needs = &x86_features[i].needs;
    if (all_set(has->xcr0, needs->xcr0) && all_set(has->leaf1_c, needs->leaf1_c) && all_set(has->leaf7_b, needs->leaf7_b) &&
        all_set(has->leaf7_c, needs->leaf7_c) && all_set(has->leaf7_d, needs->leaf7_d) &&
        all_set(has->leaf7_1_a, needs->leaf7_1_a))
      features |= x86_features[i].feature;
  }
  return features;
}

static attn_cpuid read_cpuid(void) {
  attn_cpuid has = {0};
  uint32_t a, b, c, d;
  __cpuid(1, a, b, has.leaf1_c, d);
  if (!(has.leaf1_c & bit_OSXSAVE)) return has; /* every feature needs a bit of xcr0 */
  has.xcr0 = read_xcr0();
  if (__get_cpuid_count(7, 0, &a, &has.leaf7_b, &has.leaf7_c, &has.leaf7_d) && a >= 1)
    __cpuid_count(7, 1, has.leaf7_1_a, b, c, d);
  return has;
}

static uint32_t detect_features(void) {
  const attn_cpuid has = read_cpuid();
  const uint32_t features = attn_features_of_cpuid(&has);
#ifdef ATTN_EMULATE_AVX512 /* for tests: the tiers' instructions run as AVX2 */
  if (features & CPU_AVX2) return features | CPU_AVX512 | CPU_AVX512_VNNI | CPU_AVX512_BF16 | CPU_AMX_BF16;
#endif
#ifdef __linux__
  return features;
#else /* Windows 11 grants tiles by a function of its own, which this library does not call */
  return features & ~(uint32_t)CPU_AMX_BF16;
#endif
}
#elif defined(__aarch64__)
#include <sys/auxv.h>

enum { HWCAP2_BF16_BIT = 1 << 14 }; /* Linux, Documentation/arch/arm64/elf_hwcaps.rst; older headers lack it */

/* Advanced SIMD is part of the base architecture. */
static uint32_t detect_features(void) { return CPU_NEON | (getauxval(AT_HWCAP2) & HWCAP2_BF16_BIT ? CPU_NEON_BF16 : 0); }
static bool request_tiles(void) { return false; }
#else
static uint32_t detect_features(void) { return 0; }
static bool request_tiles(void) { return false; }
#endif

uint32_t attn_cpu_features(void) {
  static _Atomic uint32_t cached; /* bit 31: detected */
  uint32_t features = atomic_load(&cached);
  if (!features) {
    features = detect_features() | 1u << 31;
    atomic_store(&cached, features);
  }
  return features & ~(1u << 31);
}

/* ---- Tiers ---- */

typedef struct tier {
  const char *isa;
  uint32_t features;
  double flops;
} tier;

#define ATTN_TIER(isa, folder, architecture, flags, features, flops) ATTN_IF_##architecture({#isa, features, flops}, )
static const tier tiers[] = {
#include "kernels/tiers.def"
};
#undef ATTN_TIER

enum { TIER_COUNT = sizeof tiers / sizeof *tiers };

int attn_tier_find(const char *isa) {
  for (int i = 0; i < TIER_COUNT; i++)
    if (strcmp(tiers[i].isa, isa) == 0) return i;
  return -1;
}

const char *attn_tier_isa(int index) { return index >= 0 && index < TIER_COUNT ? tiers[index].isa : NULL; }

double attn_tier_flops(int index) {
  assert(index >= 0 && index < TIER_COUNT);
  return tiers[index].flops;
}

void attn_append_features(uint32_t features, char *text, size_t bytes) {
  static const char *const names[] = {"AVX2",        "FMA",      "F16C", "AVX-512 F/BW/DQ/VL", "AVX512-VNNI",
                                      "AVX512-BF16", "AMX-BF16", "NEON", "BF16 on NEON"};
  for (size_t i = 0; i < sizeof names / sizeof *names; i++)
    if (features & 1u << i) attn_append(text, bytes, ", ", names[i]);
}

static _Atomic uint32_t refused; /* features that the operating system has refused to this process */

const char *attn_tier_unusable(int index, const char *cap) {
  static _Thread_local char reason[200];
  assert(index >= 0 && index < TIER_COUNT);
  const uint32_t missing = tiers[index].features & ~(attn_cpu_features() & ~atomic_load(&refused));
  const bool capped = cap && index > attn_tier_find(cap);
  if (missing) {
    char names[120] = "";
    attn_append_features(missing, names, sizeof names);
    snprintf(reason, sizeof reason, "this CPU or its operating system lacks %s", names);
    return reason;
  }
  if (capped) {
    snprintf(reason, sizeof reason, "tier %s is above the cap '%s'", tiers[index].isa, cap);
    return reason;
  }
  return NULL;
}

bool attn_tier_is_free(int index) {
  assert(index >= 0 && index < TIER_COUNT);
  return !(tiers[index].features & CPU_AMX_BF16);
}

const char *attn_tier_claim(int index) {
  if (attn_tier_is_free(index) || request_tiles()) return NULL;
  if (errno == ENOSPC)
    return "the operating system grants AMX only to processes with larger signal stacks (sigaltstack) than this one's";
  atomic_fetch_or(&refused, CPU_AMX_BF16);
  return attn_tier_unusable(index, NULL);
}

const char *attn_tier_best(void) {
  const char *best = tiers[0].isa;
  for (int i = 1; i < TIER_COUNT; i++)
    if (!attn_tier_unusable(i, NULL)) best = tiers[i].isa;
  return best;
}

static void write_cpu_tiers(char *text, size_t bytes) {
  for (int i = 0; i < TIER_COUNT; i++)
    if (!attn_tier_unusable(i, NULL)) attn_append(text, bytes, " ", tiers[i].isa);
}

#if defined(__x86_64__)
void attn_x86_model(uint32_t signature, char *text, size_t bytes) {
  const uint32_t base_family = signature >> 8 & 15, base_model = signature >> 4 & 15;
  const uint32_t family = base_family + (base_family == 15 ? signature >> 20 & 255 : 0);
  const uint32_t model = base_model + (base_family == 6 || base_family == 15 ? (signature >> 16 & 15) << 4 : 0);
  snprintf(text, bytes, "family %u model %u stepping %u", (unsigned)family, (unsigned)model, (unsigned)(signature & 15));
}

static void write_model(char *text, size_t bytes) {
  uint32_t a, b, c, d, name[3];
  char model[64];
  __cpuid(0, a, name[0], name[2], name[1]);
  __cpuid(1, a, b, c, d);
  attn_x86_model(a, model, sizeof model);
  snprintf(text, bytes, "%.12s %s", (const char *)name, model);
}
#elif defined(__aarch64__)
/* MIDR_EL1, which Linux reads for programs (Documentation/arch/arm64/cpu-feature-registers.rst). */
static void write_model(char *text, size_t bytes) {
  uint64_t midr = 0;
  if (getauxval(AT_HWCAP) & 1u << 11 /* CPUID */) __asm__ volatile("mrs %0, MIDR_EL1" : "=r"(midr));
  snprintf(text, bytes, "aarch64 midr 0x%llx", (unsigned long long)midr);
}
#else
static void write_model(char *text, size_t bytes) { snprintf(text, bytes, "unknown"); }
#endif

/* The tiers that were detected, which name the CPU. A permission that has been refused since does not change it. */
void attn_cpu_identity(char *text, size_t bytes) {
  write_model(text, bytes);
  attn_append(text, bytes, ", ", "tiers");
  for (int i = 0; i < TIER_COUNT; i++)
    if (!(tiers[i].features & ~attn_cpu_features())) attn_append(text, bytes, " ", tiers[i].isa);
}

const char *attn_cpu_tiers(void) {
  static _Thread_local char text[128];
  if (!*text) write_cpu_tiers(text, sizeof text);
  return text;
}
