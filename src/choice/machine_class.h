/* SPDX-License-Identifier: MIT */
/* Which class of CPUs this one belongs to (kernels/machines): the class whose costs say best how long some kernels take
 * here. */
#ifndef ATTN_MACHINE_CLASS_H
#define ATTN_MACHINE_CLASS_H

#include "src/choice/tuning.h"

typedef struct attn_class {
  const attn_tuning *costs;
  double distance; /* distance of its costs from the times of kernels here: the standard deviation of the logarithm of their
                      ratios; 0 if nothing was timed */
  bool named;      /* ATTN_MACHINE names it */
  bool adjusted;   /* costs are those of the class times a factor for each tier, by what was timed here */
} attn_class;

/* The class whose costs the built-in choice takes: that of ATTN_MACHINE, or the nearest. Found once per process, in a few
 * milliseconds. Fails if no class is called as ATTN_MACHINE says, or for lack of memory. The floating-point mode must be the
 * default one. */
attn_status attn_class_here(const attn_class **found);

/* Fails if no class is called as ATTN_MACHINE says; times nothing. For plans that need no costs. */
attn_status attn_class_check_name(void);

/* attn_machine.prefetch: what that class says. K and V are always prefetched once where no class can be found. */
attn_prefetch attn_class_prefetch(void);

/* attn_machine.caches: those of that class. */
attn_caches attn_class_caches(void);

/* The nearest class that is not called `without` (NULL: of all). Its costs may be overwritten by the next call. */
attn_status attn_class_nearest(const char *without, attn_class *found);

#endif
