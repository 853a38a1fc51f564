/* SPDX-License-Identifier: MIT */
#include "cpu_hints.h"

#ifdef ATTN_EMULATE_AVX512
bool attn_drops_hints(void) { return true; }
bool attn_needs_no_hints(void) { return true; }
#elif defined(__x86_64__)
#include <cpuid.h>
#include <stdatomic.h>
#include <stdint.h>

/* AMD's families: base family Fh and an extended one (AMD's manual, vol. 3, E.3.2). 0 for other CPUs. */
enum { FAMILY_BITS = 0x0ff00f00, FAMILY_19 = 0x00a00f00, FAMILY_1A = 0x00b00f00, ASKED = 1, HAS_AVX512 = 2 };

static uint32_t ask(void) {
  uint32_t a = 0, b = 0, c, d, family;
  if (!__get_cpuid(0, &a, &b, &c, &d) || b != signature_AMD_ebx || !__get_cpuid(1, &a, &b, &c, &d)) return 0;
  family = a & FAMILY_BITS;
  return __get_cpuid_count(7, 0, &a, &b, &c, &d) && b & bit_AVX512F ? family | HAS_AVX512 : family;
}

static uint32_t family_of_amd(void) {
  static _Atomic uint32_t known;
  uint32_t family = atomic_load(&known);
  if (!family) {
    family = ask() | ASKED;
    atomic_store(&known, family);
  }
  return family & ~(uint32_t)ASKED;
}

bool attn_drops_hints(void) { return (family_of_amd() & FAMILY_BITS) == FAMILY_1A; }
bool attn_needs_no_hints(void) { return family_of_amd() == (FAMILY_19 | HAS_AVX512); }
#else
bool attn_drops_hints(void) { return false; }
bool attn_needs_no_hints(void) { return false; }
#endif
