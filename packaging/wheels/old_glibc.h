/* SPDX-License-Identifier: MIT */
/* For wheels: asks for the oldest version of functions that glibc gave a new one, so that a library built on a new system
 * loads on an old one. packaging/wheels/wheels.sh includes it in every file.
 *
 * Versions of 2.34 moved the threads and dlopen() into libc.so itself, 2.32 did so with pthread_sigmask(), and 2.29 gave
 * exp, log and pow without the error handling of SVID; the functions are the same. */
#ifdef __x86_64__
#define ATTN_GLIBC "GLIBC_2.2.5"
#else
#define ATTN_GLIBC "GLIBC_2.17"
#endif
#define ATTN_OLD(function) __asm__(".symver " #function "," #function "@" ATTN_GLIBC);
ATTN_OLD(dladdr)
ATTN_OLD(dlerror)
ATTN_OLD(dlopen)
ATTN_OLD(dlsym)
ATTN_OLD(pthread_create)
ATTN_OLD(pthread_join)
ATTN_OLD(pthread_mutex_trylock)
ATTN_OLD(pthread_once)
ATTN_OLD(pthread_sigmask)
ATTN_OLD(exp)
ATTN_OLD(log)
ATTN_OLD(pow)
#undef ATTN_OLD
#undef ATTN_GLIBC
