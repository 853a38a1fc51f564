/* SPDX-License-Identifier: MIT */
/* Which tiers this CPU and its operating system can run. */
#ifndef ATTN_CPU_H
#define ATTN_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Feature bits as tiers.def names them. A bit is set only if the instructions exist and the operating system saves their
 * registers (XCR0). AMX also needs the operating system's permission, for which attn_tier_claim() asks. */
enum {
  CPU_AVX2 = 1 << 0,
  CPU_FMA = 1 << 1,
  CPU_F16C = 1 << 2,
  CPU_AVX512 = 1 << 3, /* F, BW, DQ and VL */
  CPU_AVX512_VNNI = 1 << 4,
  CPU_AVX512_BF16 = 1 << 5,
  CPU_AMX_BF16 = 1 << 6, /* AMX-TILE and AMX-BF16 */
  CPU_NEON = 1 << 7,
  CPU_NEON_BF16 = 1 << 8, /* BFDOT, BFMMLA and BFCVT on Advanced SIMD registers */
};

/* Detected once per process, thread-safe. */
uint32_t attn_cpu_features(void);

/* Appends the names of feature bits, for sentences. */
void attn_append_features(uint32_t features, char *text, size_t bytes);

#if defined(__x86_64__)
/* Answers of CPUID: ECX of leaf 1; EBX, ECX and EDX of leaf 7, EAX of its subleaf 1; and XCR0. All 0 where it says
 * nothing. */
typedef struct attn_cpuid {
  uint32_t leaf1_c, leaf7_b, leaf7_c, leaf7_d, leaf7_1_a;
  uint64_t xcr0;
} attn_cpuid;

/* The feature bits of a CPU, whichever one it is. */
uint32_t attn_features_of_cpuid(const attn_cpuid *has);

/* Writes family, model and stepping of EAX of leaf 1. */
void attn_x86_model(uint32_t signature, char *text, size_t bytes);
#endif

/* Tiers are numbered by their line in tiers.def, low to high within an architecture. -1 if no tier has that name. */
int attn_tier_find(const char *isa);
const char *attn_tier_isa(int tier);

/* NULL if the tier can run here and is not above `cap` (NULL = no cap); else why not. Thread-local text. Asks the operating
 * system for nothing: AMX counts as usable until its permission has been refused. */
const char *attn_tier_unusable(int tier, const char *cap);

/* Asks the operating system for the registers of a usable tier, before its first instruction runs. NULL, or why it refuses;
 * thread-local or static text. The permission for AMX changes the whole process: Linux then refuses small signal stacks. */
const char *attn_tier_claim(int tier);

/* Whether the tier needs no such permission. */
bool attn_tier_is_free(int tier);

/* Flop/s of one core with good kernels of the tier, within a factor of a few. */
double attn_tier_flops(int tier);

/* A line that only this CPU has: vendor, family, model, stepping, tiers. Nothing here decides which code runs: virtual
 * machines may tell anything. */
void attn_cpu_identity(char *text, size_t bytes);

/* The highest tier that this CPU can run; caps do not count. */
const char *attn_tier_best(void);

#endif
