/* SPDX-License-Identifier: MIT */
/* Whether VDPBF16PS pays on this CPU: it does twice the work of a float32 multiply-add on one, half of it on another, and no
 * feature flag tells which. */
#ifndef ATTN_BF16_PROBE_H
#define ATTN_BF16_PROBE_H

/* How many times as fast flash_avx512bf16 computes a small problem as flash_avx512, which widens bf16 to float32. Measured
 * in about a millisecond by the first call, which must not come before both kernels are known to be usable; 0 where memory
 * was short. */
double attn_bf16_gain(void);

#endif
