/* SPDX-License-Identifier: MIT */
/* libattn_peak: what this machine can do at most, measured from inside another program's process. scripts/peers loads it beside
 * libattn, so that a rival's rate too is a share of a peak timed in the same process and the same round. */
#ifndef PEAK_LIBRARY_H
#define PEAK_LIBRARY_H

#include <stddef.h>

#define PEAK_API __attribute__((visibility("default")))

/* The multiply-add loop of the highest tier that this CPU runs, for inputs of `dtype` ("f32", "bf16", "f16"; where the tier has no
 * loop of its own for them, its f32 loop), in slices of about slice_ns on `threads` threads at once. NULL without memory or without
 * a loop; free it with peak_close. */
typedef struct peak_meter peak_meter;
PEAK_API peak_meter *peak_open(const char *dtype, int threads, double slice_ns);
PEAK_API void peak_close(peak_meter *meter);

/* "avx2 f32: fma, 256 bit"; valid as long as the meter. */
PEAK_API const char *peak_name(const peak_meter *meter);

/* Flop/s of all threads together in one slice. */
PEAK_API double peak_rate(const peak_meter *meter);

/* Bytes/s at which `threads` threads together read data[0..bytes), in equal parts, with the widest loads of this CPU. data is
 * aligned to 64. Up to threads * 1024 bytes at the end are left out, and not counted; 0 if nothing is left or no loop is there. */
PEAK_API double peak_read_rate(const void *data, size_t bytes, int threads);

#endif
