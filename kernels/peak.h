/* SPDX-License-Identifier: MIT */
/* Peak loops: how fast one core can multiply and add on registers alone. The benchmark shows every kernel's rate as a share
 * of the loop of its tier and dtype, timed in the same process. They are no part of libattn: the target attn_peak_loops has
 * them.
 *
 * kernels/<folder>/peak_<isa>.c defines `const attn_peak_loop attn_peak_<isa>[]`, the loops of a tier, ended by one whose
 * isa is NULL. A tier without that file is measured against the next lower tier's loops. */
#ifndef ATTN_PEAK_H
#define ATTN_PEAK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ATTN_READ_LINE = 64 };

typedef struct attn_peak_loop {
  const char *isa;   /* tier that the loop needs */
  const char *dtype; /* type of its inputs: "f32", "bf16" */
  const char *what;  /* "fma, 512 bit" */
  double flops;      /* per iteration; a multiply-add counts 2 */
  double f32_share;  /* kernels of the tier may make float32 products of these: so much of the rate; 0 = none do */
  void (*run)(int64_t iterations);
  /* Loads `bytes` of data and as many of `beside` (NULL: nothing), both in turns, with the tier's widest loads, and
   * prefetches both `ahead` bytes ahead into level 2 (0: no prefetch). Returns the bitwise or of it all, folded to 64 bits.
   * bytes is a multiple of ATTN_READ_LINE, to which both are aligned. The member is NULL if the tier brings no wider loads
   * than the one below. */
  uint64_t (*read)(const void *data, const void *beside, size_t bytes, size_t ahead);
} attn_peak_loop;

/* All loops of this build, also those that this CPU cannot run; NULL beyond the last. Check attn_peak_usable() before
 * running one. */
const attn_peak_loop *attn_peak_get(int index);

/* Whether this CPU can run the loops of a tier. Asks the operating system for the registers that they need. */
bool attn_peak_usable(const char *isa);

/* The loop that a kernel of this tier and K/V dtype is measured against: the tier's own for that dtype, else the tier's f32
 * loop, else the next lower tier's. NULL if no tier has that name. */
const attn_peak_loop *attn_peak_for(const char *isa, const char *dtype);

#endif
