/* SPDX-License-Identifier: MIT */
/* The calling thread's floating-point mode: its rounding, whether it flushes denormals to zero, and which exceptions trap. A
 * kernel that changes it and returns changes the results of all that the thread computes afterwards. */
#ifndef BENCH_FLOAT_MODE_H
#define BENCH_FLOAT_MODE_H

#include <stdbool.h>
#include <stdint.h>

#if defined __SSE__                /* two units: the control word of the older one, and MXCSR */
enum { BENCH_MXCSR_FLAGS = 0x3f }; /* tell what has happened; the other bits are the mode */
static inline uint64_t bench_float_mode(void) {
  uint16_t control;
  __asm__ volatile("fnstcw %0" : "=m"(control));
  return (uint64_t)control << 32 | (__builtin_ia32_stmxcsr() & ~(unsigned)BENCH_MXCSR_FLAGS);
}
static inline void bench_set_float_mode(uint64_t mode) {
  const uint16_t control = (uint16_t)(mode >> 32);
  __asm__ volatile("fldcw %0" : : "m"(control));
  __builtin_ia32_ldmxcsr((unsigned)mode);
}
#elif defined __aarch64__
static inline uint64_t bench_float_mode(void) {
  uint64_t mode;
  __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
  return mode;
}
static inline void bench_set_float_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
static inline uint64_t bench_float_mode(void) { return 0; }
static inline void bench_set_float_mode(uint64_t mode) { (void)mode; }
#endif

#define BENCH_OTHER_FLOAT_MODE "leaves the thread with other rounding, or flushing to zero"

/* Whether the mode is still this one. If not, sets it. */
static inline bool bench_keeps_float_mode(uint64_t mode) {
  if (bench_float_mode() == mode) return true;
  bench_set_float_mode(mode);
  return false;
}

#endif
