/* SPDX-License-Identifier: MIT */
#include "kernels/common/memory/cpu_prefetch.h"

#ifdef ATTN_EMULATE_AVX512
bool attn_cpu_drops_prefetches(void) { return true; }
bool attn_cpu_prefetches_alone(void) { return true; }
#elif defined(__x86_64__)
#include <cpuid.h>
#include <stdatomic.h>
#include <stdint.h>

/* AMD's families: base family Fh and an extended one (AMD's manual, vol. 3, E.3.2). 0 for other CPUs. */
enum { FAMILY_BITS = 0x0ff00f00, FAMILY_19 = 0x00a00f00, FAMILY_1A = 0x00b00f00, KNOWN = 1, HAS_AVX512 = 2 };

static uint32_t read_family(void) {
  uint32_t a = 0, b = 0, c, d, family;
  if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || !__get_cpuid(1, &a, &b, &c, &d)) return 0;
  family = a & FAMILY_BITS;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_AVX512F ? family | HAS_AVX512 : family;
}

static uint32_t family_of_amd(void) {
  static _Atomic uint32_t known;
  uint32_t family = atomic_load(&known);
  if (!family) {
    family = read_family() | KNOWN;
    atomic_store(&known, family);
  }
  return family & ~(uint32_t)KNOWN;
}

bool attn_cpu_drops_prefetches(void) { return (family_of_amd() & FAMILY_BITS) == FAMILY_1A; }
bool attn_cpu_prefetches_alone(void) { return family_of_amd() == (FAMILY_19 | HAS_AVX512); }
#else
bool attn_cpu_drops_prefetches(void) { return false; }
bool attn_cpu_prefetches_alone(void) { return false; }
#endif
