/* SPDX-License-Identifier: MIT */
/* Macros for gcc and clang: unroll a loop, and inline or never inline a function. */
#ifndef ATTN_COMMON_UNROLL_H
#define ATTN_COMMON_UNROLL_H

/* Tests alone run code that is not optimised, or instrumented or emulated (ATTN_FEW_INLINED): there it takes compilers
 * minutes to inline everything. */
#if !defined __OPTIMIZE__ || defined ATTN_FEW_INLINED
#define ALWAYS_INLINE inline
#else
#define ALWAYS_INLINE inline __attribute__((always_inline))
#endif
#define NO_INLINE __attribute__((noinline, unused))
#ifdef __clang__
#define UNROLL    _Pragma("clang loop unroll(full)")
#define UNROLL_4  _Pragma("clang loop unroll_count(4)")
#define NO_UNROLL _Pragma("clang loop unroll(disable) vectorize(disable)")
#else
#define UNROLL    _Pragma("GCC unroll 16")
#define UNROLL_4  _Pragma("GCC unroll 4")
#define NO_UNROLL _Pragma("GCC unroll 1")
#endif

#endif
