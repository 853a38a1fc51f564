/* SPDX-License-Identifier: MIT */
/* In which order the kernels of a case run in each round. */
#ifndef BENCH_ORDER_H
#define BENCH_ORDER_H

#include <stdbool.h>
#include <stdint.h>

/* The orders of n rounds: row r of square[n][n] is the order of round r. Every kernel stands once in every place; for even n it
 * also follows every other kernel equally often. Blocks are shuffled independently. False if memory is short. */
bool bench_latin_square(int *square, int n, uint64_t seed, int block);

#endif
