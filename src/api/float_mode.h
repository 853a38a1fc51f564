/* SPDX-License-Identifier: MIT */
/* The floating-point mode of a task: round to nearest, denormals kept, exceptions masked. A caller may run with
 * flush-to-zero, another rounding or trapping exceptions; a row's bits must not depend on that, so each task enters the
 * default mode and leaves the thread as it found it. */
#ifndef ATTN_FLOAT_MODE_H
#define ATTN_FLOAT_MODE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>

enum { MXCSR_FLAGS = 0x3f, MXCSR_DEFAULT = 0x1f80 };

/* Returns what attn_float_mode_leave() takes. Writing the register is slow, so it is only done where it changes anything. */
static inline uint64_t attn_float_mode_enter(void) {
  const unsigned mode = _mm_getcsr();
  if ((mode & ~(unsigned)MXCSR_FLAGS) != MXCSR_DEFAULT) _mm_setcsr(MXCSR_DEFAULT);
  return mode;
}

static inline void attn_float_mode_leave(uint64_t mode) {
  if ((mode & ~(uint64_t)MXCSR_FLAGS) != MXCSR_DEFAULT) _mm_setcsr((unsigned)mode);
}
#elif defined(__aarch64__)
static inline uint64_t attn_float_mode_enter(void) {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  if (mode) __asm__ volatile("msr fpcr, xzr");
  return mode;
}

static inline void attn_float_mode_leave(uint64_t mode) {
  if (mode) __asm__ volatile("msr fpcr, %0" : : "r"(mode));
}
#else
static inline uint64_t attn_float_mode_enter(void) { return 0; }
static inline void attn_float_mode_leave(uint64_t mode) { (void)mode; }
#endif

#endif
